//! The main job on a real tree, shown step by step. Invariant: what it shows is what it runs; each
//! step is the `esf` command that a user would type, run as a program of its own, so the tour cannot
//! do what the command line cannot.

mod plan;
mod step;

use std::path::PathBuf;

use esf_core::{Class, Problem};
use serde_json::Value;

use crate::args;
use crate::context::Context;
use crate::output::Table;
use plan::Plan;
use step::{Outcome, Stepper};

/// One child of the tour: the agent that worked on it and what came of it.
struct Child {
    agent: String,
    node: String,
    sealed: Option<Sealed>,
    verdict: String,
    reward: Option<f64>,
    run_attempt: Option<String>,
}

struct Sealed {
    node: String,
    changed: Value,
}

impl Sealed {
    /// Whether anything is different from the parent.
    fn changes(&self) -> bool {
        ["added", "modified", "deleted"].iter().any(|key| self.changed[key].as_u64() != Some(0))
    }
}

/// Runs the tour.
pub(crate) fn run(context: &Context, arguments: &args::Quickstart) -> Result<u8, Problem> {
    let plan = Plan::make(context, arguments)?;
    let mut steps = Stepper::new(context)?;
    steps.say(&format!(
        "The store is {}; the tour works on {}.",
        context.dir().display(),
        plan.tree.display()
    ));

    let (group, generation) = create_group(&mut steps, &plan)?;
    let mut children = fork(&mut steps, &plan, &group)?;
    work(&mut steps, &plan, &mut children)?;
    evaluate(&mut steps, &plan, &mut children)?;
    show_scores(&mut steps, &children)?;

    let best = best(&mut steps, &children)?;
    let (best, changed) = (best.node.clone(), best.changes());
    let losers: Vec<&str> = others(&children, &best);
    promote(&mut steps, &best, generation, losers.first().copied())?;
    let patch = if changed { Some(export(&mut steps, &plan, &group, &best)?) } else { None };
    clean_up(&mut steps, &losers)?;
    match patch {
        Some(patch) => steps.say(&format!("\nDone. The winning change is in {}.", patch.display())),
        None => steps.say("\nDone. The winner changed nothing, so there is no patch."),
    }
    steps.say(&format!(
        "Go on with `{} log {group}:@`, `… diff {group}:@` or `… inspect {group}`.",
        steps.program()
    ));
    Ok(0)
}

fn create_group(steps: &mut Stepper<'_>, plan: &Plan) -> Result<(String, u64), Problem> {
    steps.title(
        "Import the tree as an immutable root, and make a group on it (at most two sandboxes live at once)",
    );
    let (group, reply) = loop {
        let group = steps.free_name("quickstart")?;
        let outcome = steps.esf_any(&[
            "group".into(),
            "create".into(),
            group.clone().into(),
            "--from".into(),
            plan.tree.clone().into(),
            "--policy".into(),
            plan.policy.clone().into(),
            "--skip-special".into(),
        ])?;
        match (outcome.code, outcome.reply["error"]["code"].as_str()) {
            (0, _) => break (group, outcome.reply),
            // Another tour was quicker.
            (_, Some("name_taken")) => {}
            (code, _) => return Err(step::failed("the import", code, &outcome.reply)),
        }
    };
    let generation =
        reply["group"]["generation"].as_u64().ok_or_else(|| step::surprise("generation", &reply))?;
    Ok((group, generation))
}

fn fork(steps: &mut Stepper<'_>, plan: &Plan, group: &str) -> Result<Vec<Child>, Problem> {
    steps.title("Fork one draft for each agent: a row each, no byte copied");
    let count = plan.agents.len().to_string();
    let reply = steps.esf(&["fork".into(), format!("{group}:@").into(), "-n".into(), count.into()])?;
    let nodes = reply["nodes"].as_array().cloned().unwrap_or_default();
    if nodes.len() != plan.agents.len() {
        return Err(step::surprise("one node for each agent", &reply));
    }
    let child = |(agent, node): (&plan::Agent, &Value)| {
        Ok(Child {
            agent: agent.name.clone(),
            node: step::text(node, "node_id")?,
            sealed: None,
            verdict: String::new(),
            reward: None,
            run_attempt: None,
        })
    };
    plan.agents.iter().zip(&nodes).map(child).collect()
}

fn work(steps: &mut Stepper<'_>, plan: &Plan, children: &mut [Child]) -> Result<(), Problem> {
    steps.title("Let the agents work at the same time, each in its own sandbox; seal what each leaves");
    let commands = plan.agents.iter().zip(children.iter()).map(|(agent, child)| {
        let mut words: Vec<_> = ["run", &child.node, "--", "sh", "-c"].map(Into::into).into();
        words.push(agent.command.clone().into());
        // A shipped agent's text is in a file, which is shorter to type.
        let from_file = |file: &PathBuf| {
            format!("run {} -- sh -c \"$(cat {})\"", child.node, step::quote(&file.to_string_lossy()))
        };
        step::Shown { typed: agent.file.as_ref().map(from_file), words }
    });
    let outcomes = steps.esf_together(commands.collect())?;
    for (child, outcome) in children.iter_mut().zip(outcomes) {
        let Outcome { reply, code } = outcome;
        let Some(node) = reply["node"]["node_id"].as_str() else {
            return Err(step::failed(&format!("agent {}", child.agent), code, &reply));
        };
        if code != 0 {
            steps.say(&format!(
                "  agent {} ended with {code}; what it left is sealed all the same, what it said is in\n    \
                 {} logs {} --stderr",
                child.agent,
                steps.program(),
                reply["attempt_id"].as_str().unwrap_or_default()
            ));
        }
        child.sealed = Some(Sealed { node: node.to_owned(), changed: reply["changed"].clone() });
    }
    Ok(())
}

