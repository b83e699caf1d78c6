//! An evaluator's own files and what it hides of a tree. Invariant: the digest covers names, modes and
//! bytes, in the order of their names, so equal digests mean equal files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use esf_control::Evaluator;
use esf_core::manifest::lookup;
use esf_core::record::Node;
use esf_core::{Class, Digest, Problem};
use esf_store::Store;

use super::Prepared;
use crate::commands::find;
use crate::context::io_problem;

/// An evaluator's files, as far as others need to know.
pub(super) struct Files {
    /// One digest over names, modes and bytes.
    pub(super) digest: Digest,
    /// Their `stamp` before they were read.
    pub(super) stamp: Digest,
    /// Whether one of them has a word of a program that writes the result file.
    pub(super) speak_of_result: bool,
    names: BTreeSet<PathBuf>,
}

impl Files {
    /// Whether `path`, or something above or below it, is one of them.
    pub(super) fn have(&self, path: &str) -> bool {
        let path = Path::new(path);
        self.names.iter().any(|name| name.starts_with(path) || path.starts_with(name))
    }
}

/// Calls `each` with the path, the name below `directory` and the metadata of every file in it.
fn walk(
    directory: &Path,
    mut each: impl FnMut(&Path, &Path, &fs::Metadata) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut waiting = vec![directory.to_owned()];
    while let Some(here) = waiting.pop() {
        let entries = fs::read_dir(&here).map_err(|error| io_problem("read", &here, &error))?;
        for entry in entries {
            let path = entry.map_err(|error| io_problem("read", &here, &error))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(|error| io_problem("read", &path, &error))?;
            if metadata.is_dir() {
                waiting.push(path);
            } else if metadata.is_file() {
                each(&path, path.strip_prefix(directory).unwrap_or(&path), &metadata)?;
            } else {
                let message = "an evaluator's files are regular files and directories";
                let problem = Problem::new(Class::Usage, "bad_evaluator", message);
                return Err(problem.found(path.display().to_string()));
            }
        }
    }
    Ok(())
}

/// Reads the files of a directory.
pub(super) fn read(directory: &Path) -> Result<Files, Problem> {
    let stamp = stamp(directory)?;
    let (mut lines, mut names, mut speak_of_result) = (Vec::new(), BTreeSet::new(), false);
    walk(directory, |path, name, metadata| {
        let bytes = fs::read(path).map_err(|error| io_problem("read", path, &error))?;
        speak_of_result |= speaks(&bytes);
        let (shown, mode) = (name.as_os_str().as_encoded_bytes().escape_ascii(), metadata.mode() & 0o7777);
        lines.push(format!("{shown} {mode:o} {}", Digest::of(&bytes)));
        names.insert(name.to_owned());
        Ok(())
    })?;
    lines.sort_unstable();
    let digest = Digest::in_context("esf evaluator files v1", lines.join("\n").as_bytes());
    Ok(Files { digest, stamp, speak_of_result, names })
}

/// What changes with every change of a file, without reading any: for the time of one process.
pub(super) fn stamp(directory: &Path) -> Result<Digest, Problem> {
    let mut lines = Vec::new();
    walk(directory, |_, name, metadata| {
        let shown = name.as_os_str().as_encoded_bytes().escape_ascii();
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        lines.push(format!("{shown} {} {} {changed:?}", metadata.ino(), metadata.len()));
        Ok(())
    })?;
    lines.sort_unstable();
    Ok(Digest::of(lines.join("\n").as_bytes()))
}

fn speaks(bytes: &[u8]) -> bool {
    let has = |word: &&str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
    Evaluator::RESULT_WORDS.iter().any(has)
}

/// The paths of the node's tree that a run does not see: what the globs hide, and what lies where the run
/// leaves something; below a hidden directory nothing more is named.
pub(super) fn hidden(store: &Store, node: &Node, prepared: &Prepared) -> Result<Vec<Vec<u8>>, Problem> {
    let pin = find::sealed_root(node)?;
    let objects = store.stack().objects();
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for path in prepared.evaluator.left_paths() {
        let found = lookup(objects, &pin, path.as_bytes()).map_err(|error| error.problem())?;
        paths.extend(found.map(|_| path.as_bytes().to_vec()));
    }
    if prepared.evaluator.hide.is_empty() {
        return Ok(paths);
    }
    let mut last: Option<Vec<u8>> = None;
    for entry in esf_core::manifest::walk(objects, &pin) {
        let path = entry.map_err(|error| error.problem())?.path;
        let below = |top: &Vec<u8>| path.starts_with(top) && path.get(top.len()) == Some(&b'/');
        if last.as_ref().is_some_and(below) {
            continue;
        }
        if prepared.hide.is_match(Path::new(std::ffi::OsStr::new(&*String::from_utf8_lossy(&path)))) {
            paths.push(path.clone());
            last = Some(path);
        }
    }
    Ok(paths)
}
