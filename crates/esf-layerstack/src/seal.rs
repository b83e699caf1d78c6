//! The journaled seal: an attempt's upper becomes a carrier and a root, without moving its payload
//! (design section 3, steps 1 to 5; step 6 is the graph's, step 7 in `settle`). Invariant: before *prepared* the
//! upper is still the attempt's, from *prepared* on recovery rolls forward; the root is hot before
//! the graph may name it; a failed sync fails the seal and is never retried as a success.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use esf_core::AttemptId;
use esf_core::digest::RequestDigest;
use esf_core::manifest::RootPin;
use esf_core::policy::Durability;
use rusqlite::params;
use rustix::fs::OFlags;

use crate::compare::compare;
use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::form::Form;
use crate::journal::{Journal, JournalState};
use crate::local::{self, CarrierId, Commit, TxnId, WorkspaceRow, insert_carrier, pin_columns};
use crate::lock::StoreLock;
use crate::object_store::PackWriter;
use crate::sealed::{Changes, Progress, SealedRoot};
use crate::settle::proof;
use crate::stack::LayerStack;
use crate::upper::{self, Few, Purpose, Socket, Source, Walked};
use crate::workspace::PATIENT;
use crate::{Error, handle, ledger};

/// What a seal is asked for. The caller has quiesced the sandbox and proven the unmount.
#[derive(Clone, Debug)]
pub struct SealRequest {
    /// Whose upper.
    pub attempt: AttemptId,
    /// The root that the attempt began with.
    pub base: RootPin,
    /// The body of the request that led here.
    pub request_digest: RequestDigest,
    /// Its idempotency key.
    pub key: String,
    /// What is to survive a loss of power.
    pub durability: Durability,
}

/// A seal that is durable and waits for the graph. Settle it; dropped, it is left to recovery.
#[must_use = "a prepared seal is to be committed by the graph and then settled"]
#[derive(Debug)]
pub struct PreparedSeal {
    pub(crate) sealed: SealedRoot,
    pub(crate) changes: Changes,
    pub(crate) txn: TxnId,
    /// Keeps others off the attempt.
    pub(crate) claim: Option<OwnedFd>,
}

impl PreparedSeal {
    /// Proof of the new root.
    pub fn sealed(&self) -> &SealedRoot {
        &self.sealed
    }

    /// How it differs from the base, and what was skipped.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The seal's name on this machine.
    pub fn txn(&self) -> TxnId {
        self.txn
    }
}

impl LayerStack {
    /// Seals the upper of an attempt: afterwards its root is durable and hot, and waits to be committed
    /// by the graph and settled. Repeated with the same key and body it resumes, or answers the same.
    ///
    /// # Errors
    /// `WorkspaceMissing`, `WorkspaceMismatch`, `WorkspaceLost`, `SealConflict`; what a root cannot
    /// hold, by path; `storage_full`. The upper stays as it was, and the same request may be repeated.
    pub fn seal(&self, request: &SealRequest, progress: &dyn Progress) -> Result<PreparedSeal, Error> {
        let held = Arc::new(self.lock_shared()?);
        let attempt = request.attempt;
        let claim = self.claim_attempt(attempt, PATIENT)?;
        let (journal, row) = self.inner.local.read(|db| {
            Ok((Journal::find(db, "attempt", &attempt.as_bytes())?, local::workspace(db, attempt)?))
        })?;
        if let Some(journal) = &journal
            && !journal.is_of(request)
        {
            return Err(Error::SealConflict { attempt });
        }
        let row = row.ok_or(Error::WorkspaceMissing(attempt))?;
        self.require_readable(&[row.form])?;
        let txn = match journal {
            Some(journal) if journal.state != JournalState::Intent => {
                return self.resume(&journal, claim, &held);
            }
            Some(journal) => journal.txn,
            None => self.begin(request, &row)?,
        };
        let home = claim.ok_or(Error::WorkspaceMissing(attempt))?;
        self.prepare(request, &row, txn, &home, progress)?;
        let journal = self.journal(txn)?.ok_or(Error::SealConflict { attempt })?;
        self.resume(&journal, Some(home), &held)
    }

    pub(crate) fn journal(&self, txn: TxnId) -> Result<Option<Journal>, Error> {
        self.inner.local.read(|db| Journal::find(db, "txn", &txn))
    }

