//! Reading a root through its carriers: which carrier shows a path, and what a directory looks like
//! when they are stacked. Invariant: contents are checked against the manifest before they are used;
//! the manifest says what exists, the carriers only where it lies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use esf_core::manifest::{EntryKind, RootPin, WalkEntry, lookup};
use esf_core::{BlobId, Name};
use rustix::fs::{OFlags, SeekFrom, Stat};

use crate::Error;
use crate::error::Context;
use crate::form::Form;
use crate::handle::read_error;
use crate::handle::{self, Kind};
use crate::local::CarrierId;
use crate::stack::LayerStack;

/// A directory of one carrier.
pub(crate) struct Layer {
    pub(crate) directory: OwnedFd,
    /// The carrier's.
    pub(crate) form: Form,
    /// Which of the carriers that were opened together.
    pub(crate) nth: usize,
}

impl AsFd for Layer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// One directory as it is in several carriers, topmost first.
pub(crate) struct Stacked {
    pub(crate) layers: Vec<Layer>,
}

impl Stacked {
    /// The top directories of `carriers`.
    pub(crate) fn open(stack: &LayerStack, carriers: &[CarrierId]) -> Result<Self, Error> {
        let forms = stack.forms(carriers)?;
        let opened =
            carriers.iter().zip(forms).enumerate().map(|(nth, (carrier, form))| {
                Ok(Layer { directory: stack.open_carrier(*carrier)?, form, nth })
            });
        Ok(Self { layers: opened.collect::<Result<_, Error>>()? })
    }

    /// Every name, whiteouts included, with the topmost layer that has it.
    pub(crate) fn names(&self, path: &[u8]) -> Result<BTreeMap<Name, usize>, Error> {
        let mut names = BTreeMap::new();
        for (nth, layer) in self.layers.iter().enumerate() {
            for name in handle::list(layer).at("list", path)? {
                names.entry(name).or_insert(nth);
            }
        }
        Ok(names)
    }

    /// The status of `name` in the layer that shows it.
    pub(crate) fn stat(&self, name: &Name, first: usize, path: &[u8]) -> Result<Stat, Error> {
        handle::stat_entry(&self.layers[first], name.as_bytes()).at("inspect", path)
    }

    /// The directory `name`, and whether it hides everything beneath the last of its layers.
    pub(crate) fn directory(&self, name: &Name, first: usize, path: &[u8]) -> Result<(Self, bool), Error> {
        let mut layers = Vec::new();
        for layer in &self.layers[first..] {
            match handle::stat_entry(layer, name.as_bytes()) {
                Ok(stat) if Kind::of(&stat) == Kind::Directory => {}
                Ok(_) => return Ok((Self { layers }, true)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).at("inspect", path),
            }
            let directory = handle::open_child(layer, name.as_bytes()).at("open", path)?;
            let opaque = layer.form.is_opaque(&directory).at("read attributes of", path)?;
            layers.push(Layer { directory, ..*layer });
            if opaque {
                return Ok((Self { layers }, true));
            }
        }
        Ok((Self { layers }, false))
    }
}

/// The carriers of one root, open.
pub(crate) struct Projection {
    pub(crate) ids: Vec<CarrierId>,
    carriers: Vec<OwnedFd>,
}

impl Projection {
    pub(crate) fn open(stack: &LayerStack, pin: &RootPin) -> Result<Self, Error> {
        let ids = stack.layers(pin)?;
        let carriers = ids.iter().map(|carrier| stack.open_carrier(*carrier)).collect::<Result<_, _>>()?;
        Ok(Self { ids, carriers })
    }

