//! Workspaces: what an executor mounts for one attempt, the layers of its base and an upper of its
//! own. Invariant: a workspace's carriers stay while its row does, whatever is squashed or collected;
//! an upper's top directory begins with the mode, owner, times and attributes of the base's.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use esf_core::AttemptId;
use esf_core::manifest::{RootPin, load_top};
use rusqlite::{OptionalExtension, params};
use rustix::fs::FlockOperation;

use crate::compare::compare;
use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::form::Form;
use crate::local::{self, Commit, WorkspaceRow};
use crate::sealed::Changes;
use crate::stack::LayerStack;
use crate::upper::{self, Purpose, Source};
use crate::{Error, handle};

/// Between two tries for an attempt's lock.
const PAUSE: Duration = Duration::from_millis(10);
/// How often to try for an attempt's lock.
pub(crate) const PATIENT: u32 = 50;

/// Projections deeper than this are made shallow before they are mounted.
pub const SOFT_DEPTH: usize = 32;

/// The directories from which an attempt's file system is mounted. Worker-local: never stored.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Whose it is.
    pub attempt: AttemptId,
    /// The root beneath it.
    pub base: RootPin,
    /// The base's carriers, topmost first; all lie directly in `LayerStack::carriers_directory`.
    pub lowers: Vec<PathBuf>,
    /// Where the attempt's changes go.
    pub upper: PathBuf,
    /// Overlay's work directory, or an executor's own scratch.
    pub work: PathBuf,
    /// The attempt's own directory, which holds `upper` and `work`: an executor may keep a lock there.
    pub home: PathBuf,
    /// The form of the upper, and of every lower. Only a native workspace may be mounted as an overlay.
    pub form: Form,
}

impl LayerStack {
    /// Makes the workspace of `attempt` over the root `base`, or answers the one that exists. Of a new
    /// one, upper and lowers have the form that this process can write: for root, carriers in portable
    /// form are converted first.
    ///
    /// # Errors
    /// `RootMissing` when the base is not hot here, `Damaged` when its last verification found damage,
    /// `WorkspaceMismatch` when the attempt has a workspace over another base, `NativeCarriers` when
    /// root made it or its base and this process is not root's, `storage_full`.
    pub fn open_workspace(&self, base: &RootPin, attempt: AttemptId) -> Result<Workspace, Error> {
        let _held = self.lock_shared()?;
        let layers = self.inner.local.read(|db| local::projection_forms(db, base))?;
        if layers.is_empty() {
            return Err(missing(base));
        }
        if layers.iter().any(|(_, form)| *form != self.inner.form) {
            self.convert(base)?;
        }
        if layers.len() > SOFT_DEPTH {
            self.flatten(base)?;
        }
        let row = self.inner.local.write(Commit::Ordered, |db| {
            if let Some(row) = local::workspace(db, attempt)? {
                return Ok(row);
            }
            let (lowers, forms): (Vec<_>, Vec<_>) = local::projection_forms(db, base)?.into_iter().unzip();
            if lowers.is_empty() {
                return Err(missing(base));
            }
            if let Some(what) = local::damage(db, base)? {
                let path = format!("root {}", base.root);
                return Err(Error::Damaged { path, what });
            }
            self.require_readable(&forms)?;
            let (boot, form) = (self.inner.boot.clone(), self.inner.form);
            let row = WorkspaceRow { base: *base, boot, suspect: false, form, lowers };
            local::insert_workspace(db, attempt, &row)?;
            Ok(row)
        })?;
        if row.base != *base {
            let what = format!("it lies over the root {}", row.base.root);
            return Err(Error::WorkspaceMismatch { attempt, what });
        }
        self.require_readable(&[row.form])?;
        self.make_directories(attempt, base, row.form)?;
        Ok(self.workspace(attempt, &row))
    }

