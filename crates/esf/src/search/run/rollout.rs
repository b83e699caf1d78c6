//! One rollout, carried out: its proposer is asked, its action is taken in a sandbox of its own, what comes of
//! that is sealed, evaluated and completed. Invariants: every step has a key of the rollout's, so a driver
//! that was killed and started again repeats it without a second effect; a rollout ends accepted or void,
//! or stays held for the next driver; a failure is never a reward of zero.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use esf_control::proposer::{Question, Seen};
use esf_control::retry::{Retry, decide};
use esf_core::ops::search::{Complete, Expand, VoidRollout};
use esf_core::policy::Retries;
use esf_core::record::{Evaluation, Json, Node};
use esf_core::search::config::Transpositions;
use esf_core::search::{Position, PositionNumber, RolloutStatus, Stage, Ticket, rules};
use esf_core::{Class, FailureClass, Problem, SearchId};
use esf_store::Store;
use esf_worker::Client;

use super::progress::Tell;
use super::proposer::Proposer;
use super::sandbox::Acted;
use crate::args::ActivateOptions;
use crate::context::Context;
use crate::evaluation::{self, Prepared};
use crate::interrupt;
use crate::search::config;

/// What all rollouts of a run have in common.
pub(super) struct Crew<'a> {
    pub(super) context: &'a Context,
    pub(super) store: &'a Store,
    pub(super) search: SearchId,
    pub(super) config: &'a esf_core::search::Config,
    pub(super) run: &'a config::Run,
    /// Milliseconds that taking an action may last.
    pub(super) apply_timeout_ms: u64,
    pub(super) retries: Retries,
    pub(super) evaluator: &'a Prepared,
    pub(super) options: &'a ActivateOptions,
    pub(super) proposer: &'a Proposer,
    pub(super) tell: &'a Tell,
    pub(super) root: PositionNumber,
    /// How often in this run the evaluation of a position that was there already has failed, since it last went well.
    pub(super) struck: Mutex<HashMap<PositionNumber, u32>>,
    /// The run has broken: what has not begun does not begin.
    pub(super) ending: &'a AtomicBool,
}

/// How a rollout ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It counts; what its value is worth, if it brought one.
    Accepted(Option<f64>),
    /// It came to nothing, and says why.
    Void,
    /// It was given up since the run is ending.
    GivenBack,
}

/// A problem that is this rollout's own: its class, or nothing when the run is ending.
pub(super) fn own_failure(problem: &Problem) -> Option<Option<FailureClass>> {
    match FailureClass::parse(&problem.code) {
        Some(FailureClass::Cancelled) => Some(None),
        Some(class) => Some(Some(class)),
        None => match &*problem.code {
            "not_active" | "every_sandbox_lost" => Some(Some(FailureClass::InfraLost)),
            // Somebody pruned the leaf's node meanwhile.
            "pruned" => Some(Some(FailureClass::InfraPrepare)),
            _ => None,
        },
    }
}

/// One rollout in the hands of one worker's connection.
pub(super) struct Carrier<'a> {
    pub(super) crew: &'a Crew<'a>,
    /// Its idempotency key is the rollout's.
    pub(super) context: Context,
    pub(super) client: &'a mut Option<Client>,
    pub(super) ticket: Ticket,
}

impl<'a> Carrier<'a> {
    pub(super) fn new(crew: &'a Crew<'a>, client: &'a mut Option<Client>, ticket: Ticket) -> Self {
        let context = crew.context.keyed(ticket.rollout.rollout_id.to_string());
        Self { crew, context, client, ticket }
    }

    /// Carries the rollout to its end.
    ///
    /// # Errors
    /// What ends the whole run: a proposer that gives nothing, an evaluator that always breaks, settings that
    /// cannot work, a broken store. The rollout is given back then, as far as the store does that.
    pub(super) fn carry(mut self) -> Result<Ended, Problem> {
        if self.crew.ending.load(Ordering::Acquire) {
            return self.give_back().map(|()| Ended::GivenBack);
        }
        let ended = self.outcome();
        if let Err(problem) = &ended
            && let Err(second) = self.give_back()
        {
            tracing::warn!(%problem, %second, "a rollout stays held");
        }
        ended
    }