fn evaluate(steps: &mut Stepper<'_>, plan: &Plan, children: &mut [Child]) -> Result<(), Problem> {
    steps.title("Evaluate each sealed node by the project's tests, in a sandbox of the evaluation's own");
    let commands = children.iter().filter_map(|child| child.sealed.as_ref()).map(|sealed| {
        let words = [
            "evaluate".into(),
            sealed.node.clone().into(),
            "--evaluator".into(),
            plan.evaluator.clone().into(),
        ];
        step::Shown { typed: None, words: words.into() }
    });
    let outcomes = steps.esf_together(commands.collect())?;
    for (child, outcome) in children.iter_mut().zip(outcomes) {
        let evaluation = &outcome.reply["evaluation"];
        let Some(verdict) = evaluation["verdict"].as_str() else {
            return Err(step::failed(
                &format!("evaluation of {}", child.agent),
                outcome.code,
                &outcome.reply,
            ));
        };
        child.verdict = verdict.to_owned();
        child.reward = evaluation["reward"].as_f64();
        child.run_attempt = evaluation["run_attempt_id"].as_str().map(str::to_owned);
    }
    Ok(())
}

fn show_scores(steps: &mut Stepper<'_>, children: &[Child]) -> Result<(), Problem> {
    let mut table = Table::new(&["AGENT", "NODE", "ADDED", "MODIFIED", "DELETED", "VERDICT", "REWARD"]);
    for child in children {
        let (node, changed) = match &child.sealed {
            Some(sealed) => (sealed.node.as_str(), &sealed.changed),
            None => ("-", &Value::Null),
        };
        let count = |key: &str| changed[key].as_u64().map_or("-".to_owned(), |n| n.to_string());
        let reward = child.reward.map_or("-".to_owned(), |reward| format!("{reward:.2}"));
        let cells = [
            child.agent.clone(),
            node.chars().take(12).collect(),
            count("added"),
            count("modified"),
            count("deleted"),
            child.verdict.clone(),
            reward,
        ];
        table.row(cells);
    }
    steps.result(&format!("\n{}", table.render()))
}

/// The child with the highest reward, when any earned one.
fn best<'a>(steps: &mut Stepper<'_>, children: &'a [Child]) -> Result<&'a Sealed, Problem> {
    let scored = children.iter().filter_map(|child| Some((child.reward?, child.sealed.as_ref()?)));
    let best = scored.reduce(|best, next| if next.0 > best.0 { next } else { best });
    if let Some((reward, sealed)) = best
        && reward > 0.0
    {
        return Ok(sealed);
    }
    for child in children {
        let run = child.run_attempt.as_deref().unwrap_or_default();
        steps.say(&format!(
            "  the test of {}: {} logs {run}, and again with --stderr",
            child.agent,
            steps.program()
        ));
    }
    Err(Problem::new(
        Class::Failure,
        "nothing_passed",
        "no agent's work passed the test, so nothing is promoted",
    )
    .expected("one reward above 0")
    .remedy("read what the tests said with the commands above; do they run in a sandbox at all?"))
}

fn others<'a>(children: &'a [Child], best: &str) -> Vec<&'a str> {
    let sealed = children.iter().filter_map(|child| child.sealed.as_ref());
    sealed.map(|sealed| sealed.node.as_str()).filter(|node| *node != best).collect()
}

fn promote(steps: &mut Stepper<'_>, best: &str, generation: u64, loser: Option<&str>) -> Result<(), Problem> {
    steps.title("Promote the best, expecting the generation that the group was at");
    let promote = |node: &str| -> Vec<std::ffi::OsString> {
        vec!["promote".into(), node.into(), "--expect".into(), generation.to_string().into()]
    };
    let reply = steps.esf(&promote(best))?;
    let now = reply["group"]["generation"].as_u64().ok_or_else(|| step::surprise("generation", &reply))?;
    steps.say(&format!("  the group is at generation {now}"));
    let Some(loser) = loser else { return Ok(()) };
    steps.title("A promote that expects the old generation is stale, and refused");
    let outcome = steps.esf_any(&promote(loser))?;
    let code = outcome.reply["error"]["code"].as_str().unwrap_or_default().to_owned();
    if outcome.code != 4 {
        return Err(step::failed("the stale promote, which must be refused,", outcome.code, &outcome.reply));
    }
    steps.say(&format!("  refused with exit {}: {code}", outcome.code));
    Ok(())
}

fn export(steps: &mut Stepper<'_>, plan: &Plan, group: &str, best: &str) -> Result<PathBuf, Problem> {
    steps.title("Export the winning change as a patch");
    let patch = plan.place.join(format!("{group}.patch"));
    let words = ["export".into(), best.into(), "--format".into(), "patch".into(), "--to".into()];
    steps.esf(&[words.as_slice(), &[patch.clone().into()]].concat())?;
    steps.git_apply_check(&plan.tree, &patch)?;
    Ok(patch)
}

fn clean_up(steps: &mut Stepper<'_>, losers: &[&str]) -> Result<(), Problem> {
    steps.title("Prune what lost, collect what nothing reaches, and account for every byte");
    for loser in losers {
        steps.esf(&["prune".into(), (*loser).into()])?;
    }
    steps.esf(&["gc".into()])?;
    let usage = steps.esf(&["df".into()])?;
    let mut table = Table::new(&["HOT", "COLD", "UPPERS", "STAGING", "METADATA", "TOTAL"]);
    let terms = ["hot", "cold", "uppers", "staging", "metadata", "total"];
    table.row(terms.map(|term| esf_core::units::show_size(usage[term].as_u64().unwrap_or(0))));
    steps.result(&format!("\n{}", table.render()))
}