    fn make_directories(&self, attempt: AttemptId, base: &RootPin, form: Form) -> Result<(), Error> {
        let name = attempt.to_string();
        let path = name.as_bytes();
        let home = match handle::open_child(&self.inner.attempts, path) {
            Ok(home) => home,
            Err(_) => handle::create_directory(&self.inner.attempts, path).at("create", path)?,
        };
        if handle::stat_entry(&home, b"upper").is_err() {
            let (root, attrs) = load_top(&self.inner.objects, base)?;
            let upper = handle::create_directory(&home, b"upper.new").at("create", path)?;
            form.set_attributes(&upper, root.mode, &attrs).at("set the attributes of", path)?;
            rustix::fs::renameat(&home, "upper.new", &home, "upper").at("create", path)?;
        }
        match handle::create_directory(&home, b"work") {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error).at("create", path),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn workspace(&self, attempt: AttemptId, row: &WorkspaceRow) -> Workspace {
        let home = self.attempts_directory().join(attempt.to_string());
        Workspace {
            attempt,
            base: row.base,
            lowers: row.lowers.iter().map(|carrier| self.carrier_path(*carrier)).collect(),
            upper: home.join("upper"),
            work: home.join("work"),
            home,
            form: row.form,
        }
    }

    /// The workspace of `attempt` if it has one whose upper is there: for salvage after a crash.
    ///
    /// # Errors
    /// `WorkspaceLost` when the machine restarted since: the upper was never made durable.
    pub fn existing_workspace(&self, attempt: AttemptId) -> Result<Option<Workspace>, Error> {
        let Some(row) = self.inner.local.read(|db| local::workspace(db, attempt))? else { return Ok(None) };
        let workspace = self.workspace(attempt, &row);
        if !workspace.upper.exists() {
            return Ok(None);
        }
        self.check_boot(attempt, &row)?;
        Ok(Some(workspace))
    }

    pub(crate) fn check_boot(&self, attempt: AttemptId, row: &WorkspaceRow) -> Result<(), Error> {
        if row.boot == self.inner.boot { Ok(()) } else { Err(Error::WorkspaceLost(attempt)) }
    }

    /// Every attempt that has a workspace on this machine.
    ///
    /// # Errors
    /// `Database`.
    pub fn workspaces(&self) -> Result<Vec<AttemptId>, Error> {
        self.inner.local.read(|db| {
            let mut statement = db.prepare("SELECT attempt FROM workspaces ORDER BY attempt")?;
            let rows = statement.query_map([], |row| row.get::<_, [u8; 16]>(0))?;
            Ok(rows.map(|row| row.map(AttemptId::from_bytes)).collect::<Result<_, _>>()?)
        })
    }

    /// How an attempt's upper differs from its base now; nothing is touched. Nothing when there is no
    /// workspace. Of a running sandbox this is a snapshot that may be torn.
    ///
    /// # Errors
    /// As a seal's walk, and `Io`.
    pub fn changed(&self, attempt: AttemptId) -> Result<Changes, Error> {
        let Some(row) = self.inner.local.read(|db| local::workspace(db, attempt))? else {
            return Ok(Changes::default());
        };
        let mut tries = 3;
        loop {
            match self.survey(attempt, &row) {
                // Something vanished while a sandbox was writing.
                Err(Error::Io { source, .. })
                    if tries > 1 && source.kind() == std::io::ErrorKind::NotFound =>
                {
                    tries -= 1;
                }
                surveyed => return surveyed,
            }
        }
    }

    fn survey(&self, attempt: AttemptId, row: &WorkspaceRow) -> Result<Changes, Error> {
        self.require_readable(&[row.form])?;
        let Some(upper) = self.open_upper(attempt)? else { return Ok(Changes::default()) };
        let mut writer = self.inner.objects.writer();
        let (source, base) = (Source::upper(upper, row.form), &row.base);
        let walked = upper::walk(Purpose::Survey, &self.inner.objects, &mut writer, source, base, &())?;
        let (_, changes) = compare(&mut writer, base, &walked)?;
        Ok(Changes { skipped: walked.skipped, ..changes })
    }

    pub(crate) fn open_upper(&self, attempt: AttemptId) -> Result<Option<OwnedFd>, Error> {
        let path = format!("{attempt}/upper");
        match handle::open_beneath(
            &self.inner.attempts,
            path.as_bytes(),
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
        ) {
            Ok(upper) => Ok(Some(upper)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("open", path.as_bytes()),
        }
    }

    /// Gives a workspace up with everything in it; removed in the background.
    ///
    /// # Errors
    /// `SealConflict` while a seal of it is under way in a living process; nothing when there is none.
    pub fn discard_workspace(&self, attempt: AttemptId) -> Result<(), Error> {
        let txn = self.inner.local.read(|db| {
            let mut statement = db.prepare_cached("SELECT txn FROM transactions WHERE attempt = ?1")?;
            Ok(statement.query_row(params![attempt.as_bytes()], |row| row.get(0)).optional()?)
        })?;
        if let Some(txn) = txn {
            self.settle_unsettled(txn, false)?;
        }
        let _claim = self.claim_attempt(attempt, PATIENT)?;
        disk::reach(Boundary::WorkspaceDiscard).at("discard", attempt.to_string().as_bytes())?;
        self.inner.trash.take(&self.inner.attempts, &attempt.to_string())?;
        self.inner.local.write(Commit::Ordered, |db| local::delete_workspace(db, attempt))?;
        self.inner.trash.wake();
        Ok(())
    }

    /// Locks an attempt's directory against other seals and discards; none when there is none.
    /// Recovery looks at attempts for a moment each: `tries` are 10 milliseconds apart.
    pub(crate) fn claim_attempt(&self, attempt: AttemptId, tries: u32) -> Result<Option<OwnedFd>, Error> {
        let name = attempt.to_string();
        let home = match handle::open_child(&self.inner.attempts, name.as_bytes()) {
            Ok(home) => home,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).at("open", name.as_bytes()),
        };
        for nth in 1..=tries {
            match rustix::fs::flock(&home, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(home)),
                Err(rustix::io::Errno::WOULDBLOCK) if nth < tries => std::thread::sleep(PAUSE),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error).at("lock", name.as_bytes()),
            }
        }
        Err(Error::SealConflict { attempt })
    }

    /// How many carriers a root is stacked of.
    ///
    /// # Errors
    /// `RootMissing` when it is not hot here.
    pub fn depth(&self, root: &RootPin) -> Result<usize, Error> {
        Ok(self.layers(root)?.len())
    }

    pub(crate) fn layers(&self, root: &RootPin) -> Result<Vec<local::CarrierId>, Error> {
        self.inner.local.read(|db| local::projection(db, root))?.ok_or_else(|| missing(root))
    }
}

pub(crate) fn missing(root: &RootPin) -> Error {
    Error::RootMissing(root.root.to_string())
}
