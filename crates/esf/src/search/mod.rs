//! `esf search`: tree search over checkpoints, by hand one operation at a time, or run by a driver. What a search is,
//! and that each rollout counts once, is the graph's; here options become requests and records are shown.

mod config;
mod lines;
mod run;
mod show;
mod tree;
mod watch;

pub(crate) use run::tethered;

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use esf_control::proposer;
use esf_core::ops::search::{
    BestLine, Complete, CreateSearch, Expand, Keep, PruneSearch, Select, VoidRollout,
};
use esf_core::search::{BestKind, Candidates, Config, EdgeNumber, PositionNumber, Search};
use esf_core::{Class, EvaluationId, FailureClass, NodeId, Problem, RolloutId};
use esf_graph::Ref;
use esf_store::Store;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::config::SearchFile;
use crate::args::{self, BestKindArg, SearchCommand};
use crate::commands::find;
use crate::context::{Context, io_problem};
use crate::output::{self, Reply, Table};

/// Most bytes of a file of actions.
const MAX_ACTIONS_TEXT: u64 = 64 << 20;
/// Most actions in it.
const MAX_ACTIONS: usize = 100_000;
/// Most bytes of a line of a batch.
const MAX_OUTCOME: usize = 16 << 20;
/// Most actions in it.
const MAX_OUTCOME_ACTIONS: usize = 10_000;
/// Outcomes in one commit.
const BATCH: usize = 1000;

/// Runs a command of `esf search`; gives the exit code.
pub(crate) fn search(context: &Context, command: SearchCommand) -> Result<u8, Problem> {
    let reply = match command {
        SearchCommand::Create(arguments) => create(context, &arguments),
        SearchCommand::Select(arguments) => select(context, &arguments),
        SearchCommand::Expand(arguments) => expand(context, &arguments),
        SearchCommand::Complete(arguments) => match &arguments.batch {
            Some(batch) => return complete_batch(context, batch),
            None => complete(context, &arguments),
        },
        SearchCommand::Void(arguments) => void(context, &arguments),
        SearchCommand::Extend(arguments) => extend(context, &arguments),
        SearchCommand::Best(arguments) => best(context, &arguments),
        SearchCommand::Pv(arguments) => pv(context, &arguments.search),
        SearchCommand::Export(arguments) => return tree::export(context, &arguments),
        SearchCommand::Prune(arguments) => prune(context, &arguments),
        SearchCommand::Watch(arguments) => return watch::watch(context, &arguments),
        SearchCommand::Run(arguments) => run::run(context, &arguments),
        SearchCommand::Ls(arguments) => ls(context, &arguments),
        SearchCommand::Show(arguments) => {
            let store = context.open()?;
            let search = found(&store, &arguments.search)?;
            let best = lines::best_position(&store, &search)?;
            Ok(show::search_and_best(&search, best.as_ref()))
        }
        SearchCommand::Stop(arguments) => stop(context, &arguments.search),
    }?;
    crate::commands::print(context, &reply)
}

fn refused(error: esf_graph::Error) -> Problem {
    error.problem()
}

fn wrong_kind(expected: &str, text: &str) -> Problem {
    Problem::new(Class::Usage, "wrong_kind", format!("{text} does not name {expected}"))
        .expected(expected)
        .found(text)
}

/// As `find::reference`; says where searches and rollouts are listed when there is none.
fn reference(store: &Store, text: &str) -> Result<Ref, Problem> {
    find::reference(store, text).map_err(|problem| match (&*problem.code, text.get(..4)) {
        ("not_found", Some("sea_")) => problem.remedy("`esf search ls` lists the searches"),
        ("not_found", Some("rol_")) => problem.remedy(
            "`esf search export SEARCH` has the rollouts in flight; `esf search ls` lists the searches",
        ),
        _ => problem,
    })
}

fn found(store: &Store, text: &str) -> Result<Search, Problem> {
    match reference(store, text)? {
        Ref::Search(id) => store.graph().search(id).map_err(refused),
        _ => Err(wrong_kind("a search", text).remedy("`esf search ls` lists them")),
    }
}

fn rollout(store: &Store, text: &str) -> Result<RolloutId, Problem> {
    match reference(store, text)? {
        Ref::Rollout(id) => Ok(id),
        _ => Err(wrong_kind("a rollout", text).remedy("`esf search select` gives them")),
    }
}

fn create(context: &Context, arguments: &args::SearchCreate) -> Result<Reply, Problem> {
    let mut config = match &arguments.config {
        Some(path) => {
            let mut file = SearchFile::read(path)?;
            file.pin_evaluator()?;
            file.search
        }
        None => Config::default(),
    };
    config.seed = arguments.seed.unwrap_or(config.seed);
    config.budget.rollouts = arguments.budget_rollouts.or(config.budget.rollouts);
    let store = context.open()?;
    let root = find::node(&store, &arguments.node)?.node_id;
    let search = store.graph().create_search(&context.meta("")?, CreateSearch { root, config });
    Ok(show::search(&search.map_err(refused)?))
}

