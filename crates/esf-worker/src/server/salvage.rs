//! Salvage: sealing what a lost attempt left behind, through an attempt of its own.
//! Invariants: only on the boot that wrote it (an upper is volatile), only when nobody can write into it
//! any more, and never into a draft that was sealed meanwhile.

use std::time::Duration;

use esf_core::ops::Meta;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::SealReply;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::start::Start;
use esf_core::record::{Attempt, PrivateDelta, Purpose};
use esf_core::state::AttemptStatus;
use esf_core::{AttemptId, Class, FailureClass, Problem};
use esf_layerstack::Workspace;

use crate::message::SuspendReply;
use crate::server::Worker;
use crate::server::activate::fail;
use crate::server::ending::{Sealing, Target};

/// How long the last processes of a dead worker may take to go.
const PATIENCE: Duration = Duration::from_secs(3);

impl Worker {
    /// Seals the delta of `lost`, which is not live.
    pub(crate) fn salvage(
        &self,
        lost: AttemptId,
        meta: &Meta,
        sealing: &Sealing<'_>,
    ) -> Result<SuspendReply, Problem> {
        let record = self.graph().attempt(lost).map_err(|error| error.problem())?;
        if record.status != AttemptStatus::Failed || record.private_delta != PrivateDelta::Kept {
            return Err(self.live_or_problem(lost).err().unwrap_or_else(|| nothing_left(lost)));
        }
        let workspace = self.stack().existing_workspace(lost).map_err(|error| error.problem())?;
        let workspace = workspace.ok_or_else(|| nothing_left(lost))?;
        self.wait_until_unused(&record, &workspace)?;
        // A salvage that failed may be tried again under the same key, as an attempt of its own.
        let siblings = self.graph().attempts_of_node(record.node_id).map_err(|error| error.problem())?;
        let salvages = siblings.iter().filter(|attempt| attempt.purpose == Purpose::Salvage { from: lost });
        let tries = salvages.filter(|attempt| attempt.status == AttemptStatus::Failed).count();
        let command = Enqueue {
            node: record.node_id,
            environment: record.environment.clone(),
            purpose: Purpose::Salvage { from: lost },
            lifetime_ms: None,
            on_expiry: None,
            priority: 0,
        };
        let queued = self
            .graph()
            .enqueue(&meta.sub(&format!("salvage/{tries}")), command)
            .map_err(|error| error.problem())?;
        // Not through the queue: it makes no sandbox, and it gives back what it holds at once.
        let start = Start { attempt: queued.attempt_id, worker: self.id, lease_ms: self.config.lease_ms };
        let started_by = meta.sub(&format!("salvage/{tries}/start"));
        let started = self.graph().start(&started_by, start).map_err(|error| {
            self.give_up(queued.attempt_id, "the salvage could not be started");
            error.problem()
        })?;
        let attempt = started.attempt;
        let sealed = self.seal_salvage(&attempt, lost, meta, sealing).map(|reply| self.told(reply));
        if let Err(problem) = &sealed
            && !matches!(problem.code.as_str(), "stale" | "lease_fenced")
        {
            // The delta stays with the lost attempt; this one only failed to take it over.
            let failed = fail(
                attempt.attempt_id,
                Some(attempt.lease_epoch),
                FailureClass::InfraPrepare,
                "salvage",
                &problem.message,
                false,
            );
            let key = format!("salvage-failed/{}", attempt.attempt_id);
            if let Err(error) = self.graph().fail_attempt(&crate::clock::own_meta(key), failed) {
                tracing::error!(attempt = %attempt.attempt_id, %error, "cannot record a failed salvage");
            }
        }
        sealed
    }

    fn seal_salvage(
        &self,
        attempt: &Attempt,
        lost: AttemptId,
        meta: &Meta,
        sealing: &Sealing<'_>,
    ) -> Result<SealReply, Problem> {
        let begin = BeginQuiesce { attempt: attempt.attempt_id, epoch: attempt.lease_epoch };
        self.graph()
            .begin_quiesce(&crate::clock::own_meta(format!("salvage-quiesce/{}", attempt.attempt_id)), begin)
            .map_err(|error| error.problem())?;
        let target = Target { attempt, upper_of: lost, epoch: attempt.lease_epoch };
        self.seal(&target, meta, sealing)
    }

    fn wait_until_unused(&self, record: &Attempt, workspace: &Workspace) -> Result<(), Problem> {
        let executor = self.executor(record.executor.as_str())?;
        let pause = Duration::from_millis(50);
        for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
            if !executor.in_use(workspace).map_err(|error| error.problem())? {
                return Ok(());
            }
            std::thread::sleep(pause);
        }
        Err(Problem::new(
            Class::Failure,
            "workspace_busy",
            format!("something still holds the workspace of {}", record.attempt_id),
        )
        .expected("an upper that nobody has mounted")
        .remedy("end the process that holds it, then suspend again")
        .retryable())
    }
}

fn nothing_left(attempt: AttemptId) -> Problem {
    Problem::new(
        Class::Conflict,
        "nothing_to_salvage",
        format!("{attempt} has no delta that could be sealed"),
    )
    .expected("a live attempt, or one that was lost on this boot and not released")
    .remedy("`esf retry` it")
}