    fn give_back(&self) -> Result<(), Problem> {
        let (rollout, reason) = (self.ticket.rollout.rollout_id, "the run was ended".to_owned());
        let command = VoidRollout { rollout, class: None, reason, node: None };
        let given = self.crew.store.graph().void_rollout(&self.context.meta("give-back")?, command);
        given.map(drop).map_err(|error| error.problem())
    }

    fn outcome(&mut self) -> Result<Ended, Problem> {
        let done = self.steps();
        match done {
            // It lapsed, or somebody ended it by hand; the search has it as it says.
            Err(problem) if matches!(&*problem.code, "rollout_void" | "rollout_lapsed" | "rollout_ended") => {
                self.crew.tell.line(&format!("{}: {problem}", self.ticket.rollout.rollout_id));
                Ok(Ended::Void)
            }
            Err(problem) => match own_failure(&problem) {
                Some(Some(class)) => self.void(Some(class), problem.message),
                Some(None) => self.void(None, "the run was ended".to_owned()).map(|_| Ended::GivenBack),
                None => Err(problem),
            },
            done => done,
        }
    }

    fn steps(&mut self) -> Result<Ended, Problem> {
        while self.ticket.rollout.status == RolloutStatus::Selected
            && self.ticket.rollout.stage == Stage::Expand
        {
            self.expand()?;
        }
        match (self.ticket.rollout.status, self.ticket.rollout.stage) {
            (RolloutStatus::Accepted, _) => Ok(Ended::Accepted(None)),
            (RolloutStatus::Void, _) => Ok(Ended::Void),
            (RolloutStatus::Selected, Stage::Visit) => self.visit(),
            (RolloutStatus::Selected, Stage::Expand | Stage::Revisit) => self.revisit(),
        }
    }

    /// Gives the rollout up. What may pass gets the pause of the group's retry policy first: the edge is free for
    /// its next try only then, so a broken worker does not use up every edge's tries at once.
    fn void(&self, class: Option<FailureClass>, reason: String) -> Result<Ended, Problem> {
        let rollout = self.ticket.rollout.rollout_id;
        let name = self.ticket.action_name.as_deref().map_or(String::new(), |name| format!(" ({name})"));
        let shown = class.map_or("given back", FailureClass::as_str);
        self.crew.tell.line(&format!("{rollout}{name}: {shown}: {reason}"));
        let reason: String = reason.chars().take(1000).collect();
        if let Some(class) = class.filter(|_| self.ticket.rollout.stage == Stage::Revisit) {
            self.struck(class, &reason)?;
        } else if let (Some(class), Some(step)) = (class, self.ticket.rollout.path.last()) {
            let edge = self.crew.store.graph().edge(step.edge).map_err(|error| error.problem())?;
            let tries = edge.stats.failures.saturating_add(1);
            if let Retry::Again { after_ms } = decide(class, tries, &self.crew.retries, step.edge.0) {
                interrupt::pause(after_ms);
            }
        }
        let meta = self.context.meta("void")?;
        let command = VoidRollout { rollout, class, reason, node: None };
        self.crew.store.graph().void_rollout(&meta, command).map_err(|error| error.problem())?;
        Ok(Ended::Void)
    }

