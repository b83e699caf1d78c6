//! From what a user typed (a unique prefix, `GROUP:NAME`, `GROUP:@`, a group's name) to the record
//! of the kind that a command needs.

use std::path::Path;

use esf_core::manifest::RootPin;
use esf_core::record::{Attempt, Group, Node};
use esf_core::{AttemptId, Class, ExecId, Problem, RootId};
use esf_graph::Ref;
use esf_store::Store;

fn resolve(store: &Store, text: &str) -> Result<Ref, Problem> {
    store.graph().resolve(text).map_err(|error| error.problem())
}

fn wrong_kind(expected: &str, text: &str) -> Problem {
    Problem::new(Class::Usage, "wrong_kind", format!("{text} does not name {expected}"))
        .expected(expected)
        .found(text)
}

pub(crate) fn reference(store: &Store, text: &str) -> Result<Ref, Problem> {
    resolve(store, text)
}

pub(crate) fn group(store: &Store, text: &str) -> Result<Group, Problem> {
    match resolve(store, text)? {
        Ref::Group(id) => store.graph().group(id).map_err(|error| error.problem()),
        _ => Err(wrong_kind("a group", text)),
    }
}

/// A node; a group's name alone stands for its canonical node.
pub(crate) fn node(store: &Store, text: &str) -> Result<Node, Problem> {
    let graph = store.graph();
    let id = match resolve(store, text)? {
        Ref::Node(id) => id,
        Ref::Group(id) => graph.group(id).map_err(|error| error.problem())?.canonical_node_id,
        Ref::Attempt(id) => {
            let attempt = graph.attempt(id).map_err(|error| error.problem())?;
            return Err(not_a_node(store, &attempt));
        }
        _ => return Err(wrong_kind("a node", text)),
    };
    graph.node(id).map_err(|error| error.problem())
}

/// An attempt where a node is needed: say which sealed node there is (P03).
fn not_a_node(store: &Store, attempt: &Attempt) -> Problem {
    let last = store.graph().last_sealed(attempt.node_id).ok().flatten();
    let problem = Problem::new(
        Class::Conflict,
        "not_sealed",
        format!("{} is an attempt; its work is not sealed", attempt.attempt_id),
    )
    .expected("a sealed node")
    .found(format!("attempt {}, {}", attempt.attempt_id, attempt.status.as_str()));
    match last {
        Some(node) => problem
            .remedy(format!(
                "seal it with `esf suspend {}`, or use its last sealed node {node}",
                attempt.attempt_id
            ))
            .context(serde_json::json!({ "last_sealed_node_id": node })),
        None => problem.remedy(format!("seal it with `esf suspend {}`", attempt.attempt_id)),
    }
}

pub(super) fn attempt(store: &Store, text: &str) -> Result<Attempt, Problem> {
    match resolve(store, text)? {
        Ref::Attempt(id) => store.graph().attempt(id).map_err(|error| error.problem()),
        _ => Err(wrong_kind("an attempt", text)),
    }
}

/// The root that a sealed node has.
pub(crate) fn sealed_root(node: &Node) -> Result<RootPin, Problem> {
    node.root().ok_or_else(|| {
        Problem::new(
            Class::Conflict,
            "not_sealed",
            format!("{} is a {}, it has no root yet", node.node_id, node.status.as_str()),
        )
        .expected("a sealed node")
        .remedy("activate it and `esf suspend` the attempt, or use its parent")
    })
}

/// A root by its own id, or that of a sealed node.
pub(super) fn root(store: &Store, text: &str) -> Result<RootPin, Problem> {
    match resolve(store, text)? {
        Ref::Root(root) => root_pin(store, root),
        _ => sealed_root(&node(store, text)?),
    }
}

fn root_pin(store: &Store, root: RootId) -> Result<RootPin, Problem> {
    let known = store.graph().root_pins(root).map_err(|error| error.problem())?;
    known.first().copied().ok_or_else(|| {
        Problem::new(Class::NotFound, "not_found", format!("no root {root}"))
            .remedy("`esf root ls` lists the known ones")
    })
}

/// A command of an attempt, by unique prefix.
pub(super) fn exec(store: &Store, attempt: AttemptId, text: &str) -> Result<ExecId, Problem> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let all = store.graph().execs(attempt).map_err(|error| error.problem())?;
    let mut found = all.iter().map(|exec| exec.exec_id).filter(|id| id.to_string().starts_with(text));
    match (found.next(), found.next()) {
        (Some(id), None) => Ok(id),
        (None, _) => {
            Err(Problem::new(Class::NotFound, "not_found", format!("no command {text} of {attempt}"))
                .remedy(format!("`esf inspect {attempt}` lists its commands")))
        }
        (Some(_), Some(_)) => {
            Err(Problem::new(Class::NotFound, "ambiguous", format!("{text} names several commands"))
                .remedy("type more of the id"))
        }
    }
}

/// Every command of an attempt, oldest first: those on record, then those that only have output.
pub(super) fn execs(store: &Store, dir: &Path, attempt: AttemptId) -> Result<Vec<ExecId>, Problem> {
    let mut ids: Vec<ExecId> = store
        .graph()
        .execs(attempt)
        .map_err(|error| error.problem())?
        .iter()
        .map(|exec| exec.exec_id)
        .collect();
    let on_disk = esf_worker::logs::list(dir, attempt)
        .map_err(|error| crate::context::io_problem("read the logs of", dir, &error))?;
    ids.extend(on_disk.into_iter().filter(|id| !ids.contains(id)).collect::<Vec<_>>());
    Ok(ids)
}
