//! Squash: many carriers become one by hard links; no payload is written, the root stays the same
//! (design section 3). Invariant: a carrier file's inode is never touched but for its link count;
//! whiteouts and opaque marks survive exactly where something lies beneath the folded carriers.

use std::os::fd::OwnedFd;

use esf_core::Name;
use esf_core::manifest::RootPin;
use rusqlite::params;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::Error;
use crate::error::Context;
use crate::form::Form;
use crate::handle::{self, Kind};
use crate::handle::{join, read_error};
use crate::local::{CarrierId, Charge};
use crate::projection::{Layer, Stacked};
use crate::seal::make_whiteout;
use crate::stack::LayerStack;
use crate::staging::{For, Making, Publication, Staging};
use crate::upper::Unopened;
use crate::workspace::SOFT_DEPTH;

/// Projections deeper than this are refused if they cannot be made shallow.
pub const HARD_DEPTH: usize = 128;

/// What a squash did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SquashReport {
    /// Carriers of the root before.
    pub layers_before: usize,
    /// Carriers of the root after.
    pub layers_after: usize,
    /// Files, symlinks and fifos that were linked.
    pub linked: u64,
    /// Files that had to be copied, because their inode has no room for another link.
    pub copied: u64,
}

impl LayerStack {
    /// Rewrites a root's carriers into one by hard links. Its old carriers stay as long as something
    /// else stands on them.
    ///
    /// # Errors
    /// `RootMissing` when it is not hot here; `NativeCarriers` when they are root's and this process is
    /// not; `storage_full`, which leaves everything as it was.
    pub fn squash(&self, root: &RootPin) -> Result<SquashReport, Error> {
        self.squash_top(root, usize::MAX)
    }

    /// The same for the topmost `count` carriers alone.
    ///
    /// # Errors
    /// As `squash`.
    pub fn squash_top(&self, root: &RootPin, count: usize) -> Result<SquashReport, Error> {
        let _held = self.lock_shared()?;
        self.convert(root)?;
        let layers = self.layers(root)?;
        self.fold(root, &layers, count.min(layers.len()))
    }

    /// Makes a deep projection shallow: folds its small upper carriers, and a large one beneath only
    /// when those have grown to its size. So the depth is bounded and each entry is linked few times.
    pub(crate) fn flatten(&self, root: &RootPin) -> Result<(), Error> {
        let layers = self.layers(root)?;
        let sizes = self.sizes(&layers)?;
        match self.fold(root, &layers, fold_count(&sizes)) {
            Err(error) if layers.len() <= HARD_DEPTH => {
                tracing::warn!(%error, depth = layers.len(), "a deep root stays deep");
                Ok(())
            }
            folded => folded.map(|_| ()),
        }
    }

    fn sizes(&self, layers: &[CarrierId]) -> Result<Vec<u64>, Error> {
        self.inner.local.read(|db| {
            let mut statement = db.prepare_cached("SELECT inodes FROM carriers WHERE carrier = ?1")?;
            let size = |carrier: &CarrierId| {
                let inodes = statement.query_row(params![carrier], |row| row.get::<_, i64>(0))?;
                Ok(inodes.unsigned_abs())
            };
            layers.iter().map(size).collect()
        })
    }

    /// Folds the topmost `count` carriers of a root into one.
    fn fold(&self, root: &RootPin, layers: &[CarrierId], count: usize) -> Result<SquashReport, Error> {
        let depth = layers.len();
        let report = SquashReport { layers_before: depth, layers_after: depth, ..SquashReport::default() };
        if count < 2 {
            return Ok(report);
        }
        let folded = &layers[..count];
        let forms = self.forms(folded)?;
        self.require_readable(&forms)?;
        let form = self.inner.form;
        let unopened = self.unopened(folded, &forms)?;
        let staging = Staging::begin(self, Making::Squash)?;
        let opened = Stacked::open(self, folded)?;
        let target = staging.root.try_clone().at("open", b"staging")?;
        let mut fold = Fold {
            report,
            form,
            unopened,
            kept: Unopened::new(),
            charge: Charge::default(),
            open: Vec::new(),
            buffer: Vec::new(),
        };
        fold.run(opened, target, count == layers.len())?;
        let new = [staging.carrier];
        let layers: Vec<CarrierId> = new.iter().chain(&layers[count..]).copied().collect();
        let report = SquashReport { layers_after: layers.len(), ..fold.report };
        let packs = self.inner.objects.writer().stage()?;
        let charge = Some(fold.charge);
        let publication = Publication {
            made_for: For::Root(*root, layers),
            form,
            unopened: fold.kept,
            charge,
            shares_with: folded,
            durable: true,
        };
        staging.publish(packs, &publication)?;
        Ok(report)
    }
}

/// How many of the topmost carriers to fold, given the number of entries in each.
fn fold_count(sizes: &[u64]) -> usize {
    let mut sum = sizes.first().copied().unwrap_or_default();
    let mut count = 1.min(sizes.len());
    while count < sizes.len() && (sizes[count] <= 2 * sum || sizes.len() - count > SOFT_DEPTH / 2) {
        sum += sizes[count];
        count += 1;
    }
    count
}

