//! Groups, drafts, lines of nodes, names: what touches the graph alone, or makes it from a tree.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use esf_core::ops;
use esf_core::policy::{Durability, PolicyDocument};
use esf_core::record::Node;
use esf_core::state::NodeStatus;
use esf_core::{Class, Problem};
use esf_store::{CreateGroup, ImportOptions, Source, parse_source};
use serde_json::json;

use super::{find, show};
use crate::args;
use crate::context::{Context, io_problem};
use crate::output::{self, Reply, Table};
use crate::progress::Bar;

fn import_options(options: &args::ImportOptions) -> ImportOptions {
    ImportOptions {
        preserve_owners: options.preserve_owners,
        skip_special: options.skip_special,
        ..ImportOptions::default()
    }
}

fn source(text: &str, options: &args::ImportOptions) -> Result<Source, Problem> {
    let source = parse_source(text).map_err(|error| error.problem())?;
    Ok(if options.no_git { source.without_git() } else { source })
}

/// Names on stderr what an import left out, and what else there is to know.
fn tell_skipped(skipped: &[(Vec<u8>, String)], notes: &[String]) {
    for note in notes {
        eprintln!("esf: {}", output::printable(note));
    }
    for (path, why) in skipped {
        eprintln!("esf: left out {}: {why}", output::printable(&output::show_bytes(path)));
    }
}

pub(super) fn group_create(context: &Context, arguments: &args::GroupCreate) -> Result<Reply, Problem> {
    let policy = policy(arguments)?;
    let source = source(&arguments.from, &arguments.import)?;
    let store = context.open_or_create()?;
    let request = CreateGroup {
        name: arguments.name.clone(),
        source,
        import: import_options(&arguments.import),
        policy,
    };
    let created = store
        .create_group(&context.meta("")?, request, &Bar::new("importing"))
        .map_err(|error| error.problem())?;
    tell_skipped(&created.skipped, &created.notes);
    Ok(show::group(&created.group))
}

fn policy(arguments: &args::GroupCreate) -> Result<PolicyDocument, Problem> {
    let bad = |error: esf_core::policy::ParsePolicyError| {
        Problem::new(Class::Usage, "bad_policy", error.to_string())
            .remedy("correct the policy file and repeat the command")
    };
    let mut document = match &arguments.policy {
        None => PolicyDocument::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| io_problem("read", path, &error))?;
            PolicyDocument::parse(&text).map_err(bad)?
        }
    };
    if let Some(durability) = arguments.durability {
        let durability = match durability {
            args::DurabilityArg::Full => Durability::Full,
            args::DurabilityArg::Relaxed => Durability::Relaxed,
        };
        if document.policy().durability != durability {
            let policy = esf_core::policy::Policy { durability, ..document.policy().clone() };
            document = PolicyDocument::from_policy(&policy).map_err(bad)?;
        }
    }
    Ok(document)
}

pub(super) fn root_import(context: &Context, arguments: &args::RootImport) -> Result<Reply, Problem> {
    let source = source(&arguments.source, &arguments.import)?;
    let store = context.open_or_create()?;
    let options = import_options(&arguments.import);
    let imported = store
        .import_root(&context.meta("")?, &source, &options, &Bar::new("importing"))
        .map_err(|error| error.problem())?;
    tell_skipped(&imported.skipped, &imported.notes);
    let mut table = Table::new(&["ROOT", "ATTRS"]);
    table.row([imported.pin.root.to_string(), show::short(&imported.pin.attrs)]);
    let value = json!({ "root": { "root_id": imported.pin.root, "attrs_id": imported.pin.attrs } });
    Ok(Reply { value, table, ids: vec![imported.pin.root.to_string()] })
}

pub(super) fn root_ls(context: &Context) -> Result<Reply, Problem> {
    let store = context.open()?;
    let roots = store.graph().roots().map_err(|error| error.problem())?;
    let mut table = Table::new(&["ROOT", "ATTRS"]);
    let mut values = Vec::new();
    for known in &roots {
        let pin = known.root;
        table.row([pin.root.to_string(), show::short(&pin.attrs)]);
        values.push(json!({ "root_id": pin.root, "attrs_id": pin.attrs, "registered_at": known.registered_at, "registered_by": known.registered_by }));
    }
    let ids = roots.iter().map(|known| known.root.root.to_string()).collect();
    Ok(Reply { value: json!({ "roots": values }), table, ids })
}