    /// Counts that the evaluation of a position failed that was there already: no edge is closed for that, so it
    /// would be chosen again and again. Pauses before the next try.
    ///
    /// # Errors
    /// `evaluator_failed` once as many tries have failed as an edge has.
    fn struck(&self, class: FailureClass, reason: &str) -> Result<(), Problem> {
        let leaf = self.ticket.rollout.leaf;
        let tries = {
            let mut struck = self.crew.struck.lock().unwrap_or_else(PoisonError::into_inner);
            let tries = struck.entry(leaf).or_default();
            *tries += 1;
            *tries
        };
        if tries <= self.crew.config.edge_retries {
            if let Retry::Again { after_ms } = decide(class, tries, &self.crew.retries, leaf.0) {
                interrupt::pause(after_ms);
            }
            return Ok(());
        }
        let node = self.ticket.leaf_node_id.map_or_else(|| "NODE".to_owned(), |node| node.to_string());
        let evaluator = self.crew.run.evaluator.display();
        let message = format!(
            "{node} could not be evaluated in {tries} rollouts; at last {}: {reason}",
            class.as_str()
        );
        Err(Problem::new(Class::Failure, "evaluator_failed", message)
            .expected("an evaluator that gives a reward")
            .found(class.as_str())
            .remedy(format!("try it with `esf evaluate {node} --evaluator {evaluator}`"))
            .context(serde_json::json!({ "node_id": self.ticket.leaf_node_id, "class": class })))
    }

    fn position(&self) -> Result<Position, Problem> {
        self.crew.store.graph().position(self.ticket.rollout.leaf).map_err(|error| error.problem())
    }

    fn expand(&mut self) -> Result<(), Problem> {
        let graph = self.crew.store.graph();
        let position = self.position()?;
        let offer = self.crew.proposer.ask(self.question(&position)?)?;
        if offer.merged > 0 {
            let (merged, rollout) = (offer.merged, self.ticket.rollout.rollout_id);
            tracing::info!(%rollout, merged, "actions that the proposer repeated");
        }
        let part = format!("expand/{}/{}", position.stats.number.0, self.ticket.known);
        let command = Expand {
            rollout: self.ticket.rollout.rollout_id,
            candidates: offer.candidates,
            to_move: offer.to_move,
        };
        let expanded = graph.expand(&self.context.meta(&part)?, command);
        self.ticket = expanded.map_err(|error| error.problem())?.ticket;
        Ok(())
    }

    fn question(&self, position: &Position) -> Result<Question, Problem> {
        let graph = self.crew.store.graph();
        let node = match position.node_id {
            Some(node) => Some(graph.node(node).map_err(|error| error.problem())?),
            None => None,
        };
        let evaluation = match position.evaluation_id {
            Some(evaluation) => Some(graph.evaluation(evaluation).map_err(|error| error.problem())?),
            None => None,
        };
        let known = if self.ticket.known == 0 {
            Vec::new()
        } else {
            let edges = graph.edges_of(position.stats.number).map_err(|error| error.problem())?;
            edges.into_iter().map(|edge| edge.action).collect()
        };
        Ok(Question {
            id: 0,
            search_id: self.crew.search,
            node_id: position.node_id,
            root_id: position.root_id,
            logical_state: node.map_or(Json::Null, |node| node.logical_state.value()),
            depth: u32::try_from(self.ticket.actions.len()).unwrap_or(u32::MAX),
            actions: self.ticket.actions.clone(),
            evaluation: evaluation.map(|evaluation| Seen {
                reward: evaluation.reward,
                verdict: evaluation.verdict.to_string(),
                metrics: evaluation.metrics,
            }),
            want: self.ticket.want,
            known,
        })
    }

    fn visit(&mut self) -> Result<Ended, Problem> {
        let node = match self.act()? {
            Acted::Sealed(node) => node,
            Acted::Failed(class, reason) => return self.void(Some(class), reason),
            Acted::GivenBack => {
                return self.void(None, "the run was ended".to_owned()).map(|_| Ended::GivenBack);
            }
        };
        let mut outcome = Complete::of(self.ticket.rollout.rollout_id);
        outcome.node = Some(node.node_id);
        if self.crew.run.reuse && self.crew.config.transpositions != Transpositions::Off {
            match self.complete(outcome.clone()) {
                Ok(ended) => {
                    self.crew.tell.reused();
                    return Ok(ended);
                }
                // It is new.
                Err(problem) if problem.code == "value_missing" => {}
                Err(problem) => return Err(problem),
            }
        }
        self.evaluate_and_complete(&node, outcome)
    }

