//! What a working tree holds beside its last commit: told to the user, never imported. Git compares with
//! the user's index from a repository of our own, so no filter or monitor of the user's is started; it
//! does not look into submodules.

use std::ffi::OsStr;
use std::fs;

use super::command::ask;
use super::{Bench, Error, Repository};

/// Most bytes of git's list that are read.
const LIST_MAX: u64 = 64 << 20;
/// Most bytes of the user's own exclude file.
const EXCLUDE_MAX: u64 = 1 << 20;
/// How many paths are named.
const NAMED: usize = 5;

/// Changes that are in no commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uncommitted {
    /// Paths with staged, unstaged or untracked changes; an untracked directory counts once.
    pub paths: u64,
    /// The first of them.
    pub some: Vec<Vec<u8>>,
}

/// Compares the working tree of `repository` with its last commit; `bench` must borrow its objects. None when
/// it has no working tree, or no commit.
///
/// # Errors
/// When git fails.
pub fn uncommitted(repository: &Repository, bench: &Bench) -> Result<Option<Uncommitted>, Error> {
    if repository.bare {
        return Ok(None);
    }
    let head = match repository.resolve(OsStr::new("HEAD")) {
        Ok(head) => head,
        Err(Error::NoRevision { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let failed = |error: std::io::Error| Error::Failed { what: "compare", said: error.to_string() };
    fs::write(bench.directory().join("HEAD"), format!("{head}\n")).map_err(failed)?;
    let mut excluded = Vec::new();
    if let Ok(file) = fs::File::open(&repository.exclude) {
        use std::io::Read;
        file.take(EXCLUDE_MAX).read_to_end(&mut excluded).map_err(failed)?;
        fs::create_dir_all(bench.directory().join("info")).map_err(failed)?;
        fs::write(bench.directory().join("info/exclude"), excluded).map_err(failed)?;
    }
    let mut command = bench.command(["-c", "core.bare=false", "status", "--porcelain", "-z"]);
    command.args(["--ignore-submodules=all", "--untracked-files=normal", "--no-renames"]);
    command
        .env("GIT_WORK_TREE", &repository.directory)
        .env("GIT_INDEX_FILE", &repository.index)
        .current_dir(&repository.directory);
    let (ended, list) = ask(command, "compare the working tree with its commit", b"", LIST_MAX)?;
    if ended.code != Some(0) {
        return Err(Error::Failed {
            what: "compare the working tree with its commit",
            said: ended.complaints,
        });
    }
    let paths = list.split(|&byte| byte == 0).filter(|line| line.len() > 3);
    let mut found = Uncommitted::default();
    for line in paths {
        found.paths += 1;
        if found.some.len() < NAMED {
            found.some.push(line[3..].to_vec());
        }
    }
    Ok(Some(found))
}
