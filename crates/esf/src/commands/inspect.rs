//! `inspect`: any record and what it refers to.

use esf_core::{LeaseId, NodeId, Problem};
use esf_graph::{Graph, Ref};
use serde_json::{Value, json};

use super::find;
use crate::args;
use crate::context::Context;
use crate::output::{Reply, Table};

pub(super) fn inspect(context: &Context, arguments: &args::Inspect) -> Result<Reply, Problem> {
    let store = context.open()?;
    let graph = store.graph();
    let problem = |error: esf_graph::Error| error.problem();
    let value = match find::reference(&store, &arguments.id)? {
        Ref::Group(id) => {
            let group = graph.group(id).map_err(problem)?;
            let canonical = graph.node(group.canonical_node_id).map_err(problem)?;
            json!({ "group": group, "canonical_node": canonical })
        }
        Ref::Node(id) => node(graph, id, arguments)?,
        Ref::Attempt(id) => {
            let attempt = graph.attempt(id).map_err(problem)?;
            let lease = lease(graph, attempt.lease_id)?;
            let execs = graph.execs(id).map_err(problem)?;
            json!({ "attempt": attempt, "lease": lease, "execs": execs })
        }
        Ref::Evaluation(id) => json!({ "evaluation": graph.evaluation(id).map_err(problem)? }),
        Ref::Lease(id) => json!({ "lease": graph.lease(id).map_err(problem)? }),
        Ref::Search(id) => {
            let search = graph.search(id).map_err(problem)?;
            let root = graph.position(search.root).map_err(problem)?;
            json!({ "search": search, "root": root })
        }
        Ref::Rollout(id) => {
            let ticket = graph.ticket(id).map_err(problem)?;
            json!({ "rollout": ticket.rollout, "actions": ticket.actions, "action": ticket.action, "leaf_node_id": ticket.leaf_node_id })
        }
        Ref::Run(id) => json!({ "run": graph.run(id).map_err(problem)? }),
        Ref::Prompt(id) => {
            let siblings = graph.siblings(id).map_err(problem)?;
            json!({ "prompt": graph.prompt(id).map_err(problem)?, "siblings": siblings })
        }
        Ref::Sibling(id) => {
            let steps = graph.steps(id, None, 0, u64::MAX).map_err(problem)?;
            json!({ "sibling": graph.sibling(id).map_err(problem)?, "steps": steps })
        }
        Ref::Task(id) => {
            let entries = graph.entries_of_task(id).map_err(problem)?;
            json!({ "task": graph.task(id).map_err(problem)?, "entries": entries })
        }
        Ref::Entry(id) => json!({ "entry": graph.queue_entry(id).map_err(problem)? }),
        Ref::Exec(id) => json!({ "exec": graph.exec(id).map_err(problem)? }),
        Ref::Root(id) => {
            let pins = graph.root_pins(id).map_err(problem)?;
            let nodes = graph.nodes_of_root(id).map_err(problem)?;
            let attrs: Vec<_> = pins.iter().map(|pin| pin.attrs).collect();
            json!({ "root": { "root_id": id, "attrs_ids": attrs }, "nodes": nodes })
        }
    };
    Ok(Reply { table: Table::lines(outline(&value, 0)), ids: vec![first_id(&value)], value })
}

fn lease(graph: &Graph, id: Option<LeaseId>) -> Result<Value, Problem> {
    match id {
        None => Ok(Value::Null),
        Some(id) => Ok(json!(graph.lease(id).map_err(|error| error.problem())?)),
    }
}

fn node(graph: &Graph, id: NodeId, arguments: &args::Inspect) -> Result<Value, Problem> {
    let problem = |error: esf_graph::Error| error.problem();
    let node = graph.node(id).map_err(problem)?;
    let attempts = graph.attempts_of_node(id).map_err(problem)?;
    let mut leases = Vec::new();
    for attempt in &attempts {
        let held = lease(graph, attempt.lease_id)?;
        if held["status"] == "held" {
            leases.push(held);
        }
    }
    let evaluations = graph.evaluations(id).map_err(problem)?;
    let integrated = graph.integrated_as(id).map_err(problem)?;
    let mut value = json!({
        "attempts": attempts, "leases": leases, "evaluations": evaluations, "integrated_tasks": integrated,
    });
    if arguments.ancestry {
        value["ancestry"] = json!(graph.ancestry(id).map_err(problem)?);
    }
    if arguments.provenance {
        value["provenance"] = node.provenance.clone();
    }
    value["node"] = json!(node);
    Ok(value)
}

fn first_id(value: &Value) -> String {
    let ids = ["group", "node", "attempt", "evaluation", "lease", "exec", "search", "rollout", "root"];
    let found = ids.iter().find_map(|kind| value.get(kind)?.get(format!("{kind}_id"))?.as_str());
    found.unwrap_or_default().to_owned()
}

/// A JSON value as indented lines of `name: value`.
fn outline(value: &Value, depth: usize) -> Vec<String> {
    let pad = "  ".repeat(depth);
    let nested = |value: &Value| match value {
        Value::Object(object) => !object.is_empty(),
        Value::Array(items) => items.iter().any(|item| item.is_object() || item.is_array()),
        _ => false,
    };
    let mut lines = Vec::new();
    let mut put = |name: String, value: &Value| {
        if nested(value) {
            lines.push(format!("{pad}{name}:"));
            lines.extend(outline(value, depth + 1));
        } else {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            lines.push(format!("{pad}{name}: {shown}"));
        }
    };
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| put(name.clone(), value)),
        Value::Array(items) => items.iter().for_each(|value| put("-".to_owned(), value)),
        other => lines.push(format!("{pad}{other}")),
    }
    lines
}
