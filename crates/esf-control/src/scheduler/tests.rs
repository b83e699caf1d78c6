//! The step against a reference that does the same in the plainest way, against its own bounds, and in the
//! cases a reader will ask about.

use std::collections::HashMap;
use std::time::Duration;

use esf_core::environment::ExecutorKind;
use esf_core::{AttemptId, GroupId, NodeId, RootId, Timestamp, WorkerId};
use proptest::prelude::*;

use super::facts::*;
use super::step;

fn id(number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    bytes
}

pub(super) fn attempt(number: u64) -> AttemptId {
    AttemptId::from_bytes(id(number))
}

pub(super) fn group(number: u64) -> GroupId {
    GroupId::from_bytes(id(number))
}

pub(super) fn worker(number: u64) -> WorkerId {
    WorkerId::from_bytes(id(number))
}

pub(super) fn batch(number: u64) -> NodeId {
    NodeId::from_bytes(id(number))
}

pub(super) fn root(number: u64) -> RootId {
    RootId::new(esf_core::Digest::of(&number.to_le_bytes()))
}

/// A worker without bounds but its attempts.
pub(super) fn room(number: u64, attempts: u64) -> Worker {
    Worker {
        worker: worker(number),
        executors: vec![ExecutorKind::Oci],
        capacity: Capacity { attempts, ..Capacity::UNBOUNDED },
        execs: 0,
        creates: u64::MAX,
        lived: 0,
        storage_pressure: false,
        hot: Vec::new(),
    }
}

pub(super) fn waits(number: u64, of: u64) -> Waiting {
    Waiting {
        attempt: attempt(number),
        group: group(of),
        batch: None,
        priority: 0,
        stage: Stage::New,
        executor: ExecutorKind::Oci,
        needs: Needs::default(),
        root: None,
        queued_at: Timestamp(0),
    }
}

pub(super) fn known(number: u64, max_live: Option<u64>) -> Group {
    let created_at = Timestamp(i64::try_from(number).expect("small"));
    Group { group: group(number), max_live, created_at, last_start: 0 }
}

fn lives(on: u64, of: u64) -> Live {
    Live { worker: worker(on), group: group(of), batch: None, needs: Needs::default() }
}

/// Owned facts.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    pub(super) workers: Vec<Worker>,
    pub(super) groups: Vec<Group>,
    pub(super) live: Vec<Live>,
    pub(super) waiting: Vec<Waiting>,
}

impl Case {
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            workers: &self.workers,
            groups: &self.groups,
            live: &self.live,
            waiting: &self.waiting,
            max_waiting: u64::MAX,
            patience: Duration::from_millis(100),
        }
    }

    fn started(&self) -> Vec<u64> {
        numbers(&step(Timestamp(50), &self.facts()))
    }
}

fn numbers(decisions: &Decisions) -> Vec<u64> {
    let number = |id: &AttemptId| u64::from_be_bytes(id.as_bytes()[8..].try_into().expect("eight"));
    decisions.starts.iter().map(|(attempt, _)| number(attempt)).collect()
}

#[test]
fn order_bounds_and_groups() {
    let urgent = Waiting { priority: 5, ..waits(3, 2) };
    let mut case = Case {
        workers: vec![room(1, 9)],
        waiting: vec![waits(1, 1), waits(2, 1), urgent],
        ..Case::default()
    };
    assert_eq!(case.started(), [3, 1, 2], "priority, then arrival");
    case.live = vec![lives(1, 7), lives(1, 7)];
    for (attempts, expected) in [(3, vec![3]), (2, vec![]), (1, vec![])] {
        case.workers = vec![room(1, attempts)];
        assert_eq!(case.started(), expected);
    }
    case = Case {
        workers: vec![room(1, 9)],
        groups: vec![known(1, Some(1)), known(2, Some(1))],
        waiting: vec![waits(1, 1), waits(2, 1), waits(3, 2)],
        ..Case::default()
    };
    assert_eq!(case.started(), [1, 3], "a full group holds up no other");
    let waits = step(Timestamp(0), &case.facts()).waits;
    assert_eq!(waits, [Waits { group: group(1), waiting: 1, reason: Reason::GroupQuota }]);
}

