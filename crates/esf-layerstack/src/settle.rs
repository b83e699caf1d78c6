//! Step 7 of a seal: the graph has committed it or not, and what is left of it goes or comes back.
//! Invariant: a committed root stands on settled carriers alone; a refused one leaves the upper to its
//! attempt, unless something stands on it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use esf_core::AttemptId;
use esf_core::manifest::RootPin;
use rusqlite::{OptionalExtension, Transaction, params};

use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::journal::{COLUMNS, Journal, JournalState};
use crate::local::{self, CarrierId, Commit, TxnId};
use crate::lock::StoreLock;
use crate::seal::PreparedSeal;
use crate::sealed::{Changes, SealedRoot};
use crate::stack::LayerStack;
use crate::workspace::PATIENT;
use crate::{Error, handle};

/// How far an unsettled seal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealState {
    /// Nothing is decided: seal again, or settle as not committed.
    Intent,
    /// The root is durable: ask the graph whether it was committed, then settle.
    Prepared,
}

/// A seal that no living process carries on.
#[derive(Clone, Debug)]
pub struct UnsettledSeal {
    /// Its name on this machine.
    pub txn: TxnId,
    /// Whose upper.
    pub attempt: AttemptId,
    /// How far it has come.
    pub state: SealState,
    /// The root, once prepared.
    pub sealed: Option<SealedRoot>,
    /// How it differs from the base, once prepared.
    pub changes: Changes,
    /// The request's idempotency key.
    pub key: String,
}

impl LayerStack {
    /// Step 7: the graph has committed the seal, or has refused it. Refused, the upper is the attempt's
    /// again, to be looked at, sealed anew or discarded.
    ///
    /// # Errors
    /// `Io` and `Database`; settling may be repeated through `settle_unsettled`.
    pub fn settle_seal(&self, prepared: PreparedSeal, committed: bool) -> Result<(), Error> {
        let journal = self.journal(prepared.txn)?;
        match journal {
            Some(journal) => self.settle(&journal, prepared.claim.as_ref(), committed),
            None => Ok(()),
        }
    }

    /// Settles a seal that a dead process left; nothing when it is settled already.
    ///
    /// # Errors
    /// `SealConflict` when a living process has it; `Io` and `Database`.
    pub fn settle_unsettled(&self, txn: TxnId, committed: bool) -> Result<(), Error> {
        let Some(journal) = self.journal(txn)? else { return Ok(()) };
        let claim = self.claim_attempt(journal.attempt, PATIENT)?;
        // Read again: who had it before may have settled it.
        match self.journal(txn)? {
            Some(journal) => self.settle(&journal, claim.as_ref(), committed),
            None => Ok(()),
        }
    }

    fn settle(&self, journal: &Journal, home: Option<&OwnedFd>, committed: bool) -> Result<(), Error> {
        disk::reach(Boundary::SealSettle).at("settle", b"seal")?;
        if !committed {
            return self.take_back(journal, home);
        }
        self.roll_forward(journal, home)?;
        let attempt = journal.attempt;
        disk::reach(Boundary::SealCleanup).at("clean up", b"seal")?;
        self.inner.trash.take(&self.inner.attempts, &attempt.to_string())?;
        disk::reach(Boundary::SealDone).at("settle", b"seal")?;
        self.inner.local.write(Commit::Ordered, |db| {
            if let (Some(pin), Some(carrier)) = (&journal.pin, journal.carrier) {
                db.prepare_cached("UPDATE carriers SET state = 'hot' WHERE carrier = ?1")?
                    .execute(params![carrier])?;
                keep_projection(db, pin, &journal.layers)?;
            }
            local::delete_workspace(db, attempt)?;
            delete(db, journal.txn)
        })?;
        self.inner.trash.wake();
        self.consolidate();
        Ok(())
    }

