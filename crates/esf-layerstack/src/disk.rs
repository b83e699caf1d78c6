//! The durability boundary: every fsync, syncfs, rename and unlink of durable things happens here,
//! each at a named boundary (design section 9). Invariant: a crash can be placed at any boundary, and
//! the list of them is generated from the same text as the code, so a test that goes through
//! `BOUNDARIES` misses none. With the feature `failpoints`, `arm` makes a boundary panic, kill the
//! process or fail with an errno; without it nothing of that is compiled.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
#[cfg(feature = "failpoints")]
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, RenameFlags};

macro_rules! boundaries {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A point at which durable state changes; a crash just before it must be recoverable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Boundary {
            $($(#[$doc])* $name,)*
        }

        /// The name of every boundary, in the order of `Boundary`.
        pub const BOUNDARIES: &[&str] = &[$($text),*];

        impl Boundary {
            /// The failpoint's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

boundaries! {
    /// The header of a new store is made durable.
    HeaderSync = "header-sync";
    /// The header of a new store gets its name.
    HeaderRename = "header-rename";
    /// The store's directory is made durable.
    HeaderDirectorySync = "header-directory-sync";
    /// A pack's bytes are made durable.
    PackSync = "pack-sync";
    /// A pack gets its name.
    PackRename = "pack-rename";
    /// The directory of packs is made durable.
    PackDirectorySync = "pack-directory-sync";
    /// A pack that was replaced, or a left-over temporary one, is removed.
    PackUnlink = "pack-unlink";
    /// The intent of a new carrier (import, squash, merge, conversion) is recorded.
    CarrierIntent = "carrier-intent";
    /// A staged carrier's payload is made durable.
    CarrierSync = "carrier-sync";
    /// A staged carrier's transaction becomes prepared: from here recovery rolls forward.
    CarrierPrepared = "carrier-prepared";
    /// A staged carrier moves to its place.
    CarrierRename = "carrier-rename";
    /// The directory of carriers is made durable.
    CarrierDirectorySync = "carrier-directory-sync";
    /// The carrier's projection is recorded and its transaction is done.
    CarrierCommit = "carrier-commit";
    /// What is left of a carrier's staging is removed.
    CarrierCleanup = "carrier-cleanup";
    /// Converted carriers take the place of portable ones, in every root that they show.
    ConvertSwap = "convert-swap";
    /// A seal's intent is recorded (step 1).
    SealIntent = "seal-intent";
    /// Overlay's own marks and sockets are taken out of the upper (step 2).
    SealNormalise = "seal-normalise";
    /// An upper's payload is made durable (step 3).
    SealSync = "seal-sync";
    /// The seal becomes prepared (step 4): from here recovery rolls forward.
    SealPrepared = "seal-prepared";
    /// The upper becomes a carrier (step 5).
    SealRename = "seal-rename";
    /// Both parents of that rename are made durable (step 5).
    SealDirectorySync = "seal-directory-sync";
    /// The carrier's projection is recorded, before the graph may commit.
    SealProject = "seal-project";
    /// The seal was handed to the graph (step 6) and comes back to be settled.
    SealSettle = "seal-settle";
    /// The attempt's directory is cleaned up (step 7).
    SealCleanup = "seal-cleanup";
    /// The seal's row is taken out (the last thing of step 7).
    SealDone = "seal-done";
    /// A workspace is given up.
    WorkspaceDiscard = "workspace-discard";
    /// Something to be deleted moves to the trash.
    TrashRename = "trash-rename";
    /// Rows of carriers and roots that nothing needs are condemned.
    GcCondemn = "gc-condemn";
    /// Rows of condemned carriers are taken out after their directories went to the trash.
    GcForget = "gc-forget";
}

/// Passes a boundary that is not itself a call of this module, such as a database commit.
///
/// # Errors
/// Only those that `arm` injects.
pub fn reach(at: Boundary) -> io::Result<()> {
    tracing::trace!(boundary = at.name(), "reach");
    #[cfg(feature = "failpoints")]
    fail::fail_point!(at.name(), |errno| Err(injected(errno)));
    Ok(())
}

#[cfg(feature = "failpoints")]
fn injected(errno: Option<String>) -> io::Error {
    let errno = errno.and_then(|text| text.parse().ok()).unwrap_or(rustix::io::Errno::IO.raw_os_error());
    io::Error::from_raw_os_error(errno)
}

/// Arms boundaries from `name=action;...`. An action is `kill`, which ends the process by SIGKILL,
/// `kill@N` to do so at the N-th time, `skip`, which leaves a sync out so that a test can show that
/// somebody would notice, or one of the `fail` crate's (`panic`, `return(ERRNO)`,
/// `2*off->1*return(28)`, ...).
///
/// # Errors
/// A text that says which part was not understood.
#[cfg(feature = "failpoints")]
pub fn arm(specification: &str) -> Result<(), String> {
    for part in specification.split(';').filter(|part| !part.is_empty()) {
        let (name, action) = part.split_once('=').ok_or_else(|| format!("expected name=action: {part:?}"))?;
        if !BOUNDARIES.contains(&name) {
            return Err(format!("no such boundary: {name:?}"));
        }
        if action == "skip" {
            skipped().push(name.to_owned());
            continue;
        }
        match action.strip_prefix("kill") {
            Some(when) => {
                let left = AtomicU64::new(match when.strip_prefix('@') {
                    Some(nth) => nth.parse().map_err(|_| format!("expected kill@N: {action:?}"))?,
                    None => 1,
                });
                fail::cfg_callback(name, move || kill_self_at_last(&left))?;
            }
            None => fail::cfg(name, action)?,
        }
    }
    Ok(())
}

#[cfg(feature = "failpoints")]
fn skipped() -> std::sync::MutexGuard<'static, Vec<String>> {
    static SKIPPED: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    SKIPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Passes a boundary at which something is made durable; false when a test leaves that out.
fn reach_sync(at: Boundary) -> io::Result<bool> {
    reach(at)?;
    #[cfg(feature = "failpoints")]
    return Ok(!skipped().iter().any(|name| name == at.name()));
    #[cfg(not(feature = "failpoints"))]
    Ok(true)
}

#[cfg(feature = "failpoints")]
fn kill_self_at_last(left: &AtomicU64) {
    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
        let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        unreachable!("a process can always kill itself: {killed:?}");
    }
}

/// Makes a file's or directory's bytes durable. A failure is final: the caller must give up what it
/// was writing, because the kernel forgets the failed pages and a second call would lie.
///
/// # Errors
/// Whatever the kernel reports.
pub fn fsync(file: impl AsFd, at: Boundary) -> io::Result<()> {
    if reach_sync(at)? {
        rustix::fs::fsync(file)?;
    }
    Ok(())
}

/// Makes everything on the file's filesystem durable; see `fsync` for failures.
///
/// # Errors
/// Whatever the kernel reports, including write-back errors since `file` was opened.
pub fn syncfs(file: impl AsFd, at: Boundary) -> io::Result<()> {
    if reach_sync(at)? {
        rustix::fs::syncfs(file)?;
    }
    Ok(())
}

/// Renames relative to open directories, replacing a file of the new name.
///
/// # Errors
/// Whatever the kernel reports.
pub fn rename(
    from: impl AsFd,
    old: impl AsRef<Path>,
    to: impl AsFd,
    new: impl AsRef<Path>,
    at: Boundary,
) -> io::Result<()> {
    reach(at)?;
    Ok(rustix::fs::renameat(from, old.as_ref(), to, new.as_ref())?)
}

/// Renames relative to open directories; refuses to replace anything.
///
/// # Errors
/// `AlreadyExists` if the new name is taken, else whatever the kernel reports.
pub fn rename_new(
    from: impl AsFd,
    old: impl AsRef<Path>,
    to: impl AsFd,
    new: impl AsRef<Path>,
    at: Boundary,
) -> io::Result<()> {
    reach(at)?;
    Ok(rustix::fs::renameat_with(from, old.as_ref(), to, new.as_ref(), RenameFlags::NOREPLACE)?)
}

/// Removes a file of an open directory.
///
/// # Errors
/// Whatever the kernel reports.
pub fn unlink(directory: impl AsFd, name: impl AsRef<Path>, at: Boundary) -> io::Result<()> {
    reach(at)?;
    Ok(rustix::fs::unlinkat(directory, name.as_ref(), AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names = BOUNDARIES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BOUNDARIES.len());
    }
}