    fn revisit(&mut self) -> Result<Ended, Problem> {
        let graph = self.crew.store.graph();
        let position = self.position()?;
        let mut outcome = Complete::of(self.ticket.rollout.rollout_id);
        if !rules::wants_value(self.crew.config, &position.stats) {
            return self.complete(outcome);
        }
        let Some(node) = position.node_id else {
            let message = "the positions of this search have no nodes: its states are kept elsewhere";
            return Err(Problem::new(Class::Conflict, "no_node", message)
                .remedy("carry its rollouts out by hand: select, expand, complete"));
        };
        let node = graph.node(node).map_err(|error| error.problem())?;
        if self.crew.run.reuse && position.stats.values == 0 {
            let known = graph.evaluations(node.node_id).map_err(|error| error.problem())?;
            let digest = Some(self.crew.evaluator.digest());
            let usable = |evaluation: &&Evaluation| {
                evaluation.evaluator_digest == digest && evaluation.counts && evaluation.reward.is_some()
            };
            if let Some(evaluation) = known.iter().find(usable) {
                self.crew.tell.reused();
                return self.complete_with(evaluation, outcome);
            }
        }
        outcome.terminal = position.stats.terminal;
        self.evaluate_and_complete(&node, outcome)
    }

    fn evaluate_and_complete(&mut self, node: &Node, outcome: Complete) -> Result<Ended, Problem> {
        let crew = self.crew;
        let mut tries = 0;
        loop {
            // The sealed node is evaluated again; its action is not taken again for that.
            let part = if tries == 0 { "evaluate".to_owned() } else { format!("evaluate/try/{tries}") };
            let evaluation =
                evaluation::evaluate(&self.context, crew.store, node, crew.evaluator, &part, &|_| {})?;
            tries += 1;
            let failure = evaluation.failure.as_ref();
            match failure.map(|failure| decide(failure.class, tries, &crew.retries, u64::from(tries))) {
                Some(Retry::Again { after_ms }) if !interrupt::seen() => interrupt::pause(after_ms),
                _ => return self.complete_with(&evaluation, outcome),
            }
        }
    }

    fn complete_with(&mut self, evaluation: &Evaluation, mut outcome: Complete) -> Result<Ended, Problem> {
        if let Some(failure) = &evaluation.failure {
            return match failure.class {
                FailureClass::Cancelled => {
                    self.void(None, "the run was ended".to_owned()).map(|_| Ended::GivenBack)
                }
                class => self.void(Some(class), format!("evaluation: {}", failure.detail)),
            };
        }
        if evaluation.reward.is_none() {
            let reason = format!("the evaluator gave no reward, but the verdict {}", evaluation.verdict);
            return self.void(Some(FailureClass::EvaluatorError), reason);
        }
        outcome.evaluation = Some(evaluation.evaluation_id);
        outcome.terminal |=
            self.crew.run.terminal.iter().any(|verdict| verdict == evaluation.verdict.as_str());
        self.complete(outcome)
    }

    fn complete(&self, outcome: Complete) -> Result<Ended, Problem> {
        let completed = self.crew.store.graph().complete(&self.context.meta("complete")?, outcome);
        let value = completed.map_err(|error| error.problem())?.rollout.value;
        if self.ticket.rollout.stage == Stage::Revisit {
            self.crew.struck.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.ticket.rollout.leaf);
        }
        if value.is_empty() {
            return Ok(Ended::Accepted(None));
        }
        // It is known once the root was expanded.
        let root = self.crew.store.graph().position(self.crew.root).map_err(|error| error.problem())?;
        Ok(Ended::Accepted(Some(rules::worth(self.crew.config, root.stats.to_move, &value))))
    }
}
