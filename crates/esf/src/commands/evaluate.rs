//! `evaluate`: runs an evaluator file on sealed nodes, or attaches a verdict given by hand. How one is
//! run is `evaluation`'s; here are the words of the command line and what is printed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use esf_core::ops::evaluate::NewEvaluation;
use esf_core::record::{self, Evaluation, Failure, Node, Verdict};
use esf_core::{Class, FailureClass, NodeId, Problem};
use esf_store::Store;
use serde_json::{Value, json};

use super::{find, show};
use crate::args;
use crate::context::Context;
use crate::evaluation::{self, Prepared, Progress, Stage, Task};
use crate::output::{Reply, Table, exit_code, printable};

pub(super) fn evaluate(context: &Context, arguments: &args::Evaluate) -> Result<u8, Problem> {
    let store = context.open()?;
    let Some(file) = &arguments.evaluator else {
        let [node] = &arguments.nodes[..] else {
            let message = "a verdict is attached to one node";
            return Err(Problem::new(Class::Usage, "bad_option", message)
                .expected("one node with --verdict, or --evaluator")
                .found(format!("{} nodes", arguments.nodes.len())));
        };
        let node = find::node(&store, node)?;
        return super::print(context, &attach(context, &store, &node, arguments)?);
    };
    let (mut nodes, mut failed) = (Vec::<Node>::new(), Vec::new());
    for name in &arguments.nodes {
        match find::node(&store, name).and_then(|node| find::sealed_root(&node).map(|_| node)) {
            Ok(node) if nodes.iter().any(|known| known.node_id == node.node_id) => {}
            Ok(node) => nodes.push(node),
            Err(problem) if arguments.nodes.len() == 1 => return Err(problem),
            Err(problem) => failed.push(Failed { node: name.clone(), problem }),
        }
    }
    let prepared = Prepared::read(file)?.repeated(arguments.repeat);
    let asked = Asked { alone: arguments.nodes.len() == 1, runs: prepared.runs(), nodes: &nodes };
    let tasks = asked.tasks();
    let telling = tasks.len() > 1 && !context.quiet;
    let tell = |progress: Progress<'_>| tell(&progress, tasks.len(), telling);
    let parallel = arguments.parallel as usize;
    let answers = evaluation::evaluate_all(context, &store, &prepared, &tasks, parallel, &tell);
    let mut evaluations = Vec::new();
    for (task, answer) in tasks.iter().zip(answers) {
        match answer {
            Ok(evaluation) => evaluations.push(evaluation),
            Err(problem) if tasks.len() == 1 && failed.is_empty() => return Err(problem),
            Err(problem) => failed.push(Failed { node: task.node.node_id.to_string(), problem }),
        }
    }
    let code = super::print(context, &asked.reply(&evaluations, &failed))?;
    for Failed { node, problem } in &failed {
        eprintln!("esf: {}: {} [{}]", printable(node), printable(&problem.message), problem.code);
    }
    Ok(failed.first().map_or(code, |failed| exit_code(&failed.problem)))
}

/// A node that could not be evaluated.
struct Failed {
    node: String,
    problem: Problem,
}

/// What was asked for, and how it is printed.
struct Asked<'a> {
    /// Whether one node was named.
    alone: bool,
    runs: u32,
    nodes: &'a [Node],
}

