//! Conversion: what a process without root made becomes what overlayfs can mount. Each portable carrier
//! of a root is rebuilt once in native form, to show the same under and over any other; when all are,
//! the root's projection is swapped in one commit (design section 3). Invariant: a root stands on its
//! old carriers or on its new ones; a carrier's inode is never touched but for its link count.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use esf_core::Name;
use esf_core::manifest::RootPin;
use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;

use crate::Error;
use crate::assemble::Inode;
use crate::attributes::{Shown, Sorted, Xattrs, sort_upper};
use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::form::Form;
use crate::handle::{self, Kind, join, read_error};
use crate::local::{self, CarrierId, Commit};
use crate::seal::make_whiteout;
use crate::stack::LayerStack;
use crate::staging::{For, Making, Publication, Staging};
use crate::upper::Unopened;

impl LayerStack {
    /// Makes a root stand on carriers of the form that this process writes; nothing when it does already
    /// or is not hot here. The others stay as long as something else stands on them.
    pub(crate) fn convert(&self, root: &RootPin) -> Result<(), Error> {
        let own = self.inner.form;
        let other = self.inner.local.read(|db| {
            let mut other = Vec::new();
            for (carrier, form) in local::projection_forms(db, root)? {
                if form != own {
                    other.push((carrier, local::conversion(db, carrier)?.is_some()));
                }
            }
            Ok(other)
        })?;
        match (own, other.is_empty()) {
            (_, true) => Ok(()),
            (Form::Native, false) => self.convert_carriers(&other),
            // Root's marks cannot be seen: the manifest says what there is.
            (Form::Portable, false) => self.rebuild(root),
        }
    }

    fn convert_carriers(&self, portable: &[(CarrierId, bool)]) -> Result<(), Error> {
        for (carrier, _) in portable.iter().filter(|(_, done)| !done) {
            self.convert_carrier(*carrier)?;
        }
        disk::reach(Boundary::ConvertSwap).at("convert", b"carriers")?;
        self.inner.local.write(Commit::Ordered, local::swap_converted)
    }

    /// Builds the native carrier that shows what `portable` does.
    fn convert_carrier(&self, portable: CarrierId) -> Result<(), Error> {
        let staging = Staging::begin(self, Making::Convert)?;
        let unopened = self.inner.local.read(|db| local::unopened(db, portable))?;
        let target = staging.root.try_clone().at("open", b"staging")?;
        let mut convert = Convert {
            unopened,
            top: target.try_clone().at("open", b"staging")?,
            open: Vec::new(),
            made: HashMap::new(),
            shares: false,
            buffer: vec![0; handle::BUFFER],
        };
        convert.run(self.open_carrier(portable)?, target)?;
        let packs = self.inner.objects.writer().stage()?;
        let shares_with: &[CarrierId] = if convert.shares { &[portable] } else { &[] };
        let publication = Publication {
            made_for: For::Carrier(portable),
            unopened: Unopened::new(),
            form: Form::Native,
            charge: None,
            shares_with,
            durable: true,
        };
        staging.publish(packs, &publication)
    }
}

/// A directory under way.
struct Frame {
    source: OwnedFd,
    target: OwnedFd,
    path: Vec<u8>,
    stat: Stat,
    shown: Shown,
    names: std::vec::IntoIter<Name>,
}

struct Convert {
    unopened: Unopened,
    top: OwnedFd,
    open: Vec<Frame>,
    /// Where each linked inode of the portable carrier was made.
    made: HashMap<Inode, Vec<u8>>,
    /// Whether any inode is now in both carriers.
    shares: bool,
    buffer: Vec<u8>,
}

