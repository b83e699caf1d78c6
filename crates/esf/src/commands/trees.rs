//! What is in a root: its entries, its files, what changed. Reads verify what they print.

use std::io::Write;
use std::path::Path;

use esf_core::diff::{Change, ChangeKind};
use esf_core::manifest::{EntryKind, RootPin, dump_line, walk};
use esf_core::{Class, Problem};
use esf_store::Store;
use serde_json::{Value, json};

use super::{find, show};
use crate::args;
use crate::context::Context;
use crate::output::{self, Reply, Table, show_bytes};
use crate::progress::Bar;

pub(super) fn dump(context: &Context, arguments: &args::Dump) -> Result<u8, Problem> {
    let store = context.open()?;
    let pin = find::root(&store, &arguments.id)?;
    let mut out = std::io::BufWriter::new(std::io::stdout());
    for entry in walk(store.stack().objects(), &pin) {
        let line = dump_line(&entry.map_err(|error| error.problem())?);
        if let Err(error) = writeln!(out, "{line}") {
            return closed(error);
        }
    }
    out.flush().map(|()| 0).or_else(closed)
}

/// A reader that went away is no failure.
fn closed(error: std::io::Error) -> Result<u8, Problem> {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(0),
        _ => Err(Problem::new(Class::Failure, "stdout", format!("cannot write to stdout: {error}"))),
    }
}

/// `NODE:PATH` or `NODE`; `GROUP:NAME` and `GROUP:@` may stand for the node, so the last colon before
/// which a node stands is the one that splits.
fn node_and_path<'a>(store: &Store, text: &'a str) -> Result<(RootPin, &'a str), Problem> {
    let mut refused = None;
    for (at, _) in text.rmatch_indices(':') {
        match find::root(store, &text[..at]) {
            Ok(pin) => return Ok((pin, text[at + 1..].trim_matches('/'))),
            Err(problem) => refused = Some(problem),
        }
    }
    match find::root(store, text) {
        Ok(pin) => Ok((pin, "")),
        Err(problem) => Err(refused.unwrap_or(problem)),
    }
}

pub(super) fn cat(context: &Context, arguments: &args::Cat) -> Result<u8, Problem> {
    let store = context.open()?;
    let (pin, path) = node_and_path(&store, &arguments.file)?;
    let mut file = store.stack().open_file(&pin, path.as_bytes()).map_err(|error| error.problem())?;
    match std::io::copy(&mut file, &mut std::io::stdout()) {
        Ok(_) => Ok(0),
        Err(error) => closed(error),
    }
}

pub(super) fn tree(context: &Context, arguments: &args::Tree) -> Result<Reply, Problem> {
    let store = context.open()?;
    let whole = find::root(&store, &arguments.path);
    let (pin, path) = match whole {
        Ok(pin) => (pin, ""),
        Err(_) => node_and_path(&store, &arguments.path)?,
    };
    let mut table = Table::new(&["MODE", "KIND", "SIZE", "PATH"]);
    let (mut entries, mut ids) = (Vec::new(), Vec::new());
    for entry in walk(store.stack().objects(), &pin) {
        let entry = entry.map_err(|error| error.problem())?;
        let below = path.is_empty()
            || entry.path == path.as_bytes()
            || entry.path.strip_prefix(path.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'/'));
        if !below || entry.path.is_empty() {
            continue;
        }
        let (kind, size) = match &entry.kind {
            EntryKind::Directory { .. } => ("directory", 0),
            EntryKind::File { size, .. } => ("file", *size),
            EntryKind::Symlink { target } => ("symlink", target.len() as u64),
            EntryKind::Fifo => ("fifo", 0),
        };
        let shown = show_bytes(&entry.path);
        let mode = format!("{:04o}", entry.mode.bits());
        table.row([mode.clone(), kind.to_owned(), size.to_string(), shown.clone()]);
        entries.push(json!({ "path": shown, "kind": kind, "mode": mode, "size": size }));
        ids.push(shown);
    }
    if entries.is_empty() && !path.is_empty() {
        return Err(Problem::new(Class::NotFound, "not_found", format!("no {path} in it")));
    }
    Ok(Reply { value: json!({ "entries": entries }), table, ids })
}

pub(super) fn diff(context: &Context, arguments: &args::Diff) -> Result<u8, Problem> {
    let store = context.open()?;
    let (before, after) = sides(&store, arguments)?;
    if arguments.patch {
        let mut out = std::io::BufWriter::new(std::io::stdout());
        let summary = store.patch_between(&before, &after, &mut out).map_err(|error| error.problem())?;
        out.flush().map(|()| 0).or_else(closed)?;
        for left_out in &summary.left_out {
            eprintln!("esf: left out {}: {}", output::printable(&left_out.path), left_out.reason);
        }
        return Ok(0);
    }
    let mut changes =
        esf_core::diff::diff(store.stack().objects(), &before, &after).map_err(|error| error.problem())?;
    changes.retain(esf_layerstack::is_told);
    let reply = if arguments.stat { stat(&changes) } else { name_status(&changes) };
    super::print(context, &reply)
}

