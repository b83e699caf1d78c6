//! Which paths git would ignore: asked of git itself, about a directory that holds nothing but the
//! `.gitignore` files of the tree in question. Only those files count: neither the user's own exclude files
//! nor `.git/info/exclude` of the tree.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esf_core::manifest::{EntryKind, MAX_PATH, Objects, RootPin, lookup};

use super::command::{LONG, Running};
use super::{Bench, Error as GitError};
use crate::patch::refused_by_git;
use crate::{Error, Files, readable};

/// Largest `.gitignore` in bytes that is read.
const FILE_MAX: u64 = 1 << 20;

/// Largest index in bytes that is read.
const INDEX_MAX: u64 = 256 << 20;

/// Paths that are ignored.
pub type Ignored = HashSet<Vec<u8>>;

/// Which of `paths` (of files and symlinks) the `.gitignore` files of `pin` ignore, tracked or not. `bench` is
/// made only if there is such a file.
///
/// # Errors
/// Objects that cannot be read, a git that fails or is not there, an ignore file of more than 1 MiB.
pub fn ignored(
    objects: &dyn Objects,
    pin: &RootPin,
    files: &dyn Files,
    paths: &[Vec<u8>],
    scratch: &Path,
    bench: &mut dyn FnMut() -> Result<Bench, Error>,
) -> Result<Ignored, Error> {
    let mut asked = BTreeSet::new();
    let mut found = false;
    for path in paths {
        for directory in directories_of(path) {
            if !asked.insert(directory) || refused_by_git(directory, false).is_some() {
                continue;
            }
            found |= lay_out(objects, pin, files, directory, scratch)?;
        }
    }
    if found { ask(&bench()?, paths, scratch) } else { Ok(Ignored::new()) }
}

/// The directories above a path, the top first.
fn directories_of(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    std::iter::once(0).chain(slashes).map(|end| &path[..end])
}

/// Copies the ignore file of `directory`, if it has one: a link is none, as for git.
fn lay_out(
    objects: &dyn Objects,
    pin: &RootPin,
    files: &dyn Files,
    directory: &[u8],
    scratch: &Path,
) -> Result<bool, Error> {
    let prefix = if directory.is_empty() { b"".as_slice() } else { b"/" };
    let path = [directory, prefix, b".gitignore"].concat();
    let Some(entry) = lookup(objects, pin, &path)? else { return Ok(false) };
    let EntryKind::File { size, .. } = entry.kind else { return Ok(false) };
    if size > FILE_MAX {
        let what = format!("an ignore file of more than {FILE_MAX} bytes");
        return Err(GitError::Refused { path: readable(&path), what }.into());
    }
    let mut text = Vec::new();
    files.open(&path)?.take(FILE_MAX).read_to_end(&mut text).map_err(Error::io(readable(&path)))?;
    let to = scratch.join(OsStr::from_bytes(directory));
    fs::create_dir_all(&to)
        .and_then(|()| fs::write(to.join(".gitignore"), text))
        .map_err(Error::io(readable(&path)))?;
    Ok(true)
}

fn ask(bench: &Bench, paths: &[Vec<u8>], scratch: &Path) -> Result<Ignored, Error> {
    let what = "tell what is ignored";
    let mut command = bench.command(["-c", "core.bare=false", "check-ignore", "--no-index", "--stdin", "-z"]);
    command.env("GIT_WORK_TREE", scratch).current_dir(scratch);
    let mut running = Running::start(command, what, LONG)?;
    let (stdin, stdout) = (running.stdin(), running.stdout());
    let mut ignored = Ignored::new();
    let read = std::thread::scope(|scope| -> std::io::Result<()> {
        scope.spawn(move || {
            let mut stdin = BufWriter::new(stdin);
            // A git that ends early has its reasons, which its status tells.
            paths
                .iter()
                .filter(|path| refused_by_git(path, false).is_none())
                .try_for_each(|path| {
                    stdin
                        .write_all(b"./")
                        .and_then(|()| stdin.write_all(path))
                        .and_then(|()| stdin.write_all(b"\0"))
                })
                .and_then(|()| stdin.flush())
                .unwrap_or_default();
        });
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        while lines.by_ref().take(MAX_PATH as u64 + 8).read_until(0, &mut line)? > 0 {
            let path = line.strip_suffix(b"\0").unwrap_or(&line);
            ignored.insert(path.strip_prefix(b"./").unwrap_or(path).to_vec());
            line.clear();
        }
        Ok(())
    });
    read.map_err(Error::io("the answers of git"))?;
    let ended = running.end()?;
    // One says that nothing is ignored.
    match ended.code {
        Some(0 | 1) => Ok(ignored),
        _ => Err(GitError::Failed { what, said: ended.complaints }.into()),
    }
}

/// The paths that the `.git/index` of `files`, of `size` bytes, names; none when git cannot read it.
///
/// # Errors
/// When it cannot be copied, or is larger than 256 MiB.
pub fn tracked(bench: &Bench, files: &dyn Files, size: u64) -> Result<Option<Ignored>, Error> {
    if size > INDEX_MAX {
        let what = format!("an index of more than {INDEX_MAX} bytes");
        return Err(GitError::Refused { path: ".git/index".to_owned(), what }.into());
    }
    let copy = bench.directory().join("copied-index");
    let failed = || Error::io(".git/index");
    let mut file = fs::File::create(&copy).map_err(failed())?;
    std::io::copy(&mut files.open(b".git/index")?.take(INDEX_MAX), &mut file).map_err(failed())?;
    let mut command = bench.command(["ls-files", "-z"]);
    command.env("GIT_INDEX_FILE", &copy);
    let (ended, list) = super::command::ask(command, "read an index", b"", INDEX_MAX)?;
    let named = list.split(|&byte| byte == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec);
    Ok((ended.code == Some(0)).then(|| named.collect()))
}