/// A directory under way.
struct Frame {
    stacked: Stacked,
    /// Nothing beneath the folded carriers shows here.
    closed: bool,
    target: OwnedFd,
    path: Vec<u8>,
    /// Names still to be done, with the first carrier that has each.
    names: std::collections::btree_map::IntoIter<Name, usize>,
}

struct Fold {
    report: SquashReport,
    /// Of all that is folded, and of what comes out.
    form: Form,
    /// Records of symlinks and fifos of each carrier.
    unopened: Vec<Unopened>,
    kept: Unopened,
    charge: Charge,
    open: Vec<Frame>,
    buffer: Vec<u8>,
}

impl Fold {
    fn run(&mut self, stacked: Stacked, target: OwnedFd, bottom: bool) -> Result<(), Error> {
        self.enter(stacked, bottom, target, Vec::new())?;
        while let Some(frame) = self.open.last_mut() {
            match frame.names.next() {
                Some((name, first)) => self.take(&name, first)?,
                None => self.complete()?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, stacked: Stacked, closed: bool, target: OwnedFd, path: Vec<u8>) -> Result<(), Error> {
        let names = stacked.names(&path)?.into_iter();
        self.open.push(Frame { stacked, closed, target, path, names });
        Ok(())
    }

    fn take(&mut self, name: &Name, first: usize) -> Result<(), Error> {
        let frame = self.open.last_mut().expect("the caller looked at it");
        let path = join(&frame.path, name)?;
        let stat = frame.stacked.stat(name, first, &path)?;
        match Kind::of(&stat) {
            Kind::Whiteout if frame.closed => Ok(()),
            Kind::Whiteout => make_whiteout(&frame.target, name.as_bytes()).at("hide", &path),
            Kind::Directory => self.take_directory(name, first, path),
            Kind::File | Kind::Symlink | Kind::Fifo => {
                let nth = frame.stacked.layers[first].nth;
                self.kept.extend(self.unopened[nth].remove_entry(&path));
                self.charge.inodes += 1;
                self.link(name, first, &path)
            }
            kind @ (Kind::Socket | Kind::Device) => {
                Err(Error::damaged(&path, format!("a carrier cannot hold a {}", kind.word())))
            }
        }
    }

    fn take_directory(&mut self, name: &Name, first: usize, path: Vec<u8>) -> Result<(), Error> {
        let frame = self.open.last().expect("the caller looked at it");
        let (stacked, closed) = frame.stacked.directory(name, first, &path)?;
        let target = handle::create_directory(&frame.target, name.as_bytes()).at("create", &path)?;
        if closed && !frame.closed {
            self.form.mark_opaque(&target).at("mark as opaque", &path)?;
        }
        let closed = closed || frame.closed;
        self.enter(stacked, closed, target, path)
    }

    fn link(&mut self, name: &Name, first: usize, path: &[u8]) -> Result<(), Error> {
        let frame = self.open.last().expect("the caller looked at it");
        let (from, name) = (&frame.stacked.layers[first], name.as_bytes());
        match rustix::fs::linkat(from, name, &frame.target, name, AtFlags::empty()) {
            Ok(()) => {
                self.report.linked += 1;
                Ok(())
            }
            Err(Errno::MLINK) => {
                self.buffer.resize(handle::BUFFER, 0);
                let copy = copy_file(self.form, from, &frame.target, name, path, &mut self.buffer)?;
                let stat = rustix::fs::fstat(&copy).at("inspect", path)?;
                self.charge.allocated += stat.st_blocks as u64 * 512;
                self.report.copied += 1;
                Ok(())
            }
            Err(error) => Err(error).at("link", path),
        }
    }

    /// Gives a complete directory the attributes of its topmost form.
    fn complete(&mut self) -> Result<(), Error> {
        let frame = self.open.pop().expect("the caller looked at it");
        self.form
            .copy_attributes(&frame.stacked.layers[0], &frame.target)
            .at("set the attributes of", &frame.path)?;
        let stat = rustix::fs::fstat(&frame.target).at("inspect", &frame.path)?;
        self.charge.allocated += stat.st_blocks as u64 * 512;
        self.charge.inodes += 1;
        Ok(())
    }
}

/// Copies a regular file of a carrier with everything that is its own.
fn copy_file(
    form: Form,
    from: &Layer,
    to: &OwnedFd,
    name: &[u8],
    path: &[u8],
    buffer: &mut [u8],
) -> Result<OwnedFd, Error> {
    let file = handle::open_regular(from, name).at("open", path)?;
    let stat = rustix::fs::fstat(&file).at("inspect", path)?;
    let copy = handle::create_file(to, name).at("copy", path)?;
    handle::take_in(&file, &stat, Some(&copy), buffer).map_err(|error| read_error(error, path))?;
    form.copy_attributes(&file, &copy).at("set the attributes of", path)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_carriers_fold_and_large_ones_wait() {
        let chain = |n: usize, base: u64| [vec![3; n], vec![base]].concat();
        assert_eq!(fold_count(&chain(32, 77_000)), 32);
        assert_eq!(fold_count(&chain(32, 100)), 33);
        assert_eq!(fold_count(&[3, 1000, 1_000_000]), 1);
        // Sizes that grow fast are folded all the same once they are too many.
        let steep: Vec<u64> = (0..40).map(|n| 1 << n).collect();
        assert!(steep.len() - fold_count(&steep) <= SOFT_DEPTH / 2);
    }
}
