//! `gc`: bytes that no fact needs go away, after what a group's policy keeps no longer was let go.
//! Invariant: what may be needed is read from the graph while the store's lock is held alone, so no
//! root is made, and none named, in between; nothing is deleted that the plan did not show. Carriers
//! go through the trash; a crash leaves the rest of a plan to the next collection.

use std::path::{Path, PathBuf};

use esf_core::ops::Meta;
use esf_core::ops::release_attempt::ReleaseAttempt;
use esf_core::policy::Retention;
use esf_core::record::{Attempt, Node, PrivateDelta};
use esf_core::state::{AttemptStatus, NodeStatus};
use esf_core::{AttemptId, Timestamp};
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
    /// Log directories of attempts whose node was pruned, or that a policy keeps no longer.
    pub logs: u64,
    /// Failed attempts whose kept deltas a policy keeps no longer.
    pub expired: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Store {
    /// Lets go what the groups' policies keep no longer, then collects what nothing needs; with `dry_run`
    /// only says what that is.
    ///
    /// # Errors
    /// `store_busy` when others use the store for longer than the lock waits; failures of either plane.
    pub fn gc(&self, meta: &Meta, dry_run: bool) -> Result<GcReport, Error> {
        let expired = self.expired_deltas(meta.now)?;
        if !dry_run {
            for attempt in &expired {
                self.let_go(meta, attempt)?;
            }
        }
        let lock = self.stack().lock_exclusive()?;
        let roots = self.graph().live_roots()?;
        let blobs = self.graph().live_blobs()?;
        let mut attempts = Vec::new();
        for attempt in self.stack().workspaces()? {
            if !expired.contains(&attempt) && self.needs_workspace(attempt)? {
                attempts.push(attempt);
            }
        }
        let plan = self.stack().plan_gc(&lock, &roots, &attempts, &blobs)?;
        let logs = self.needless_logs(meta.now)?;
        let mut report = GcReport {
            dry_run,
            carriers: plan.carriers(),
            packs: plan.packs(),
            workspaces: plan.workspaces(),
            bytes: plan.bytes(),
            logs: logs.len() as u64,
            expired: expired.len() as u64,
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

    /// The failed attempts whose deltas their groups' policies keep no longer.
    fn expired_deltas(&self, now: Timestamp) -> Result<Vec<AttemptId>, Error> {
        let mut expired = Vec::new();
        for attempt in self.graph().attempts_with_delta()? {
            let days = self.retention(&attempt)?.failed_attempt_days;
            let ended =
                attempt.status == AttemptStatus::Failed && attempt.private_delta == PrivateDelta::Kept;
            if ended && is_over(attempt.ended_at, days, now) {
                expired.push(attempt.attempt_id);
            }
        }
        Ok(expired)
    }

    fn let_go(&self, meta: &Meta, attempt: &AttemptId) -> Result<(), Error> {
        let command = ReleaseAttempt {
            attempt: *attempt,
            epoch: None,
            unsealed: self.unsealed(*attempt)?,
            discard: true,
            reason: Some("retention".to_owned()),
        };
        // Retention is the policy's request and not the caller's: one key for each attempt.
        let by_policy = Meta { key: format!("retention/{attempt}"), ..meta.clone() };
        self.graph().release_attempt(&by_policy, command)?;
        self.stack().discard_workspace(*attempt)?;
        Ok(())
    }

    fn retention(&self, attempt: &Attempt) -> Result<Retention, Error> {
        Ok(self.graph().group(attempt.group_id)?.policy.retention)
    }

    /// The log directories of attempts that the graph does not know, whose node was pruned, or whose
    /// group's policy keeps them no longer.
    fn needless_logs(&self, now: Timestamp) -> Result<Vec<PathBuf>, Error> {
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
            if !self.keeps_logs(attempt, now)? {
                needless.push(entry.path());
            }
        }
        needless.sort();
        Ok(needless)
    }

    fn keeps_logs(&self, attempt: AttemptId, now: Timestamp) -> Result<bool, Error> {
        let attempt = match self.graph().attempt(attempt) {
            Ok(attempt) => attempt,
            Err(esf_graph::Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Node { status, .. } = self.graph().node(attempt.node_id)?;
        let released = attempt.status == AttemptStatus::Released;
        let over = released && is_over(attempt.ended_at, self.retention(&attempt)?.log_days, now);
        Ok(status != NodeStatus::Pruned && !over)
    }
}

/// Whether something that ended then has been kept for so many days; without a number it is kept.
fn is_over(ended: Option<Timestamp>, days: Option<u32>, now: Timestamp) -> bool {
    const DAY: i64 = 24 * 60 * 60 * 1000;
    ended.zip(days).is_some_and(|(ended, days)| now.0.saturating_sub(ended.0) >= i64::from(days) * DAY)
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