pub(super) fn fork(context: &Context, arguments: &args::Fork) -> Result<Reply, Problem> {
    let store = context.open()?;
    let parent = find::node(&store, &arguments.node)?;
    let command = ops::fork::Fork { parent: parent.node_id, count: arguments.count };
    let nodes = store.graph().fork(&context.meta("")?, command).map_err(|error| error.problem())?;
    Ok(show::nodes(&nodes))
}

pub(super) fn prune(context: &Context, arguments: &args::Prune) -> Result<Reply, Problem> {
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let reply =
        store.prune(&context.meta("")?, node.node_id, arguments.discard).map_err(|error| error.problem())?;
    let mut table = Table::new(&["NODE", "PRUNED", "REASON"]);
    for id in &reply.pruned {
        table.row([show::short(id), "yes".to_owned(), String::new()]);
    }
    for kept in &reply.kept {
        table.row([show::short(&kept.id), "kept".to_owned(), kept.reason.as_str().to_owned()]);
    }
    let ids = reply.pruned.iter().map(ToString::to_string).collect();
    Ok(Reply { value: json!(reply), table, ids })
}

pub(super) fn tag(context: &Context, arguments: &args::Tag) -> Result<Reply, Problem> {
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let node = store
        .graph()
        .tag(&context.meta("")?, node.node_id, &arguments.name)
        .map_err(|error| error.problem())?;
    Ok(one_node(&node))
}

/// One node, under the name `node`.
pub(super) fn one_node(node: &Node) -> Reply {
    Reply { value: json!({ "node": node }), ..show::nodes(std::slice::from_ref(node)) }
}

pub(super) fn ls(context: &Context, arguments: &args::Ls) -> Result<Reply, Problem> {
    let store = context.open()?;
    let graph = store.graph();
    let Some(group) = &arguments.group else {
        return Ok(show::groups(&graph.groups().map_err(|error| error.problem())?));
    };
    let group = find::group(&store, group)?;
    let nodes = graph.nodes(group.group_id).map_err(|error| error.problem())?;
    let shown: Vec<Node> =
        nodes.into_iter().filter(|node| arguments.all || node.status != NodeStatus::Pruned).collect();
    Ok(show::nodes(&shown))
}

pub(super) fn log(context: &Context, arguments: &args::Log) -> Result<Reply, Problem> {
    let store = context.open()?;
    let start = find::node(&store, &arguments.node)?;
    if !arguments.graph {
        return Ok(show::nodes(&store.graph().ancestry(start.node_id).map_err(|error| error.problem())?));
    }
    let mut nodes: Vec<Node> = Vec::new();
    let mut waiting = VecDeque::from([start.node_id]);
    let mut seen = HashSet::from([start.node_id]);
    while let Some(id) = waiting.pop_front() {
        let node = store.graph().node(id).map_err(|error| error.problem())?;
        waiting.extend(node.parents.iter().copied().filter(|parent| seen.insert(*parent)));
        nodes.push(node);
    }
    Ok(show::nodes(&nodes))
}

/// Most events that one read takes.
const EVENT_PAGE: u64 = 1000;

pub(super) fn events(context: &Context, arguments: &args::Events) -> Result<u8, Problem> {
    let store = context.open()?;
    let mut from = arguments.from;
    loop {
        let page = store.graph().events(from, EVENT_PAGE).map_err(|error| error.problem())?;
        let mut text = String::new();
        for event in &page {
            text.push_str(&format!("{}\n", json!(event)));
            from = event.seq;
        }
        super::written(output::write_out(text.as_bytes()))?;
        match ((page.len() as u64) < EVENT_PAGE, arguments.follow) {
            (true, false) => return Ok(0),
            (true, true) => std::thread::sleep(Duration::from_millis(200)),
            (false, _) => {}
        }
    }
}
