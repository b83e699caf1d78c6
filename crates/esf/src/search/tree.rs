//! A search's tree written out. JSON has everything and is written as it is read, so a tree of millions of positions
//! needs no memory; pictures have the most visited positions.

use std::collections::{BinaryHeap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use esf_control::picture::{Shown, ShownPosition};
use esf_core::search::{BestKind, Position, Search};
use esf_core::{Problem, SearchId};
use esf_store::Store;
use serde_json::json;

use super::lines;
use crate::args::{self, TreeFormat};
use crate::context::{Context, io_problem};

pub(super) fn export(context: &Context, arguments: &args::SearchExport) -> Result<u8, Problem> {
    let store = context.open()?;
    let search = super::found(&store, &arguments.search)?;
    let write = |out: &mut dyn Write| match arguments.format {
        TreeFormat::Json => write_json(&store, &search, out),
        format => {
            let shown = shown(&store, search.search_id, arguments.most as usize)?;
            let text = match format {
                TreeFormat::Dot => shown.dot(),
                TreeFormat::Svg => shown.svg(),
                TreeFormat::Json | TreeFormat::Html => shown.html(arguments.most as usize * 4),
            };
            written(out.write_all(text.as_bytes()), Path::new("the picture"))
        }
    };
    match &arguments.to {
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(&mut out)?;
            written(out.flush(), Path::new("standard output"))?;
        }
        Some(path) => {
            // Beside it first, so that a reader never sees a part.
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = directory.unwrap_or(Path::new("."));
            let failed = |error: &io::Error| io_problem("write", path, error);
            let file = tempfile::NamedTempFile::new_in(directory).map_err(|error| failed(&error))?;
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            let file = out.into_inner().map_err(|error| failed(error.error()))?;
            readable(file.as_file()).map_err(|error| failed(&error))?;
            file.persist(path).map_err(|error| failed(&error.error))?;
            eprintln!("esf: wrote {}", path.display());
        }
    }
    Ok(0)
}

/// What others may read as if it had been made by a shell.
fn readable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

/// A reader that went away (`esf search export … | head`) is no error.
fn written(result: io::Result<()>, path: &Path) -> Result<(), Problem> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| io_problem("write", path, &error)),
    }
}

fn write_json(store: &Store, search: &Search, out: &mut dyn Write) -> Result<(), Problem> {
    let path = Path::new("the tree");
    let held = store.graph().tickets_in_flight(search.search_id).map_err(|error| error.problem())?;
    let held: Vec<_> = held.into_iter().map(|ticket| ticket.rollout).collect();
    written(
        write!(out, "{{\"search\":{},\"in_flight\":{},\"positions\":[", json!(search), json!(held)),
        path,
    )?;
    let mut first = true;
    let mut result = Ok(());
    let walked = store.graph().walk_search(search.search_id, |position, edges| {
        let comma = if first { "\n" } else { ",\n" };
        first = false;
        if result.is_ok() {
            let shown = ShownPosition { position, edges };
            result = out
                .write_all(comma.as_bytes())
                .and_then(|()| serde_json::to_writer(&mut *out, &shown).map_err(io::Error::from));
        }
        Ok(())
    });
    walked.map_err(|error| error.problem())?;
    written(result, path)?;
    written(out.write_all(b"\n]}\n"), path)
}

/// The most visited positions of a search, each after its parent; `most` at most.
pub(super) fn shown(store: &Store, search: SearchId, most: usize) -> Result<Shown, Problem> {
    let graph = store.graph();
    let search = graph.search(search).map_err(|error| error.problem())?;
    let mut waiting = BinaryHeap::from([(u64::MAX, std::cmp::Reverse(0), search.root)]);
    let mut seen = HashSet::from([search.root]);
    let mut positions = Vec::new();
    while let Some((_, _, number)) = waiting.pop() {
        if positions.len() >= most {
            break;
        }
        let position: Position = graph.position(number).map_err(|error| error.problem())?;
        let edges = graph.edges_of(number).map_err(|error| error.problem())?;
        for edge in &edges {
            if let Some(child) = edge.stats.child.filter(|child| seen.insert(*child)) {
                waiting.push((edge.stats.child_visits, std::cmp::Reverse(edge.stats.number.0), child));
            }
        }
        positions.push(ShownPosition { position, edges });
    }
    let left_out = search.positions.saturating_sub(positions.len() as u64);
    let best = lines::best_position(store, &search)?.map(|best| best.position.stats.number);
    let principal = graph.principal_variation(search.search_id, BestKind::Robust);
    let principal =
        principal.map_err(|error| error.problem())?.iter().map(|step| step.edge.stats.number).collect();
    Ok(Shown { search, positions, left_out, best, principal })
}
