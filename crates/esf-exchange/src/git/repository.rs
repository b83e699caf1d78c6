//! A repository of the user's: where its objects are and what its revisions mean. Only `rev-parse`,
//! `check-ref-format` and updates of a branch run with its own configuration; none of them starts a program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::command::ask;
use super::{Bench, Error, Git};

/// Most bytes of a path or a name that git answers.
const LINE_MAX: u64 = 64 << 10;
/// Most bytes of a commit object.
const COMMIT_MAX: u64 = 16 << 20;

/// How objects are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectFormat {
    /// By SHA-1, 20 bytes.
    Sha1,
    /// By SHA-256, 32 bytes.
    Sha256,
}

impl ObjectFormat {
    /// Digits of an object's name.
    pub const fn digits(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
        }
    }

    /// Whether `id` is the name of an object, as git writes it.
    pub fn is_id(self, id: &[u8]) -> bool {
        id.len() == self.digits() && id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

/// A commit, as far as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its name.
    pub id: String,
    /// The name of its tree.
    pub tree: String,
    /// Whether it has parents.
    pub has_parents: bool,
    /// When it was committed, in seconds since 1970.
    pub seconds: i64,
    /// Its message.
    pub message: Vec<u8>,
}

/// A repository that exists.
#[derive(Clone, Debug)]
pub struct Repository {
    pub(super) git: Git,
    /// The directory by which it was named, without links.
    pub(super) directory: PathBuf,
    /// The directory of its references.
    pub(super) common: PathBuf,
    pub(super) objects: PathBuf,
    pub(super) index: PathBuf,
    pub(super) exclude: PathBuf,
    pub(super) format: ObjectFormat,
    pub(super) bare: bool,
}

impl Repository {
    /// Opens the repository whose working tree's top or git directory `directory` is; what lies above is
    /// not looked at.
    ///
    /// # Errors
    /// `NotARepository`, `Missing`.
    pub fn open(git: Git, directory: &Path) -> Result<Self, Error> {
        let shown = directory.display().to_string();
        let none = |said: String| Error::NotARepository { path: shown.clone(), said };
        let directory = std::fs::canonicalize(directory).map_err(|error| none(error.to_string()))?;
        if !directory.is_dir() {
            return Err(none("it is no directory".to_owned()));
        }
        let mut command = in_place(&git, &directory);
        command.args([
            "rev-parse",
            "--path-format=absolute",
            "--show-object-format",
            "--is-inside-work-tree",
            "--git-common-dir",
            "--git-path",
            "objects",
            "--git-path",
            "index",
            "--git-path",
            "info/exclude",
        ]);
        let (ended, found) = ask(command, "look at the repository", b"", LINE_MAX)?;
        if ended.code != Some(0) {
            return Err(none(ended.complaints));
        }
        let lines: Vec<&[u8]> = found.strip_suffix(b"\n").unwrap_or(&found).split(|&b| b == b'\n').collect();
        let [format, inside, common, objects, index, exclude] = lines[..] else {
            return Err(none("its path has a line break, or this git is older than 2.31".to_owned()));
        };
        let format = match format {
            b"sha1" => ObjectFormat::Sha1,
            b"sha256" => ObjectFormat::Sha256,
            other => return Err(none(format!("objects named by {}", String::from_utf8_lossy(other)))),
        };
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let bare = inside != b"true";
        Ok(Self {
            git,
            common: path(common),
            objects: path(objects),
            index: path(index),
            exclude: path(exclude),
            directory,
            format,
            bare,
        })
    }

    /// How its objects are named.
    pub const fn format(&self) -> ObjectFormat {
        self.format
    }

    /// Where its objects are.
    pub fn objects(&self) -> &Path {
        &self.objects
    }

    /// The directory of what its working trees share.
    pub fn common_directory(&self) -> &Path {
        &self.common
    }

