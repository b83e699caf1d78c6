//! What the tests of whole stores share: a store in a temporary directory, and work done by scripts in
//! overlays that are really mounted, sealed and committed as a worker would.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use esf_core::digest::RequestDigest;
use esf_core::environment::Environment;
use esf_core::manifest::{RootPin, dump_line, walk};
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::CommitSeal;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::fork::Fork;
use esf_core::ops::start::{Start, Started};
use esf_core::ops::{BootClock, Meta};
use esf_core::policy::{Durability, PolicyDocument};
use esf_core::record::{Changed, Json, Node, Purpose};
use esf_core::time::BootMillis;
use esf_core::{AttemptId, Digest, NodeId, Timestamp, WorkerId};
use esf_layerstack::{LayerStack, PreparedSeal, SealRequest, Workspace};
use esf_store::{CreateGroup, Created, ImportOptions, Source, Store};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

/// True when overlays can be mounted; says why not otherwise.
pub(crate) fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: mounting an overlay needs root");
    }
    root
}

/// Where a lab lies.
pub(crate) enum Place {
    Temporary(tempfile::TempDir),
    Given(PathBuf),
}

impl Place {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Given(dir) => dir,
        }
    }
}

/// A store with everything around it.
pub(crate) struct Lab {
    pub(crate) store: Store,
    pub(crate) dir: Place,
    count: Cell<u64>,
}

/// The ledger says what the disk says. The databases' own files may grow a block between the two looks, when
/// the kernel writes them back: looks again then.
pub(crate) fn check_ledger(stack: &LayerStack, at: &str) {
    let counts = || (stack.usage().expect("usage"), stack.recount().expect("recount"));
    let (usage, recount) =
        (0..5).map(|_| counts()).find(|(usage, disk)| usage == disk).unwrap_or_else(counts);
    assert_eq!(usage, recount, "{at}: the ledger and the disk disagree");
}

pub(crate) fn meta(key: &str) -> Meta {
    Meta {
        actor: "tester".to_owned(),
        key: key.to_owned(),
        now: Timestamp(1_700_000_000_000),
        boot: BootClock { boot_id: "boot".to_owned(), millis: BootMillis(1000) },
        trace_id: "trace".to_owned(),
    }
}