    /// Step 1: the intent, with the workspace's carriers pinned by its row.
    fn begin(&self, request: &SealRequest, row: &WorkspaceRow) -> Result<TxnId, Error> {
        let attempt = request.attempt;
        if row.base != request.base {
            let what = format!("it lies over the root {}, not {}", row.base.root, request.base.root);
            return Err(Error::WorkspaceMismatch { attempt, what });
        }
        self.check_boot(attempt, row)?;
        let txn = TxnId::draw();
        disk::reach(Boundary::SealIntent).at("begin", b"seal")?;
        let (root, attrs) = pin_columns(&request.base);
        self.inner.local.write(Commit::Ordered, |db| {
            db.prepare_cached(
                "INSERT INTO transactions (txn, kind, state, attempt, request_key, request_digest,
                                           base_root_id, base_attrs_id)
                 VALUES (?1, 'seal', 'intent', ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                txn,
                attempt.as_bytes(),
                request.key,
                request.request_digest.as_bytes(),
                root,
                attrs
            ])?;
            Ok(())
        })?;
        Ok(txn)
    }

    /// Steps 2 to 4: walk and normalise, make durable, record as prepared.
    fn prepare(
        &self,
        request: &SealRequest,
        row: &WorkspaceRow,
        txn: TxnId,
        home: &OwnedFd,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let upper = self.open_upper(request.attempt)?.ok_or(Error::WorkspaceMissing(request.attempt))?;
        disk::reach(Boundary::SealNormalise).at("normalise", b"upper")?;
        let mut writer = self.inner.objects.writer();
        let again = handle::open_child(home, b"upper").at("open", b"upper")?;
        let source = Source::upper(again, row.form);
        let walked =
            upper::walk(Purpose::Seal, &self.inner.objects, &mut writer, source, &request.base, progress)?;
        let (pin, changes) = compare(&mut writer, &request.base, &walked)?;
        let changes = Changes { skipped: self.journal_skipped(txn, walked.skipped.clone())?, ..changes };
        remove_sockets(&upper, &walked.sockets)?;
        let known = self.inner.local.read(|db| local::projection(db, &pin))?.is_some();
        let durable = request.durability == Durability::Full;
        let made = self.make_durable(&upper, &walked, writer, known, durable);
        if matches!(made, Err(Error::Io { .. })) {
            // The kernel may have dropped what it could not write: memory is not to be believed.
            self.inner.local.write(Commit::Durable, |db| local::suspect_workspace(db, request.attempt))?;
        }
        made?;
        if row.suspect {
            self.read_back(request, row.form, home, &walked)?;
        }
        let prepared = Prepared { pin, changes, base: request.base, row };
        self.record_prepared(txn, &prepared, (!known).then_some(&upper), durable)
    }

    /// Remembers what was skipped before the sockets go: a repeated walk would not find them.
    fn journal_skipped(&self, txn: TxnId, found: crate::Skipped) -> Result<crate::Skipped, Error> {
        let journal = self.journal(txn)?.map(|journal| journal.changes.skipped).unwrap_or_default();
        let mut skipped = journal;
        for entry in found {
            if !skipped.contains(&entry) {
                skipped.push(entry);
            }
        }
        if skipped.is_empty() {
            return Ok(skipped);
        }
        let changes = Changes { skipped, ..Changes::default() };
        self.inner.local.write(Commit::Ordered, |db| {
            db.prepare_cached("UPDATE transactions SET changes = ?2 WHERE txn = ?1")?
                .execute(params![txn, as_json(&changes)])?;
            Ok(())
        })?;
        Ok(changes.skipped)
    }

    /// Step 3. With `known` the root is hot already: the upper will not be needed.
    fn make_durable(
        &self,
        upper: &OwnedFd,
        walked: &Walked,
        writer: PackWriter,
        known: bool,
        durable: bool,
    ) -> Result<(), Error> {
        let packs = writer.stage()?;
        if !durable {
            packs.publish(false)?;
            return Ok(());
        }
        if walked.few.is_many() && !known {
            self.inner.rounds.sync(Boundary::SealSync).at("sync", b"upper")?;
        } else {
            packs.sync()?;
            if !known {
                sync_few(upper, &walked.few)?;
            }
        }
        packs.publish(true)?;
        Ok(())
    }

    /// After a failed sync and a successful one: what is on the disk must be what was hashed.
    fn read_back(
        &self,
        request: &SealRequest,
        form: Form,
        home: &OwnedFd,
        walked: &Walked,
    ) -> Result<(), Error> {
        let upper = handle::open_child(home, b"upper").at("open", b"upper")?;
        let (objects, mut writer) = (&self.inner.objects, self.inner.objects.writer());
        let source = Source::upper(upper, form);
        let again = upper::walk(Purpose::ReadBack, objects, &mut writer, source, &request.base, &())?;
        if again.pin == walked.pin { Ok(()) } else { Err(Error::WorkspaceLost(request.attempt)) }
    }

    /// Step 4; `upper` is none when no carrier is made.
    fn record_prepared(
        &self,
        txn: TxnId,
        prepared: &Prepared<'_>,
        upper: Option<&OwnedFd>,
        durable: bool,
    ) -> Result<(), Error> {
        // After the sync: until then a filesystem may not know how much it will allocate.
        let charge = upper.map(|upper| ledger::measure(upper, ledger::Linked::Counted)).transpose()?;
        let (root, attrs) = pin_columns(&prepared.pin);
        disk::reach(Boundary::SealPrepared).at("prepare", b"seal")?;
        let commit = if durable { Commit::Durable } else { Commit::Ordered };
        self.inner.local.write(commit, |db| {
            let carrier = charge.map(|_| CarrierId::draw());
            // The base may have been squashed since the workspace was opened: take its shallower form.
            let lowers =
                local::projection(db, &prepared.base)?.unwrap_or_else(|| prepared.row.lowers.clone());
            let layers: Vec<String> = carrier.iter().chain(&lowers).map(ToString::to_string).collect();
            if let (Some(carrier), Some(charge)) = (carrier, charge) {
                insert_carrier(db, carrier, prepared.row.form, charge, false)?;
            }
            db.prepare_cached(
                "UPDATE transactions SET state = 'prepared', carrier = ?2, root_id = ?3, attrs_id = ?4,
                                         layers = ?5, changes = ?6 WHERE txn = ?1",
            )?
            .execute(params![
                txn,
                carrier,
                root,
                attrs,
                layers.join(","),
                as_json(&prepared.changes)
            ])?;
            Ok(())
        })
    }

    /// Step 5 and the answer, for a seal that is prepared.
    fn resume(
        &self,
        journal: &Journal,
        claim: Option<OwnedFd>,
        held: &Arc<StoreLock>,
    ) -> Result<PreparedSeal, Error> {
        self.roll_forward(journal, claim.as_ref())?;
        let sealed = proof(journal, held).ok_or(Error::WorkspaceMissing(journal.attempt))?;
        Ok(PreparedSeal { sealed, changes: journal.changes.clone(), txn: journal.txn, claim })
    }

    /// Step 5: the upper becomes the carrier, and the root hot. Re-runnable.
    pub(crate) fn roll_forward(&self, journal: &Journal, home: Option<&OwnedFd>) -> Result<(), Error> {
        if journal.state != JournalState::Prepared {
            return Ok(());
        }
        if let Some(carrier) = journal.carrier {
            self.move_upper(journal.attempt, carrier, home)?;
        }
        disk::reach(Boundary::SealProject).at("project", b"seal")?;
        self.inner.local.write(Commit::Ordered, |db| {
            db.prepare_cached("UPDATE transactions SET state = 'projected' WHERE txn = ?1")?
                .execute(params![journal.txn])?;
            match (&journal.pin, journal.carrier) {
                (Some(pin), Some(_)) if local::projection(db, pin)?.is_none() => {
                    local::put_projection(db, pin, &journal.layers)
                }
                _ => Ok(()),
            }
        })
    }

    fn move_upper(
        &self,
        attempt: AttemptId,
        carrier: CarrierId,
        home: Option<&OwnedFd>,
    ) -> Result<(), Error> {
        let carriers = &self.inner.carriers;
        let name = carrier.to_string();
        if handle::stat_entry(carriers, name.as_bytes()).is_err() {
            let home = home.ok_or(Error::WorkspaceMissing(attempt))?;
            disk::rename_new(home, "upper", carriers, &name, Boundary::SealRename).at("move", b"upper")?;
        }
        disk::fsync(carriers, Boundary::SealDirectorySync).at("sync", b"carriers")?;
        match home {
            Some(home) => disk::fsync(home, Boundary::SealDirectorySync).at("sync", b"attempts"),
            None => Ok(()),
        }
    }
}

