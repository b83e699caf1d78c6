//! Verification of one root, and the check of a whole store's state plane.
//! Invariant: nothing of a root is changed; every damage is named with its path, and one damage does not
//! hide another; a damaged root is remembered, so that it is not mounted. Manifest and carriers are
//! compared in both directions.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use esf_core::Name;
use esf_core::manifest::{Attrs, DirectoryCursor, Entry, EntryKind, Mode, Reached, RootPin, load_top, reach};
use rustix::fs::Stat;

use crate::Error;
use crate::attributes::sort_upper;
use crate::error::{Context, show};
use crate::form::Form;
use crate::handle::join;
use crate::handle::{self, Kind};
use crate::local::{self, CarrierId, Commit, pin_of};
use crate::projection::{Stacked, check_content};
use crate::sealed::Progress;
use crate::stack::LayerStack;
use crate::upper::Unopened;

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Entries that were compared.
    pub entries: u64,
    /// Bytes of contents that were read.
    pub bytes: u64,
    /// What is not as recorded, each with its path; empty when all is.
    pub damaged: Vec<String>,
}

/// What a check of the store found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckReport {
    /// What is wrong, a sentence each; empty when all is as recorded.
    pub damage: Vec<String>,
    /// Objects that hot roots need and that were read.
    pub objects: u64,
    /// Bytes of packs that were read.
    pub bytes: u64,
}

impl LayerStack {
    /// Compares a root with what its carriers show: every name, kind, mode, owner, time, extended
    /// attribute, target and byte.
    ///
    /// # Errors
    /// Only what keeps it from looking at all, `NativeCarriers` among it when they are several, root's, and
    /// this process is not; damage is in the report.
    pub fn verify(&self, root: &RootPin, progress: &dyn Progress) -> Result<VerifyReport, Error> {
        let _held = self.lock_shared()?;
        let layers = self.layers(root)?;
        let forms = self.forms(&layers)?;
        if layers.len() > 1 {
            self.require_readable(&forms)?;
        }
        let mut verify = Verify {
            stack: self,
            progress,
            report: VerifyReport::default(),
            unopened: self.unopened(&layers, &forms)?,
            open: Vec::new(),
            inodes: HashSet::new(),
            buffer: vec![0; handle::BUFFER],
        };
        verify.run(root, &layers)?;
        let report = verify.report;
        let first = report.damaged.first().map(String::as_str);
        if first.is_some() || self.inner.local.read(|db| local::damage(db, root))?.is_some() {
            self.inner.local.write(Commit::Ordered, |db| local::note_damage(db, root, first))?;
        }
        Ok(report)
    }

    /// Checks the state plane against itself: the database, every pack, the objects of every hot root,
    /// carriers against their rows, and the ledger against the disk.
    ///
    /// # Errors
    /// Only what keeps it from looking; damage is in the report.
    pub fn fsck(&self, progress: &dyn Progress) -> Result<FsckReport, Error> {
        let _held = self.lock_shared()?;
        let mut report = FsckReport::default();
        for line in self.inner.local.check()? {
            report.damage.push(format!("local.db: {line}"));
        }
        let damaged = self.inner.objects.verify_all(&mut |bytes| {
            report.bytes += bytes;
            progress.advance(1, bytes);
        })?;
        report.damage.extend(damaged.iter().map(|damage| match &damage.object {
            Some((kind, id)) => format!("pack {}: {kind} {id}: {}", damage.pack, damage.detail),
            None => format!("pack {}: {}", damage.pack, damage.detail),
        }));
        self.check_objects(&mut report)?;
        self.check_carriers(&mut report)?;
        let (usage, recount) = (self.usage()?, self.recount()?);
        if usage.hot != recount.hot {
            report.damage.push(format!("ledger: {} hot bytes, on disk {}", usage.hot, recount.hot));
        }
        Ok(report)
    }

