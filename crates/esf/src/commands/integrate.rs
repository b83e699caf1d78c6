//! `merge`, `promote`, `export`: what brings work together and out.

use esf_core::ops::promote::Promote;
use esf_core::{Class, Problem};
use esf_store::{Export, Format, Merge, MergeOutcome};
use serde_json::{Value, json};

use super::{find, show};
use crate::args::{self, ExportFormat};
use crate::context::Context;
use crate::output::{Reply, Table, not_supported, printable};
use crate::progress::Bar;

pub(super) fn merge(context: &Context, arguments: &args::Merge) -> Result<Reply, Problem> {
    if arguments.text {
        return Err(not_supported("--text", "merge without it: conflicts come back as data on a draft"));
    }
    let store = context.open()?;
    let ids = arguments.nodes.iter().map(|text| find::node(&store, text).map(|node| node.node_id));
    let base = arguments.base.as_deref().map(|text| find::node(&store, text).map(|node| node.node_id));
    let request = Merge {
        nodes: ids.collect::<Result<_, _>>()?,
        expect: arguments.expect,
        base: base.transpose()?,
        dry_run: arguments.dry_run,
    };
    let outcome = store.merge(&context.meta("")?, &request).map_err(|error| error.problem())?;
    match outcome {
        MergeOutcome::Merged { node } => Ok(merged("merged", node.as_ref(), &[])),
        MergeOutcome::Conflicted { node, conflicts } => {
            let reply = merged("conflicted", node.as_ref(), &conflicts);
            super::print(context, &reply)?;
            let remedy = node.map(|node| {
                let name = show::short(&node.node_id);
                format!(
                    "`esf activate {name}`: it holds ours at these paths, theirs is `esf cat NODE:PATH`; \
                     resolve them, then `esf suspend` the attempt"
                )
            });
            let problem = Problem::new(
                Class::Conflict,
                "merge_conflict",
                format!("{} paths conflict", conflicts.len()),
            );
            Err(remedy.into_iter().fold(problem, Problem::remedy))
        }
        MergeOutcome::Stale { generation, canonical_node_id } => {
            let reply = merged("stale", None, &[]);
            super::print(context, &reply)?;
            Err(Problem::new(Class::Conflict, "stale_generation", "the group has moved on")
                .expected(format!("generation {}", arguments.expect))
                .found(format!("generation {generation}"))
                .remedy(format!("look at what changed and repeat with --expect {generation}"))
                .context(json!({ "generation": generation, "canonical_node_id": canonical_node_id })))
        }
    }
}

fn merged(outcome: &str, node: Option<&esf_core::record::Node>, conflicts: &[Value]) -> Reply {
    let mut table = Table::new(&["OUTCOME", "NODE", "PATH", "KIND"]);
    let name = node.map_or("-".to_owned(), |node| show::short(&node.node_id));
    if conflicts.is_empty() {
        table.row([outcome.to_owned(), name, String::new(), String::new()]);
    } else {
        for conflict in conflicts {
            let cell = |key: &str| conflict[key].as_str().unwrap_or_default().to_owned();
            table.row([outcome.to_owned(), name.clone(), cell("path"), cell("kind")]);
        }
    }
    let value = json!({ "outcome": outcome, "node": node, "conflicts": conflicts });
    Reply { value, table, ids: node.map(|node| node.node_id.to_string()).into_iter().collect() }
}

pub(super) fn promote(context: &Context, arguments: &args::Promote) -> Result<Reply, Problem> {
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let command = Promote { node: node.node_id, expect: arguments.expect, replace: arguments.replace };
    store
        .promote(&context.meta("")?, command)
        .map(|group| show::group(&group))
        .map_err(|error| error.problem())
}

pub(super) fn export(context: &Context, arguments: &args::Export) -> Result<Reply, Problem> {
    let format = match arguments.format {
        ExportFormat::Dir => Format::Dir,
        ExportFormat::Tar => Format::Tar,
        ExportFormat::Patch => Format::Patch,
        ExportFormat::Oci | ExportFormat::Git | ExportFormat::Bundle | ExportFormat::Artifact => {
            return Err(not_supported("this export format", "use --format dir, tar or patch"));
        }
    };
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let from = arguments
        .from
        .as_deref()
        .map(|text| find::node(&store, text).map(|node| node.node_id))
        .transpose()?;
    let request = Export {
        node: node.node_id,
        format,
        to: arguments.to.clone(),
        from,
        preserve_privilege: arguments.preserve_privilege,
    };
    let exported = store
        .export(&context.meta("")?, &request, &Bar::new("exporting"))
        .map_err(|error| error.problem())?;
    for path in &exported.left_out {
        eprintln!("esf: left out {}: {}", printable(&path.path), path.reason);
    }
    let mut table = Table::new(&["FORMAT", "AGAINST", "PATH", "PROVENANCE"]);
    let value = json!({ "export": exported });
    let cell = |key: &str| value["export"][key].as_str().unwrap_or_default().to_owned();
    let against = if cell("from_node_id").is_empty() { "-".to_owned() } else { cell("from_node_id") };
    table.row([cell("format"), against, cell("path"), cell("provenance")]);
    Ok(Reply { table, ids: vec![cell("path")], value })
}
