//! A new carrier on its way: built in `staging/`, made durable, and moved to its place, journaled in
//! `local.db`. Import, squash, merge and conversion all publish through here.
//! Invariant: before *prepared* a crash leaves only staging that recovery trashes; from *prepared* on
//! recovery rolls forward; the staging directory stays locked while its process lives.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use esf_core::Name;
use esf_core::manifest::RootPin;
use rusqlite::{OptionalExtension, Transaction, params};
use rustix::fs::FlockOperation;

use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::form::Form;
use crate::local::{
    CarrierId, Charge, Commit, TxnId, conversion, exists, insert_carrier, insert_unopened, pin_columns,
    projection, put_conversion, put_projection,
};
use crate::object_store::StagedPacks;
use crate::stack::LayerStack;
use crate::upper::Unopened;
use crate::{Error, handle, ledger, recover, trash};

/// Name of the carrier-to-be inside its staging directory.
pub(crate) const ROOT: &str = "root";

/// What makes a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    Import,
    Squash,
    Merge,
    Convert,
}

impl Making {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Squash => "squash",
            Self::Merge => "merge",
            Self::Convert => "convert",
        }
    }
}

/// A staging directory that belongs to this process.
pub(crate) struct Staging {
    stack: LayerStack,
    pub(crate) txn: TxnId,
    pub(crate) carrier: CarrierId,
    /// Open and locked: says to recovery that its maker lives.
    directory: OwnedFd,
    pub(crate) root: OwnedFd,
    finished: bool,
}

/// What a carrier is made for.
#[derive(Clone, Debug)]
pub(crate) enum For {
    /// A root: its carriers, topmost first, of which the new one is among.
    Root(RootPin, Vec<CarrierId>),
    /// To show in native form what this carrier shows in portable form.
    Carrier(CarrierId),
}

/// What is published.
pub(crate) struct Publication<'a> {
    pub(crate) made_for: For,
    /// Records of the new carrier's symlinks and fifos; none in native form.
    pub(crate) unopened: Unopened,
    pub(crate) form: Form,
    /// What the new carrier is charged with; when none, what it alone holds.
    pub(crate) charge: Option<Charge>,
    /// Carriers that share inodes with the new one.
    pub(crate) shares_with: &'a [CarrierId],
    pub(crate) durable: bool,
}

impl Staging {
    pub(crate) fn begin(stack: &LayerStack, making: Making) -> Result<Self, Error> {
        // What this very process failed to finish waits here too.
        recover::transactions(stack)?;
        let carrier = CarrierId::draw();
        let (txn, directory) = claim_new(stack)?;
        let root = handle::create_directory(&directory, ROOT.as_bytes());
        let root = root.at("create", b"staging")?;
        let staging = Self { stack: stack.clone(), txn, carrier, directory, root, finished: false };
        disk::reach(Boundary::CarrierIntent).at("begin", b"staging")?;
        stack.inner.local.write(Commit::Ordered, |db| {
            db.prepare_cached(
                "INSERT INTO transactions (txn, kind, state, carrier) VALUES (?1, ?2, 'intent', ?3)",
            )?
            .execute(params![txn, making.as_str(), carrier])?;
            Ok(())
        })?;
        Ok(staging)
    }

    /// Makes the carrier and the objects that name it durable, and the root hot.
    pub(crate) fn publish(mut self, packs: StagedPacks, publication: &Publication<'_>) -> Result<(), Error> {
        let inner = &self.stack.inner;
        if publication.durable {
            inner.rounds.sync(Boundary::CarrierSync).at("sync", b"staging")?;
        }
        packs.publish(publication.durable)?;
        // After the sync: until then a filesystem may not know how much it will allocate.
        let charge = match publication.charge {
            Some(charge) => charge,
            None => ledger::measure(&self.root, ledger::Linked::Elsewhere)?,
        };
        let (pin, layers) = match &publication.made_for {
            For::Root(pin, layers) => (Some(pin_columns(pin)), &layers[..]),
            For::Carrier(carrier) => (None, std::slice::from_ref(carrier)),
        };
        let layers: Vec<String> = layers.iter().map(ToString::to_string).collect();
        disk::reach(Boundary::CarrierPrepared).at("prepare", b"staging")?;
        let commit = if publication.durable { Commit::Durable } else { Commit::Ordered };
        inner.local.write(commit, |db| {
            db.prepare_cached(
                "UPDATE transactions SET state = 'prepared', root_id = ?2, attrs_id = ?3, layers = ?4
                 WHERE txn = ?1",
            )?
            .execute(params![
                self.txn,
                pin.map(|(root, _)| root),
                pin.map(|(_, attrs)| attrs),
                layers.join(",")
            ])?;
            let shared = !publication.shares_with.is_empty();
            insert_carrier(db, self.carrier, publication.form, charge, shared)?;
            insert_unopened(db, self.carrier, &publication.unopened)?;
            mark_shared(db, publication.shares_with)
        })?;
        // From here recovery would do the same: a failure leaves it to the next open.
        self.finished = true;
        move_to_carriers(&self.stack, &self.directory, self.carrier)?;
        commit_carrier(&self.stack, self.txn, self.carrier, &publication.made_for)?;
        clean_up(&self.stack, self.txn)?;
        self.stack.consolidate();
        Ok(())
    }
}

impl Drop for Staging {
    /// Gives up what was not prepared, now and not in the background: its space is wanted back.
    fn drop(&mut self) {
        if self.finished || std::thread::panicking() {
            return;
        }
        if let Err(error) = abandon(&self.stack, self.txn, true) {
            tracing::warn!(%error, "staging is left to recovery");
        }
    }
}

