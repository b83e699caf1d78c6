//! The executor itself: plans a jail and has it launched; what follows is supervision.
//! Invariants: the zygote is started after leftovers were reaped, and again when it died; an id range is
//! held as long as its jail; nothing is left behind when an activation fails but the workspace.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use esf_core::Digest;
use esf_core::environment::{Bind, Environment};
use esf_jail::{CgroupHome, Jail, Plan, Zygote, ZygoteConfig};
use esf_layerstack::{Form, Workspace};
use esf_worker::executor::{Activation, Capabilities, Executor, ExecutorError, Extra, Requirement, Sandbox};

use crate::extras::lay_out;
use crate::host::HostFacts;
use crate::idrange::{IdRange, IdRanges};
use crate::plan::{self, BindKind, Inputs};
use crate::sandbox::OciSandbox;

/// Slots that are made ahead of the next activation.
const WARM_SLOTS: usize = 2;
/// Where id ranges are locked, for the whole machine.
const ID_LOCKS: &str = "/run/esf/ids";

/// Runs attempts in Linux namespaces over an overlay.
pub struct OciExecutor {
    store: PathBuf,
    /// Made at the first use, since their place can be written by root alone.
    ids: OnceLock<IdRanges>,
    host: HostFacts,
    home_name: String,
    zygote: Mutex<Option<Zygote>>,
}

impl OciExecutor {
    /// An executor for the store at `store`; nothing is started before the first use. One without the
    /// privilege it needs can be made, and says so when it is asked for a sandbox.
    ///
    /// # Errors
    /// `Machine` when the store cannot be found.
    pub fn new(store: &Path) -> Result<Self, ExecutorError> {
        let machine =
            |what: &str, error: io::Error| ExecutorError::Machine { what: format!("{what}: {error}") };
        let store = fs::canonicalize(store).map_err(|error| machine("cannot find the store", error))?;
        let digest = Digest::in_context("esf cgroup home v1", store.as_os_str().as_bytes());
        let name: String = digest.as_bytes()[..10].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            store,
            ids: OnceLock::new(),
            host: HostFacts::survey(),
            home_name: format!("esf-{name}"),
            zygote: Mutex::new(None),
        })
    }

    fn ids(&self) -> Result<&IdRanges, ExecutorError> {
        if let Some(ids) = self.ids.get() {
            return Ok(ids);
        }
        let ids = IdRanges::new(Path::new(ID_LOCKS), std::process::id()).map_err(|error| {
            ExecutorError::Machine { what: format!("cannot make the locks of id ranges: {error}") }
        })?;
        Ok(self.ids.get_or_init(|| ids))
    }

    fn home(&self) -> Result<CgroupHome, ExecutorError> {
        CgroupHome::discover(&self.home_name).map_err(|error| of_jail(&error))
    }

    fn zygote(&self) -> Result<Zygote, ExecutorError> {
        let mut zygote = self.zygote.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*zygote {
            return Ok(running.clone());
        }
        let config = ZygoteConfig {
            name: format!("esf-zygote --store {}", self.store.display()),
            cgroup_home: self.home()?,
            warm_slots: WARM_SLOTS,
            layers_dir: self.store.clone(),
        };
        let started = Zygote::start(&config).map_err(|error| of_jail(&error))?;
        *zygote = Some(started.clone());
        Ok(started)
    }

    /// Launches a plan; a zygote that is gone is replaced once.
    fn launch(&self, plan: &Plan) -> Result<Jail, ExecutorError> {
        let first = self.zygote()?;
        match first.launch(plan) {
            Err(esf_jail::Error::Lost { what }) => {
                tracing::warn!(what, "starting another zygote");
                let mut zygote = self.zygote.lock().unwrap_or_else(PoisonError::into_inner);
                if zygote.as_ref().is_some_and(|other| other.pid() == first.pid()) {
                    *zygote = None;
                }
                drop(zygote);
                drop(first);
                self.zygote()?.launch(plan).map_err(|error| of_jail(&error))
            }
            launched => launched.map_err(|error| of_jail(&error)),
        }
    }

    fn plan(&self, activation: &Activation<'_>, range: &IdRange) -> Result<Plan, ExecutorError> {
        let Activation { attempt, workspace, environment, extra } = *activation;
        let home = workspace.upper.parent().expect("an upper has a home");
        let lowers: Vec<PathBuf> = extra.left.iter().chain(&workspace.lowers).cloned().collect();
        let layers = lay_out(extra, home, &lowers)?;
        let skeleton = self.skeleton(layers.channel || layers.files.is_some())?;
        let lowers: Vec<PathBuf> = lowers.iter().map(|lower| self.relative(lower)).collect();
        let binds = self.binds(environment)?;
        plan::plan(&Inputs {
            attempt,
            lowers: &lowers,
            upper: &self.relative(&workspace.upper),
            work: &self.relative(&workspace.work),
            id_base: range.base(),
            environment,
            extra: &layers,
            host: &self.host,
            binds: &binds,
            skeleton: &skeleton,
        })
    }

    /// A layer's path below the store, so that no plan depends on what the store is called.
    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.store).unwrap_or(path).to_owned()
    }

    /// The directory of mount points that lies beneath a tree that is the whole root.
    fn skeleton(&self, channel: bool) -> Result<PathBuf, ExecutorError> {
        let name = if channel { "channel" } else { "plain" };
        let path = self.store.join("skeleton").join(name);
        let make = || -> io::Result<()> {
            fs::create_dir_all(&path)?;
            esf_jail::create_skeleton(&path).map_err(io::Error::other)?;
            if channel {
                fs::create_dir_all(path.join("run/esf"))?;
            }
            Ok(())
        };
        make()
            .map_err(|error| ExecutorError::Machine { what: format!("cannot make mount points: {error}") })?;
        Ok(Path::new("skeleton").join(name))
    }

    /// What the sources of the environment's binds are, links resolved.
    fn binds(&self, environment: &Environment) -> Result<Vec<(Bind, BindKind)>, ExecutorError> {
        let mut binds = Vec::new();
        for bind in &environment.binds {
            let refuse = |found: String| ExecutorError::Invalid {
                what: format!("bind source {}: {found}", bind.source),
                expected: "a directory or regular file that is not the store".to_owned(),
            };
            let source = fs::canonicalize(&bind.source).map_err(|error| refuse(error.to_string()))?;
            if source.starts_with(&self.store) || self.store.starts_with(&source) {
                return Err(refuse("it is the store, or contains it".to_owned()));
            }
            let found = fs::metadata(&source).map_err(|error| refuse(error.to_string()))?;
            let kind = match (found.is_dir(), found.is_file()) {
                (true, _) => BindKind::Directory,
                (_, true) => BindKind::File,
                (false, false) => return Err(refuse("it is a device, socket or fifo".to_owned())),
            };
            let resolved = source.to_str().ok_or_else(|| refuse("its name is not UTF-8".to_owned()))?;
            let resolved = Bind { source: resolved.to_owned(), at: bind.at.clone() };
            plan::check_bind(&resolved, &environment.workspace)?;
            binds.push((resolved, kind));
        }
        Ok(binds)
    }
}

