//! Accounting: the five terms of storage in allocated bytes (`hot cold uppers staging metadata`).
//! Invariant: a carrier's charge is recorded with the state it describes, an inode that several
//! carriers link is charged once, and `usage` equals `recount`, which only believes the disk.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use esf_core::manifest::RootPin;
use rustix::fs::Stat;
use serde::Serialize;

use crate::Error;
use crate::assemble::Inode;
use crate::error::Context;
use crate::handle::{self, Kind};
use crate::local::Charge;
use crate::stack::LayerStack;

/// Where the store's bytes are, in allocated bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Carriers of roots.
    pub hot: u64,
    /// Packed contents of files; none are packed yet.
    pub cold: u64,
    /// Uppers and work directories of attempts.
    pub uppers: u64,
    /// What is being made or taken away: staging, carriers of seals that are not settled, trash.
    pub staging: u64,
    /// Everything else: objects, databases, logs, and the store's own directories.
    pub metadata: u64,
    /// The sum.
    pub total: u64,
}

impl Usage {
    fn summed(mut self) -> Self {
        self.total = self.hot + self.cold + self.uppers + self.staging + self.metadata;
        self
    }
}

/// What to do with a file that has links outside of the tree that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    /// It counts here.
    Counted,
    /// It is charged to a carrier elsewhere.
    Elsewhere,
}

/// Allocated bytes and inodes of a directory with all in it; tolerates a tree that changes.
pub(crate) fn measure(directory: impl AsFd, linked: Linked) -> Result<Charge, Error> {
    let mut meter = Meter::default();
    meter.add_tree(directory.as_fd().try_clone_to_owned().at("measure", b"")?)?;
    Ok(meter.total(linked))
}

/// The same for several trees that may share inodes: each inode is charged to the first that has it.
pub(crate) fn measure_each(directories: Vec<OwnedFd>) -> Result<Vec<Charge>, Error> {
    let mut seen: HashSet<Inode> = HashSet::new();
    let mut charges = Vec::new();
    for directory in directories {
        let mut charge = Charge::default();
        let mut add = |stat: &Stat| {
            charge.inodes += 1;
            let linked = stat.st_nlink > 1 && Kind::of(stat) != Kind::Directory;
            if !linked || seen.insert((stat.st_dev, stat.st_ino)) {
                charge.allocated += stat.st_blocks as u64 * 512;
            }
        };
        add(&rustix::fs::fstat(&directory).at("measure", b"")?);
        visit(directory, &mut add).at("measure", b"")?;
        charges.push(charge);
    }
    Ok(charges)
}

/// Adds up trees, each inode once.
#[derive(Default)]
struct Meter {
    charge: Charge,
    linked: HashMap<Inode, (u64, u64, u64)>,
}

impl Meter {
    fn add(&mut self, stat: &Stat) {
        let bytes = stat.st_blocks as u64 * 512;
        if stat.st_nlink > 1 && Kind::of(stat) != Kind::Directory {
            let links = stat.st_nlink;
            self.linked.entry((stat.st_dev, stat.st_ino)).or_insert((bytes, links, 0)).2 += 1;
        } else {
            self.charge.allocated += bytes;
            self.charge.inodes += 1;
        }
    }

    fn total(mut self, linked: Linked) -> Charge {
        for (bytes, links, seen) in self.linked.into_values() {
            if linked == Linked::Counted || seen >= links {
                self.charge.allocated += bytes;
                self.charge.inodes += 1;
            }
        }
        self.charge
    }

    fn add_tree(&mut self, top: OwnedFd) -> Result<(), Error> {
        self.add(&rustix::fs::fstat(&top).at("measure", b"")?);
        visit(top, &mut |stat| self.add(stat)).at("measure", b"")
    }
}

/// Calls `see` with the status of every entry beneath `top`; iterative, with few descriptors open.
fn visit(top: OwnedFd, see: &mut dyn FnMut(&Stat)) -> io::Result<()> {
    let mut open = vec![(handle::list(&top)?, top)];
    while let Some((names, directory)) = open.last_mut() {
        let Some(name) = names.pop() else {
            open.pop();
            continue;
        };
        let stat = match handle::stat_entry(&*directory, name.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            stat => stat?,
        };
        see(&stat);
        if Kind::of(&stat) == Kind::Directory {
            match handle::open_child(&*directory, name.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                child => {
                    let child = child?;
                    open.push((handle::list(&child)?, child));
                }
            }
        }
    }
    Ok(())
}