/// An empty directory of this process beside the store's own, for what must be unpacked before it can
/// be imported. It goes to the trash when dropped; after a crash the next open of the store sees to it.
#[derive(Debug)]
pub struct Scratch {
    stack: LayerStack,
    txn: TxnId,
    path: PathBuf,
    /// Open and locked: says to recovery that its maker lives.
    _directory: OwnedFd,
}

impl LayerStack {
    /// Makes an empty scratch directory. It counts as staging.
    ///
    /// # Errors
    /// `Io`, `storage_full`.
    pub fn scratch(&self) -> Result<Scratch, Error> {
        let (txn, directory) = claim_new(self)?;
        handle::create_directory(&directory, b"tree").at("create", b"staging")?;
        let path = self.directory().join("staging").join(txn.to_string()).join("tree");
        Ok(Scratch { stack: self.clone(), txn, path, _directory: directory })
    }
}

impl Scratch {
    /// The directory: empty at first, private to this user.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The form in which it is to be filled.
    pub fn form(&self) -> Form {
        self.stack.inner.form
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = abandon(&self.stack, self.txn, false) {
            tracing::warn!(%error, "a scratch directory is left to recovery");
        }
    }
}

/// Makes a directory `staging/<txn>` and locks it. Another process's recovery may take it for a dead
/// one's between the two calls; then another is made.
fn claim_new(stack: &LayerStack) -> Result<(TxnId, OwnedFd), Error> {
    loop {
        let txn = TxnId::draw();
        let name = txn.to_string();
        let directory = match handle::create_directory(&stack.inner.staging, name.as_bytes()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            made => made.at("create", b"staging")?,
        };
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => continue,
            locked => locked.at("lock", b"staging")?,
        }
        if handle::stat_entry(&stack.inner.staging, name.as_bytes()).is_ok() {
            return Ok((txn, directory));
        }
    }
}

fn mark_shared(db: &Transaction<'_>, carriers: &[CarrierId]) -> Result<(), Error> {
    let mut statement = db.prepare_cached("UPDATE carriers SET shared = 1 WHERE carrier = ?1")?;
    for carrier in carriers {
        statement.execute(params![carrier])?;
    }
    Ok(())
}

/// Step 5 of a carrier that was built in staging; does nothing when it is done already.
pub(crate) fn move_to_carriers(
    stack: &LayerStack,
    directory: &OwnedFd,
    carrier: CarrierId,
) -> Result<(), Error> {
    let carriers = &stack.inner.carriers;
    let moved = disk::rename_new(directory, ROOT, carriers, carrier.to_string(), Boundary::CarrierRename);
    match moved {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            handle::stat_entry(carriers, carrier.to_string().as_bytes()).at("find", b"carrier")?;
        }
        moved => moved.at("move", b"staging")?,
    }
    disk::fsync(carriers, Boundary::CarrierDirectorySync).at("sync", b"carriers")
}

/// Records a prepared carrier as what it was made for, and its transaction as over; nothing when it is over
/// already. But for a squash, a root that has become hot otherwise meanwhile keeps the carriers it has;
/// so does a carrier that was converted otherwise meanwhile.
pub(crate) fn commit_carrier(
    stack: &LayerStack,
    txn: TxnId,
    carrier: CarrierId,
    made_for: &For,
) -> Result<(), Error> {
    disk::reach(Boundary::CarrierCommit).at("commit", b"carrier")?;
    let needed = stack.inner.local.write(Commit::Ordered, |db| {
        let kind: Option<String> = db
            .prepare_cached("DELETE FROM transactions WHERE txn = ?1 RETURNING kind")?
            .query_row(params![txn], |row| row.get(0))
            .optional()?;
        let Some(kind) = kind else { return Ok(true) };
        let needed = match made_for {
            For::Root(pin, _) => kind == Making::Squash.as_str() || projection(db, pin)?.is_none(),
            For::Carrier(portable) => conversion(db, *portable)?.is_none() && exists(db, *portable)?,
        };
        let state = if needed { "hot" } else { "condemned" };
        db.prepare_cached("UPDATE carriers SET state = ?2 WHERE carrier = ?1")?
            .execute(params![carrier, state])?;
        match made_for {
            _ if !needed => {}
            For::Root(pin, layers) => put_projection(db, pin, layers)?,
            For::Carrier(portable) => put_conversion(db, *portable, carrier)?,
        }
        Ok(needed)
    })?;
    if needed { Ok(()) } else { stack.sweep() }
}

/// Removes the empty staging directory of a finished transaction.
pub(crate) fn clean_up(stack: &LayerStack, txn: TxnId) -> Result<(), Error> {
    disk::reach(Boundary::CarrierCleanup).at("clean up", b"staging")?;
    let name = txn.to_string();
    match rustix::fs::unlinkat(&stack.inner.staging, &*name, rustix::fs::AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error).at("remove", b"staging"),
    }
}

/// Undoes a transaction that is not prepared; `now` removes its files at once.
pub(crate) fn abandon(stack: &LayerStack, txn: TxnId, now: bool) -> Result<(), Error> {
    let inner = &stack.inner;
    let name = Name::new(txn.to_string().as_bytes()).expect("hex digits are a name");
    let taken = inner.trash.take(&inner.staging, &txn.to_string());
    if now && taken.is_err() {
        trash::remove(&inner.staging, &name);
    } else if taken? {
        if now {
            inner.trash.empty_now();
        } else {
            inner.trash.wake();
        }
    }
    inner.local.write(Commit::Ordered, |db| {
        db.prepare_cached(
            "DELETE FROM carriers WHERE state = 'staging'
             AND carrier = (SELECT carrier FROM transactions WHERE txn = ?1)",
        )?
        .execute(params![txn])?;
        db.prepare_cached("DELETE FROM transactions WHERE txn = ?1")?.execute(params![txn])?;
        Ok(())
    })
}