impl Executor for OciExecutor {
    fn name(&self) -> &'static str {
        "oci"
    }

    fn capabilities(&self) -> Capabilities {
        crate::capabilities()
    }

    fn requirements(&self) -> Vec<Requirement> {
        crate::requirements()
    }

    fn check(&self, environment: &Environment, extra: &Extra) -> Result<(), ExecutorError> {
        plan::check(environment, extra)?;
        self.binds(environment)?;
        check_privilege()
    }

    fn prepare(&self) -> Result<(), ExecutorError> {
        check_privilege()?;
        self.zygote().map(drop)
    }

    fn activate(&self, activation: Activation<'_>) -> Result<Box<dyn Sandbox>, ExecutorError> {
        if activation.workspace.form != Form::Native {
            // Begun by a user without root, whose uppers an overlay would not understand.
            return Err(ExecutorError::Unsupported {
                what: "a workspace in the portable form".to_owned(),
                expected: "a new attempt: this one's changes can be sealed or given up".to_owned(),
            });
        }
        let range = self.ids()?.take().map_err(|error| ExecutorError::Machine { what: error.to_string() })?;
        let plan = self.plan(&activation, &range)?;
        let jail = self.launch(&plan)?;
        Ok(Box::new(OciSandbox::new(jail, range, &activation)))
    }

    fn in_use(&self, workspace: &Workspace) -> Result<bool, ExecutorError> {
        let scratch = workspace.upper.parent().expect("an upper has a home");
        esf_jail::upper_in_use(&workspace.upper, scratch).map_err(|error| of_jail(&error))
    }

    fn recover(&self) -> Result<Vec<String>, ExecutorError> {
        let home = match CgroupHome::discover(&self.home_name) {
            Ok(home) => home,
            // Where no jail can be made, none was left.
            Err(esf_jail::Error::Unsupported { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(of_jail(&error)),
        };
        let reaped = esf_jail::reap_leftovers(&home).map_err(|error| of_jail(&error))?;
        let mut lines = Vec::new();
        if reaped.processes > 0 {
            lines.push(format!("killed {} processes of dead sandboxes", reaped.processes));
        }
        if reaped.groups > 0 {
            lines.push(format!("removed {} control groups of dead sandboxes", reaped.groups));
        }
        Ok(lines)
    }

    fn shut_down(&self) {
        // The last handle waits until the zygote has ended, and its jails with it.
        drop(self.zygote.lock().unwrap_or_else(PoisonError::into_inner).take());
        // Nothing lives any more; what is left is of a zygote that was killed.
        if let Err(error) = self.recover() {
            tracing::warn!(%error, "groups of dead sandboxes are left to the next recovery");
        }
    }
}

/// Says what an unprivileged process lacks.
fn check_privilege() -> Result<(), ExecutorError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let missing = crate::requirements().into_iter().filter(|row| !row.ok);
    let missing: Vec<String> = missing.map(|row| format!("{} ({})", row.name, row.found)).collect();
    let what = format!("the oci executor cannot run here, it lacks: {}", missing.join(", "));
    Err(ExecutorError::Machine { what })
}

/// An error of the jail, in the executor's words.
pub(crate) fn of_jail(error: &esf_jail::Error) -> ExecutorError {
    let what = error.to_string();
    match error {
        esf_jail::Error::Plan { expected, .. } | esf_jail::Error::Image { expected, .. } => {
            ExecutorError::Invalid { what, expected: expected.clone() }
        }
        esf_jail::Error::Lost { .. } => ExecutorError::Lost { what },
        esf_jail::Error::Kernel { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            ExecutorError::Full { what }
        }
        esf_jail::Error::Unsupported { .. }
        | esf_jail::Error::Kernel { .. }
        | esf_jail::Error::Unkillable { .. }
        | esf_jail::Error::Stdio { .. }
        | esf_jail::Error::NotServed { .. } => ExecutorError::Machine { what },
    }
}
