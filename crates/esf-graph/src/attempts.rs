//! Mutations of attempts: the queue, leases, seals and other ends, execs, recovery.

use esf_core::id::{AttemptId, LeaseId, NodeId, WorkerId};
use esf_core::manifest::RootPin;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::{CommitSeal, Outcome, SealReply};
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::exec::{FinishExec, RecordExec, Recorded};
use esf_core::ops::fail_attempt::FailAttempt;
use esf_core::ops::lapse::Lapse;
use esf_core::ops::release_attempt::ReleaseAttempt;
use esf_core::ops::renew::Renewed;
use esf_core::ops::retry::Retry;
use esf_core::ops::start::{Start, Started};
use esf_core::ops::{
    Meta, Reject, Request, begin_quiesce, commit_seal, enqueue, exec, fail_attempt, lapse, release_attempt,
    renew, retry, start,
};
use esf_core::record::{Attempt, Exec, Purpose};
use esf_core::state::AttemptStatus;
use esf_layerstack::SealedRoot;
use rusqlite::Connection;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::mutate::{Answer, decided};
use crate::row::{Bytes, every, first};
use crate::{Graph, apply, load, records, statements};

impl Graph {
    /// Asks for an attempt. A sealed node forks one draft first, whose id is the attempt's `node_id`.
    ///
    /// # Errors
    /// `Rejected` with `AttemptLive`, `NotSealed`, `Terminal`, `Pruned`, `NothingToSalvage`, `Stale`, `Quota`.
    pub fn enqueue(&self, meta: &Meta, command: Enqueue) -> Result<Attempt> {
        let answer = self.mutate(meta, "enqueue", &command.clone(), move |db, request| {
            let node = load::node(db, command.node)?;
            let salvage = match command.purpose {
                Purpose::Salvage { from } => Some(load::attempt(db, from)?),
                Purpose::Work | Purpose::Evaluate => None,
            };
            let group = load::group(db, node.group_id)?;
            let snapshot = enqueue::Snapshot {
                open: load::open_attempt(db, node.node_id)?,
                // Counting costs as much as there is to count, so only where somebody asks.
                queued: match group.policy.quotas.max_queued_attempts {
                    Some(_) => load::count_in_group(db, statements::QUEUED_IN_GROUP, node.group_id)?,
                    None => 0,
                },
                last_sealed: load::last_sealed_of_draft(db, &node)?,
                salvage,
                policy: group.policy,
                node,
            };
            decided(enqueue::decide(&snapshot, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Takes a queued attempt under a lease.
    ///
    /// # Errors
    /// `Rejected` with `IllegalStep` when it is not queued, `Quota` when its group has as many live
    /// attempts as its policy allows.
    pub fn start(&self, meta: &Meta, command: Start) -> Result<Started> {
        let answer = self.mutate(meta, "start", &command, move |db, request| {
            let attempt = load::attempt(db, command.attempt)?;
            let snapshot = start::Snapshot {
                policy: load::group(db, attempt.group_id)?.policy,
                live: load::count_in_group(db, statements::LIVE_IN_GROUP, attempt.group_id)?,
                attempt,
            };
            decided(start::decide(&snapshot, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Renews leases: a heartbeat. It needs no key, since repeating it changes nothing but the expiry.
    /// Leases in `fenced` are held no more: their holder must stop.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn renew(&self, meta: &Meta, worker: WorkerId, leases: &[LeaseId], lease_ms: u64) -> Result<Renewed> {
        let (clock, leases) = (meta.boot.clone(), leases.to_vec());
        self.inner.writer.run(move |transaction| {
            let mut renewed = Renewed::default();
            for id in leases {
                let lease = first(transaction.db, statements::LEASE_BY_ID, [id.bytes()], records::lease)?
                    .filter(|lease| lease.worker_id == worker);
                match lease.and_then(|lease| renew::decide(&lease, &clock, lease_ms)) {
                    Some(lease) => {
                        apply::update_lease(transaction.db, &lease)?;
                        renewed.held.push(lease);
                    }
                    None => renewed.fenced.push(id),
                }
            }
            Ok(renewed)
        })
    }

    /// Stops admission of commands: the attempt is about to be sealed or given up.
    ///
    /// # Errors
    /// `Rejected` with `LeaseFenced` or `IllegalStep`.
    pub fn begin_quiesce(&self, meta: &Meta, command: BeginQuiesce) -> Result<Attempt> {
        let answer = self.mutate(meta, "begin_quiesce", &command, move |db, request| {
            decided(begin_quiesce::decide(&load::attempt(db, command.attempt)?, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Commits a seal: root, logical state, provenance and result, the attempt's end and its lease's, at
    /// once. This is the commit point of the journaled seal.
    ///
    /// # Errors
    /// `Rejected` with `LeaseFenced` or `IllegalStep`, nothing having changed; with `Stale`, the attempt
    /// having failed as stale with its delta kept.
    pub fn commit_seal(&self, meta: &Meta, command: CommitSeal, root: &SealedRoot) -> Result<SealReply> {
        self.commit_seal_pin(meta, command, *root.pin())
    }

    /// `commit_seal` for a caller who was `asked` something smaller than the command, which also has what
    /// the sealing found: a repeated request is the same when `asked` is. See `recorded_asked`.
    ///
    /// # Errors
    /// As `commit_seal`.
    pub fn commit_seal_asked<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        command: CommitSeal,
        root: &SealedRoot,
    ) -> Result<SealReply> {
        self.seal(meta, asked, command, *root.pin())
    }

    /// `commit_seal` without the proof; within this crate only, where tests need it.
    pub(crate) fn commit_seal_pin(
        &self,
        meta: &Meta,
        command: CommitSeal,
        root: RootPin,
    ) -> Result<SealReply> {
        self.seal(meta, &(command.clone(), root), command, root)
    }

    fn seal<B: Serialize>(
        &self,
        meta: &Meta,
        asked: &B,
        command: CommitSeal,
        root: RootPin,
    ) -> Result<SealReply> {
        let by = meta.clone();
        let answer = self.mutate(meta, "commit_seal", asked, move |db, request| {
            let ending = load::ending(db, command.attempt)?;
            let salvaged = match ending.attempt.purpose {
                Purpose::Salvage { from } => {
                    Some(load::attempt(db, from)?).filter(|old| old.status == AttemptStatus::Failed)
                }
                Purpose::Work | Purpose::Evaluate => None,
            };
            let snapshot = commit_seal::Snapshot {
                node: load::node(db, ending.attempt.node_id)?,
                attempt: ending.attempt,
                lease: ending.lease,
                running: ending.running,
                salvaged,
            };
            let decision = decided(commit_seal::decide(&snapshot, &command, root, request))?;
            if matches!(decision.reply, Outcome::Sealed(_)) {
                apply::insert_root(db, root, &by)?;
            }
            Ok(decision)
        })?;
        match answer.reply {
            Outcome::Sealed(reply) => Ok(*reply),
            Outcome::Stale { attempt, status } => {
                Err(Reject::Stale { attempt: attempt.attempt_id, node: attempt.node_id, status }.into())
            }
        }
    }

    /// Ends an attempt without a seal; its record, logs and perhaps its delta are kept.
    ///
    /// # Errors
    /// `Rejected` with `LeaseFenced` or `IllegalStep`.
    pub fn fail_attempt(&self, meta: &Meta, command: FailAttempt) -> Result<Attempt> {
        let answer = self.mutate(meta, "fail_attempt", &command.clone(), move |db, request| {
            decided(fail_attempt::decide(&load::ending(db, command.attempt)?, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Lets an attempt go.
    ///
    /// # Errors
    /// `Rejected` with `UnsealedChanges` and the count unless they may be discarded, or `LeaseFenced`.
    pub fn release_attempt(&self, meta: &Meta, command: ReleaseAttempt) -> Result<Attempt> {
        // Epoch, count and reason are facts of the moment and no part of what is asked.
        let body = (command.attempt, command.discard);
        let answer = self.mutate(meta, "release_attempt", &body, move |db, request| {
            decided(release_attempt::decide(&load::ending(db, command.attempt)?, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Asks for a new attempt of a failed or released attempt's draft; the old record is not touched.
    ///
    /// # Errors
    /// `Rejected` with `NotRetryable`, `AttemptLive`, `Stale` or `Pruned`.
    pub fn retry(&self, meta: &Meta, attempt: AttemptId) -> Result<Attempt> {
        let command = Retry { attempt };
        let answer = self.mutate(meta, "retry", &command, move |db, request| {
            let attempt = load::attempt(db, command.attempt)?;
            let node = load::node(db, attempt.node_id)?;
            let open = load::open_attempt(db, node.node_id)?;
            decided(retry::decide(&retry::Snapshot { attempt, node, open }, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Records that the holder of a live attempt is gone: bumps the epoch and fails it as `infra_lost`,
    /// its delta kept. An attempt that is not live is left as it is. Prepared seals must have been
    /// settled before: they commit under the old epoch.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn lapse(&self, meta: &Meta, command: Lapse) -> Result<Attempt> {
        let answer = self.mutate(meta, "lapse", &command.clone(), move |db, request| {
            decided(lapse::decide(&load::ending(db, command.attempt)?, &command, request))
        })?;
        Ok(answer.reply)
    }

    /// Lapses every lease whose time is over on the boot clock of `meta`, or that is of another boot.
    /// Repeating it finds nothing more to do, so it keeps no reply.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn expire_leases(&self, meta: &Meta) -> Result<Vec<Attempt>> {
        meta.check()?;
        let (meta, store) = (meta.clone(), self.inner.store);
        self.inner.writer.run(move |transaction| {
            let request = Request { store, operation: "expire_leases", meta: &meta };
            let held = every(transaction.db, statements::HELD_LEASES, [], records::lease)?;
            let over = held.into_iter().filter(|lease| lease.expired(&meta.boot.boot_id, meta.boot.millis));
            let mut lapsed = Vec::new();
            for lease in over {
                let command = Lapse { attempt: lease.attempt_id, reason: "the lease expired".to_owned() };
                let decision =
                    lapse::decide(&load::ending(transaction.db, lease.attempt_id)?, &command, &request)?;
                apply::commit(transaction, &meta, &decision.changes, &decision.transitions)?;
                lapsed.push(decision.reply);
            }
            Ok(lapsed)
        })
    }

    /// The node that was sealed from the delta of `attempt`, by itself or by an attempt that salvaged it;
    /// what recovery asks about a prepared seal.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn seal_outcome(&self, attempt: AttemptId) -> Result<Option<NodeId>> {
        self.read(|db| {
            let node = load::node(db, load::attempt(db, attempt)?.node_id)?;
            let Some(sealer) = node.attempt_id else { return Ok(None) };
            let salvaged = load::attempt(db, sealer)?.purpose == Purpose::Salvage { from: attempt };
            Ok(Some(node.node_id).filter(|_| sealer == attempt || salvaged))
        })
    }

    /// Records a command that is about to start, or that has ended. A repeated request gets the exec as
    /// it is now, with `fresh` false: it must not be started again.
    ///
    /// # Errors
    /// `Rejected` with `LeaseFenced`, or `IllegalStep` when no more work is admitted.
    pub fn record_exec(&self, meta: &Meta, command: RecordExec) -> Result<Recorded> {
        let body = RecordExec { epoch: 0, outcome: None, ..command.clone() };
        let Answer { reply: id, fresh } = self.mutate(meta, "exec", &body, move |db, request| {
            decided(exec::record(&load::attempt(db, command.attempt)?, &command, request))
        })?;
        Ok(Recorded { exec: self.exec(id)?, fresh })
    }

    /// The exec that was recorded under this actor and key, if any.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn recorded_exec(&self, meta: &Meta) -> Result<Option<Exec>> {
        let id: Option<esf_core::ExecId> = self.recorded(meta, "exec")?;
        id.map(|id| self.exec(id)).transpose()
    }

    /// Records the end of a command.
    ///
    /// # Errors
    /// `Rejected` with `LeaseFenced` or `ExecEnded`.
    pub fn finish_exec(&self, meta: &Meta, command: FinishExec) -> Result<Exec> {
        let answer = self.mutate(meta, "finish_exec", &command.clone(), move |db, request| {
            let exec = exec_by_id(db, &command)?;
            let attempt = load::attempt(db, exec.attempt_id)?;
            decided(exec::finish(&attempt, &exec, &command, request))
        })?;
        Ok(answer.reply)
    }
}

fn exec_by_id(db: &Connection, command: &FinishExec) -> Result<Exec> {
    first(db, statements::EXEC_BY_ID, [command.exec.bytes()], records::exec)?
        .ok_or_else(|| Error::not_found("exec", command.exec))
}