impl Convert {
    fn run(&mut self, source: OwnedFd, target: OwnedFd) -> Result<(), Error> {
        self.enter(source, target, Vec::new())?;
        while let Some(frame) = self.open.last_mut() {
            match frame.names.next() {
                Some(name) => self.take(&name)?,
                None => self.complete()?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, source: OwnedFd, target: OwnedFd, path: Vec<u8>) -> Result<(), Error> {
        let stat = rustix::fs::fstat(&source).at("inspect", &path)?;
        let xattrs = handle::xattrs(&source).at("read attributes of", &path)?;
        let sorted = sort_upper(Form::Portable, &path, true, xattrs)?;
        if sorted.opaque {
            Form::Native.mark_opaque(&target).at("mark as opaque", &path)?;
        }
        let shown = sorted.shown(Form::Portable, &stat, None);
        let names = handle::list(&source).at("list", &path)?.into_iter();
        self.open.push(Frame { source, target, path, stat, shown, names });
        Ok(())
    }

    fn innermost(&self) -> &Frame {
        self.open.last().expect("an entry is taken inside of an open directory")
    }

    fn take(&mut self, name: &Name) -> Result<(), Error> {
        let frame = self.innermost();
        let path = join(&frame.path, name)?;
        let raw = name.as_bytes();
        let stat = handle::stat_entry(&frame.source, raw).at("inspect", &path)?;
        match Kind::of(&stat) {
            Kind::Whiteout => make_whiteout(&frame.target, raw).at("hide", &path),
            Kind::Directory => {
                let source = handle::open_child(&frame.source, raw).at("open", &path)?;
                let target = handle::create_directory(&frame.target, raw).at("create", &path)?;
                self.enter(source, target, path)
            }
            Kind::File => self.take_file(raw, path, &stat),
            Kind::Symlink | Kind::Fifo => self.take_unopened(raw, path, &stat),
            kind @ (Kind::Socket | Kind::Device) => {
                Err(Error::damaged(&path, format!("a carrier cannot hold a {}", kind.word())))
            }
        }
    }

    /// The first path of an inode is made, the others are linked to it.
    fn take_file(&mut self, name: &[u8], path: Vec<u8>, stat: &Stat) -> Result<(), Error> {
        let inode = (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
        if let Some(first) = inode.and_then(|inode| self.made.get(&inode)) {
            let target = &self.innermost().target;
            return rustix::fs::linkat(&self.top, &**first, target, name, AtFlags::empty()).at("link", &path);
        }
        self.make_file(name, &path, stat)?;
        self.made.extend(inode.map(|inode| (inode, path)));
        Ok(())
    }

    /// Links the very inode if it is in native form what it is in portable form, else copies it.
    fn make_file(&mut self, name: &[u8], path: &[u8], stat: &Stat) -> Result<(), Error> {
        let frame = self.open.last().expect("an entry is taken inside of an open directory");
        let file = handle::open_regular(&frame.source, name).at("open", path)?;
        let xattrs = handle::xattrs(&file).at("read attributes of", path)?;
        let native = as_native(path, stat, &xattrs);
        let shown = sort_upper(Form::Portable, path, false, xattrs)?.shown(Form::Portable, stat, None);
        if native.is_some_and(|native| native == shown) {
            match rustix::fs::linkat(&frame.source, name, &frame.target, name, AtFlags::empty()) {
                Ok(()) => {
                    self.shares = true;
                    return Ok(());
                }
                Err(Errno::MLINK) => {}
                Err(error) => return Err(error).at("link", path),
            }
        }
        let copy = handle::create_file(&frame.target, name).at("copy", path)?;
        handle::take_in(&file, stat, Some(&copy), &mut self.buffer)
            .map_err(|error| read_error(error, path))?;
        let (mode, mtime) = (shown.mode.bits(), Some(handle::mtime(stat)));
        Form::Native
            .set_open(&copy, mode, mtime, shown.owner, &shown.xattrs)
            .at("set the attributes of", path)
    }

    fn take_unopened(&mut self, name: &[u8], path: Vec<u8>, stat: &Stat) -> Result<(), Error> {
        let frame = self.innermost();
        let recorded = self.unopened.get(&path);
        let shown = Sorted::default().shown(Form::Portable, stat, recorded);
        let fifo = match Kind::of(stat) {
            Kind::Symlink => {
                let target = rustix::fs::readlinkat(&frame.source, name, Vec::new());
                let target = target.at("read the link", &path)?;
                rustix::fs::symlinkat(&*target, &frame.target, name).at("copy", &path)?;
                None
            }
            _ => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mkfifoat(&frame.target, name, mode).at("copy", &path)?;
                Some(shown.mode)
            }
        };
        Form::Native
            .set_recorded(&frame.target, name, fifo, &shown.attrs(stat))
            .map(|_| ())
            .at("set the attributes of", &path)
    }

    /// Gives a complete directory its attributes: its time comes last.
    fn complete(&mut self) -> Result<(), Error> {
        let Frame { target, path, stat, shown, .. } = self.open.pop().expect("the caller looked at it");
        let mtime = Some(handle::mtime(&stat));
        Form::Native
            .set_open(&target, shown.mode.bits(), mtime, shown.owner, &shown.xattrs)
            .at("set the attributes of", &path)
    }
}

/// What an inode would be in native form; none when it carries marks that have no meaning there.
fn as_native(path: &[u8], stat: &Stat, xattrs: &Xattrs) -> Option<Shown> {
    let sorted = sort_upper(Form::Native, path, false, xattrs.clone()).ok()?;
    let marked = sorted.foreign.iter().any(|name| name.starts_with(b"user."));
    (!marked).then(|| sorted.shown(Form::Native, stat, None))
}
