//! `gc`: bytes that no fact needs go away. Invariant: what may be needed is read from the graph while
//! the store's lock is held alone, so no root is made, and none named, in between; nothing is
//! deleted that the plan did not show. Carriers go through the trash; a crash leaves the rest of a
//! plan to the next collection.

use std::path::{Path, PathBuf};

use esf_core::AttemptId;
use serde::Serialize;

use crate::boundary::{Boundary, reach};
use crate::{Error, Store};

/// Where commands' output is spooled, a directory for each attempt.
const LOGS: &str = "logs";

/// What a collection freed, or would free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Whether nothing was deleted yet.
    pub dry_run: bool,
    /// Carriers.
    pub carriers: u64,
    /// Packs that go or are rewritten.
    pub packs: u64,
    /// Uppers of attempts that nobody needs.
    pub workspaces: u64,
    /// Log directories of attempts whose node was pruned.
    pub logs: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Store {
    /// Collects what nothing needs; with `dry_run` only says what that is.
    ///
    /// # Errors
    /// `store_busy` when others use the store for longer than the lock waits; failures of either plane.
    pub fn gc(&self, dry_run: bool) -> Result<GcReport, Error> {
        let lock = self.stack().lock_exclusive()?;
        let roots = self.graph().live_roots()?;
        let blobs = self.graph().live_blobs()?;
        let mut attempts = Vec::new();
        for attempt in self.stack().workspaces()? {
            if self.needs_workspace(attempt)? {
                attempts.push(attempt);
            }
        }
        let plan = self.stack().plan_gc(&lock, &roots, &attempts, &blobs)?;
        let logs = self.needless_logs()?;
        let mut report = GcReport {
            dry_run,
            carriers: plan.carriers(),
            packs: plan.packs(),
            workspaces: plan.workspaces(),
            bytes: plan.bytes(),
            logs: logs.len() as u64,
        };
        for path in &logs {
            report.bytes += allocated(path)?;
        }
        if dry_run {
            return Ok(report);
        }
        self.stack().run_gc(&lock, plan)?;
        for path in &logs {
            reach(Boundary::GcLogs)?;
            std::fs::remove_dir_all(path).map_err(at("remove", path))?;
        }
        Ok(report)
    }

    /// The log directories of attempts whose node was pruned, or that the graph does not know.
    fn needless_logs(&self) -> Result<Vec<PathBuf>, Error> {
        let top = self.directory().join(LOGS);
        let entries = match std::fs::read_dir(&top) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at("list", &top)(error)),
        };
        let mut needless = Vec::new();
        for entry in entries {
            let entry = entry.map_err(at("list", &top))?;
            let Some(attempt) = entry.file_name().to_str().and_then(|name| name.parse::<AttemptId>().ok())
            else {
                continue;
            };
            if !self.keeps_logs(attempt)? {
                needless.push(entry.path());
            }
        }
        needless.sort();
        Ok(needless)
    }

    fn keeps_logs(&self, attempt: AttemptId) -> Result<bool, Error> {
        match self.graph().attempt(attempt) {
            Ok(attempt) => {
                let node = self.graph().node(attempt.node_id)?;
                Ok(node.status != esf_core::state::NodeStatus::Pruned)
            }
            Err(esf_graph::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn at<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: path.to_owned(), source }
}

/// Bytes on disk of the files in a directory of logs.
fn allocated(directory: &Path) -> Result<u64, Error> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).map_err(at("list", directory))? {
        let meta = entry.and_then(|entry| entry.metadata()).map_err(at("look at", directory))?;
        bytes += meta.blocks() * 512;
    }
    Ok(bytes)
}
