//! Collection: what no live root, workspace or seal needs goes away. Stop-the-world: the caller holds
//! the store's lock alone from the plan to the end. Invariant: a plan is computed, can be shown, then
//! executed; carriers go through the trash; a crash leaves the rest to the next collection, and one
//! failed removal stops nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use esf_core::manifest::{RootPin, reach};
use esf_core::{AttemptId, BlobId, Digest};
use rusqlite::{Connection, params};

use crate::Error;
use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::handle;
use crate::ledger::{self, Linked};
use crate::local::{self, CarrierId, Commit, pin_of};
use crate::lock::StoreLock;
use crate::object_store::Retained;
use crate::recover::{self, parse_layers};
use crate::stack::LayerStack;

/// What a collection would remove.
#[derive(Debug)]
#[must_use = "a plan removes nothing until it is run"]
pub struct GcPlan {
    roots: Vec<RootPin>,
    carriers: Vec<CarrierId>,
    attempts: Vec<AttemptId>,
    /// Directories in `carriers/` and `attempts/` that no row speaks of.
    strays: Vec<(Place, String)>,
    live: HashSet<Digest>,
    objects: Retained,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Carriers,
    Attempts,
}

impl GcPlan {
    /// Roots that stop being hot.
    pub fn roots(&self) -> &[RootPin] {
        &self.roots
    }

    /// How many carriers go.
    pub fn carriers(&self) -> u64 {
        self.carriers.len() as u64
    }

    /// How many packs go or are rewritten.
    pub fn packs(&self) -> u64 {
        self.objects.packs
    }

    /// How many workspaces go.
    pub fn workspaces(&self) -> u64 {
        self.attempts.len() as u64
    }

    /// About how many bytes on disk become free.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What stands on what, in the database.
struct Standing {
    projections: BTreeMap<RootPin, Vec<CarrierId>>,
    workspaces: BTreeMap<AttemptId, (RootPin, Vec<CarrierId>)>,
    /// Roots and carriers of seals that are not settled.
    seals: Vec<(Option<RootPin>, Vec<CarrierId>)>,
    /// Every carrier with its charge, and whether it shares inodes.
    carriers: BTreeMap<CarrierId, (u64, bool)>,
}

impl LayerStack {
    /// Works out what nothing needs: neither `live` roots, nor the workspaces of `live_attempts`, nor
    /// seals that are not settled. `live_blobs` are artifacts that records name.
    ///
    /// # Errors
    /// `StoreBusy` unless `lock` is exclusive; objects of live roots that cannot be read, since then it
    /// is not known what they need.
    pub fn plan_gc(
        &self,
        lock: &StoreLock,
        live: &[RootPin],
        live_attempts: &[AttemptId],
        live_blobs: &[BlobId],
    ) -> Result<GcPlan, Error> {
        require_exclusive(lock)?;
        recover::transactions(self)?;
        let standing = self.inner.local.read(read_standing)?;
        let attempts: BTreeSet<_> = live_attempts.iter().collect();
        let (kept, given_up): (Vec<_>, Vec<_>) =
            standing.workspaces.iter().partition(|(attempt, _)| attempts.contains(attempt));
        let mut needed: BTreeSet<RootPin> = live.iter().copied().collect();
        needed.extend(kept.iter().map(|(_, (base, _))| *base));
        needed.extend(standing.seals.iter().filter_map(|(pin, _)| *pin));
        let mut carriers: BTreeSet<CarrierId> = BTreeSet::new();
        carriers.extend(kept.iter().flat_map(|(_, (_, lowers))| lowers));
        carriers.extend(standing.seals.iter().flat_map(|(_, layers)| layers));
        let hot = standing.projections.iter().filter(|(pin, _)| needed.contains(pin));
        carriers.extend(hot.flat_map(|(_, layers)| layers));
        let dead: Vec<_> = standing.carriers.keys().filter(|c| !carriers.contains(c)).copied().collect();
        let attempts: Vec<AttemptId> = given_up.iter().map(|(attempt, _)| **attempt).collect();
        let live = self.mark(&needed, live_blobs)?;
        let objects = self.inner.objects.plan_retain(&|id| live.contains(id))?;
        let strays = self.strays(&standing)?;
        let bytes = self.freed(&standing, &dead)? + self.upper_bytes(&attempts, &strays)? + objects.bytes;
        let roots = standing.projections.into_keys().filter(|pin| !needed.contains(pin)).collect();
        Ok(GcPlan { roots, carriers: dead, attempts, strays, live, objects, bytes })
    }

