//! Import: a directory of this machine becomes a carrier and a root (design section 3).
//! Invariant: what was read is what is hashed and what is stored, whoever edits the source meanwhile;
//! nothing is left of an import that fails.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use esf_core::manifest::RootPin;

use crate::error::Context;
use crate::form::{Form, Records};
use crate::intake::{Intake, stat_key};
use crate::object_store::PackWriter;
use crate::sealed::{Progress, SealedRoot, Skipped};
use crate::stack::LayerStack;
use crate::staging::{For, Making, Publication, Scratch, Staging};
use crate::upper::Unopened;
use crate::{Error, handle, local};

/// How a directory is imported.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Keeps owners; otherwise everything belongs to 0:0.
    pub preserve_owners: bool,
    /// Leaves sockets, devices and other filesystems out, by name, instead of refusing them.
    pub skip_special: bool,
    /// Paths within the source that are left out.
    pub exclude: Vec<Vec<u8>>,
    /// Gives up durability against power loss.
    pub relaxed: bool,
}

/// What an import made.
#[derive(Debug)]
pub struct Imported {
    /// The root.
    pub sealed: SealedRoot,
    /// Files, directories, links and fifos in it, without the top directory.
    pub files: u64,
    /// Logical bytes of its files.
    pub bytes: u64,
    /// What was left out, and why.
    pub skipped: Skipped,
}

impl LayerStack {
    /// Imports the directory `source`: copies it into a carrier, hashing while copying.
    ///
    /// # Errors
    /// `Source` when it cannot be read as a directory, `SpecialFile` and `Limit` with the path,
    /// `storage_full`; nothing is left of a failed import.
    pub fn import_directory(
        &self,
        source: &Path,
        options: &ImportOptions,
        progress: &dyn Progress,
    ) -> Result<Imported, Error> {
        self.import_from(source, None, options, progress)
    }

    /// Imports what was unpacked into a scratch directory, in the scratch's form; `records` are those that
    /// the unpacking made.
    ///
    /// # Errors
    /// As `import_directory`; `ForgedMark` for marks of the scratch's form that nobody of ours made.
    pub fn import_scratch(
        &self,
        scratch: &Scratch,
        records: &Records,
        options: &ImportOptions,
        progress: &dyn Progress,
    ) -> Result<Imported, Error> {
        let unpacked = (scratch.form() == Form::Portable).then_some(&records.0);
        self.import_from(scratch.path(), unpacked, options, progress)
    }

    fn import_from(
        &self,
        source: &Path,
        unpacked: Option<&Unopened>,
        options: &ImportOptions,
        progress: &dyn Progress,
    ) -> Result<Imported, Error> {
        let held = Arc::new(self.lock_shared()?);
        let top = open_source(source)?;
        let staging = Staging::begin(self, Making::Import)?;
        let store = stat_key(&rustix::fs::stat(&self.inner.dir).on("inspect", &self.inner.dir)?);
        let device = rustix::fs::fstat(&top).on("inspect", source)?.st_dev;
        let (form, sink) = (self.inner.form, self.inner.objects.writer());
        let intake = Intake::new(options, progress, (store, device), form, unpacked, sink);
        let found = intake.run(top, staging.root.try_clone().at("open", b"staging")?)?;
        let pin = found.pin.expect("the top directory was completed");
        self.publish_import(staging, intake.into_sink(), pin, found.unopened, !options.relaxed)?;
        let sealed = SealedRoot { pin, bytes: found.bytes, txn: None, _held: held };
        Ok(Imported { sealed, files: found.entries, bytes: found.bytes, skipped: found.skipped })
    }

    fn publish_import(
        &self,
        staging: Staging,
        sink: PackWriter,
        pin: RootPin,
        unopened: Unopened,
        durable: bool,
    ) -> Result<(), Error> {
        let packs = sink.stage()?;
        if self.inner.local.read(|db| local::projection(db, &pin))?.is_some() {
            // The same root is here already: one copy is enough.
            return Ok(());
        }
        let layers = vec![staging.carrier];
        let (made_for, form) = (For::Root(pin, layers), self.inner.form);
        staging.publish(
            packs,
            &Publication { made_for, unopened, form, charge: None, shares_with: &[], durable },
        )
    }
}

fn open_source(source: &Path) -> Result<OwnedFd, Error> {
    let refused = |what: String| Error::Source { path: source.to_owned(), what };
    let kind = std::fs::metadata(source).map_err(|error| refused(error.to_string()))?;
    if !kind.is_dir() {
        return Err(refused("it is not a directory".to_owned()));
    }
    handle::open_directory(source).map_err(|error| refused(error.to_string()))
}
