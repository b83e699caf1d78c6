//! Git in and out, through the user's own `git` as a subprocess that may only read and write objects.
//! Invariant: no configuration, hook, filter, attribute or monitor of a repository that is read is ever run:
//! all but the first look at it is done from a repository of our own that borrows its objects. No working
//! tree and no index of a user's is written. Contents are streamed; lists and answers are bounded.
//! `docs/decisions/008-git.md` says why.

mod bench;
mod command;
mod error;
mod ignore;
mod import;
mod index;
mod private;
mod repository;
mod status;
mod target;
mod write;

pub use bench::Bench;
pub use command::Git;
pub use error::Error;
pub use ignore::{Ignored, ignored, tracked};
pub use import::{Imported, Options, Submodule, import};
pub use repository::{Commit, ObjectFormat, Repository};
pub use status::{Uncommitted, uncommitted};
pub use target::Tip;
pub use write::{Author, Commits, Person};