fn select(context: &Context, arguments: &args::SearchSelect) -> Result<Reply, Problem> {
    let store = context.open()?;
    let command = Select {
        search: found(&store, &arguments.search)?.search_id,
        count: arguments.count,
        lease_ms: arguments.lease.0,
        at: arguments.at.map(PositionNumber),
        edge: arguments.edge.map(EdgeNumber),
    };
    let selection = store.graph().select(&context.meta("")?, command).map_err(refused)?;
    if selection.tickets.is_empty() {
        match selection.stopped {
            Some(reason) => eprintln!("esf: the search is stopped: {}", reason.as_str()),
            None => eprintln!("esf: nothing is free: all that is open is held by others"),
        }
    }
    let ids = selection.tickets.iter().map(|ticket| ticket.rollout.rollout_id.to_string()).collect();
    Ok(Reply { table: show::tickets(&selection.tickets), ids, value: json!(selection) })
}

fn expand(context: &Context, arguments: &args::SearchExpand) -> Result<Reply, Problem> {
    let candidates = read_candidates(&arguments.actions)?;
    let store = context.open()?;
    let rollout = rollout(&store, &arguments.rollout)?;
    let command = Expand { rollout, candidates, to_move: arguments.to_move };
    let expanded = store.graph().expand(&context.meta("")?, command).map_err(refused)?;
    let table = show::tickets(std::slice::from_ref(&expanded.ticket));
    Ok(Reply { table, ids: vec![rollout.to_string()], value: json!(expanded) })
}

fn complete(context: &Context, arguments: &args::SearchComplete) -> Result<Reply, Problem> {
    let store = context.open()?;
    let text = arguments.rollout.as_deref().unwrap_or_default();
    let evaluation = |text: &str| match find::reference(&store, text)? {
        Ref::Evaluation(id) => Ok(id),
        _ => Err(wrong_kind("an evaluation", text)),
    };
    let outcome = Complete {
        rollout: rollout(&store, text)?,
        node: arguments.node.as_deref().map(|node| Ok(find::node(&store, node)?.node_id)).transpose()?,
        evaluation: arguments.evaluation.as_deref().map(evaluation).transpose()?,
        value: (!arguments.value.is_empty()).then(|| arguments.value.clone()),
        reward: arguments.reward.clone(),
        discount: arguments.discount,
        terminal: arguments.terminal,
        to_move: arguments.to_move,
        key: arguments.key.clone(),
        candidates: arguments.actions.as_deref().map(read_candidates).transpose()?,
        cost: arguments.cost,
    };
    let completed = store.graph().complete(&context.meta("")?, outcome).map_err(refused)?;
    Ok(Reply {
        table: show::rollout(&completed.rollout),
        ids: vec![completed.rollout.rollout_id.to_string()],
        value: json!(completed),
    })
}

/// Many outcomes, a commit for each thousand; those that are refused say why in their place. The exit code is
/// that of the first refusal.
fn complete_batch(context: &Context, path: &Path) -> Result<u8, Problem> {
    let text = read_text(path, u64::MAX)?;
    let store = context.open()?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let outcomes: Vec<Complete> = lines
        .map(|(number, line)| {
            outcome(&store, line).map_err(|problem| Problem {
                message: format!("{}:{}: {}", path.display(), number + 1, problem.message),
                ..problem
            })
        })
        .collect::<Result<_, _>>()?;
    let (mut table, mut values, mut ids) =
        (Table::new(&["ROLLOUT", "STATUS", "WHY"]), Vec::new(), Vec::new());
    let mut first_refusal = None;
    for (number, batch) in outcomes.chunks(BATCH).enumerate() {
        let meta = context.meta(&format!("batch/{number}"))?;
        let answers = store.graph().complete_all(&meta, batch.to_vec()).map_err(refused)?;
        for (outcome, answer) in batch.iter().zip(answers) {
            ids.push(outcome.rollout.to_string());
            let (value, status, why) = match answer {
                Ok(completed) => (json!(completed), completed.rollout.status.as_str(), String::new()),
                Err(error) => {
                    let problem = error.problem();
                    let why = problem.message.clone();
                    let value = json!({ "rollout_id": outcome.rollout, "error": problem });
                    first_refusal.get_or_insert(problem);
                    (value, "refused", why)
                }
            };
            table.row([outcome.rollout.to_string(), status.to_owned(), why]);
            values.push(value);
        }
    }
    let reply = Reply { value: json!({ "completed": values }), table, ids };
    let code = crate::commands::print(context, &reply)?;
    Ok(first_refusal.as_ref().map_or(code, output::exit_code))
}