fn sides(store: &Store, arguments: &args::Diff) -> Result<(RootPin, RootPin), Problem> {
    let first = find::root(store, &arguments.node)?;
    if let Some(other) = &arguments.other {
        return Ok((first, find::root(store, other)?));
    }
    let node = find::node(store, &arguments.node)?;
    let Some(parent) = node.parents.first() else {
        return Err(Problem::new(
            Class::Usage,
            "no_parent",
            format!("{} has no parent to compare with", node.node_id),
        )
        .remedy("name two nodes: `esf diff NODE NODE`"));
    };
    let parent = store.graph().node(*parent).map_err(|error| error.problem())?;
    Ok((find::sealed_root(&parent)?, first))
}

/// A changed path for people; the top directory is `.`.
fn shown(change: &Change) -> String {
    if change.path.is_empty() { ".".to_owned() } else { show_bytes(&change.path) }
}

fn letter(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "A",
        ChangeKind::Modified => "M",
        ChangeKind::Deleted => "D",
        ChangeKind::TypeChanged => "T",
    }
}

fn name_status(changes: &[Change]) -> Reply {
    let lines = changes
        .iter()
        .map(|change| format!("{}\t{}", letter(change.kind), output::printable(&shown(change))));
    let values: Vec<Value> = changes
        .iter()
        .map(|change| json!({ "path": shown(change), "change": letter(change.kind) }))
        .collect();
    let ids = changes.iter().map(shown).collect();
    let mut table = Table::default();
    for line in lines {
        let (letter, path) = line.split_once('\t').unwrap_or_default();
        table.row([letter, path]);
    }
    Reply { value: json!({ "changes": values }), table, ids }
}

fn stat(changes: &[Change]) -> Reply {
    let count = |wanted: &[ChangeKind]| changes.iter().filter(|change| wanted.contains(&change.kind)).count();
    let added = count(&[ChangeKind::Added]);
    let modified = count(&[ChangeKind::Modified, ChangeKind::TypeChanged]);
    let deleted = count(&[ChangeKind::Deleted]);
    let value = json!({ "added": added, "modified": modified, "deleted": deleted });
    let table = Table::lines([format!("{added} added, {modified} modified, {deleted} deleted")]);
    Reply { value, table, ids: Vec::new() }
}

/// Whether `text` is an export rather than a record: a path that is there, with its statement beside
/// it, or with a slash, which no record's name has.
fn is_export(text: &str) -> bool {
    let path = Path::new(text);
    path.symlink_metadata().is_ok()
        && (text.contains('/') || esf_store::statement_beside(path).symlink_metadata().is_ok())
}

/// An export, against the statement beside it; needs no store.
fn verify_export(text: &str) -> Result<Reply, Problem> {
    let verified = esf_store::verify_export(Path::new(text)).map_err(|error| error.problem())?;
    let node = verified.node_id.map(|node| node.to_string());
    let what = node.or(verified.run_id.map(|run| run.to_string())).unwrap_or_default();
    let table = Table::lines([format!(
        "{text}: {} of {}, as its statement says (which nobody signed)",
        verified.format,
        show::short(&what)
    )]);
    Ok(Reply { ids: vec![what], value: json!({ "verified": verified }), table })
}

pub(super) fn verify(context: &Context, arguments: &args::Verify) -> Result<Reply, Problem> {
    if is_export(&arguments.id) {
        return verify_export(&arguments.id);
    }
    let store = context.open()?;
    let pin = find::root(&store, &arguments.id)?;
    let report = store.stack().verify(&pin, &Bar::new("verifying")).map_err(|error| error.problem())?;
    if let Some(first) = report.damaged.first() {
        return Err(Problem::new(Class::Damaged, "damaged", format!("{} is damaged: {first}", pin.root))
            .found(format!("{} damaged entries", report.damaged.len()))
            .remedy("`esf fsck` lists all damage; other nodes are not affected")
            .context(json!({ "damaged": report.damaged })));
    }
    let table = Table::lines([format!(
        "{}: {} entries, {} bytes, all as recorded",
        show::short(&pin.root),
        report.entries,
        report.bytes
    )]);
    let value = json!({ "verified": { "root_id": pin.root, "attrs_id": pin.attrs, "entries": report.entries, "bytes": report.bytes } });
    Ok(Reply { value, table, ids: vec![pin.root.to_string()] })
}
