//! The journaled seal: an attempt's upper becomes a carrier and a root, without moving its payload
//! (design section 3, steps 1 to 5 and 7; step 6 is the graph's). Invariant: before *prepared* the
//! upper is still the attempt's, from *prepared* on recovery rolls forward; the root is hot before
//! the graph may name it; a failed sync fails the seal and is never retried as a success.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use esf_core::diff::{Change, Side, diff};
use esf_core::digest::RequestDigest;
use esf_core::manifest::{EntryKind, RootPin};
use esf_core::policy::Durability;
use esf_core::{AttemptId, Digest};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use rustix::fs::OFlags;

use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::links::rename_groups;
use crate::local::{self, CarrierId, Commit, TxnId, WorkspaceRow, insert_carrier, pin_columns, pin_of};
use crate::lock::StoreLock;
use crate::object_store::PackWriter;
use crate::recover::parse_layers;
use crate::sealed::{Changes, Progress, SealedRoot};
use crate::stack::LayerStack;
use crate::upper::{self, Few, Purpose, Socket, Walked};
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
    sealed: SealedRoot,
    changes: Changes,
    txn: TxnId,
    /// Keeps others off the attempt.
    _claim: Option<OwnedFd>,
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

/// A seal's row.
struct Journal {
    txn: TxnId,
    attempt: AttemptId,
    state: JournalState,
    carrier: Option<CarrierId>,
    key: String,
    request_digest: [u8; 32],
    base: RootPin,
    pin: Option<RootPin>,
    layers: Vec<CarrierId>,
    changes: Changes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JournalState {
    Intent,
    Prepared,
    Projected,
}

const COLUMNS: &str = "txn, attempt, state, carrier, request_key, request_digest, base_root_id, \
                       base_attrs_id, root_id, attrs_id, layers, changes";

impl Journal {
    fn is_of(&self, request: &SealRequest) -> bool {
        self.key == request.key
            && self.request_digest == *request.request_digest.as_bytes()
            && self.base == request.base
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let state = match row.get::<_, String>(2)?.as_str() {
            "intent" => JournalState::Intent,
            "prepared" => JournalState::Prepared,
            _ => JournalState::Projected,
        };
        let changes: Option<String> = row.get(11)?;
        let root: Option<[u8; 32]> = row.get(8)?;
        let attrs: Option<[u8; 32]> = row.get(9)?;
        let layers: Option<String> = row.get(10)?;
        Ok(Self {
            txn: row.get(0)?,
            attempt: AttemptId::from_bytes(row.get(1)?),
            state,
            carrier: row.get(3)?,
            key: row.get(4)?,
            request_digest: row.get(5)?,
            base: pin_of(row.get(6)?, row.get(7)?),
            pin: root.zip(attrs).map(|(root, attrs)| pin_of(root, attrs)),
            layers: layers.map(|text| parse_layers(&text)).unwrap_or_default(),
            changes: changes.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        })
    }

