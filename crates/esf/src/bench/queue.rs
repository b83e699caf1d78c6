//! Rows of the queue: a hundred thousand attempts that wait in the graph at a quota of four. Nothing is
//! executed: what is measured is the decision, and that never more than four live by the graph's own count.

use std::time::{Duration, Instant};

use esf_control::scheduler::{Capacity, Facts, Group, Live, Needs, Stage, Waiting, Worker, step};
use esf_core::environment::{Environment, ExecutorKind};
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::fork::Fork;
use esf_core::ops::release_attempt::ReleaseAttempt;
use esf_core::ops::start::Start;
use esf_core::policy::PolicyDocument;
use esf_core::record::Purpose;
use esf_core::{AttemptId, NodeId, Problem, WorkerId};
use esf_graph::QueuedAttempt;
use esf_store::{CreateGroup, ImportOptions, parse_source};

use super::{Lab, Row, failed, median_us};
use crate::context::now;

const QUEUED: usize = 100_000;
const QUOTA: u64 = 4;
/// Clients that ask at the same time: what waits is committed together.
const CLIENTS: usize = 64;

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    if lab.wants("queue_pass") {
        passes(lab)?;
    }
    Ok(())
}

/// A group of quota four with `QUEUED` attempts that wait, each on a draft of its own.
fn fill(lab: &Lab<'_>) -> Result<Group, Problem> {
    let place = lab.place.join("queue");
    super::control::make_tree(&place, 10, 100)?;
    let text = format!("[quotas]\nmax_live_attempts = {QUOTA}\n");
    let request = CreateGroup {
        name: "queue".to_owned(),
        source: parse_source(&place.to_string_lossy()).map_err(|error| error.problem())?,
        import: ImportOptions::default(),
        policy: PolicyDocument::parse(&text).map_err(|error| failed("policy", error))?,
    };
    let made = lab.store.create_group(&lab.context.meta("queue")?, request, &());
    let group = made.map_err(|error| error.problem())?.group;
    let mut drafts = Vec::with_capacity(QUEUED);
    for batch in 0..QUEUED / 1000 {
        let fork = Fork { parent: group.canonical_node_id, count: 1000 };
        let nodes = lab.store.graph().fork(&lab.context.meta(&format!("queue-fork-{batch}"))?, fork);
        drafts.extend(nodes.map_err(|error| error.problem())?.iter().map(|node| node.node_id));
    }
    let ask = |nodes: &[NodeId]| -> Result<(), Problem> {
        for node in nodes {
            let command = Enqueue {
                node: *node,
                environment: Environment::default(),
                purpose: Purpose::Work,
                lifetime_ms: None,
                on_expiry: None,
                priority: 0,
            };
            let meta = lab.context.meta(&format!("queue-{node}"))?;
            lab.store.graph().enqueue(&meta, command).map_err(|error| error.problem())?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            drafts.chunks(QUEUED.div_ceil(CLIENTS)).map(|nodes| scope.spawn(move || ask(nodes))).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no panic"))
    })?;
    Ok(Group { group: group.group_id, max_live: Some(QUOTA), created_at: group.created_at, last_start: 0 })
}

fn waiting(queued: &QueuedAttempt) -> Waiting {
    Waiting {
        attempt: queued.attempt_id,
        group: queued.group_id,
        batch: queued.parent_id,
        priority: queued.priority,
        stage: Stage::New,
        executor: queued.executor,
        needs: Needs::of(&queued.limits, &Needs { memory: 32 << 20, ..Needs::default() }),
        root: queued.root_id,
        queued_at: queued.queued_at,
    }
}

fn passes(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let mut group = fill(lab)?;
    let own = WorkerId::from_bytes([7; 16]);
    let worker = Worker {
        worker: own,
        executors: vec![ExecutorKind::Oci],
        capacity: Capacity { attempts: 64, memory: 16 << 30, ..Capacity::UNBOUNDED },
        execs: 0,
        creates: 64,
        lived: 64,
        storage_pressure: false,
        hot: Vec::new(),
    };
    let queued = lab.store.graph().queue().map_err(|error| error.problem())?;
    let mut waits: Vec<Waiting> = queued.iter().map(waiting).collect();
    let mut live = Vec::<(AttemptId, u64, Live)>::new();
    let (mut times, mut most) = (Vec::<Duration>::new(), 0);
    let samples = lab.samples * 2;
    for round in 0..samples {
        // One ends, so that one may start.
        if round > 0 && !live.is_empty() {
            let (attempt, epoch, _) = live.remove(0);
            let end =
                ReleaseAttempt { attempt, epoch: Some(epoch), unsealed: 0, discard: true, reason: None };
            let meta = lab.context.meta(&format!("queue-end-{round}"))?;
            lab.store.graph().release_attempt(&meta, end).map_err(|error| error.problem())?;
        }
        let living: Vec<Live> = live.iter().map(|(_, _, live)| *live).collect();
        let facts = Facts {
            workers: std::slice::from_ref(&worker),
            groups: &[group],
            live: &living,
            waiting: &waits,
            max_waiting: u64::MAX,
            patience: Duration::from_secs(30),
        };
        let begun = Instant::now();
        let decisions = step(now(), &facts);
        times.push(begun.elapsed());
        for (attempt, _) in decisions.starts {
            let start = Start { attempt, worker: own, lease_ms: 30_000 };
            let meta = lab.context.meta(&format!("queue-start-{attempt}"))?;
            let started = lab.store.graph().start(&meta, start).map_err(|error| error.problem())?;
            let at = waits.iter().position(|waiting| waiting.attempt == attempt).expect("it waits");
            let one = waits.remove(at);
            group.last_start += 1;
            let taken = Live { worker: own, group: one.group, batch: one.batch, needs: one.needs };
            live.push((attempt, started.attempt.lease_epoch, taken));
        }
        most = most.max(lab.store.graph().live_count().map_err(|error| error.problem())?);
    }
    let row = |name, value, unit, must, aim| Row { name, value, unit, floor: None, must, aim, samples };
    lab.add(row("queue_pass_100k", median_us(times), "us", Some(10_000.0), Some(5_000.0)));
    lab.add(row("queue_pass_most_live", most as f64, "attempts", Some(QUOTA as f64), None));
    Ok(())
}