    /// Every object that live roots need, and live artifacts.
    fn mark(&self, roots: &BTreeSet<RootPin>, blobs: &[BlobId]) -> Result<HashSet<Digest>, Error> {
        let mut live: HashSet<Digest> = HashSet::new();
        for root in roots {
            reach(&self.inner.objects, root, &mut live, &mut |_| {})?;
        }
        live.extend(blobs.iter().map(|blob| *blob.digest()));
        Ok(live)
    }

    /// Bytes that become free with `dead` carriers; inodes that others link stay.
    fn freed(&self, standing: &Standing, dead: &[CarrierId]) -> Result<u64, Error> {
        let alone = dead.iter().filter_map(|carrier| standing.carriers.get(carrier));
        let mut bytes: u64 = alone.filter(|(_, shared)| !shared).map(|(charge, _)| charge).sum();
        let shared: Vec<_> = standing.carriers.iter().filter(|(_, (_, shared))| *shared).collect();
        if shared.iter().any(|(carrier, _)| dead.contains(carrier)) {
            let all = self.open_present(shared.iter().map(|(carrier, _)| **carrier))?;
            let rest =
                self.open_present(shared.iter().map(|(c, _)| **c).filter(|carrier| !dead.contains(carrier)))?;
            let sum = |parts: Vec<local::Charge>| parts.iter().map(|charge| charge.allocated).sum::<u64>();
            bytes += sum(ledger::measure_each(all)?) - sum(ledger::measure_each(rest)?);
        }
        Ok(bytes)
    }

    fn open_present(
        &self,
        carriers: impl Iterator<Item = CarrierId>,
    ) -> Result<Vec<std::os::fd::OwnedFd>, Error> {
        carriers.map(|carrier| self.open_carrier(carrier)).collect()
    }

    fn upper_bytes(&self, attempts: &[AttemptId], strays: &[(Place, String)]) -> Result<u64, Error> {
        let homes = attempts.iter().map(|attempt| (Place::Attempts, attempt.to_string()));
        let mut bytes = 0;
        for (place, name) in homes.chain(strays.iter().cloned()) {
            if let Ok(directory) = handle::open_child(self.place(place), name.as_bytes()) {
                bytes += ledger::measure(&directory, Linked::Elsewhere)?.allocated;
            }
        }
        Ok(bytes)
    }

    fn place(&self, place: Place) -> &std::os::fd::OwnedFd {
        match place {
            Place::Carriers => &self.inner.carriers,
            Place::Attempts => &self.inner.attempts,
        }
    }

    /// Directories that a crash left without a row.
    fn strays(&self, standing: &Standing) -> Result<Vec<(Place, String)>, Error> {
        let carriers: HashSet<String> = standing.carriers.keys().map(ToString::to_string).collect();
        let attempts: HashSet<String> = standing.workspaces.keys().map(ToString::to_string).collect();
        let mut strays = Vec::new();
        for (place, known) in [(Place::Carriers, carriers), (Place::Attempts, attempts)] {
            for name in handle::list(self.place(place)).at("list", b"store")? {
                let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
                if !known.contains(&name) {
                    strays.push((place, name));
                }
            }
        }
        Ok(strays)
    }

    /// Removes what a plan shows, under the same lock. What cannot be removed is left to the next one.
    ///
    /// # Errors
    /// `StoreBusy` unless `lock` is exclusive; `Database`, `Io`. Everything live stays whole.
    pub fn run_gc(&self, lock: &StoreLock, plan: GcPlan) -> Result<(), Error> {
        require_exclusive(lock)?;
        disk::reach(Boundary::GcCondemn).at("condemn", b"carriers")?;
        for attempt in &plan.attempts {
            self.inner.trash.take(&self.inner.attempts, &attempt.to_string())?;
        }
        self.inner.local.write(Commit::Durable, |db| {
            for root in &plan.roots {
                local::delete_projection(db, root)?;
                local::note_damage(db, root, None)?;
            }
            for attempt in &plan.attempts {
                local::delete_workspace(db, *attempt)?;
            }
            let mut condemn =
                db.prepare_cached("UPDATE carriers SET state = 'condemned' WHERE carrier = ?1")?;
            for carrier in &plan.carriers {
                condemn.execute(params![carrier])?;
            }
            Ok(())
        })?;
        self.sweep()?;
        for (place, name) in &plan.strays {
            self.inner.trash.take(self.place(*place), name)?;
        }
        self.inner.objects.retain(&|id| plan.live.contains(id))?;
        let resisted = self.empty_trash();
        if resisted > 0 {
            tracing::warn!(
                resisted,
                "some of the trash could not be removed; the next collection tries again"
            );
        }
        Ok(())
    }