    /// Makes the carrier the attempt's upper again and forgets the seal.
    fn take_back(&self, journal: &Journal, home: Option<&OwnedFd>) -> Result<(), Error> {
        let Some(carrier) = journal.carrier else {
            return self.inner.local.write(Commit::Ordered, |db| delete(db, journal.txn));
        };
        let used = self.inner.local.write(Commit::Ordered, |db| {
            let pin = journal.pin.as_ref().expect("a carrier is recorded with its root");
            if local::projection(db, pin)?.is_some_and(|layers| layers.first() == Some(&carrier)) {
                local::delete_projection(db, pin)?;
            }
            is_used(db, carrier)
        })?;
        let carriers = &self.inner.carriers;
        if let Some(home) = home.filter(|_| !used) {
            match disk::rename_new(carriers, carrier.to_string(), home, "upper", Boundary::SealRename) {
                // It never got there, or is back already.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                moved => moved.at("move back", b"upper")?,
            }
        }
        self.inner.local.write(Commit::Ordered, |db| {
            let gone = handle::stat_entry(carriers, carrier.to_string().as_bytes()).is_err();
            let text = if gone {
                "DELETE FROM carriers WHERE carrier = ?1"
            } else {
                // Something stands on it after all, or its attempt is gone: a collection will decide.
                "UPDATE carriers SET state = 'hot' WHERE carrier = ?1"
            };
            db.prepare_cached(text)?.execute(params![carrier])?;
            delete(db, journal.txn)
        })
    }

    /// The seals that no living process carries on. What is prepared is rolled forward on the way, so
    /// its root is hot; ask the graph about each and settle it.
    ///
    /// # Errors
    /// `Io` and `Database`.
    pub fn unsettled_seals(&self) -> Result<Vec<UnsettledSeal>, Error> {
        let held = Arc::new(self.lock_shared()?);
        let journals: Vec<Journal> = self.inner.local.read(|db| {
            let text = format!("SELECT {COLUMNS} FROM transactions WHERE kind = 'seal' ORDER BY txn");
            let mut statement = db.prepare(&text)?;
            let rows = statement.query_map([], Journal::read)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let mut unsettled = Vec::new();
        for journal in journals {
            let claim = match self.claim_attempt(journal.attempt, 1) {
                Err(Error::SealConflict { .. }) => continue,
                claim => claim?,
            };
            // Read again: who had it before may have carried it on.
            let Some(journal) = self.journal(journal.txn)? else { continue };
            self.roll_forward(&journal, claim.as_ref())?;
            let state = match journal.state {
                JournalState::Intent => SealState::Intent,
                JournalState::Prepared | JournalState::Projected => SealState::Prepared,
            };
            unsettled.push(UnsettledSeal {
                txn: journal.txn,
                attempt: journal.attempt,
                state,
                sealed: proof(&journal, &held),
                key: journal.key,
                changes: journal.changes,
            });
        }
        Ok(unsettled)
    }
}

pub(crate) fn proof(journal: &Journal, held: &Arc<StoreLock>) -> Option<SealedRoot> {
    let pin = journal.pin?;
    let (bytes, held) = (journal.changes.bytes, Arc::clone(held));
    Some(SealedRoot { pin, bytes, txn: Some(journal.txn), _held: held })
}

fn delete(db: &Transaction<'_>, txn: TxnId) -> Result<(), Error> {
    db.prepare_cached("DELETE FROM transactions WHERE txn = ?1")?.execute(params![txn])?;
    Ok(())
}

/// Whether a root or a workspace stands on a carrier.
fn is_used(db: &rusqlite::Connection, carrier: CarrierId) -> Result<bool, Error> {
    let text = "SELECT EXISTS (SELECT 1 FROM projections WHERE carrier = ?1)
                    OR EXISTS (SELECT 1 FROM workspace_lowers WHERE carrier = ?1)";
    Ok(db.prepare_cached(text)?.query_row(params![carrier], |row| row.get(0))?)
}

/// Makes a committed root's projection stand on settled carriers only. Two seals may have led to one
/// root; while the other is not settled its carrier may still be taken back.
fn keep_projection(db: &Transaction<'_>, pin: &RootPin, layers: &[CarrierId]) -> Result<(), Error> {
    let settled = match local::projection(db, pin)? {
        None => false,
        Some(found) => {
            let text = "SELECT state = 'hot' FROM carriers WHERE carrier = ?1";
            db.prepare_cached(text)?
                .query_row(params![found[0]], |row| row.get(0))
                .optional()?
                .unwrap_or(false)
        }
    };
    if settled { Ok(()) } else { local::put_projection(db, pin, layers) }
}