    fn find(
        db: &rusqlite::Connection,
        column: &str,
        value: &dyn rusqlite::ToSql,
    ) -> Result<Option<Self>, Error> {
        let text = format!("SELECT {COLUMNS} FROM transactions WHERE kind = 'seal' AND {column} = ?1");
        Ok(db.prepare_cached(&text)?.query_row(params![value], Self::read).optional()?)
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
        let claim = self.claim_attempt(attempt)?;
        let (journal, row) = self.inner.local.read(|db| {
            Ok((Journal::find(db, "attempt", &attempt.as_bytes())?, local::workspace(db, attempt)?))
        })?;
        if let Some(journal) = &journal
            && !journal.is_of(request)
        {
            return Err(Error::SealConflict { attempt });
        }
        let row = row.ok_or(Error::WorkspaceMissing(attempt))?;
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

    fn journal(&self, txn: TxnId) -> Result<Option<Journal>, Error> {
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
        let walked =
            upper::walk(Purpose::Seal, &self.inner.objects, &mut writer, again, &request.base, progress)?;
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
            self.read_back(request, home, &walked)?;
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
    fn read_back(&self, request: &SealRequest, home: &OwnedFd, walked: &Walked) -> Result<(), Error> {
        let upper = handle::open_child(home, b"upper").at("open", b"upper")?;
        let (objects, mut writer) = (&self.inner.objects, self.inner.objects.writer());
        let again = upper::walk(Purpose::ReadBack, objects, &mut writer, upper, &request.base, &())?;
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
                insert_carrier(db, carrier, charge, false)?;
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
        Ok(PreparedSeal { sealed, changes: journal.changes.clone(), txn: journal.txn, _claim: claim })
    }

    /// Step 5: the upper becomes the carrier, and the root hot. Re-runnable.
    fn roll_forward(&self, journal: &Journal, home: Option<&OwnedFd>) -> Result<(), Error> {
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

    /// Step 7: the graph has committed the seal, or has refused it. Refused, the upper is the attempt's
    /// again, to be looked at, sealed anew or discarded.
    ///
    /// # Errors
    /// `Io` and `Database`; settling may be repeated through `settle_unsettled`.
    pub fn settle_seal(&self, prepared: PreparedSeal, committed: bool) -> Result<(), Error> {
        let journal = self.journal(prepared.txn)?;
        match journal {
            Some(journal) => self.settle(&journal, prepared._claim.as_ref(), committed),
            None => Ok(()),
        }
    }

    /// Settles a seal that a dead process left; nothing when it is settled already.
    ///
    /// # Errors
    /// `SealConflict` when a living process has it; `Io` and `Database`.
    pub fn settle_unsettled(&self, txn: TxnId, committed: bool) -> Result<(), Error> {
        let Some(journal) = self.journal(txn)? else { return Ok(()) };
        let claim = self.claim_attempt(journal.attempt)?;
        self.settle(&journal, claim.as_ref(), committed)
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
            let claim = match self.claim_attempt(journal.attempt) {
                Err(Error::SealConflict { .. }) => continue,
                claim => claim?,
            };
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

/// What step 4 records.
struct Prepared<'a> {
    pin: RootPin,
    changes: Changes,
    base: RootPin,
    row: &'a WorkspaceRow,
}

fn proof(journal: &Journal, held: &Arc<StoreLock>) -> Option<SealedRoot> {
    let pin = journal.pin?;
    let (bytes, held) = (journal.changes.bytes, Arc::clone(held));
    Some(SealedRoot { pin, bytes, txn: Some(journal.txn), _held: held })
}

fn as_json(changes: &Changes) -> String {
    serde_json::to_string(changes).expect("numbers and byte strings are always JSON")
}

fn delete(db: &Transaction<'_>, txn: TxnId) -> Result<(), Error> {
    db.prepare_cached("DELETE FROM transactions WHERE txn = ?1")?.execute(params![txn])?;
    Ok(())
}

/// Whether a root or a workspace stands on a carrier.
pub(crate) fn is_used(db: &rusqlite::Connection, carrier: CarrierId) -> Result<bool, Error> {
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

/// What a walk over `base` came to: the root with its hard-link groups rightly named, and how it
/// differs from the base.
pub(crate) fn compare(
    writer: &mut PackWriter,
    base: &RootPin,
    walked: &Walked,
) -> Result<(RootPin, Changes), Error> {
    let mut pin = walked.pin;
    let mut differences = diff(writer, base, &pin)?;
    let group = |side: &Option<Side>| side.as_ref().and_then(|side| side.attrs.hard_link);
    let broken = differences.iter().filter(|change| group(&change.before) != group(&change.after));
    let mut lost: BTreeSet<Digest> = broken.filter_map(|change| group(&change.before)).collect();
    lost.extend(&walked.lost);
    if !lost.is_empty() {
        pin = rename_groups(writer, &pin, &lost, &walked.links)?;
        differences = diff(writer, base, &pin)?;
    }
    Ok((pin, count(&differences)))
}

fn count(differences: &[Change]) -> Changes {
    let mut changes = Changes::default();
    for change in differences.iter().filter(|change| is_told(change)) {
        match (&change.before, &change.after) {
            (Some(_), None) => changes.deleted += 1,
            (Some(_), Some(_)) => changes.modified += 1,
            (None, _) => changes.added += 1,
        }
        if let Some(EntryKind::File { size, .. }) = change.after.as_ref().map(|side| &side.kind) {
            changes.bytes += size;
        }
    }
    changes
}

/// Whether a difference is one that people want to hear of: not the mere time of a directory, and not
/// the mere link count of a file.
pub fn is_told(change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    let directories = before.kind.is_directory() && after.kind.is_directory();
    let bare = |side: &Side| {
        let mut attrs = side.attrs.own();
        attrs.hard_link = None;
        if directories {
            attrs.mtime = None;
        }
        (side.mode, attrs, (!directories).then(|| side.kind.clone()))
    };
    bare(before) != bare(after)
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
