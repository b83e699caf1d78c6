//! What a command changed in the tree, laid aside for its scorer as a layer over that tree. Invariants:
//! nothing of it runs any more, no link is followed, and what the evaluator hides stays hidden. Files are
//! not copied: they become names of the same bytes, which no overlay above changes.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use esf_core::record::Attempt;
use esf_core::{Class, Problem};
use esf_layerstack::Scratch;
use esf_store::Store;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, mknodat};

use super::Prepared;
use crate::context::io_problem;

/// Most entries that a scorer is shown.
const MAX_ENTRIES: usize = 100_000;
/// Overlay's mark of a directory that covers what is below it.
const OPAQUE: &str = "trusted.overlay.opaque";

/// Lays aside what `attempt` changed; nothing when it has no changes, or none that can be.
///
/// # Errors
/// `too_much_left`, and the store's and the file system's.
pub(super) fn lay_aside(
    store: &Store,
    attempt: &Attempt,
    prepared: &Prepared,
) -> Result<Option<Scratch>, Problem> {
    let workspace = store.stack().existing_workspace(attempt.attempt_id).map_err(|error| error.problem())?;
    let Some(workspace) = workspace else { return Ok(None) };
    let scratch = store.stack().scratch().map_err(|error| error.problem())?;
    let (mut waiting, mut entries) = (vec![PathBuf::new()], 0);
    while let Some(directory) = waiting.pop() {
        let from = workspace.upper.join(&directory);
        for entry in fs::read_dir(&from).map_err(|error| io_problem("read", &from, &error))? {
            let entry = entry.map_err(|error| io_problem("read", &from, &error))?;
            let path = directory.join(entry.file_name());
            entries += 1;
            if entries > MAX_ENTRIES {
                let message = "the command left too much for the scorer to be shown";
                return Err(Problem::new(Class::Refused, "too_much_left", message)
                    .expected(format!("at most {MAX_ENTRIES} changed files"))
                    .remedy("name what it needs with `collect`, then only that is handed over"));
            }
            if prepared.hide.is_match(&path) {
                continue;
            }
            let (from, to) = (entry.path(), scratch.path().join(&path));
            match take(&from, &to) {
                Ok(true) => waiting.push(path),
                Ok(false) => {}
                Err(error) => return Err(io_problem("lay aside", &from, &error)),
            }
        }
    }
    Ok((entries > 0).then_some(scratch))
}

/// Gives one entry another name; true for a directory.
fn take(from: &Path, to: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(from)?;
    let kind = found.file_type();
    if kind.is_dir() {
        fs::create_dir(to)?;
        let mut value = [0; 1];
        if rustix::fs::lgetxattr(from, OPAQUE, &mut value[..]) == Ok(1) {
            rustix::fs::lsetxattr(to, OPAQUE, &value, XattrFlags::CREATE)?;
        }
        std::os::unix::fs::lchown(to, Some(found.uid()), Some(found.gid()))?;
        let directory =
            rustix::fs::open(to, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(found.mode() & 0o7777))?;
        return Ok(true);
    }
    if kind.is_file() || kind.is_symlink() {
        fs::hard_link(from, to)?;
    } else if kind.is_char_device() && found.rdev() == 0 {
        mknodat(CWD, to, FileType::CharacterDevice, Mode::empty(), 0)?;
    }
    Ok(false)
}
