//! `evaluate`: attaches versioned tests, reward, acceptance and evidence to a sealed node. Invariant:
//! a reward is finite or absent, and a verdict `error` never carries one.

use serde::Serialize;

use crate::id::{AttemptId, EvaluationId, NodeId};
use crate::ops::begin_quiesce::fence;
use crate::ops::{Change, Decision, Reject, Request, Transition};
use crate::policy::Policy;
use crate::record::{
    Attempt, Evaluation, EvaluationClass, Evaluator, EventKind, Evidence, Failure, Json, Node, Purpose,
    Verdict,
};
use crate::state::NodeStatus;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NewEvaluation {
    /// The sealed or terminal node.
    pub node: NodeId,
    /// Who evaluated.
    pub evaluator: Evaluator,
    /// The decision.
    pub verdict: Verdict,
    /// The reward.
    pub reward: Option<f64>,
    /// Further numbers and words.
    pub metrics: Json,
    /// Supporting artifacts.
    pub evidence: Vec<Evidence>,
    /// The attempt that produced the node, when the caller knows; it must be the node's.
    pub attempt: Option<AttemptId>,
    /// The evaluator's own attempt; absent when attached by hand.
    pub run_attempt: Option<AttemptId>,
    /// The epoch of that attempt's lease.
    pub epoch: Option<u64>,
    /// Why there is no verdict.
    pub failure: Option<Failure>,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The node.
    pub node: Node,
    /// Its nearest sealed ancestor, looked up when it is a draft.
    pub last_sealed: Option<NodeId>,
    /// Its group's rules.
    pub policy: Policy,
    /// The evaluator's own attempt.
    pub run: Option<Attempt>,
}

/// Decides.
///
/// # Errors
/// `NotSealed`, `Pruned`, `BadArgument`, `LeaseFenced` for a result that comes after its lease.
pub fn decide(
    snapshot: &Snapshot,
    command: &NewEvaluation,
    request: &Request<'_>,
) -> Result<Decision<Evaluation>, Reject> {
    let node = &snapshot.node;
    match node.status {
        NodeStatus::Sealed | NodeStatus::Terminal => {}
        NodeStatus::Draft => {
            return Err(Reject::NotSealed { node: node.node_id, last_sealed: snapshot.last_sealed });
        }
        NodeStatus::Pruned => return Err(Reject::Pruned { node: node.node_id }),
    }
    check_result(command)?;
    check_attempts(snapshot, command)?;
    let class = if command.run_attempt.is_some() { EvaluationClass::Run } else { EvaluationClass::Attached };
    let counts = match class {
        EvaluationClass::Run => true,
        EvaluationClass::Attached => snapshot.policy.trusted_actors.contains(&request.meta.actor),
    };
    let evaluation = Evaluation {
        evaluation_id: EvaluationId::derive(&request.seed(command.node.as_bytes(), 0)),
        group_id: node.group_id,
        node_id: node.node_id,
        attempt_id: node.attempt_id,
        run_attempt_id: command.run_attempt,
        evaluator: command.evaluator.name.clone(),
        evaluator_version: command.evaluator.version.clone(),
        evaluator_digest: command.evaluator.digest,
        class,
        reward: command.reward,
        verdict: command.verdict.clone(),
        metrics: command.metrics.clone(),
        evidence: command.evidence.clone(),
        failure: command.failure.clone(),
        counts,
        created_at: request.meta.now,
        created_by: request.meta.actor.clone(),
        trace_id: request.meta.trace_id.clone(),
        statement_digest: None,
    };
    let evaluated = Transition {
        evaluation_id: Some(evaluation.evaluation_id),
        ..Transition::of_node(EventKind::Evaluated, node)
    };
    let detail = serde_json::json!({
        "verdict": evaluation.verdict, "reward": evaluation.reward,
        "run_attempt_id": evaluation.run_attempt_id, "counts": counts
    });
    Ok(Decision::new(evaluation.clone())
        .change(Change::InsertEvaluation(Box::new(evaluation)))
        .log(evaluated.detail(detail)))
}

fn check_result(command: &NewEvaluation) -> Result<(), Reject> {
    let bad = |argument, expected: &str, found: String| {
        Err(Reject::BadArgument { argument, expected: expected.to_owned(), found })
    };
    if let Some(reward) = command.reward.filter(|reward| !reward.is_finite()) {
        return bad("reward", "a finite number", reward.to_string());
    }
    if command.verdict.is_error() && command.reward.is_some() {
        return bad("reward", "none with verdict error", format!("{:?}", command.reward));
    }
    if command.verdict.is_error() && command.failure.is_none() {
        return bad("failure", "the class of failure with verdict error", "none".to_owned());
    }
    if let (Some(failure), Some(reward)) = (&command.failure, command.reward)
        && !failure.reward_valid
    {
        return bad(
            "reward",
            "none after such a failure",
            format!("{reward} after {}", failure.class.as_str()),
        );
    }
    if command.evaluator.version.is_empty() || command.evaluator.version.len() > 255 {
        return bad("evaluator_version", "1 to 255 bytes", command.evaluator.version.len().to_string());
    }
    Ok(())
}

fn check_attempts(snapshot: &Snapshot, command: &NewEvaluation) -> Result<(), Reject> {
    if command.attempt.is_some() && command.attempt != snapshot.node.attempt_id {
        return Err(Reject::BadArgument {
            argument: "attempt",
            expected: format!("the attempt that produced {}", snapshot.node.node_id),
            found: format!("{:?}", command.attempt),
        });
    }
    let (Some(id), Some(run)) = (command.run_attempt, &snapshot.run) else { return Ok(()) };
    if run.purpose != Purpose::Evaluate || run.node_id != command.node {
        return Err(Reject::BadArgument {
            argument: "run_attempt",
            expected: format!("an evaluating attempt on {}", command.node),
            found: format!("{id}, for {} on {}", run.purpose.as_str(), run.node_id),
        });
    }
    fence(run, command.epoch)
}
