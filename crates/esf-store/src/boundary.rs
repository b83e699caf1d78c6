//! Points between the steps of the operations that need both planes: a crash at any of them must be
//! recoverable. The list is generated from the same text as the code, so a test that goes through
//! `BOUNDARIES` misses none. With the feature `failpoints`, `arm` makes a boundary panic, kill the
//! process or fail; without it nothing of that is compiled.

use crate::Error;

macro_rules! boundaries {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A point between two steps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Boundary {
            $($(#[$doc])* $name,)*
        }

        /// The name of every boundary of this crate.
        pub const BOUNDARIES: &[&str] = &[$($text),*];

        impl Boundary {
            const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

boundaries! {
    /// A new store has its header and no graph yet.
    OpenGraph = "open-graph";
    /// A root was imported and the graph does not know it yet.
    CreateGroupCommit = "create-group-commit";
    /// The same without a group.
    ImportRegister = "import-register";
    /// A merge was computed and its objects are not stored yet.
    MergeObjects = "merge-objects";
    /// Its objects are stored and there is no carrier yet.
    MergeDerive = "merge-derive";
    /// The merged root is hot and the graph does not know it yet.
    MergeCommit = "merge-commit";
    /// Nodes are pruned and the uppers of their failed attempts are still there.
    PruneDiscard = "prune-discard";
    /// Everything of an export is written and nothing has its name yet.
    ExportStatement = "export-statement";
    /// The statement has its name and the export has not.
    ExportRename = "export-rename";
    /// The graph was asked about a prepared seal that is not settled yet.
    RecoverSettle = "recover-settle";
    /// Seals are settled and a lost attempt is still live in the graph.
    RecoverLapse = "recover-lapse";
    /// Carriers and packs are collected and logs are not.
    GcLogs = "gc-logs";
}

/// Passes a boundary.
///
/// # Errors
/// Only those that `arm` injects.
pub(crate) fn reach(at: Boundary) -> Result<(), Error> {
    tracing::trace!(boundary = at.name(), "reach");
    #[cfg(feature = "failpoints")]
    fail::fail_point!(at.name(), |_| Err(Error::Io {
        action: "pass",
        path: at.name().into(),
        source: std::io::Error::other("a failure was injected"),
    }));
    Ok(())
}

/// Every boundary of a store: of this crate, of the layer stack and of the graph.
pub fn all() -> Vec<&'static str> {
    [BOUNDARIES, esf_layerstack::disk::BOUNDARIES, esf_graph::BOUNDARIES].concat()
}

/// Arms boundaries of `all` from `name=action;...`. An action is one of
/// the `fail` crate's (`panic`, `return`, `1*off->panic`, ...) or `kill`, which ends the process by
/// SIGKILL.
///
/// # Errors
/// A text that says which part was not understood.
#[cfg(feature = "failpoints")]
pub fn arm(specification: &str) -> Result<(), String> {
    for part in specification.split(';').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((name, "kill")) if all().contains(&name) => fail::cfg_callback(name, kill_self)?,
            Some((name, action)) if all().contains(&name) => fail::cfg(name, action)?,
            _ => return Err(format!("expected boundary=action: {part:?}")),
        }
    }
    Ok(())
}

#[cfg(feature = "failpoints")]
fn kill_self() {
    let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("a process can always kill itself: {killed:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_in_the_whole_store() {
        let mut names: Vec<&str> =
            BOUNDARIES.iter().chain(esf_layerstack::disk::BOUNDARIES).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
