//! A branch of the user's repository: read, and moved from one known commit to another. Invariant: it moves by
//! compare and swap, never when a working tree stands on it, and nothing else of the repository changes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::command::{answer, ask};
use super::{Error, Repository};

/// Most bytes of the list of working trees.
const LIST_MAX: u64 = 16 << 20;

/// Where a branch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Its full name, `refs/heads/NAME`.
    pub reference: String,
    /// The commit it is at; none when it does not exist.
    pub commit: Option<String>,
}

impl Repository {
    /// Looks the branch `name` up.
    ///
    /// # Errors
    /// `BadBranch`, or a git that fails.
    pub fn tip(&self, name: &str) -> Result<Tip, Error> {
        let bad = || Error::BadBranch { name: name.to_owned() };
        if name.starts_with('-') || name.is_empty() {
            return Err(bad());
        }
        let reference = format!("refs/heads/{name}");
        let mut command = self.command();
        command.args(["check-ref-format", &reference]);
        if ask(command, "check the branch's name", b"", 4096)?.0.code != Some(0) {
            return Err(bad());
        }
        let mut command = self.command();
        command.args(["rev-parse", "--verify", "--quiet", &reference]);
        let (ended, found) = ask(command, "look at the branch", b"", 4096)?;
        let found = found.trim_ascii();
        let commit = (ended.code == Some(0) && self.format().is_id(found))
            .then(|| String::from_utf8_lossy(found).into_owned());
        Ok(Tip { reference, commit })
    }

    /// Refuses a branch that a working tree stands on.
    ///
    /// # Errors
    /// `CheckedOut` with that working tree.
    pub fn not_checked_out(&self, tip: &Tip) -> Result<(), Error> {
        let mut command = self.command();
        command.args(["worktree", "list", "--porcelain"]);
        let list = answer(command, "list the working trees", b"", LIST_MAX)?;
        let (mut worktree, mut bare) = (&b""[..], false);
        for line in list.split(|&byte| byte == b'\n') {
            if let Some(path) = line.strip_prefix(b"worktree ") {
                (worktree, bare) = (path, false);
            } else if line == b"bare" {
                bare = true;
            } else if line.strip_prefix(b"branch ") == Some(tip.reference.as_bytes()) && !bare {
                return Err(Error::CheckedOut {
                    branch: tip.reference.trim_start_matches("refs/heads/").to_owned(),
                    worktree: crate::readable(OsStr::from_bytes(worktree).as_bytes()),
                });
            }
        }
        Ok(())
    }

    /// Whether the repository holds the commit `id` and all it names, undamaged; what is wrong otherwise.
    ///
    /// # Errors
    /// When git cannot be run.
    pub fn verify(&self, id: &str) -> Result<Result<(), String>, Error> {
        if !self.format().is_id(id.as_bytes()) {
            return Ok(Err(format!("{id:?} is no commit")));
        }
        let mut command = self.command();
        command.args(["fsck", "--no-dangling", "--no-reflogs", "--no-progress", id]);
        let (ended, said) = ask(command, "check the commit", b"", LIST_MAX)?;
        let said = format!("{} {}", ended.complaints, String::from_utf8_lossy(&said));
        Ok(if ended.code == Some(0) { Ok(()) } else { Err(said.trim().to_owned()) })
    }

    /// Moves the branch from where `tip` saw it to `commit`.
    ///
    /// # Errors
    /// `NotDescendant` when somebody else moved it meanwhile.
    pub fn advance(&self, tip: &Tip, commit: &str) -> Result<(), Error> {
        let zero = "0".repeat(self.format().digits());
        let old = tip.commit.as_deref().unwrap_or(&zero);
        let mut command = self.command();
        command.args(["-c", "user.name=esf", "-c", "user.email=esf@esf.invalid"]);
        command.args(["update-ref", "-m", "esf export", &tip.reference, commit, old]);
        let (ended, _) = ask(command, "move the branch", b"", 4096)?;
        if ended.code == Some(0) {
            return Ok(());
        }
        let name = tip.reference.trim_start_matches("refs/heads/");
        let now = self.tip(name)?;
        if now.commit != tip.commit {
            return Err(Error::NotDescendant {
                branch: name.to_owned(),
                expected: tip.commit.clone().unwrap_or_else(|| "no such branch".to_owned()),
                found: now.commit.unwrap_or_else(|| "nothing".to_owned()),
            });
        }
        Err(Error::Failed { what: "move the branch", said: ended.complaints })
    }
}
