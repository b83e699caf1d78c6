//! `promote` and `export`: what makes work count and brings it out. `merge` has a file of its own.

use esf_core::Problem;
use std::path::PathBuf;

use esf_core::ops::promote::Promote;
use esf_store::{Export, Format};
use serde_json::json;

use super::{find, show};
use crate::args::{self, ExportFormat};
use crate::context::Context;
use crate::output::{Reply, Table, not_supported, printable};
use crate::progress::Bar;

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
        ExportFormat::Git => Format::Git,
        ExportFormat::Oci | ExportFormat::Bundle | ExportFormat::Artifact => {
            return Err(not_supported("this export format", "use --format dir, tar, patch or git"));
        }
    };
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let from = arguments
        .from
        .as_deref()
        .map(|text| find::node(&store, text).map(|node| node.node_id))
        .transpose()?;
    let (to, branch) = target_of(arguments, format);
    let request = Export {
        from,
        preserve_privilege: arguments.preserve_privilege,
        branch,
        series: arguments.series,
        include_ignored: arguments.include_ignored,
        ..Export::new(node.node_id, format, &to)
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

/// The repository and the branch, which may be written as `REPO#BRANCH`.
fn target_of(arguments: &args::Export, format: Format) -> (PathBuf, Option<String>) {
    let (to, branch) = (arguments.to.clone(), arguments.branch.clone());
    let text = to.to_str().filter(|_| format == Format::Git && branch.is_none() && !to.exists());
    match text.and_then(|text| text.rsplit_once('#')) {
        Some((repository, branch)) => (repository.into(), Some(branch.to_owned())),
        None => (to, branch),
    }
}