fn void(context: &Context, arguments: &args::SearchVoid) -> Result<Reply, Problem> {
    let class = |text: &String| {
        FailureClass::parse(text).ok_or_else(|| {
            let known: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
            Problem::new(Class::Usage, "bad_option", format!("--class: not a class of failure: {text}"))
                .expected(known.join(", "))
                .found(text.as_str())
        })
    };
    let class = arguments.class.as_ref().map(class).transpose()?;
    let store = context.open()?;
    let rollout = rollout(&store, &arguments.rollout)?;
    let command = VoidRollout { rollout, class, reason: arguments.reason.clone(), node: None };
    let rollout = store.graph().void_rollout(&context.meta("")?, command).map_err(refused)?;
    Ok(Reply {
        table: show::rollout(&rollout),
        ids: vec![rollout.rollout_id.to_string()],
        value: json!({ "rollout": rollout }),
    })
}

fn extend(context: &Context, arguments: &args::SearchExtend) -> Result<Reply, Problem> {
    let store = context.open()?;
    let rollouts: Vec<RolloutId> =
        arguments.rollouts.iter().map(|text| rollout(&store, text)).collect::<Result<_, _>>()?;
    let renewal = store.graph().extend_rollouts(&context.meta("")?, &rollouts, arguments.lease.0);
    let renewal = renewal.map_err(refused)?;
    let mut table = Table::new(&["ROLLOUT", "HELD"]);
    for (rollouts, held) in [(&renewal.held, "yes"), (&renewal.lost, "no")] {
        rollouts.iter().for_each(|rollout| table.row([rollout.to_string(), held.to_owned()]));
    }
    Ok(Reply { table, ids: renewal.held.iter().map(ToString::to_string).collect(), value: json!(renewal) })
}

fn best(context: &Context, arguments: &args::SearchBest) -> Result<Reply, Problem> {
    let kind = match arguments.kind {
        BestKindArg::Robust => BestKind::Robust,
        BestKindArg::Max => BestKind::Max,
        BestKindArg::Secure => BestKind::Secure,
        BestKindArg::Finished => BestKind::Finished,
    };
    let store = context.open()?;
    let search = found(&store, &arguments.search)?;
    let best = store.graph().best(search.search_id, kind).map_err(refused)?;
    let value = json!({ "best": best });
    let line: Vec<BestLine> = best.into_iter().collect();
    Ok(Reply { value, table: show::line(&line), ids: nodes_of(&line) })
}

fn pv(context: &Context, text: &str) -> Result<Reply, Problem> {
    let store = context.open()?;
    let search = found(&store, text)?;
    let line = store.graph().principal_variation(search.search_id, BestKind::Robust).map_err(refused)?;
    Ok(Reply { value: json!({ "pv": line }), table: show::line(&line), ids: nodes_of(&line) })
}

fn nodes_of(line: &[BestLine]) -> Vec<String> {
    line.iter().filter_map(|step| step.position.node_id).map(|node| node.to_string()).collect()
}

fn ls(context: &Context, arguments: &args::SearchLs) -> Result<Reply, Problem> {
    let store = context.open()?;
    let group = arguments.group.as_deref().map(|group| find::group(&store, group)).transpose()?;
    let searches = store.graph().searches(group.map(|group| group.group_id)).map_err(refused)?;
    Ok(show::searches(&searches))
}

fn stop(context: &Context, text: &str) -> Result<Reply, Problem> {
    let store = context.open()?;
    let search = found(&store, text)?;
    let stopped = store.graph().stop_search(&context.meta("")?, search.search_id).map_err(refused)?;
    Ok(show::search(&stopped))
}

