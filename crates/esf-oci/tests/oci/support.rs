//! A store with one group, a client of its worker, and what tests ask of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use esf_core::environment::{Base, Environment};
use esf_core::ops::Meta;
use esf_core::ops::create_group::CreateGroup;
use esf_core::policy::PolicyDocument;
use esf_core::record::{Attempt, Node};
use esf_core::time::BootMillis;
use esf_core::{AttemptId, NodeId, Problem, Timestamp};
use esf_layerstack::ImportOptions;
use esf_store::Store;
use esf_worker::executor::Extra;
use esf_worker::{
    ActivatePurpose, ActivateRequest, Client, ExecRequest, ExecResult, RequestMeta, Stdin, SuspendReply,
    SuspendRequest,
};

/// A store in a temporary directory. Dropped, it ends its worker.
pub(crate) struct Bench {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) root: NodeId,
}

/// What a command left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) result: ExecResult,
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
}

impl Ran {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub(crate) fn ok(self) -> String {
        assert_eq!(self.result.exit_code, Some(0), "{self:?} {}", String::from_utf8_lossy(&self.err));
        self.text()
    }
}

/// Keys that are never used twice.
pub(crate) fn key() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn request_meta() -> RequestMeta {
    RequestMeta { actor: "test".to_owned(), key: key(), trace_id: "trace".to_owned() }
}

pub(crate) fn meta() -> Meta {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    let boot = esf_core::ops::BootClock { boot_id: boot_id.trim().to_owned(), millis: BootMillis(1) };
    Meta { actor: "test".to_owned(), key: key(), now: Timestamp(1), boot, trace_id: "trace".to_owned() }
}

impl Bench {
    /// A store whose one group begins with what `fill` puts into a directory.
    pub(crate) fn new(fill: impl FnOnce(&Path)) -> Self {
        Self::with_policy("", fill)
    }

    pub(crate) fn with_policy(policy: &str, fill: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().expect("tempdir");
        let source = directory.path().join("source");
        std::fs::create_dir(&source).expect("mkdir");
        fill(&source);
        let store = Store::open_or_create(&directory.path().join("store")).expect("a store");
        let imported =
            store.stack().import_directory(&source, &ImportOptions::default(), &()).expect("imports");
        let graph = store.graph();
        let pin = graph.register_root(&meta(), &imported.sealed).expect("registers");
        drop(imported);
        let command = CreateGroup {
            name: "g".to_owned(),
            root: pin,
            policy: PolicyDocument::parse(policy).expect("a policy"),
            source: "directory:source".to_owned(),
            default_environment: Environment::default(),
            provenance: serde_json::json!({}),
        };
        let root = graph.create_group(&meta(), command).expect("a group").canonical_node_id;
        Self { directory, store, root }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub(crate) fn client(&self) -> Client {
        let exe = std::env::current_exe().expect("this program");
        Client::connect_or_start(&self.path(), &exe).unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    pub(crate) fn request(&self, node: NodeId) -> ActivateRequest {
        ActivateRequest {
            meta: request_meta(),
            node,
            environment: Environment::default(),
            lifetime_ms: None,
            on_expiry: None,
            no_wait: false,
            priority: 0,
            purpose: ActivatePurpose::Work,
            extra: Extra::default(),
        }
    }

    pub(crate) fn activate(&self, node: NodeId) -> Attempt {
        self.activate_with(self.request(node))
    }

    pub(crate) fn activate_root(&self, node: NodeId) -> Attempt {
        let environment =
            Environment { base: Base::Root, workspace: "/".to_owned(), ..Environment::default() };
        self.activate_with(ActivateRequest { environment, ..self.request(node) })
    }

    pub(crate) fn activate_with(&self, request: ActivateRequest) -> Attempt {
        self.client().activate(request, &mut |_| {}).unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    pub(crate) fn run(&self, attempt: &Attempt, argv: &[&str]) -> Ran {
        self.run_with(exec(attempt.attempt_id, argv), None).unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    pub(crate) fn sh(&self, attempt: &Attempt, script: &str) -> Ran {
        self.run(attempt, &["sh", "-c", script])
    }

    pub(crate) fn run_with(&self, request: ExecRequest, stdin: Option<Stdin>) -> Result<Ran, Problem> {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let result = self.client().exec(request, stdin, &mut out, &mut err)?;
        Ok(Ran { result, out, err })
    }

    pub(crate) fn suspend(&self, attempt: &Attempt) -> SuspendReply {
        self.try_suspend(attempt).unwrap_or_else(|problem| panic!("{problem:?}"))
    }

    pub(crate) fn try_suspend(&self, attempt: &Attempt) -> Result<SuspendReply, Problem> {
        self.client().suspend(suspend(attempt.attempt_id))
    }

    pub(crate) fn attempt(&self, attempt: &Attempt) -> Attempt {
        self.store.graph().attempt(attempt.attempt_id).expect("on record")
    }

    /// A file of a sealed node.
    pub(crate) fn file(&self, node: &Node, path: &str) -> Option<Vec<u8>> {
        use std::io::Read;
        let root = node.root().expect("sealed");
        let mut bytes = Vec::new();
        self.store.stack().open_file(&root, path.as_bytes()).ok()?.read_to_end(&mut bytes).expect("reads");
        Some(bytes)
    }
}

pub(crate) fn suspend(attempt: AttemptId) -> SuspendRequest {
    SuspendRequest {
        meta: request_meta(),
        attempt,
        terminal: false,
        state: None,
        message: None,
        keep: false,
        if_changed: false,
    }
}

pub(crate) fn exec(attempt: AttemptId, argv: &[&str]) -> ExecRequest {
    ExecRequest {
        actor: "test".to_owned(),
        attempt,
        argv: argv.iter().map(OsString::from).collect(),
        env: Vec::new(),
        cwd: None,
        user: None,
        timeout_ms: None,
        detach: false,
        max_output: None,
        key: None,
        stdin: false,
        trace_id: "trace".to_owned(),
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        match Client::connect(&self.path()) {
            Ok(Some(client)) => {
                if let Err(problem) = client.stop(true) {
                    eprintln!("the worker does not end: {problem:?}");
                }
            }
            Ok(None) => {}
            Err(problem) => eprintln!("cannot reach the worker: {problem:?}"),
        }
        // What a worker that was killed left outside the store.
        if let Err(problem) = esf_worker::recover(&self.store, &[]) {
            eprintln!("cannot recover: {problem:?}");
        }
    }
}
