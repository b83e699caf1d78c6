//! Tests of the decisions without a database: tables, and properties over generated snapshots.

mod decisions;
mod prune;

use crate::digest::{AttrsId, Digest, RootId};
use crate::environment::Environment;
use crate::id::{AttemptId, GroupId, LeaseId, NodeId, StoreId, WorkerId};
use crate::manifest::RootPin;
use crate::ops::{BootClock, Meta, Request};
use crate::policy::{OnExpiry, Policy};
use crate::record::{Attempt, Group, Json, LogicalState, Node, PrivateDelta, Purpose};
use crate::state::{AttemptStatus, NodeStatus};
use crate::time::{BootMillis, Timestamp};

const STORE: StoreId = StoreId::from_bytes([1; 16]);

fn meta(key: &str) -> Meta {
    Meta {
        actor: "tester".to_owned(),
        key: key.to_owned(),
        now: Timestamp(10),
        boot: BootClock { boot_id: "boot".to_owned(), millis: BootMillis(100) },
        trace_id: "trace".to_owned(),
    }
}

fn request(meta: &Meta) -> Request<'_> {
    Request { store: STORE, operation: "test", meta }
}

fn node_id(number: u8) -> NodeId {
    NodeId::from_bytes([number; 16])
}

fn root(number: u8) -> RootPin {
    let digest = Digest::from_bytes([number; 32]);
    RootPin { root: RootId::new(digest), attrs: AttrsId::new(digest) }
}

fn group(generation: u64, canonical: NodeId) -> Group {
    Group {
        group_id: GroupId::from_bytes([1; 16]),
        name: "group".to_owned(),
        canonical_node_id: canonical,
        generation,
        policy: Policy::default(),
        policy_digest: crate::policy::PolicyDocument::default().digest(),
        source: String::new(),
        default_environment: Environment::default(),
        created_at: Timestamp(0),
        created_by: "tester".to_owned(),
        trace_id: "trace".to_owned(),
    }
}

fn node(number: u8, status: NodeStatus) -> Node {
    let sealed = (status != NodeStatus::Draft).then(|| root(number));
    let logical_state = LogicalState::empty();
    Node {
        node_id: node_id(number),
        group_id: GroupId::from_bytes([1; 16]),
        parents: vec![node_id(0)],
        root_id: sealed.map(|root| root.root),
        attrs_id: sealed.map(|root| root.attrs),
        base_root_id: Some(root(0).root),
        base_attrs_id: Some(root(0).attrs),
        state_id: logical_state.id(),
        logical_state,
        status,
        attempt_id: None,
        message: None,
        result: Json::Null,
        provenance: Json::Null,
        changed: None,
        merge: None,
        tags: Vec::new(),
        depth: 1,
        created_at: Timestamp(0),
        created_by: "tester".to_owned(),
        sealed_at: None,
        pruned_at: None,
        trace_id: "trace".to_owned(),
        statement_digest: None,
    }
}

fn attempt(status: AttemptStatus) -> Attempt {
    let environment = Environment::default();
    let live = status.is_live();
    Attempt {
        attempt_id: AttemptId::from_bytes([5; 16]),
        group_id: GroupId::from_bytes([1; 16]),
        node_id: node_id(1),
        executor: environment.executor,
        lease_id: live.then(|| LeaseId::from_bytes([6; 16])),
        lease_epoch: 3,
        worker_id: live.then(|| WorkerId::from_bytes([7; 16])),
        private_delta: if live { PrivateDelta::Open } else { PrivateDelta::None },
        status,
        purpose: Purpose::Work,
        environment_digest: environment.digest(),
        budget: environment.limits,
        environment,
        priority: 0,
        lifetime_ms: None,
        on_expiry: OnExpiry::Seal,
        failure: None,
        retry_of: None,
        boot_id: live.then(|| "boot".to_owned()),
        queued_at: Timestamp(0),
        started_at: None,
        ended_at: None,
        created_by: "tester".to_owned(),
        trace_id: "trace".to_owned(),
    }
}
