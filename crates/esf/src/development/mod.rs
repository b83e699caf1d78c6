//! `esf task`, `esf review`, `esf queue`: many agents on one project. What a task is, and that its node and the
//! canonical one change together, is the graph's; here words become requests, and `queue run` drives the queue.

mod queue;
mod show;

use std::fs;
use std::io::Read;
use std::path::Path;

use esf_core::development::{self, EntryStatus, REVIEW, Task, TaskStatus};
use esf_core::ops::Meta;
use esf_core::ops::development::{CloseTask, CreateTask, MAX_TEXT, Settled, Submit, newest};
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::record::{Evaluation, Evaluator, Node, Verdict};
use esf_core::state::NodeStatus;
use esf_core::{Class, NodeId, Problem};
use esf_graph::Ref;
use esf_store::Store;
use serde_json::json;

use crate::args::{self, QueueCommand, ReviewCommand, ReviewVerdict, TaskCommand};
use crate::commands::find;
use crate::context::{Context, io_problem};
use crate::evaluation;
use crate::output::Reply;

/// Runs a command of `esf task`; gives the exit code.
pub(crate) fn task(context: &Context, command: TaskCommand) -> Result<u8, Problem> {
    let reply = match command {
        TaskCommand::Create(arguments) => create(context, &arguments),
        TaskCommand::Ls(arguments) => {
            let store = context.open()?;
            let group = find::group(&store, &arguments.group)?;
            store.graph().tasks(group.group_id).map(|tasks| show::tasks(&tasks)).map_err(refused)
        }
        TaskCommand::Show(arguments) => {
            let store = context.open()?;
            shown(context, &store, &found(&store, &arguments.task)?)
        }
        TaskCommand::Submit(arguments) => submit(context, &arguments),
        TaskCommand::Withdraw(arguments) => {
            let store = context.open()?;
            let task = found(&store, &arguments.task)?.task_id;
            let settled = store.graph().withdraw_task(&context.meta("")?, task).map_err(refused)?;
            Ok(show::entry(&settled.entry))
        }
        TaskCommand::Close(arguments) => {
            let store = context.open()?;
            let task = found(&store, &arguments.task)?.task_id;
            let command = CloseTask { task, reason: arguments.reason.clone() };
            let task = store.graph().close_task(&context.meta("")?, command).map_err(refused)?;
            Ok(show::task(&task))
        }
    }?;
    crate::commands::print(context, &reply)
}

/// Runs a command of `esf review`; gives the exit code.
pub(crate) fn review(context: &Context, command: &ReviewCommand) -> Result<u8, Problem> {
    let reply = match command {
        ReviewCommand::Add(arguments) => add_review(context, arguments),
        ReviewCommand::Ls(arguments) => {
            let store = context.open()?;
            let nodes = match task_named(&store, &arguments.node)? {
                Some(task) => store.graph().line(task.task_id).map_err(refused)?,
                None => vec![find::node(&store, &arguments.node)?],
            };
            let mut reviews = Vec::new();
            for node in nodes {
                let of_node = store.graph().evaluations(node.node_id).map_err(refused)?;
                reviews.extend(of_node.into_iter().filter(|one| one.evaluator == REVIEW));
            }
            Ok(show::reviews(&reviews))
        }
    }?;
    crate::commands::print(context, &reply)
}

/// Runs a command of `esf queue`; gives the exit code.
pub(crate) fn queue(context: &Context, command: &QueueCommand) -> Result<u8, Problem> {
    match command {
        QueueCommand::Ls(arguments) => {
            let store = context.open()?;
            let group = find::group(&store, &arguments.group)?.group_id;
            let graph = store.graph();
            let entries = if arguments.all { graph.entries_of_group(group) } else { graph.waiting(group) };
            let reply = show::entries(&store, &entries.map_err(refused)?)?;
            crate::commands::print(context, &reply)
        }
        QueueCommand::Run(arguments) => queue::run(context, arguments),
    }
}

fn refused(error: esf_graph::Error) -> Problem {
    error.problem()
}