    /// Opens what the manifest says is at `path`: the topmost carrier that has it shows it.
    pub(crate) fn find(&self, path: &[u8], flags: OFlags) -> Result<(OwnedFd, usize), Error> {
        for (nth, carrier) in self.carriers.iter().enumerate() {
            match handle::open_beneath(carrier, path, flags) {
                Ok(found) => return Ok((found, nth)),
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                    ) => {}
                Err(error) => return Err(error).at("open", path),
            }
        }
        Err(Error::damaged(path, "no carrier has it"))
    }

    /// Opens a file for reading.
    pub(crate) fn file(&self, path: &[u8]) -> Result<(OwnedFd, Stat), Error> {
        // A handle first: what lies there is not known to be a file until it was looked at.
        let (found, nth) = self.find(path, OFlags::PATH)?;
        let kind = Kind::of(&rustix::fs::fstat(&found).at("inspect", path)?);
        if kind != Kind::File {
            return Err(Error::damaged(path, format!("it is a {} in its carrier", kind.word())));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = handle::open_beneath(&self.carriers[nth], path, flags).at("open", path)?;
        let stat = rustix::fs::fstat(&file).at("inspect", path)?;
        Ok((file, stat))
    }

    /// Reads a file, copying it if wanted, and checks it against the manifest.
    pub(crate) fn take_in(
        &self,
        path: &[u8],
        expected: (BlobId, u64),
        copy: Option<&OwnedFd>,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let (file, stat) = self.file(path)?;
        check_content(&file, &stat, path, expected, copy, buffer)
    }
}

/// Reads an open file, copying it if wanted, and checks it against the manifest.
pub(crate) fn check_content(
    file: impl AsFd,
    stat: &Stat,
    path: &[u8],
    (blob, size): (BlobId, u64),
    copy: Option<&OwnedFd>,
    buffer: &mut [u8],
) -> Result<(), Error> {
    let content = handle::take_in(file, stat, copy, buffer).map_err(|error| read_error(error, path))?;
    if content.blob == blob && content.size == size {
        return Ok(());
    }
    let what = format!("expected {blob} of {size} bytes, found {} of {}", content.blob, content.size);
    Err(Error::damaged(path, what))
}

impl LayerStack {
    /// The entry at `path` of a root, by its manifest; empty names the top directory.
    ///
    /// # Errors
    /// Objects that are missing or damaged.
    pub fn lookup(&self, root: &RootPin, path: &[u8]) -> Result<Option<WalkEntry>, Error> {
        Ok(lookup(&self.inner.objects, root, path)?)
    }

    /// Opens a file of a root for reading, its contents checked.
    ///
    /// # Errors
    /// `PathMissing` when there is no such file, `Damaged` when it is not what the root says.
    pub fn open_file(&self, root: &RootPin, path: &[u8]) -> Result<File, Error> {
        let expected = self.expected(root, path)?;
        let (file, stat) = Projection::open(self, root)?.file(path)?;
        check_content(&file, &stat, path, expected, None, &mut vec![0; handle::BUFFER])?;
        rustix::fs::seek(&file, SeekFrom::Start(0)).at("read", path)?;
        Ok(File::from(file))
    }

    /// A whole small file of a root, checked.
    ///
    /// # Errors
    /// As `open_file`, and `Limit` when it has more than `limit` bytes.
    pub fn read_blob(&self, root: &RootPin, path: &[u8], limit: u64) -> Result<Vec<u8>, Error> {
        let (_, size) = self.expected(root, path)?;
        if size > limit {
            return Err(Error::limit("file_too_large", path, "size", size, limit));
        }
        let mut bytes = Vec::new();
        self.open_file(root, path)?.read_to_end(&mut bytes).at("read", path)?;
        Ok(bytes)
    }

    fn expected(&self, root: &RootPin, path: &[u8]) -> Result<(BlobId, u64), Error> {
        match self.lookup(root, path)?.map(|entry| entry.kind) {
            Some(EntryKind::File { size, blob }) => Ok((blob, size)),
            Some(_) => Err(Error::PathMissing { path: crate::error::show(path), expected: "a regular file" }),
            None => Err(Error::PathMissing { path: crate::error::show(path), expected: "an entry" }),
        }
    }
}