impl Lab {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("esf-test-").tempdir().expect("temporary directory");
        Self::with(Place::Temporary(dir))
    }

    /// In a directory that stays.
    pub(crate) fn at(dir: &Path) -> Self {
        Self::with(Place::Given(dir.to_owned()))
    }

    fn with(dir: Place) -> Self {
        let store = Store::open_or_create(&dir.path().join("store")).expect("create a store");
        Self { store, dir, count: 0.into() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A request under a key of its own.
    pub(crate) fn meta(&self) -> Meta {
        self.count.set(self.count.get() + 1);
        meta(&format!("key {}", self.count.get()))
    }

    /// A group whose first root is what `script` makes of an empty directory.
    pub(crate) fn group(&self, name: &str, script: &str) -> Created {
        let source = self.path(&format!("source-{name}"));
        std::fs::create_dir(&source).expect("make a source");
        shell(&source, script);
        self.store.create_group(&self.meta(), request(name, &source), &()).expect("create a group")
    }

    /// Forks `parent`, runs `script` in an overlay over it, and seals.
    pub(crate) fn work(&self, parent: NodeId, script: &str) -> Node {
        let fork = Fork { parent, count: 1 };
        let draft = self.store.graph().fork(&self.meta(), fork).expect("fork").remove(0);
        self.work_on(&draft, script)
    }

    /// Runs `script` in an overlay over what `draft` begins on, and seals.
    pub(crate) fn work_on(&self, draft: &Node, script: &str) -> Node {
        let started = self.start_on(draft);
        self.change(&started, script);
        let prepared = self.prepare(&started);
        let node = self.commit(&started, &prepared);
        self.store.stack().settle_seal(prepared, true).expect("settle");
        node
    }

    /// A live attempt on a fork of `parent`.
    pub(crate) fn start(&self, parent: NodeId) -> Started {
        let fork = Fork { parent, count: 1 };
        self.start_on(&self.store.graph().fork(&self.meta(), fork).expect("fork").remove(0))
    }

    fn start_on(&self, node: &Node) -> Started {
        let graph = self.store.graph();
        let enqueue = Enqueue {
            node: node.node_id,
            environment: Environment::default(),
            lifetime_ms: None,
            on_expiry: None,
            priority: 0,
            purpose: Purpose::Work,
        };
        let attempt = graph.enqueue(&self.meta(), enqueue).expect("enqueue").attempt_id;
        let start = Start { attempt, worker: WorkerId::from_bytes([1; 16]), lease_ms: 60_000 };
        graph.start(&self.meta(), start).expect("start")
    }

    pub(crate) fn base_of(&self, started: &Started) -> RootPin {
        self.store.graph().node(started.attempt.node_id).expect("the draft").base_root().expect("a base")
    }

    /// Runs `script` in the attempt's overlay.
    pub(crate) fn change(&self, started: &Started, script: &str) {
        let base = self.base_of(started);
        let workspace =
            self.store.stack().open_workspace(&base, started.attempt.attempt_id).expect("workspace");
        let mounted = mount(&workspace, &self.path(&format!("merged-{}", started.attempt.attempt_id)));
        shell(&mounted.path, script);
    }

    pub(crate) fn prepare(&self, started: &Started) -> PreparedSeal {
        let attempt = started.attempt.attempt_id;
        let command = BeginQuiesce { attempt, epoch: started.attempt.lease_epoch };
        self.store.graph().begin_quiesce(&self.meta(), command).expect("quiesce");
        self.store.stack().seal(&seal_request(attempt, self.base_of(started)), &()).expect("seal")
    }

    pub(crate) fn commit(&self, started: &Started, prepared: &PreparedSeal) -> Node {
        let changes = prepared.changes();
        let command = CommitSeal {
            attempt: started.attempt.attempt_id,
            epoch: started.attempt.lease_epoch,
            terminal: false,
            state: None,
            message: None,
            result: Json::Null,
            provenance: Json::Null,
            changed: Changed {
                added: changes.added,
                modified: changes.modified,
                deleted: changes.deleted,
                bytes: changes.bytes,
            },
            reason: None,
            statement_digest: None,
            keep: None,
        };
        self.store.graph().commit_seal(&self.meta(), command, prepared.sealed()).expect("commit").node
    }

    pub(crate) fn dump(&self, pin: &RootPin) -> Vec<String> {
        walk(self.store.stack().objects(), pin).map(|entry| dump_line(&entry.expect("walk"))).collect()
    }

    /// The files and symlinks of a root: path to contents or target.
    pub(crate) fn files(&self, pin: &RootPin) -> BTreeMap<String, String> {
        use esf_core::manifest::EntryKind;
        let mut files = BTreeMap::new();
        for entry in walk(self.store.stack().objects(), pin) {
            let entry = entry.expect("walk");
            let path = String::from_utf8_lossy(&entry.path).into_owned();
            let text = match &entry.kind {
                EntryKind::File { .. } => {
                    let mut file = self.store.stack().open_file(pin, &entry.path).expect("open");
                    std::io::read_to_string(&mut file).expect("text")
                }
                EntryKind::Symlink { target } => format!("-> {}", String::from_utf8_lossy(target)),
                EntryKind::Directory { .. } | EntryKind::Fifo => continue,
            };
            files.insert(path, text);
        }
        files
    }
}

pub(crate) fn request(name: &str, source: &Path) -> CreateGroup {
    CreateGroup {
        name: name.to_owned(),
        source: Source::Directory(source.to_owned()),
        import: ImportOptions::default(),
        policy: PolicyDocument::default(),
    }
}

pub(crate) fn seal_request(attempt: AttemptId, base: RootPin) -> SealRequest {
    SealRequest {
        attempt,
        base,
        request_digest: RequestDigest::new(Digest::of(b"body")),
        key: format!("seal {attempt}"),
        durability: Durability::Full,
    }
}

pub(crate) fn shell(dir: &Path, script: &str) {
    let status = Command::new("sh").args(["-euc", script]).current_dir(dir).status().expect("run sh");
    assert!(status.success(), "{script}");
}

/// An overlay that is mounted until dropped.
pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.path, UnmountFlags::empty()).expect("plain unmount");
        std::fs::remove_dir(&self.path).expect("remove the mount point");
    }
}

/// Mounts a workspace as executors do, but for the id maps.
pub(crate) fn mount(workspace: &Workspace, at: &Path) -> Mounted {
    std::fs::create_dir(at).expect("make the mount point");
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).expect("fsopen");
    let set = |key: &str, value: &str| {
        fsconfig_set_string(&context, key, value).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
    };
    for lower in &workspace.lowers {
        set("lowerdir+", lower.to_str().expect("text"));
    }
    set("upperdir", workspace.upper.to_str().expect("text"));
    set("workdir", workspace.work.to_str().expect("text"));
    for (key, value) in [("metacopy", "off"), ("redirect_dir", "nofollow"), ("index", "off"), ("xino", "off")]
    {
        set(key, value);
    }
    fsconfig_set_flag(&context, "volatile").expect("volatile");
    fsconfig_create(&context).expect("create the overlay");
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).expect("fsmount");
    move_mount(&mount, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).expect("attach");
    Mounted { path: at.to_owned() }
}