/// The task that `text` names by id or as GROUP:NAME; none when it names something else.
fn task_named(store: &Store, text: &str) -> Result<Option<Task>, Problem> {
    if let Some((group, name)) = text.split_once(':') {
        let group = find::group(store, group)?;
        return match store.graph().task_by_name(group.group_id, name) {
            Ok(task) => Ok(Some(task)),
            Err(error) if error.problem().code == "not_found" => Ok(None),
            Err(error) => Err(refused(error)),
        };
    }
    match find::reference(store, text) {
        Ok(Ref::Task(id)) => store.graph().task(id).map(Some).map_err(refused),
        Ok(_) => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn found(store: &Store, text: &str) -> Result<Task, Problem> {
    task_named(store, text)?.ok_or_else(|| {
        Problem::new(Class::NotFound, "not_found", format!("there is no task {text}"))
            .expected("a task: its id, or GROUP:NAME")
            .found(text)
            .remedy("`esf task ls GROUP` lists them")
    })
}

fn create(context: &Context, arguments: &args::TaskCreate) -> Result<Reply, Problem> {
    let goal = match &arguments.goal_file {
        Some(path) => read_goal(path)?,
        None => arguments.goal.clone(),
    };
    if goal.trim().is_empty() {
        return Err(Problem::new(Class::Usage, "bad_option", "a task needs a goal")
            .expected("--goal TEXT, or --goal-file FILE")
            .found("none"));
    }
    let store = context.open()?;
    let group = find::group(&store, &arguments.group)?;
    let from = arguments.from.as_deref().map(|text| find::node(&store, text)).transpose()?;
    let command = CreateTask {
        group: group.group_id,
        name: arguments.name.clone(),
        goal,
        from: from.map(|node| node.node_id),
    };
    let task = store.graph().create_task(&context.meta("")?, command).map_err(refused)?;
    Ok(show::begun(&task))
}

fn read_goal(path: &Path) -> Result<String, Problem> {
    let failed = |error: &std::io::Error| io_problem("read", path, error);
    let mut text = String::new();
    let most = MAX_TEXT as u64 + 1;
    if path.as_os_str() == "-" {
        std::io::stdin().take(most).read_to_string(&mut text).map_err(|error| failed(&error))?;
    } else {
        let file = fs::File::open(path).map_err(|error| failed(&error))?;
        file.take(most).read_to_string(&mut text).map_err(|error| failed(&error))?;
    }
    Ok(text)
}

/// The sealed nodes of a task that nothing sealed of it follows.
fn ends(store: &Store, task: &Task) -> Result<Vec<Node>, Problem> {
    let line = store.graph().line(task.task_id).map_err(refused)?;
    let sealed = |node: &&Node| node.status == NodeStatus::Sealed;
    let followed = |id: NodeId| line.iter().filter(sealed).any(|node| node.parents.contains(&id));
    let own = |node: &&Node| node.node_id != task.base_node_id && !followed(node.node_id);
    Ok(line.iter().filter(sealed).filter(own).cloned().collect())
}

/// A task in full. Where its work goes on must be one node when nothing but that is asked for.
fn shown(context: &Context, store: &Store, task: &Task) -> Result<Reply, Problem> {
    let mut ends = ends(store, task)?;
    if ends.len() < 2 || task.status == TaskStatus::Integrated {
        ends.clear();
    } else if context.quiet {
        newest(task, &ends).map_err(|reject| reject.problem())?;
    }
    let several: Vec<NodeId> = ends.iter().map(|node| node.node_id).collect();
    show::whole(store, task, &several)
}

fn submit(context: &Context, arguments: &args::TaskSubmit) -> Result<Reply, Problem> {
    let store = context.open()?;
    let task = found(&store, &arguments.task)?;
    let meta = context.meta("")?;
    let node = match &arguments.node {
        Some(text) => find::node(&store, text)?.node_id,
        None => {
            // The same command again means the node that was the newest then: the request must be the same, too.
            let before = store.graph().recorded::<Settled>(&meta, "submit_task").map_err(refused)?;
            match before.filter(|settled| settled.task.task_id == task.task_id) {
                Some(settled) => settled.entry.node_id,
                None => newest(&task, &ends(&store, &task)?).map_err(|reject| reject.problem())?,
            }
        }
    };
    let command = Submit { task: task.task_id, node, priority: arguments.priority };
    let settled = store.graph().submit_task(&meta, command).map_err(refused)?;
    Ok(show::entry(&settled.entry))
}

/// The node that a reviewer of a task looks at: with the same command again, the one of the first time.
fn reviewed(store: &Store, task: &Task, meta: &Meta) -> Result<NodeId, Problem> {
    if let Some(before) = store.graph().recorded::<Evaluation>(meta, "evaluate").map_err(refused)? {
        let line = store.graph().line(task.task_id).map_err(refused)?;
        if line.iter().any(|node| node.node_id == before.node_id) {
            return Ok(before.node_id);
        }
    }
    let entries = store.graph().entries_of_task(task.task_id).map_err(refused)?;
    match entries.last() {
        Some(entry) if entry.status == EntryStatus::Queued => Ok(entry.node_id),
        _ => newest(task, &ends(store, task)?).map_err(|reject| reject.problem()),
    }
}

fn add_review(context: &Context, arguments: &args::ReviewAdd) -> Result<Reply, Problem> {
    let store = context.open()?;
    let meta = context.meta("")?;
    let node = match task_named(&store, &arguments.node)? {
        Some(task) => reviewed(&store, &task, &meta)?,
        None => find::node(&store, &arguments.node)?.node_id,
    };
    let verdict = match arguments.verdict {
        ReviewVerdict::Accept => "accept",
        ReviewVerdict::Reject => "reject",
        ReviewVerdict::Comment => "comment",
    };
    let keep = |path: &std::path::PathBuf| evaluation::evidence_file(&store, path);
    let command = NewEvaluation {
        node,
        evaluator: Evaluator { name: REVIEW.to_owned(), version: "1".to_owned(), digest: None },
        verdict: verdict.parse::<Verdict>().expect("a plain word"),
        reward: None,
        metrics: json!({ "comment": arguments.comment }),
        evidence: arguments.evidence.iter().map(keep).collect::<Result<_, _>>()?,
        attempt: None,
        run_attempt: None,
        epoch: None,
        failure: None,
    };
    let review: Evaluation = store.graph().evaluate(&meta, command).map_err(refused)?;
    if !review.counts {
        eprintln!(
            "esf: recorded, but it does not count for the queue: the group's policy does not trust {} \
             (trusted_actors)",
            review.created_by
        );
    }
    let reply = show::reviews(std::slice::from_ref(&review));
    Ok(Reply { value: json!({ "review": review }), ..reply })
}

/// What the reviews of a node that is submitted come to.
fn reviews_of(store: &Store, node: NodeId) -> Result<(Vec<Evaluation>, development::Reviews), Problem> {
    let evaluations = store.graph().evaluations(node).map_err(refused)?;
    let sum = development::reviews(&evaluations);
    Ok((evaluations, sum))
}