/// Lets go of what the search does not need: first in the search, then, deepest first, in the graph. A repetition
/// after a crash goes on where it stopped, since what is pruned is pruned already.
fn prune(context: &Context, arguments: &args::SearchPrune) -> Result<Reply, Problem> {
    let store = context.open()?;
    let search = found(&store, &arguments.search)?.search_id;
    let keep = Keep { best: arguments.keep_best, frontier: !arguments.no_frontier };
    let command = PruneSearch { search, keep, dry_run: arguments.dry_run };
    let plan = store.graph().prune_search(&context.meta("")?, command).map_err(refused)?;
    let (mut pruned, mut kept) = (Vec::new(), Vec::new());
    let mut table = Table::new(&["NODE", "PRUNED", "WHY"]);
    for node in &plan.nodes {
        let done = if arguments.dry_run {
            Ok(())
        } else {
            let meta = context.meta(&format!("node/{node}"))?;
            store
                .prune(&meta, *node, false)
                .map(|reply| kept.extend(reply.kept.iter().map(|kept| json!(kept))))
        };
        match done.map_err(|error| error.problem()) {
            Ok(()) => {
                pruned.push(node.to_string());
                table.row([node.to_string(), if arguments.dry_run { "would be" } else { "yes" }.to_owned()]);
            }
            Err(problem) if matches!(problem.class, Class::Conflict | Class::Refused) => {
                table.row([node.to_string(), "no".to_owned(), problem.message.clone()]);
                kept.push(json!({ "node_id": node, "reason": problem.code }));
            }
            Err(problem) => return Err(problem),
        }
    }
    for node in &plan.kept {
        table.row([node.node_id.to_string(), "no".to_owned(), node.reason.clone()]);
        kept.push(json!(node));
    }
    let value = json!({
        "pruned": pruned, "kept": kept, "edges": plan.edges, "positions": plan.positions,
        "dry_run": arguments.dry_run,
    });
    Ok(Reply { value, table, ids: pruned })
}

fn read_text(path: &Path, most: u64) -> Result<String, Problem> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(most.saturating_add(1)).read_to_string(&mut text)
    } else {
        fs::File::open(path).and_then(|file| file.take(most.saturating_add(1)).read_to_string(&mut text))
    };
    read.map_err(|error| io_problem("read", path, &error))?;
    if text.len() as u64 > most {
        let message = format!("{} is longer than {most} bytes", path.display());
        return Err(
            Problem::new(Class::Usage, "too_large", message).expected(format!("at most {most} bytes"))
        );
    }
    Ok(text)
}

fn read_candidates(path: &Path) -> Result<Candidates, Problem> {
    let text = read_text(path, MAX_ACTIONS_TEXT)?;
    let read = if text.trim_start().starts_with('[') {
        parse(&text).map(|actions| Candidates { actions, exhausted: false })
    } else {
        parse(&text)
    };
    let bad = |reason: String| {
        Problem::new(Class::Usage, "bad_actions", format!("{}: {reason}", path.display()))
            .expected("{\"actions\":[{\"action\":…,\"name\":…,\"prior\":…,\"key\":…}],\"exhausted\":bool}, priors finite and not negative")
    };
    let candidates = read.map_err(|error| bad(error.to_string()))?;
    proposer::check(candidates, MAX_ACTIONS).map_err(|error| bad(error.to_string()))
}

fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}

/// A line of a batch. Ids may be unique prefixes, and a value may be one number.
fn outcome(store: &Store, line: &str) -> Result<Complete, Problem> {
    let bad = |message: String| {
        Problem::new(Class::Usage, "bad_outcome", message)
            .expected("a JSON object a line: rollout_id, and node_id, evaluation_id, value [numbers], reward [numbers], discount, terminal, to_move, key, candidates {actions, exhausted}, cost as far as they are to be said")
            .remedy("nothing of the file was counted")
    };
    if line.len() > MAX_OUTCOME {
        return Err(bad(format!("{} bytes, expected at most {MAX_OUTCOME} a line", line.len())));
    }
    let mut value: Value =
        serde_json::from_str(line).map_err(|error| bad(format!("not an outcome: {error}")))?;
    for name in ["value", "reward"] {
        if let Some(number) = value.get_mut(name).filter(|number| number.is_number()) {
            *number = json!([number.take()]);
        }
    }
    let id = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    // Whole ids are not looked up for that.
    if let Some(text) = id(&value, "rollout_id").filter(|text| text.parse::<RolloutId>().is_err()) {
        value["rollout_id"] = json!(rollout(store, &text)?);
    }
    if let Some(text) = id(&value, "node_id").filter(|text| text.parse::<NodeId>().is_err()) {
        value["node_id"] = json!(find::node(store, &text)?.node_id);
    }
    if let Some(text) = id(&value, "evaluation_id").filter(|text| text.parse::<EvaluationId>().is_err()) {
        value["evaluation_id"] = match find::reference(store, &text)? {
            Ref::Evaluation(found) => json!(found),
            _ => return Err(wrong_kind("an evaluation", &text)),
        };
    }
    let outcome: Complete =
        serde_json::from_value(value).map_err(|error| bad(format!("not an outcome: {error}")))?;
    match &outcome.candidates {
        Some(candidates) if candidates.actions.len() > MAX_OUTCOME_ACTIONS => {
            let found = candidates.actions.len();
            Err(bad(format!("{found} actions, expected at most {MAX_OUTCOME_ACTIONS} in one outcome")))
        }
        _ => Ok(outcome),
    }
}