    /// The roots that are hot on this machine.
    ///
    /// # Errors
    /// `Database`.
    pub fn hot_roots(&self) -> Result<Vec<RootPin>, Error> {
        self.inner.local.read(|db| {
            let mut statement =
                db.prepare("SELECT DISTINCT root_id, attrs_id FROM projections ORDER BY root_id, attrs_id")?;
            let rows = statement.query_map([], |row| Ok(pin_of(row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn check_objects(&self, report: &mut FsckReport) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for pin in self.hot_roots()? {
            let reached = reach(&self.inner.objects, &pin, &mut seen, &mut |found| {
                report.objects += u64::from(matches!(found, Reached::Object(..)));
            });
            if let Err(error) = reached {
                report.damage.push(format!("root {}: {error}", pin.root));
            }
        }
        Ok(())
    }

    fn check_carriers(&self, report: &mut FsckReport) -> Result<(), Error> {
        let rows: BTreeSet<CarrierId> = self.inner.local.read(|db| {
            let mut statement = db.prepare("SELECT carrier FROM carriers WHERE state = 'hot'")?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        for carrier in rows {
            if self.open_carrier(carrier).is_err() {
                report.damage.push(format!("carrier {carrier} is missing from carriers/"));
            }
        }
        Ok(())
    }
}

/// A directory under way: the manifest's entries and the carriers' names.
struct Frame {
    stacked: Stacked,
    cursor: DirectoryCursor,
    names: BTreeMap<Name, usize>,
    path: Vec<u8>,
}

struct Verify<'a> {
    stack: &'a LayerStack,
    progress: &'a dyn Progress,
    report: VerifyReport,
    /// Records of symlinks and fifos of each carrier.
    unopened: Vec<Unopened>,
    open: Vec<Frame>,
    /// Files whose contents were found right: a linked file is read once.
    inodes: HashSet<(u64, u64)>,
    buffer: Vec<u8>,
}

impl Verify<'_> {
    fn run(&mut self, root: &RootPin, layers: &[CarrierId]) -> Result<(), Error> {
        let objects = &self.stack.inner.objects;
        let (top, attrs) = load_top(objects, root)?;
        let stacked = Stacked::open(self.stack, layers)?;
        let stat = rustix::fs::fstat(&stacked.layers[0]).at("inspect", b"")?;
        let xattrs = handle::xattrs(&stacked.layers[0]).at("read attributes of", b"")?;
        self.compare(b"", (stacked.layers[0].form, 0), &stat, xattrs, (top.mode, &attrs))?;
        let cursor = DirectoryCursor::open(objects, top.tree, attrs.children)?;
        let names = stacked.names(b"")?;
        self.open.push(Frame { stacked, cursor, names, path: Vec::new() });
        while let Some(frame) = self.open.last_mut() {
            match frame.cursor.next(objects) {
                Ok(Some((entry, attrs))) => self.entry(&entry, &attrs),
                Ok(None) => self.close()?,
                Err(error) => {
                    let path = self.open.pop().expect("it was looked at").path;
                    self.damaged(&path, error.to_string());
                }
            }
        }
        Ok(())
    }

    fn damaged(&mut self, path: &[u8], what: impl std::fmt::Display) {
        self.report.damaged.push(format!("{}: {what}", show(path)));
    }

    /// Names what the carriers show and the manifest does not have.
    fn close(&mut self) -> Result<(), Error> {
        let frame = self.open.pop().expect("the caller looked at it");
        for (name, first) in &frame.names {
            let path = join(&frame.path, name)?;
            let stat = frame.stacked.stat(name, *first, &path)?;
            if Kind::of(&stat) != Kind::Whiteout {
                self.damaged(&path, "the carriers show it, the manifest does not have it");
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry, attrs: &Attrs) {
        let frame = self.open.last().expect("the caller looked at it");
        let path = match join(&frame.path, &entry.name) {
            Ok(path) => path,
            Err(error) => return self.damaged(&[], error),
        };
        self.report.entries += 1;
        match self.look(entry, attrs, &path) {
            Ok(()) => {}
            Err(Error::Damaged { what, .. }) => self.damaged(&path, what),
            Err(error) => self.damaged(&path, error),
        }
    }

    fn look(&mut self, entry: &Entry, attrs: &Attrs, path: &[u8]) -> Result<(), Error> {
        let frame = self.open.last_mut().expect("the caller looked at it");
        let missing = || Error::damaged(path, "no carrier shows it");
        let first = frame.names.remove(&entry.name).ok_or_else(missing)?;
        let stat = frame.stacked.stat(&entry.name, first, path)?;
        let layer = &frame.stacked.layers[first];
        let (name, form, nth) = (entry.name.as_bytes(), layer.form, layer.nth);
        let xattrs = match (&entry.kind, Kind::of(&stat)) {
            (EntryKind::Directory { tree }, Kind::Directory) => {
                let (stacked, _) = frame.stacked.directory(&entry.name, first, path)?;
                let xattrs = handle::xattrs(&stacked.layers[0]).at("read attributes of", path)?;
                let cursor = DirectoryCursor::open(&self.stack.inner.objects, *tree, attrs.children)?;
                let names = stacked.names(path)?;
                self.open.push(Frame { stacked, cursor, names, path: path.to_vec() });
                xattrs
            }
            (EntryKind::File { size, blob }, Kind::File) => {
                let file = handle::open_regular(layer, name).at("open", path)?;
                let xattrs = handle::xattrs(&file).at("read attributes of", path)?;
                if self.inodes.insert((stat.st_dev, stat.st_ino)) {
                    check_content(&file, &stat, path, (*blob, *size), None, &mut self.buffer)?;
                    self.report.bytes += size;
                }
                self.progress.advance(1, *size);
                xattrs
            }
            (EntryKind::Symlink { target }, Kind::Symlink) => {
                let found = rustix::fs::readlinkat(layer, name, Vec::new()).at("read the link", path)?;
                if found.as_bytes() != &**target {
                    return Err(Error::damaged(path, "the target differs"));
                }
                Vec::new()
            }
            (EntryKind::Fifo, Kind::Fifo) => {
                let handle = handle::open_handle(layer, name).at("open", path)?;
                handle::xattrs_of_handle(&handle).at("read attributes of", path)?
            }
            (expected, found) => {
                let what = format!("expected a {}, found a {}", expected.word(), found.word());
                return Err(Error::damaged(path, what));
            }
        };
        self.compare(path, (form, nth), &stat, xattrs, (entry.mode, attrs))
    }

    /// Compares mode and attributes with those in the nth carrier; of hard links, the group is not
    /// looked at.
    fn compare(
        &mut self,
        path: &[u8],
        (form, nth): (Form, usize),
        stat: &Stat,
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
        (mode, attrs): (Mode, &Attrs),
    ) -> Result<(), Error> {
        let sorted = sort_upper(form, path, Kind::of(stat) == Kind::Directory, xattrs)?;
        let mut shown = sorted.shown(form, stat, self.unopened[nth].get(path));
        if form == Form::Native {
            let user = rustix::process::geteuid().as_raw();
            shown.owner = owner_in_root(shown.owner, (attrs.uid, attrs.gid), user);
        }
        let shown_mode = shown.mode;
        let found = shown.attrs(stat);
        let expected = Attrs { hard_link: None, ..attrs.own() };
        if expected.mtime.is_some() && expected != found {
            self.damaged(path, format!("attributes differ: expected {expected:?}, found {found:?}"));
        }
        if Kind::of(stat) != Kind::Symlink && shown_mode != mode {
            self.damaged(path, format!("expected mode {mode}, found {shown_mode}"));
        }
        Ok(())
    }
}

/// The owner that a root has for what belongs to `found` on disk. Who is not root cannot give files to
/// root, so what is root's in the objects is the user's own in the carrier.
fn owner_in_root(found: (u32, u32), expected: (u32, u32), user: u32) -> (u32, u32) {
    if expected == (0, 0) && user != 0 && found.0 == user { expected } else { found }
}

#[cfg(test)]
mod tests {
    use super::owner_in_root;

    #[test]
    fn the_owner_of_a_plain_users_carriers_stands_for_root() {
        let rows = [
            ((1000, 1000), (0, 0), 1000, (0, 0)),
            ((1000, 27), (0, 0), 1000, (0, 0)),
            ((1001, 1000), (0, 0), 1000, (1001, 1000)),
            ((1000, 1000), (33, 33), 1000, (1000, 1000)),
            ((1000, 1000), (0, 0), 0, (1000, 1000)),
        ];
        for (found, expected, user, owner) in rows {
            assert_eq!(owner_in_root(found, expected, user), owner, "{found:?} for {expected:?} as {user}");
        }
    }
}