/// What step 4 records.
struct Prepared<'a> {
    pin: RootPin,
    changes: Changes,
    base: RootPin,
    row: &'a WorkspaceRow,
}

fn as_json(changes: &Changes) -> String {
    serde_json::to_string(changes).expect("numbers and byte strings are always JSON")
}

/// Takes sockets out of an upper, leaving a whiteout where the base would show through.
fn remove_sockets(upper: &OwnedFd, sockets: &[Socket]) -> Result<(), Error> {
    if sockets.is_empty() {
        return Ok(());
    }
    disk::reach(Boundary::SealNormalise).at("normalise", b"upper")?;
    for socket in sockets {
        let path = &socket.directory;
        let directory =
            handle::open_beneath(upper, path, OFlags::RDONLY | OFlags::DIRECTORY).at("open", path)?;
        let stat = rustix::fs::fstat(&directory).at("inspect", path)?;
        let name = socket.name.as_bytes();
        rustix::fs::unlinkat(&directory, name, rustix::fs::AtFlags::empty())
            .at("remove a socket in", path)?;
        if socket.hides {
            make_whiteout(&directory, name).at("hide a name in", path)?;
        }
        rustix::fs::futimens(&directory, &handle::times(handle::mtime(&stat))).at("set the time of", path)?;
    }
    Ok(())
}

pub(crate) fn make_whiteout(directory: &OwnedFd, name: &[u8]) -> std::io::Result<()> {
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
    Ok(rustix::fs::mknodat(directory, name, kind, mode, 0)?)
}

/// Makes few files and directories durable, one by one.
fn sync_few(upper: &OwnedFd, few: &Few) -> Result<(), Error> {
    for path in few.files.iter().chain(&few.directories) {
        let file = handle::open_beneath(upper, path, OFlags::RDONLY | OFlags::NONBLOCK).at("open", path)?;
        disk::fsync(&file, Boundary::SealSync).at("sync", path)?;
    }
    Ok(())
}
