//! What can go wrong with git, told with what was found and what to do.

use esf_core::{Class, Problem};

/// An error of the git bridge.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no git to run.
    #[error("git cannot be run: {said}")]
    Missing {
        /// The operating system's answer.
        said: String,
    },
    /// What should be a repository is none.
    #[error("{path} is no git repository")]
    NotARepository {
        /// The path.
        path: String,
        /// What git said.
        said: String,
    },
    /// A revision that names no commit.
    #[error("{revision:?} names no commit in {path}")]
    NoRevision {
        /// What was asked for.
        revision: String,
        /// The repository.
        path: String,
        /// What git said.
        said: String,
    },
    /// An object that the repository names but does not hold, as partial clones do.
    #[error("the object {id} of {path:?} is not in the repository")]
    ObjectMissing {
        /// The object.
        id: String,
        /// Where in the tree.
        path: String,
    },
    /// A tree that no root can hold, or that git itself would not check out.
    #[error("commit refused: {path:?} is {what}")]
    Refused {
        /// Where in the tree.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// A name that no branch can have.
    #[error("{name:?} is no branch name")]
    BadBranch {
        /// The name.
        name: String,
    },
    /// A branch that is at another commit than the export may follow.
    #[error("branch {branch} is at {found}, which the exported node does not follow")]
    NotDescendant {
        /// The branch.
        branch: String,
        /// Where it may be.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// A branch that somebody works on.
    #[error("branch {branch} is checked out in {worktree}")]
    CheckedOut {
        /// The branch.
        branch: String,
        /// Where.
        worktree: String,
    },
    /// Git did not end in time.
    #[error("git did not {what} within {seconds} s")]
    TimedOut {
        /// What it was to do.
        what: &'static str,
        /// How long it had.
        seconds: u64,
    },
    /// Git failed otherwise.
    #[error("git could not {what}: {said}")]
    Failed {
        /// What it was to do.
        what: &'static str,
        /// What it said.
        said: String,
    },
}

impl Error {
    /// The problem as told to users and programs.
    pub fn problem(&self) -> Problem {
        let of = |class, code| Problem::new(class, code, self.to_string());
        match self {
            Self::Missing { .. } => of(Class::Failure, "git_missing")
                .expected("the program git in /usr/local/bin, /usr/bin or /bin")
                .remedy("install git and repeat the command"),
            Self::NotARepository { said, .. } => of(Class::NotFound, "not_a_repository")
                .expected("the top of a working tree, or a bare repository")
                .found(said.clone())
                .remedy("name the directory that holds `.git`, or import the directory without `git:`"),
            Self::NoRevision { said, .. } => of(Class::NotFound, "revision_missing")
                .expected("a branch, tag or commit of that repository")
                .found(said.clone())
                .remedy("see `git log --oneline --all` there"),
            Self::ObjectMissing { .. } => of(Class::NotFound, "git_object_missing")
                .expected("a repository that holds every file of the commit")
                .remedy("fetch it there first, for instance by `git checkout` of the commit; nothing was fetched"),
            Self::Refused { .. } => of(Class::Refused, "git_refused")
                .expected("a tree that git would check out and a root can hold")
                .remedy("look at it with `git ls-tree -r`; nothing of the commit was kept"),
            Self::BadBranch { .. } => of(Class::Usage, "bad_branch")
                .expected("a name that `git check-ref-format --branch` accepts")
                .remedy("name another with --branch"),
            Self::NotDescendant { expected, found, .. } => of(Class::Conflict, "not_descendant")
                .expected(expected.clone())
                .found(found.clone())
                .remedy("export to another branch with --branch and merge it, or import that commit and rebase"),
            Self::CheckedOut { .. } => of(Class::Conflict, "branch_checked_out")
                .expected("a branch that no working tree stands on")
                .remedy("export to another branch with --branch and merge it there: working trees are not touched"),
            Self::TimedOut { .. } => of(Class::Failure, "git_timed_out")
                .remedy("see whether the repository lies on a filesystem that answers")
                .retryable(),
            Self::Failed { .. } => of(Class::Failure, "git_failed")
                .remedy("see what `git fsck` says in that repository"),
        }
    }
}