#[test]
fn a_large_group_does_not_starve_a_small_one_even_at_one_place() {
    let mut case =
        Case { workers: vec![room(1, 1)], groups: vec![known(1, None), known(2, None)], ..Case::default() };
    case.waiting = (0..50).map(|number| waits(number, 1)).chain([waits(50, 2), waits(51, 2)]).collect();
    let mut order = Vec::new();
    for turn in 1..=6 {
        let started = case.started();
        assert_eq!(started.len(), 1);
        order.push(u64::from(started[0] >= 50));
        case.waiting.retain(|waiting| waiting.attempt != attempt(started[0]));
        let of = usize::from(started[0] >= 50);
        case.groups[of].last_start = turn;
    }
    assert_eq!(order, [0, 1, 0, 1, 0, 0]);
}

#[test]
fn what_was_begun_is_finished_first() {
    let of = |number, batch_of, stage| Waiting { batch: batch_of, stage, ..waits(number, 1) };
    let mut case = Case { workers: vec![room(1, 3)], ..Case::default() };
    case.waiting = vec![
        of(1, Some(batch(1)), Stage::New),
        of(2, Some(batch(2)), Stage::New),
        of(3, Some(batch(1)), Stage::New),
        of(4, Some(batch(2)), Stage::New),
        of(5, Some(batch(1)), Stage::New),
    ];
    assert_eq!(case.started(), [1, 3, 5], "a batch that was begun before the next");
    case.live = vec![Live { batch: Some(batch(2)), ..lives(9, 1) }];
    assert_eq!(case.started(), [2, 4, 1], "one that lives already");
    case.waiting.push(of(6, None, Stage::Evaluate));
    case.waiting.push(of(7, None, Stage::Salvage));
    case.waiting.push(of(8, Some(batch(9)), Stage::Retry));
    assert_eq!(case.started(), [7, 6, 8]);
    // A retry begins its batch, too: its siblings take their place among what is begun already.
    case.live.clear();
    case.waiting = vec![
        of(1, Some(batch(3)), Stage::New),
        of(2, None, Stage::Opened),
        of(3, Some(batch(3)), Stage::Retry),
    ];
    assert_eq!(case.started(), [3, 1, 2]);
}

#[test]
fn a_hot_root_before_a_low_load() {
    let hot = Worker { hot: vec![root(7)], ..room(2, 10) };
    let mut case =
        Case { workers: vec![room(1, 10), hot], live: vec![lives(2, 9), lives(2, 9)], ..Case::default() };
    case.waiting = vec![Waiting { root: Some(root(7)), ..waits(1, 1) }, waits(2, 1)];
    let starts = step(Timestamp(0), &case.facts()).starts;
    assert_eq!(starts, [(attempt(1), worker(2)), (attempt(2), worker(1))]);
    case.workers[1].executors = vec![ExecutorKind::Wasi];
    let starts = step(Timestamp(0), &case.facts()).starts;
    assert_eq!(starts, [(attempt(1), worker(1)), (attempt(2), worker(1))], "but never where it cannot run");
}

#[test]
fn a_large_attempt_is_not_passed_by_for_ever() {
    let needs = |memory| Needs { memory, ..Needs::default() };
    let mut small = room(1, 100);
    small.capacity.memory = 10;
    let mut case = Case { workers: vec![small], ..Case::default() };
    case.live = vec![Live { needs: needs(4), ..lives(1, 9) }];
    case.waiting =
        vec![Waiting { needs: needs(8), ..waits(1, 1) }, Waiting { needs: needs(1), ..waits(2, 1) }];
    case.waiting.extend((3..6).map(|number| Waiting { needs: needs(2), ..waits(number, 2) }));
    let early = step(Timestamp(50), &case.facts());
    assert_eq!(numbers(&early), [3, 4, 5], "others go on; its own group does not overtake it");
    assert_eq!(early.waits, [Waits { group: group(1), waiting: 2, reason: Reason::Memory }]);
    let late = step(Timestamp(100), &case.facts());
    assert_eq!(numbers(&late), Vec::<u64>::new(), "the worker is kept free for it");
    case.live.clear();
    assert_eq!(numbers(&step(Timestamp(100), &case.facts()))[0], 1);
}