impl Asked<'_> {
    /// The runs of all nodes, the first of each first: an early end leaves every node with something.
    fn tasks(&self) -> Vec<Task<'_>> {
        let part = |node: &Node, number: u32| match (self.alone, self.runs) {
            (true, 1) => String::new(),
            (true, _) => number.to_string(),
            (false, 1) => node.node_id.to_string(),
            (false, _) => format!("{}/{number}", node.node_id),
        };
        let run = |number| self.nodes.iter().map(move |node| Task { node, part: part(node, number) });
        (0..self.runs).flat_map(run).collect()
    }

    fn reply(&self, evaluations: &[Evaluation], failed: &[Failed]) -> Reply {
        let mut table = Table::new(&["EVALUATION", "NODE", "EVALUATOR", "VERDICT", "REWARD", "FAILURE"]);
        evaluations.iter().for_each(|evaluation| table.row(show::evaluation_row(evaluation)));
        let ids = evaluations.iter().map(|evaluation| evaluation.evaluation_id.to_string()).collect();
        let mut value = json!({ "evaluations": evaluations });
        if self.runs > 1 {
            let of = |node: &Node| {
                let own: Vec<_> = evaluations.iter().filter(|one| one.node_id == node.node_id).collect();
                Statistics::of(node, &own)
            };
            let all: Vec<Statistics> = self.nodes.iter().map(of).collect();
            all.iter().for_each(|statistics| statistics.rows(&mut table));
            match (&all[..], evaluations.last()) {
                ([one], Some(last)) if self.alone => {
                    value["evaluation"] = json!(last);
                    value["reward_mean"] = json!(one.reward.mean());
                    value["reward_variance"] = json!(one.reward.variance());
                    value["metrics"] = one.metrics();
                }
                _ => value["nodes"] = all.iter().map(Statistics::json).collect(),
            }
        } else if let ([one], true) = (evaluations, self.alone) {
            value = json!({ "evaluation": one });
        }
        if !failed.is_empty() {
            let told = |failed: &Failed| json!({ "node": failed.node, "error": failed.problem });
            value["failed"] = failed.iter().map(told).collect();
        }
        Reply { value, table, ids }
    }
}

/// Tells on stderr how far a batch is.
fn tell(progress: &Progress<'_>, tasks: usize, telling: bool) {
    match progress {
        Progress::Stage(Stage::Waiting(before)) if tasks == 1 => super::live::waits(*before),
        Progress::Done(task, answer, done) if telling => {
            let came = match answer {
                Ok(evaluation) => {
                    format!("{} {}", evaluation.verdict, show::optional(&evaluation.reward))
                }
                Err(problem) => problem.code.clone(),
            };
            eprintln!("esf: {done}/{tasks} {} {came}", show::short(&task.node.node_id));
        }
        Progress::Stage(_) | Progress::Done(..) => {}
    }
}

/// Numbers of several runs.
#[derive(Default)]
struct Sample(Vec<f64>);

impl Sample {
    fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// The mean square distance from the mean.
    fn variance(&self) -> Option<f64> {
        let mean = self.mean()?;
        Some(self.0.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / self.0.len() as f64)
    }

    fn json(&self) -> Value {
        json!({ "mean": self.mean(), "variance": self.variance(), "count": self.0.len() })
    }
}

/// What the runs of one node came to; runs without a reward, or without a metric, are not in its numbers.
struct Statistics {
    node: NodeId,
    runs: usize,
    reward: Sample,
    metrics: BTreeMap<String, Sample>,
}

impl Statistics {
    fn of(node: &Node, evaluations: &[&Evaluation]) -> Self {
        let reward = Sample(evaluations.iter().filter_map(|evaluation| evaluation.reward).collect());
        let mut metrics = BTreeMap::<String, Sample>::new();
        for (name, value) in evaluations.iter().filter_map(|one| one.metrics.as_object()).flatten() {
            metrics.entry(name.clone()).or_default().0.extend(value.as_f64());
        }
        Self { node: node.node_id, runs: evaluations.len(), reward, metrics }
    }

    fn metrics(&self) -> Value {
        self.metrics.iter().map(|(name, sample)| (name.clone(), sample.json())).collect()
    }

    fn json(&self) -> Value {
        json!({
            "node_id": self.node, "runs": self.runs, "rewards": self.reward.0.len(),
            "reward_mean": self.reward.mean(), "reward_variance": self.reward.variance(),
            "metrics": self.metrics(),
        })
    }

    fn rows(&self, table: &mut Table) {
        let node = show::short(&self.node);
        for (name, value) in [("mean", self.reward.mean()), ("variance", self.reward.variance())] {
            let reward = show::optional(&value);
            table.row([name.to_owned(), node.clone(), String::new(), String::new(), reward, String::new()]);
        }
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
    let keep = |path: &PathBuf| evaluation::evidence_file(store, path);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_without_numbers_has_no_mean() {
        assert_eq!(Sample::default().json(), json!({ "mean": null, "variance": null, "count": 0 }));
        let sample = Sample(vec![0.0, 1.0]);
        assert_eq!((sample.mean(), sample.variance()), (Some(0.5), Some(0.25)));
    }
}