    /// The name of the commit that `revision` stands for.
    ///
    /// # Errors
    /// `NoRevision`.
    pub fn resolve(&self, revision: &OsStr) -> Result<String, Error> {
        let none = |said: String| Error::NoRevision {
            revision: revision.to_string_lossy().into_owned(),
            path: self.directory.display().to_string(),
            said,
        };
        if revision.is_empty() || revision.as_bytes().starts_with(b"-") {
            return Err(none("not a revision".to_owned()));
        }
        let mut wanted = revision.to_owned();
        wanted.push("^{commit}");
        let mut command = self.command();
        command.args(["rev-parse", "--verify", "--end-of-options"]).arg(wanted);
        let (ended, found) = ask(command, "resolve the revision", b"", LINE_MAX)?;
        // Some versions repeat the option.
        let id = found.split(|&byte| byte == b'\n').rfind(|line| !line.is_empty()).unwrap_or_default();
        if ended.code != Some(0) || !self.format.is_id(id) {
            return Err(none(if ended.complaints.is_empty() {
                "nothing".to_owned()
            } else {
                ended.complaints
            }));
        }
        Ok(String::from_utf8_lossy(id).into_owned())
    }

    /// The branch that `revision` names, as `refs/heads/NAME`; none for anything else.
    ///
    /// # Errors
    /// When git does not answer.
    pub fn branch_of(&self, revision: &OsStr) -> Result<Option<Vec<u8>>, Error> {
        let mut command = self.command();
        command.args(["rev-parse", "--symbolic-full-name", "--verify", "--quiet"]).arg(revision);
        let (ended, mut found) = ask(command, "resolve the branch", b"", LINE_MAX)?;
        if found.last() == Some(&b'\n') {
            found.pop();
        }
        let plain = found.starts_with(b"refs/heads/") && !found.iter().any(|&byte| byte <= b' ');
        Ok((ended.code == Some(0) && plain).then_some(found))
    }

    /// A command of git on it, with its own configuration.
    pub(super) fn command(&self) -> Command {
        in_place(&self.git, &self.directory)
    }
}

/// A command that finds the repository at `directory` and none above it.
fn in_place(git: &Git, directory: &Path) -> Command {
    let mut command = git.command();
    command.current_dir(directory);
    if let Some(above) = directory.parent() {
        command.env("GIT_CEILING_DIRECTORIES", above);
    }
    command
}

impl Bench {
    /// Reads the commit `id`; none when it is not there or is no commit.
    ///
    /// # Errors
    /// When git fails, or for a commit that is not as git writes them.
    pub fn commit(&self, id: &str) -> Result<Option<Commit>, Error> {
        let (ended, bytes) =
            ask(self.command(["cat-file", "commit", id]), "read the commit", b"", COMMIT_MAX)?;
        if ended.code != Some(0) {
            return Ok(None);
        }
        let odd = || Error::Failed { what: "read the commit", said: format!("{id} is malformed") };
        parse_commit(self.format(), id, &bytes).map(Some).ok_or_else(odd)
    }
}

fn parse_commit(format: ObjectFormat, id: &str, bytes: &[u8]) -> Option<Commit> {
    let split = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (head, message) = match split {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &b""[..]),
    };
    let mut lines = head.split(|&byte| byte == b'\n');
    let tree = lines.next()?.strip_prefix(b"tree ")?;
    if !format.is_id(tree) {
        return None;
    }
    let rest: Vec<&[u8]> = lines.collect();
    let committer = rest.iter().find_map(|line| line.strip_prefix(b"committer "))?;
    let seconds = committer.rsplit(|&byte| byte == b' ').nth(1)?;
    Some(Commit {
        id: id.to_owned(),
        tree: String::from_utf8(tree.to_vec()).ok()?,
        has_parents: rest.iter().any(|line| line.starts_with(b"parent ")),
        seconds: std::str::from_utf8(seconds).ok()?.parse().unwrap_or_default(),
        message: message.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_read_or_refused() {
        let tree = "a".repeat(40);
        let text = format!(
            "tree {tree}\nparent {tree}\nauthor A <a> 1 +0000\ncommitter C <c> 77 -0100\n\nsubject\n\nbody\n"
        );
        let found = parse_commit(ObjectFormat::Sha1, "x", text.as_bytes()).unwrap();
        assert_eq!((found.tree, found.has_parents, found.seconds), (tree.clone(), true, 77));
        assert_eq!(found.message, b"subject\n\nbody\n");
        for bad in ["", "tree x\n", &format!("tree {tree}\n"), &format!("tree {tree}\ncommitter C")] {
            assert!(parse_commit(ObjectFormat::Sha1, "x", bad.as_bytes()).is_none(), "{bad:?}");
        }
    }
}
