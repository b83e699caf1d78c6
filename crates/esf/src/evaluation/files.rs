//! An evaluator's own files and what it hides of a tree. Invariant: the digest covers names, modes and
//! bytes, in the order of their names, so equal digests mean equal files.

use std::fs;
use std::path::Path;

use esf_core::record::Node;
use esf_core::{Class, Digest, Problem};
use esf_store::Store;

use crate::commands::find;
use crate::context::io_problem;

/// One digest over names, modes and bytes of the evaluator's files, in the order of their names.
pub(super) fn digest(directory: &Path) -> Result<Digest, Problem> {
    let mut lines = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(here) = waiting.pop() {
        let entries = fs::read_dir(&here).map_err(|error| io_problem("read", &here, &error))?;
        for entry in entries {
            let path = entry.map_err(|error| io_problem("read", &here, &error))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(|error| io_problem("read", &path, &error))?;
            let name = path
                .strip_prefix(directory)
                .unwrap_or(&path)
                .as_os_str()
                .as_encoded_bytes()
                .escape_ascii()
                .to_string();
            if metadata.is_dir() {
                waiting.push(path);
            } else if metadata.is_file() {
                let bytes = fs::read(&path).map_err(|error| io_problem("read", &path, &error))?;
                let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o7777;
                lines.push(format!("{name} {mode:o} {}", Digest::of(&bytes)));
            } else {
                return Err(Problem::new(
                    Class::Usage,
                    "bad_evaluator",
                    "an evaluator's files are regular files and directories",
                )
                .found(path.display().to_string()));
            }
        }
    }
    lines.sort_unstable();
    Ok(Digest::in_context("esf evaluator files v1", lines.join("\n").as_bytes()))
}

/// The paths of the node's tree that the globs hide; below a hidden directory nothing more is named.
pub(super) fn hidden(store: &Store, node: &Node, hidden: &globset::GlobSet) -> Result<Vec<Vec<u8>>, Problem> {
    let pin = find::sealed_root(node)?;
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for entry in esf_core::manifest::walk(store.stack().objects(), &pin) {
        let path = entry.map_err(|error| error.problem())?.path;
        let below = |top: &Vec<u8>| path.starts_with(top) && path.get(top.len()) == Some(&b'/');
        if paths.last().is_some_and(below) {
            continue;
        }
        if hidden.is_match(Path::new(std::ffi::OsStr::new(&*String::from_utf8_lossy(&path)))) {
            paths.push(path);
        }
    }
    Ok(paths)
}