/// What one root takes on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RootUsage {
    /// Carriers that it is stacked of.
    pub layers: u64,
    /// Bytes on disk that those carriers are charged with; other roots may stand on them too.
    pub bytes: u64,
}

impl LayerStack {
    /// What the carriers of a root take.
    ///
    /// # Errors
    /// `RootMissing` when it is not hot here.
    pub fn root_usage(&self, root: &RootPin) -> Result<RootUsage, Error> {
        let layers = self.layers(root)?;
        let bytes = self.inner.local.read(|db| {
            let mut statement = db.prepare_cached("SELECT allocated FROM carriers WHERE carrier = ?1")?;
            let mut charge = |carrier| statement.query_row([carrier], |row| row.get::<_, i64>(0));
            layers.iter().map(|carrier| Ok(charge(*carrier)?.unsigned_abs())).sum::<Result<u64, Error>>()
        })?;
        Ok(RootUsage { layers: layers.len() as u64, bytes })
    }

    /// The five terms: carriers from the ledger, what changes by itself from the disk.
    ///
    /// # Errors
    /// `Io` when a directory cannot be read.
    pub fn usage(&self) -> Result<Usage, Error> {
        let (hot, sealing) = self.inner.local.read(|db| {
            let sum = "SELECT coalesce(sum(allocated) FILTER (WHERE state = 'hot'), 0),
                              coalesce(sum(allocated) FILTER (WHERE state = 'staging'), 0) FROM carriers";
            let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
            Ok(db.query_row(sum, [], row)?)
        })?;
        let usage = Usage { hot: hot.unsigned_abs(), ..self.measure_rest()? };
        Ok(Usage { staging: usage.staging + sealing.unsigned_abs(), ..usage }.summed())
    }

    /// The five terms counted anew from the disk; the ledger's figures are not looked at.
    ///
    /// # Errors
    /// `Io` when a directory cannot be read.
    pub fn recount(&self) -> Result<Usage, Error> {
        let mut usage = self.measure_rest()?;
        let staging: HashSet<String> = self.inner.local.read(|db| {
            let mut statement = db.prepare("SELECT carrier FROM carriers WHERE state = 'staging'")?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let (mut hot, mut unsettled) = (Meter::default(), Meter::default());
        for name in handle::list(&self.inner.carriers).at("list", b"carriers")? {
            let carrier = handle::open_child(&self.inner.carriers, name.as_bytes());
            let carrier = carrier.at("open", name.as_bytes())?;
            let of_seal = staging.contains(&*String::from_utf8_lossy(name.as_bytes()));
            if of_seal { unsettled.add_tree(carrier)? } else { hot.add_tree(carrier)? }
        }
        usage.hot = hot.total(Linked::Counted).allocated;
        usage.staging += unsettled.total(Linked::Counted).allocated;
        Ok(usage.summed())
    }

    /// Uppers, staging, trash and metadata, measured on the disk.
    fn measure_rest(&self) -> Result<Usage, Error> {
        let mut usage = Usage::default();
        let mut metadata = Meter::default();
        let top = handle::open_directory(&self.inner.dir).on("open", &self.inner.dir)?;
        metadata.add(&rustix::fs::fstat(&top).on("measure", &self.inner.dir)?);
        for name in handle::list(&top).on("list", &self.inner.dir)? {
            let stat = match handle::stat_entry(&top, name.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                stat => stat.at("measure", name.as_bytes())?,
            };
            metadata.add(&stat);
            if Kind::of(&stat) != Kind::Directory {
                continue;
            }
            if name.as_bytes() == b"carriers" {
                continue;
            }
            let part = handle::open_child(&top, name.as_bytes()).at("open", name.as_bytes())?;
            let mut inside = Meter::default();
            visit(part, &mut |stat| inside.add(stat)).at("measure", name.as_bytes())?;
            match name.as_bytes() {
                b"attempts" => usage.uppers += inside.total(Linked::Counted).allocated,
                b"staging" | b"trash" => usage.staging += inside.total(Linked::Elsewhere).allocated,
                _ => usage.metadata += inside.total(Linked::Counted).allocated,
            }
        }
        usage.metadata += metadata.total(Linked::Counted).allocated;
        Ok(usage)
    }
}
