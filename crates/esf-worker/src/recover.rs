//! Recovery: what a dead worker left is settled, by the next worker or by any command.
//! Invariants: only under the worker's lock, so never beside a living worker; sandboxes are reaped before
//! records are settled, so that whoever reads a settled record finds nothing running; doing it twice does
//! nothing the second time.

use std::sync::Arc;

use esf_core::Problem;
use esf_store::{Store, WorkerLock};
use serde::Serialize;

use crate::clock;
use crate::executor::Executor;
use crate::logs::failure;
use crate::place;

/// What was settled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoverReport {
    /// One line for each thing that executors removed: control groups, processes.
    pub removed: Vec<String>,
    /// One line for each record or transaction that was settled.
    pub settled: Vec<String>,
}

impl RecoverReport {
    /// Whether there was nothing to do.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.settled.is_empty()
    }

    /// All of it, a line each.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.removed.iter().chain(&self.settled).map(String::as_str)
    }
}

/// Settles what a dead worker left; nothing when a worker lives, which has done so itself.
///
/// # Errors
/// When something cannot be settled; what was settled before stays so.
pub fn recover(store: &Store, executors: &[Arc<dyn Executor>]) -> Result<Option<RecoverReport>, Problem> {
    let directory = store.stack().directory();
    let lock = crate::lock::acquire(directory)?;
    lock.map(|lock| recover_with(store, executors, &lock)).transpose()
}

/// The same, for a holder of the lock.
pub(crate) fn recover_with(
    store: &Store,
    executors: &[Arc<dyn Executor>],
    lock: &WorkerLock,
) -> Result<RecoverReport, Problem> {
    let mut report = RecoverReport::default();
    for executor in executors {
        report.removed.extend(executor.recover().map_err(|error| error.problem())?);
    }
    // Its socket answers nobody; under the lock no other is bound there.
    match std::fs::remove_file(place::socket(store.directory())) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failure(&error, "cannot remove a dead worker's socket"));
        }
        Ok(()) | Err(_) => {}
    }
    let meta = clock::own_meta(format!("recover/{}", clock::draw()));
    let settled = store.recover(lock, &meta).map_err(|error| error.problem())?;
    report.settled.extend(settled.lines());
    Ok(report)
}