#[test]
fn what_no_worker_could_hold_is_told_so() {
    let mut small = room(1, 9);
    small.capacity.memory = 10;
    let mut case = Case { workers: vec![small], ..Case::default() };
    case.waiting =
        vec![Waiting { needs: Needs { memory: 11, ..Needs::default() }, ..waits(1, 1) }, waits(2, 1)];
    let decisions = step(Timestamp(0), &case.facts());
    let why = Shed::OverCapacity { what: Reason::Memory, needed: 11, most: 10 };
    assert_eq!((numbers(&decisions), decisions.shed), (vec![2], vec![(attempt(1), why)]));
    case.workers.clear();
    let decisions = step(Timestamp(0), &case.facts());
    assert_eq!(decisions.shed, [], "a worker may come");
    assert_eq!(decisions.waits, [Waits { group: group(1), waiting: 2, reason: Reason::NoWorker }]);
}

#[test]
fn the_youngest_group_is_shed_first() {
    let mut case =
        Case { workers: vec![room(1, 0)], groups: vec![known(1, None), known(2, None)], ..Case::default() };
    case.waiting = (1..=4).map(|number| waits(number, number % 2 + 1)).collect();
    let facts = Facts { max_waiting: 3, ..case.facts() };
    let shed = step(Timestamp(0), &facts).shed;
    assert_eq!(shed, [(attempt(3), Shed::QueueFull { waiting: 4, most: 3 })], "its last one");
    case.workers[0].storage_pressure = true;
    case.waiting[0].stage = Stage::Evaluate;
    let first = step(Timestamp(0), &case.facts());
    assert_eq!(first.shed, [(attempt(3), Shed::Storage)], "group 2 begins nothing new");
    assert_eq!(first.again_after, Some(Duration::from_secs(1)));
    case.waiting.remove(2);
    let second = step(Timestamp(0), &case.facts());
    assert_eq!(second.shed.len(), 2, "then the older one");
    assert_eq!(second.waits, [Waits { group: group(2), waiting: 1, reason: Reason::Storage }]);
}

#[test]
fn pace_and_commands_are_bounds_too() {
    let mut case = Case { workers: vec![room(1, 100)], ..Case::default() };
    case.waiting = (0..50).map(|number| waits(number, 1)).collect();
    let reason = |case: &Case| step(Timestamp(0), &case.facts()).waits[0].reason;
    case.workers[0].creates = 7;
    assert_eq!((case.started().len(), reason(&case)), (7, Reason::Creates));
    case.workers[0] = Worker { lived: 100, ..room(1, 200) };
    case.workers[0].capacity.growth = 4;
    case.live = (0..100).map(|_| lives(1, 9)).collect();
    assert_eq!((case.started().len(), reason(&case)), (10, Reason::Growth), "a tenth of what lived");
    case.workers[0].capacity.growth = 20;
    assert_eq!(case.started().len(), 20);
    case.workers[0] = Worker { execs: 8, ..room(1, 200) };
    case.workers[0].capacity.execs = 8;
    assert_eq!((case.started().len(), reason(&case)), (0, Reason::Execs));
}

