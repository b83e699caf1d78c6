//! `evaluate`: runs an evaluator file on sealed nodes, or attaches a verdict given by hand. How one is
//! run is `evaluation`'s; here are the words of the command line and what is printed.

use std::fs;
use std::path::PathBuf;

use esf_core::ops::evaluate::NewEvaluation;
use esf_core::record::{self, Evaluation, Failure, Node, Verdict};
use esf_core::{Class, FailureClass, Problem};
use esf_store::Store;
use serde_json::json;

use super::{find, show};
use crate::args;
use crate::context::{Context, io_problem};
use crate::evaluation::{self, Prepared, Stage};
use crate::output::{Reply, Table};

pub(super) fn evaluate(context: &Context, arguments: &args::Evaluate) -> Result<Reply, Problem> {
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let Some(file) = &arguments.evaluator else { return attach(context, &store, &node, arguments) };
    find::sealed_root(&node)?;
    let prepared = Prepared::read(file)?.repeated(arguments.repeat);
    let runs = prepared.runs();
    let mut evaluations = Vec::new();
    for number in 0..runs {
        let part = if runs == 1 { String::new() } else { number.to_string() };
        evaluations.push(evaluation::evaluate(context, &store, &node, &prepared, &part, &tell)?);
    }
    Ok(summary(&evaluations))
}

fn tell(stage: Stage) {
    match stage {
        Stage::Waiting(before) => super::live::waiting(before),
        Stage::Running(_) => {}
    }
}

fn attach(
    context: &Context,
    store: &Store,
    node: &Node,
    arguments: &args::Evaluate,
) -> Result<Reply, Problem> {
    let bad = |message: String| Problem::new(Class::Usage, "bad_option", message);
    let verdict: Verdict = arguments
        .verdict
        .as_deref()
        .unwrap_or_default()
        .parse()
        .map_err(|error| bad(format!("--verdict: {error}")))?;
    if arguments.reward.is_some_and(|reward| !reward.is_finite()) {
        return Err(bad("--reward: expected a finite number".to_owned()));
    }
    let keep = |path: &PathBuf| {
        let bytes = fs::read(path).map_err(|error| io_problem("read", path, &error))?;
        evaluation::evidence(store, &path.display().to_string(), &bytes)
    };
    let evaluation = NewEvaluation {
        node: node.node_id,
        evaluator: record::Evaluator {
            name: "attached".to_owned(),
            version: arguments.version.clone().unwrap_or_default(),
            digest: None,
        },
        reward: if verdict.is_error() { None } else { arguments.reward },
        failure: verdict
            .is_error()
            .then(|| Failure::new(FailureClass::EvaluatorError, "evaluate", "attached as an error")),
        verdict,
        metrics: json!({}),
        evidence: arguments.evidence.iter().map(keep).collect::<Result<_, _>>()?,
        attempt: None,
        run_attempt: None,
        epoch: None,
    };
    let evaluation =
        store.graph().evaluate(&context.meta("")?, evaluation).map_err(|error| error.problem())?;
    Ok(show::evaluation(&evaluation))
}

/// One evaluation as it is; several with the mean and variance of their rewards.
fn summary(evaluations: &[Evaluation]) -> Reply {
    let [one] = evaluations else {
        let rewards: Vec<f64> = evaluations.iter().filter_map(|evaluation| evaluation.reward).collect();
        let count = rewards.len() as f64;
        let mean = (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / count);
        let variance =
            mean.map(|mean| rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / count);
        let mut table = Table::new(&["EVALUATION", "VERDICT", "REWARD"]);
        for evaluation in evaluations {
            let reward = show::optional(&evaluation.reward);
            table.row([show::short(&evaluation.evaluation_id), evaluation.verdict.to_string(), reward]);
        }
        table.row(["mean".to_owned(), String::new(), show::optional(&mean)]);
        table.row(["variance".to_owned(), String::new(), show::optional(&variance)]);
        let last = evaluations.last();
        let value = json!({ "evaluation": last, "evaluations": evaluations, "reward_mean": mean, "reward_variance": variance });
        return Reply {
            value,
            table,
            ids: evaluations.iter().map(|e| e.evaluation_id.to_string()).collect(),
        };
    };
    show::evaluation(one)
}
