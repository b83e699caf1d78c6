//! Recovery: what a dead worker left is settled (design sections 3 and 4). Imports, merges and squashes
//! of dead processes were finished or undone when the layer stack was opened. Invariant: nothing is
//! touched unless the worker's lock proves that no worker lives, and a second recovery has nothing
//! to do. A crash within recovery leaves the rest to the next one: each step is its own commit.

use esf_core::ops::Meta;
use esf_core::ops::lapse::Lapse;
use esf_core::state::AttemptStatus;
use esf_core::{AttemptId, NodeId};
use esf_layerstack::UnsettledSeal;
use serde::Serialize;

use crate::boundary::{Boundary, reach};
use crate::{Error, Store, WorkerLock};

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoverReport {
    /// Seals that the graph had committed: their carriers stay.
    pub seals_finished: Vec<(AttemptId, NodeId)>,
    /// Seals that the graph never saw: their deltas are the attempts' again.
    pub seals_undone: Vec<AttemptId>,
    /// Attempts that are now failed as `infra_lost`, their deltas kept.
    pub attempts_lost: Vec<AttemptId>,
    /// Workspaces that no attempt needs any more.
    pub workspaces_discarded: Vec<AttemptId>,
}

impl RecoverReport {
    /// Whether there was nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What was done, a sentence each.
    pub fn lines(&self) -> Vec<String> {
        let finished = self
            .seals_finished
            .iter()
            .map(|(attempt, node)| format!("finished the seal of {attempt} as {node}"));
        let undone = self
            .seals_undone
            .iter()
            .map(|attempt| format!("undid the unfinished seal of {attempt}; its changes are kept"));
        let lost = self
            .attempts_lost
            .iter()
            .map(|attempt| format!("{attempt} lost its worker; suspend salvages its changes"));
        let discarded = self
            .workspaces_discarded
            .iter()
            .map(|attempt| format!("discarded what {attempt} left and nobody needs"));
        finished.chain(undone).chain(lost).chain(discarded).collect()
    }
}

impl Store {
    /// Recovers unless a worker lives, which does so itself; none then. Cheap when there is nothing.
    ///
    /// # Errors
    /// As `recover`.
    pub fn recover_if_idle(&self, meta: &Meta) -> Result<Option<RecoverReport>, Error> {
        if self.graph().live_count()? == 0 && self.stack().unsettled_seals()?.is_empty() {
            return Ok(Some(RecoverReport::default()));
        }
        let lock = WorkerLock::try_acquire(self.directory()).map_err(|source| Error::Io {
            action: "lock",
            path: self.directory().join(WorkerLock::FILE),
            source,
        })?;
        lock.map(|lock| self.recover(&lock, meta)).transpose()
    }

    /// Settles what a dead worker left; `_proof` says that none lives.
    ///
    /// # Errors
    /// Failures of either plane; what was done until then stays done.
    pub fn recover(&self, _proof: &WorkerLock, meta: &Meta) -> Result<RecoverReport, Error> {
        let mut report = RecoverReport::default();
        // Before leases lapse: a seal commits under the epoch it was made in.
        for seal in self.stack().unsettled_seals()? {
            self.settle(&seal, &mut report)?;
        }
        for attempt in self.graph().live()? {
            reach(Boundary::RecoverLapse)?;
            let part = format!("lapse/{}/{}", attempt.attempt_id, attempt.lease_epoch);
            let command =
                Lapse { attempt: attempt.attempt_id, reason: "the worker's lock is free".to_owned() };
            self.graph().lapse(&meta.sub(&part), command)?;
            report.attempts_lost.push(attempt.attempt_id);
        }
        self.discard_needless(&mut report)?;
        Ok(report)
    }

    fn settle(&self, seal: &UnsettledSeal, report: &mut RecoverReport) -> Result<(), Error> {
        let committed = match self.graph().seal_outcome(seal.attempt) {
            Ok(committed) => committed,
            // An attempt of another life of the graph: nothing was committed in this one.
            Err(esf_graph::Error::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        reach(Boundary::RecoverSettle)?;
        self.stack().settle_unsettled(seal.txn, committed.is_some())?;
        match committed {
            Some(node) => report.seals_finished.push((seal.attempt, node)),
            None => report.seals_undone.push(seal.attempt),
        }
        Ok(())
    }

    /// Discards the uppers of attempts that ended without keeping their delta: evaluation runs, and
    /// what was released or sealed just before a crash.
    fn discard_needless(&self, report: &mut RecoverReport) -> Result<(), Error> {
        for attempt in self.stack().workspaces()? {
            if !self.needs_workspace(attempt)? {
                self.stack().discard_workspace(attempt)?;
                report.workspaces_discarded.push(attempt);
            }
        }
        Ok(())
    }

    /// Whether an attempt's upper may still be wanted.
    pub(crate) fn needs_workspace(&self, attempt: AttemptId) -> Result<bool, Error> {
        use esf_core::record::PrivateDelta;
        let attempt = match self.graph().attempt(attempt) {
            Ok(attempt) => attempt,
            Err(esf_graph::Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        Ok(match attempt.status {
            AttemptStatus::Active | AttemptStatus::Quiescing | AttemptStatus::Queued => true,
            AttemptStatus::Failed => attempt.private_delta == PrivateDelta::Kept,
            AttemptStatus::Sealed | AttemptStatus::Released => false,
        })
    }
}