/// The plainest way to the same decisions: everything looked at anew for each start.
fn reference(now: Timestamp, facts: &Facts<'_>) -> Vec<(AttemptId, WorkerId)> {
    let mut live = facts.live.to_vec();
    let mut groups: HashMap<GroupId, Group> =
        facts.groups.iter().map(|group| (group.group, *group)).collect();
    for waiting in facts.waiting {
        let (group, created_at) = (waiting.group, waiting.queued_at);
        groups.entry(group).or_insert(Group { group, max_live: None, created_at, last_start: 0 });
    }
    let mut opened: Vec<NodeId> = facts.live.iter().filter_map(|live| live.batch).collect();
    let told = facts.waiting.iter().filter(|waiting| waiting.stage == Stage::Opened);
    opened.extend(told.filter_map(|waiting| waiting.batch));
    let mut hot: Vec<(WorkerId, RootId)> = facts
        .workers
        .iter()
        .flat_map(|worker| worker.hot.iter().map(|root| (worker.worker, *root)))
        .collect();
    let mut left: Vec<(usize, Waiting)> = facts.waiting.iter().copied().enumerate().collect();
    let (mut blocked, mut reserved, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    let mut clock = facts.groups.iter().map(|group| group.last_start).max().unwrap_or(0);
    loop {
        let stage = |waiting: &Waiting| match waiting.stage {
            Stage::New if waiting.batch.is_some_and(|batch| opened.contains(&batch)) => Stage::Opened,
            stage => stage,
        };
        let key = |(at, waiting): &(usize, Waiting)| {
            (std::cmp::Reverse(waiting.priority), stage(waiting), waiting.queued_at, *at)
        };
        let count = |group: GroupId| live.iter().filter(|live| live.group == group).count() as u64;
        let sum = |of: &dyn Fn(&Live) -> bool, what: fn(&Needs) -> u64| -> u64 {
            live.iter().filter(|live| of(live)).map(|live| what(&live.needs)).sum()
        };
        let total = |what: fn(&Capacity) -> u64| {
            facts.workers.iter().fold(0_u64, |sum, worker| sum.saturating_add(what(&worker.capacity)))
        };
        let part = |used: u64, of: u64| {
            if of == 0 { u128::MAX } else { u128::from(used) * 1_000_000 / u128::from(of) }
        };
        let share = |group: GroupId| {
            let of = |live: &Live| live.group == group;
            part(count(group), total(|c| c.attempts))
                .max(part(sum(&of, |n| n.memory), total(|c| c.memory)))
                .max(part(sum(&of, |n| n.cpu_milli), total(|c| c.cpu_milli)))
        };
        // The first of each lane, then the first of those.
        let mut firsts = HashMap::<(GroupId, ExecutorKind), (usize, Waiting)>::new();
        for item in &left {
            let lane = (item.1.group, item.1.executor);
            let full = groups[&lane.0].max_live.is_some_and(|most| count(lane.0) >= most);
            if !full && !blocked.contains(&lane) {
                let first = firsts.entry(lane).or_insert(*item);
                if key(item) < key(first) {
                    *first = *item;
                }
            }
        }
        let next = firsts.into_values().min_by_key(|item| {
            let group = item.1.group;
            (key(item).0, share(group), count(group), groups[&group].last_start, key(item))
        });
        let Some((at, next)) = next else { return starts };
        let on = |worker: &Worker| live.iter().filter(|live| live.worker == worker.worker).count() as u64;
        let began = |worker: &Worker| starts.iter().filter(|(_, on)| *on == worker.worker).count() as u64;
        let used = |worker: &Worker, what: fn(&Needs) -> u64| sum(&|live| live.worker == worker.worker, what);
        let open = |worker: &&Worker| {
            let grows = worker.lived.saturating_add(worker.capacity.growth.max(worker.lived / 10));
            worker.executors.contains(&next.executor)
                && !worker.storage_pressure
                && on(worker) < worker.capacity.attempts.min(grows)
                && began(worker) < worker.creates
                && worker.execs < worker.capacity.execs
                && !reserved.contains(&worker.worker)
        };
        let free =
            |worker: &Worker, what: fn(&Needs) -> u64, most: u64| most.saturating_sub(used(worker, what));
        let fits = |worker: &&Worker| {
            next.needs.memory + used(worker, |n| n.memory) <= worker.capacity.memory
                && next.needs.cpu_milli + used(worker, |n| n.cpu_milli) <= worker.capacity.cpu_milli
                && next.needs.disk + used(worker, |n| n.disk) <= worker.capacity.disk
        };
        let load = |worker: &&Worker| {
            part(on(worker), worker.capacity.attempts)
                .max(part(used(worker, |n| n.memory), worker.capacity.memory))
                .max(part(used(worker, |n| n.cpu_milli), worker.capacity.cpu_milli))
        };
        let able: Vec<&Worker> = facts.workers.iter().filter(open).collect();
        let is_hot = |worker: &&&Worker| next.root.is_some_and(|root| hot.contains(&(worker.worker, root)));
        let fitting = || able.iter().filter(|worker| fits(worker));
        let found = fitting().filter(is_hot).min_by_key(|worker| load(worker));
        let found = found.or_else(|| fitting().min_by_key(|worker| load(worker)));
        if let Some(worker) = found {
            let worker = worker.worker;
            live.push(Live { worker, group: next.group, batch: next.batch, needs: next.needs });
            opened.extend(next.batch);
            hot.extend(next.root.map(|root| (worker, root)));
            clock += 1;
            groups.get_mut(&next.group).expect("known").last_start = clock;
            starts.push((next.attempt, worker));
            left.retain(|(other, _)| *other != at);
        } else {
            blocked.push((next.group, next.executor));
            if Duration::from_millis((now.0 - next.queued_at.0).unsigned_abs()) >= facts.patience {
                let holds = |worker: &&&Worker| {
                    let most = &worker.capacity;
                    next.needs.memory <= most.memory
                        && next.needs.cpu_milli <= most.cpu_milli
                        && next.needs.disk <= most.disk
                };
                // The last of equals is taken by `max_by_key`: the first is meant.
                let kept = able.iter().rev().filter(holds).max_by_key(|worker| {
                    let most = &worker.capacity;
                    (free(worker, |n| n.memory, most.memory), free(worker, |n| n.cpu_milli, most.cpu_milli))
                });
                reserved.extend(kept.map(|worker| worker.worker));
            }
        }
    }
}

fn needs() -> impl Strategy<Value = Needs> {
    (0..4_u64, 0..6_u64, 0..3_u64).prop_map(|(cpu_milli, memory, disk)| Needs { cpu_milli, memory, disk })
}

fn kind() -> impl Strategy<Value = ExecutorKind> {
    prop_oneof![3 => Just(ExecutorKind::Oci), 1 => Just(ExecutorKind::Wasi)]
}

prop_compose! {
    fn some_worker(number: u64)(
        attempts in 0..6_u64, cpu_milli in 4..12_u64, memory in 6..14_u64, disk in 3..9_u64, growth in 1..6_u64,
        creates in prop_oneof![Just(u64::MAX), 0..4_u64], lived in 0..40_u64, busy in 0..9_u8, storage in 0..9_u8,
        executors in proptest::sample::subsequence(vec![ExecutorKind::Oci, ExecutorKind::Wasi], 0..=2),
        hot in proptest::collection::vec(0..4_u64, 0..3),
    ) -> Worker {
        let capacity = Capacity { attempts, cpu_milli, memory, disk, execs: 1, growth };
        Worker {
            worker: worker(number), executors, capacity, execs: u64::from(busy == 0), creates, lived,
            storage_pressure: storage == 0, hot: hot.into_iter().map(root).collect(),
        }
    }
}

prop_compose! {
    fn some_waiting()(
        of in 0..4_u64, siblings in proptest::option::of(0..3_u64), priority in 0..2_i32,
        stage in prop_oneof![6 => Just(Stage::New), 1 => Just(Stage::Opened), 1 => Just(Stage::Retry), 1 => Just(Stage::Evaluate)],
        executor in kind(), needs in needs(), on in proptest::option::of(0..4_u64), queued_at in 0..250_i64,
    ) -> Waiting {
        // Siblings are of one group.
        let batch = siblings.map(|number| batch(of * 10 + number));
        Waiting { batch, priority, stage, executor, needs, root: on.map(root), queued_at: Timestamp(queued_at), ..waits(0, of) }
    }
}

prop_compose! {
    fn case()(
        workers in (0..5_u64).prop_flat_map(|count| (0..count).map(some_worker).collect::<Vec<_>>()),
        groups in proptest::collection::vec((proptest::option::of(0..6_u64), 0..5_u64), 0..4),
        live in proptest::collection::vec((0..5_u64, 0..4_u64, proptest::option::of(0..3_u64), needs()), 0..6),
        mut waiting in proptest::collection::vec(some_waiting(), 0..30),
    ) -> Case {
        (0..).zip(&mut waiting).for_each(|(number, waiting)| waiting.attempt = attempt(number));
        let groups = (0..).zip(groups).map(|(number, (max_live, last_start))| Group { last_start, ..known(number, max_live) });
        let live = live.into_iter().map(|(on, of, siblings, needs)| {
            Live { needs, batch: siblings.map(|number| batch(of * 10 + number)), ..lives(on, of) }
        });
        Case { workers, groups: groups.collect(), live: live.collect(), waiting }
    }
}

fn keeps_its_bounds(case: &Case, decisions: &Decisions) {
    let find = |id: &AttemptId| case.waiting.iter().find(|waiting| waiting.attempt == *id).expect("it waits");
    for group in &case.groups {
        let before = case.live.iter().filter(|live| live.group == group.group).count();
        let started = decisions.starts.iter().filter(|(id, _)| find(id).group == group.group).count();
        assert!(started == 0 || (before + started) as u64 <= group.max_live.unwrap_or(u64::MAX));
    }
    for worker in &case.workers {
        let here: Vec<&Waiting> =
            decisions.starts.iter().filter(|(_, on)| *on == worker.worker).map(|(id, _)| find(id)).collect();
        if here.is_empty() {
            continue;
        }
        let before = case.live.iter().filter(|live| live.worker == worker.worker);
        let all: Vec<Needs> =
            before.map(|live| live.needs).chain(here.iter().map(|waiting| waiting.needs)).collect();
        let sum = |what: fn(&Needs) -> u64| all.iter().map(what).sum::<u64>();
        assert!(here.len() as u64 <= worker.creates && !worker.storage_pressure);
        assert!(all.len() as u64 <= worker.capacity.attempts);
        assert!(all.len() as u64 <= worker.lived + worker.capacity.growth.max(worker.lived / 10));
        assert!(sum(|needs| needs.memory) <= worker.capacity.memory);
        assert!(sum(|needs| needs.cpu_milli) <= worker.capacity.cpu_milli);
        assert!(sum(|needs| needs.disk) <= worker.capacity.disk);
        assert!(here.iter().all(|waiting| worker.executors.contains(&waiting.executor)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_step_is_the_reference_and_keeps_its_bounds(mut case in case()) {
        let now = Timestamp(300);
        let decisions = step(now, &case.facts());
        keeps_its_bounds(&case, &decisions);
        let waiting: u64 = decisions.waits.iter().map(|waits| waits.waiting).sum();
        prop_assert_eq!(decisions.starts.len() + decisions.shed.len() + waiting as usize, case.waiting.len());
        // What is shed has its own tests; the reference knows nothing of it.
        case.waiting.retain(|waiting| decisions.shed.iter().all(|(id, _)| *id != waiting.attempt));
        let again = step(now, &case.facts());
        if again.shed.is_empty() {
            prop_assert_eq!(again.starts, reference(now, &case.facts()));
        }
    }

    #[test]
    fn the_queue_is_cut_to_its_bound(case in case(), most in 0..30_u64) {
        let facts = Facts { max_waiting: most, ..case.facts() };
        let decisions = step(Timestamp(0), &facts);
        let shed = decisions.shed.len() as u64;
        prop_assert!(case.waiting.len() as u64 - shed <= most);
        keeps_its_bounds(&case, &decisions);
    }
}
