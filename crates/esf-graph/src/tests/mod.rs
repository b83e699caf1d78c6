//! Tests of the graph as a whole. Within the crate, since a root needs no proof here; the proof itself
//! is tested in `tests/proof.rs`, on a real import.

mod crash;
mod development;
mod idempotency;
mod lifecycle;
mod prune;
mod races;
mod reads;
mod rollout;
mod schema;
pub(crate) mod search;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use esf_core::environment::Environment;
use esf_core::id::{AttemptId, NodeId, StoreId, WorkerId};
use esf_core::manifest::RootPin;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::{CommitSeal, SealReply};
use esf_core::ops::create_group::{CreateGroup, Created};
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::fork::Fork;
use esf_core::ops::start::{Start, Started};
use esf_core::policy::PolicyDocument;
use esf_core::record::{Attempt, Changed, Json, Node, Purpose};
use esf_core::time::BootMillis;
use esf_core::{AttrsId, Digest, RootId, Timestamp};

use crate::{BootClock, Error, Graph, Meta};

pub(crate) const STORE: StoreId = StoreId::from_bytes([7; 16]);
pub(crate) const WORKER: WorkerId = WorkerId::from_bytes([9; 16]);

/// A graph in a directory of its own.
pub(crate) struct Fixture {
    pub(crate) graph: Graph,
    pub(crate) path: PathBuf,
    _directory: tempfile::TempDir,
}

static KEYS: AtomicU64 = AtomicU64::new(0);

/// A request under a key of its own.
pub(crate) fn meta() -> Meta {
    keyed(&format!("key-{}", KEYS.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn keyed(key: &str) -> Meta {
    Meta {
        actor: "tester".to_owned(),
        key: key.to_owned(),
        now: Timestamp(1_700_000_000_000),
        boot: BootClock { boot_id: "boot-1".to_owned(), millis: BootMillis(1_000) },
        trace_id: "trace-1".to_owned(),
    }
}

/// A root that differs for each `name`.
pub(crate) fn root(name: &str) -> RootPin {
    let digest = Digest::of(name.as_bytes());
    RootPin { root: RootId::new(digest), attrs: AttrsId::new(digest) }
}

pub(crate) fn code(error: &Error) -> String {
    error.problem().code
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("graph.db");
        let graph = Graph::create(&path, STORE).expect("graph");
        Self { graph, path, _directory: directory }
    }

    pub(crate) fn reopen(&mut self) {
        self.graph = Graph::open(&self.path).expect("reopen");
    }

    pub(crate) fn group(&self, name: &str) -> Created {
        self.group_with(name, "")
    }

    pub(crate) fn group_with(&self, name: &str, policy: &str) -> Created {
        let root = root("base");
        self.graph.register_pin(&meta(), root).expect("root");
        let command = CreateGroup {
            name: name.to_owned(),
            root,
            policy: PolicyDocument::parse(policy).expect("policy"),
            source: "directory:example".to_owned(),
            default_environment: Environment::default(),
            provenance: Json::Null,
        };
        self.graph.create_group_pin(&meta(), command, None).expect("group")
    }

    pub(crate) fn fork(&self, parent: NodeId, count: u32) -> Vec<Node> {
        self.graph.fork(&meta(), Fork { parent, count }).expect("fork")
    }

    pub(crate) fn enqueue(&self, node: NodeId) -> Attempt {
        self.graph.enqueue(&meta(), work(node)).expect("enqueue")
    }

    pub(crate) fn start(&self, attempt: AttemptId) -> Started {
        self.graph.start(&meta(), Start { attempt, worker: WORKER, lease_ms: 10_000 }).expect("start")
    }

    /// An active attempt on a draft of `node`.
    pub(crate) fn active(&self, node: NodeId) -> Started {
        self.start(self.enqueue(node).attempt_id)
    }

    /// An attempt that admits no more work.
    pub(crate) fn quiescing(&self, node: NodeId) -> Attempt {
        let started = self.active(node);
        let command = BeginQuiesce { attempt: started.attempt.attempt_id, epoch: started.lease.epoch };
        self.graph.begin_quiesce(&meta(), command).expect("quiesce")
    }

    /// A node sealed on the tree `name`, below `node`.
    pub(crate) fn sealed(&self, node: NodeId, name: &str) -> SealReply {
        let attempt = self.quiescing(node);
        self.graph.commit_seal_pin(&meta(), seal(&attempt), root(name)).expect("seal")
    }
}

pub(crate) fn work(node: NodeId) -> Enqueue {
    Enqueue {
        node,
        environment: Environment::default(),
        lifetime_ms: None,
        on_expiry: None,
        priority: 0,
        purpose: Purpose::Work,
    }
}

pub(crate) fn seal(attempt: &Attempt) -> CommitSeal {
    CommitSeal {
        attempt: attempt.attempt_id,
        epoch: attempt.lease_epoch,
        terminal: false,
        state: None,
        message: None,
        result: Json::Null,
        provenance: Json::Null,
        changed: Changed::default(),
        reason: None,
        statement_digest: None,
        keep: None,
    }
}