    /// Moves condemned carriers to the trash and forgets them. Re-runnable: recovery does the same.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        let condemned: Vec<(CarrierId, bool)> = self.inner.local.read(|db| {
            let mut statement =
                db.prepare_cached("SELECT carrier, shared FROM carriers WHERE state = 'condemned'")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        if condemned.is_empty() {
            return Ok(());
        }
        for (carrier, _) in &condemned {
            self.inner.trash.take(&self.inner.carriers, &carrier.to_string())?;
        }
        disk::reach(Boundary::GcForget).at("forget", b"carriers")?;
        self.inner.local.write(Commit::Ordered, |db| {
            let mut forget =
                db.prepare_cached("DELETE FROM carriers WHERE carrier = ?1 AND state = 'condemned'")?;
            for (carrier, _) in &condemned {
                forget.execute(params![carrier])?;
            }
            if condemned.iter().any(|(_, shared)| *shared) {
                self.charge_shared(db)?;
            }
            Ok(())
        })?;
        self.inner.trash.wake();
        Ok(())
    }

    /// Charges inodes that several carriers link anew, each to one of those that are left.
    fn charge_shared(&self, db: &rusqlite::Transaction<'_>) -> Result<(), Error> {
        let mut statement = db.prepare_cached(
            "SELECT carrier FROM carriers WHERE shared = 1 AND state = 'hot' ORDER BY carrier",
        )?;
        let shared = statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<CarrierId>, _>>()?;
        let charges = ledger::measure_each(self.open_present(shared.iter().copied())?)?;
        let mut charge = db.prepare_cached("UPDATE carriers SET allocated = ?2 WHERE carrier = ?1")?;
        for (carrier, found) in shared.iter().zip(charges) {
            charge.execute(params![carrier, found.allocated as i64])?;
        }
        Ok(())
    }
}

fn require_exclusive(lock: &StoreLock) -> Result<(), Error> {
    if lock.is_exclusive() {
        return Ok(());
    }
    Err(Error::StoreBusy("a collection needs its lock alone"))
}

fn read_standing(db: &Connection) -> Result<Standing, Error> {
    let mut standing = Standing {
        projections: BTreeMap::new(),
        workspaces: BTreeMap::new(),
        seals: Vec::new(),
        carriers: BTreeMap::new(),
    };
    let mut statement = db
        .prepare("SELECT root_id, attrs_id, carrier FROM projections ORDER BY root_id, attrs_id, position")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let layers = standing.projections.entry(pin_of(row.get(0)?, row.get(1)?)).or_default();
        layers.push(row.get(2)?);
    }
    let mut statement = db.prepare("SELECT attempt FROM workspaces")?;
    let attempts = statement.query_map([], |row| row.get::<_, [u8; 16]>(0))?;
    for attempt in attempts.collect::<Result<Vec<_>, _>>()? {
        let attempt = AttemptId::from_bytes(attempt);
        if let Some(row) = local::workspace(db, attempt)? {
            standing.workspaces.insert(attempt, (row.base, row.lowers));
        }
    }
    let mut statement = db.prepare("SELECT root_id, attrs_id, layers, carrier FROM transactions")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (root, attrs): (Option<[u8; 32]>, Option<[u8; 32]>) = (row.get(0)?, row.get(1)?);
        let mut layers = row.get::<_, Option<String>>(2)?.map(|text| parse_layers(&text)).unwrap_or_default();
        layers.extend(row.get::<_, Option<CarrierId>>(3)?);
        standing.seals.push((root.zip(attrs).map(|(root, attrs)| pin_of(root, attrs)), layers));
    }
    let mut statement = db.prepare("SELECT carrier, allocated, shared FROM carriers")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let charge = row.get::<_, i64>(1)?.unsigned_abs();
        standing.carriers.insert(row.get(0)?, (charge, row.get(2)?));
    }
    Ok(standing)
}
