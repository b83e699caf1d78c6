//! `merge`: several sealed nodes into one, or with `--matrix` what each pair of them would come to.
//! Invariant: conflicts are told in full on stdout before the exit code says so.

use esf_core::record::Node;
use esf_core::{Class, NodeId, Problem};
use esf_graph::Ref;
use esf_store::{MatrixCell, MatrixOutcome, Merge, MergeOutcome, MergeStep, Store, TextMerge};
use serde_json::{Value, json};

use super::{find, show};
use crate::args;
use crate::context::Context;
use crate::output::{Reply, Table};

pub(super) fn merge(context: &Context, arguments: &args::Merge) -> Result<Reply, Problem> {
    let store = context.open()?;
    let base = arguments.base.as_deref().map(|text| find::node(&store, text).map(|node| node.node_id));
    let base = base.transpose()?;
    let globs = arguments.text_glob.clone();
    let text = (arguments.text || !globs.is_empty()).then_some(TextMerge { globs });
    if arguments.matrix {
        return matrix(&store, &arguments.nodes, base, text.as_ref());
    }
    let ids = arguments.nodes.iter().map(|text| find::node(&store, text).map(|node| node.node_id));
    let expect = arguments.expect.expect("clap requires it without --matrix");
    let request =
        Merge { nodes: ids.collect::<Result<_, _>>()?, expect, base, text, dry_run: arguments.dry_run };
    match store.merge(&context.meta("")?, &request).map_err(|error| error.problem())? {
        MergeOutcome::Merged { node, steps } => Ok(reply("merged", node.as_ref(), &[], &steps)),
        MergeOutcome::Conflicted { node, conflicts, steps } => {
            super::print(context, &reply("conflicted", node.as_ref(), &conflicts, &steps))?;
            Err(refused(node.as_ref(), conflicts.len()))
        }
        MergeOutcome::Stale { generation, canonical_node_id } => {
            super::print(context, &reply("stale", None, &[], &[]))?;
            Err(Problem::new(Class::Conflict, "stale_generation", "the group has moved on")
                .expected(format!("generation {expect}"))
                .found(format!("generation {generation}"))
                .remedy(format!("look at what changed and repeat with --expect {generation}"))
                .context(json!({ "generation": generation, "canonical_node_id": canonical_node_id })))
        }
    }
}

fn refused(node: Option<&Node>, count: usize) -> Problem {
    let message = if count == 1 { "1 path conflicts".to_owned() } else { format!("{count} paths conflict") };
    let problem = Problem::new(Class::Conflict, "merge_conflict", message);
    let Some(node) = node else {
        return problem.remedy(
            "nothing was recorded; without --dry-run a draft is made that holds ours at these paths, where they can \
             be resolved",
        );
    };
    let name = show::short(&node.node_id);
    problem.remedy(format!(
        "`esf activate {name}`: it holds ours at these paths, the other terms are `esf cat NODE:PATH` of the \
         nodes named; resolve them, then `esf suspend` the attempt. `esf inspect {name}` lists them again"
    ))
}

fn reply(outcome: &str, node: Option<&Node>, conflicts: &[Value], steps: &[MergeStep]) -> Reply {
    let line_merged: Vec<&String> = steps.iter().flat_map(|step| &step.line_merged).collect();
    let collisions: Vec<&[String; 2]> = steps.iter().flat_map(|step| &step.case_collisions).collect();
    let mut table = Table::new(&["OUTCOME", "NODE", "PATH", "KIND", "BASE", "OURS", "THEIRS"]);
    let name = node.map_or("-".to_owned(), |node| show::short(&node.node_id));
    let mut row = |path: &str, kind: &str, nodes: [String; 3]| {
        let cells = [outcome.to_owned(), name.clone(), path.to_owned(), kind.to_owned()];
        table.row(cells.into_iter().chain(nodes));
    };
    for conflict in conflicts {
        let nodes = ["base", "ours", "theirs"].map(|side| node_of(conflict, side));
        row(&text(conflict, "path"), &text(conflict, "kind"), nodes);
    }
    for path in &line_merged {
        row(path, "lines merged", Default::default());
    }
    for [ours, theirs] in &collisions {
        row(&format!("{ours} {theirs}"), "case collision", Default::default());
    }
    if conflicts.is_empty() && line_merged.is_empty() && collisions.is_empty() {
        row("", "", Default::default());
    }
    if let Some(node) = node.filter(|_| !line_merged.is_empty()) {
        let (count, name) = (line_merged.len(), show::short(&node.node_id));
        eprintln!(
            "esf: lines of {count} files were merged; that they fit together is not known: \
             `esf evaluate {name}` once it is sealed, and before it is promoted"
        );
    }
    let value = json!({
        "outcome": outcome,
        "node": node,
        "conflicts": conflicts,
        "steps": steps,
        "line_merged": line_merged,
        "case_collisions": collisions,
        "evaluation_wanted": !line_merged.is_empty(),
    });
    Reply { value, table, ids: node.map(|node| node.node_id.to_string()).into_iter().collect() }
}

fn text(conflict: &Value, key: &str) -> String {
    conflict[key].as_str().unwrap_or_default().to_owned()
}

/// The node that has a term of a conflict: `-` where the path is not there.
fn node_of(conflict: &Value, side: &str) -> String {
    match conflict[format!("{side}_node")].as_str() {
        _ if conflict[side].is_null() => "-".to_owned(),
        Some(node) => show::short(&node),
        None => "merged before".to_owned(),
    }
}

fn matrix(
    store: &Store,
    named: &[String],
    base: Option<NodeId>,
    text: Option<&TextMerge>,
) -> Result<Reply, Problem> {
    let mut nodes = Vec::new();
    for name in named {
        match find::reference(store, name)? {
            Ref::Group(id) => nodes.extend(store.frontier(id).map_err(|error| error.problem())?),
            _ => nodes.push(find::node(store, name)?.node_id),
        }
    }
    let cells = store.merge_matrix(&nodes, base, text).map_err(|error| error.problem())?;
    let mut table = Table::new(&["OURS", "THEIRS", "OUTCOME", "CONFLICTS", "PATHS"]);
    for cell in &cells {
        table.row(matrix_row(cell));
    }
    let ids = nodes.iter().map(NodeId::to_string).collect();
    Ok(Reply { value: json!({ "matrix": cells }), table, ids })
}

/// How many paths a row of the table names.
const PATHS_SHOWN: usize = 3;

fn matrix_row(cell: &MatrixCell) -> [String; 5] {
    let (outcome, detail) = match (cell.outcome, &cell.refusal) {
        (MatrixOutcome::Merged, _) => ("merged", String::new()),
        (MatrixOutcome::Conflicted, _) => ("conflicted", paths(&cell.conflicts)),
        (MatrixOutcome::Refused, why) => {
            ("refused", why.as_ref().map(|problem| problem.code.clone()).unwrap_or_default())
        }
    };
    let [ours, theirs] = [&cell.ours, &cell.theirs].map(show::short);
    [ours, theirs, outcome.to_owned(), cell.conflicts.len().to_string(), detail]
}

fn paths(conflicts: &[Value]) -> String {
    let mut shown: Vec<String> =
        conflicts.iter().take(PATHS_SHOWN).map(|conflict| text(conflict, "path")).collect();
    if conflicts.len() > PATHS_SHOWN {
        shown.push(format!("and {} more", conflicts.len() - PATHS_SHOWN));
    }
    shown.join(" ")
}
