//! Gauges of the worker, and the end of a whole group's attempts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Instant;

use esf_control::scheduler::{Needs, Reason};
use esf_core::ops::cancel::Cancel;
use esf_core::{FailureClass, GroupId, Problem, RootId, Timestamp};

use crate::clock;
use crate::message::{CancelRequest, Cancelled, Gauge, GroupQueue, HotRoot, Top};
use crate::server::Worker;
use crate::server::running::locked;

/// Roots that are named.
const HOT_ROOTS: usize = 10;

/// What failed since the worker's start, and the last look at what processors did.
#[derive(Default)]
pub(crate) struct Failures {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// When the processor time of each live attempt was looked at, and what it was.
    looked: Mutex<Option<(Instant, HashMap<esf_core::AttemptId, u64>)>>,
}

impl Failures {
    pub(crate) fn count(&self, class: FailureClass) {
        *locked(&self.counts).entry(class.as_str()).or_default() += 1;
    }

    fn all(&self) -> BTreeMap<String, u64> {
        locked(&self.counts).iter().map(|(class, count)| ((*class).to_owned(), *count)).collect()
    }

    /// Thousandths of processors since the last look; 0 at the first.
    fn cpu_milli(&self, now: HashMap<esf_core::AttemptId, u64>) -> u64 {
        let at = Instant::now();
        let before = locked(&self.looked).replace((at, now.clone()));
        let Some((then, before)) = before else { return 0 };
        let spent: u64 =
            now.iter().map(|(id, micros)| micros.saturating_sub(before.get(id).copied().unwrap_or(0))).sum();
        let elapsed = u64::try_from((at - then).as_micros()).unwrap_or(u64::MAX).max(1);
        spent.saturating_mul(1000) / elapsed
    }
}

impl Worker {
    pub(crate) fn top(&self) -> Top {
        let live: Vec<_> = locked(&self.state).live.values().cloned().collect();
        // Asked outside of the lock: a cgroup may take its time.
        let stats: Vec<_> = live.iter().filter_map(|live| Some((live.id(), live.stats()?))).collect();
        let cpu = self.failures.cpu_milli(stats.iter().map(|(id, stats)| (*id, stats.cpu_us)).collect());
        let memory = stats.iter().map(|(_, stats)| stats.memory_bytes).sum();
        let (execs, execs_waiting) = self.gate.counts();
        let storage = self.house.storage(&self.directory);
        let capacity = &self.house.capacity;
        let mut state = locked(&self.state);
        let creates_per_second = state.pace.rate(self.started.elapsed());
        let promised = state.taken.values().fold(Needs::default(), |sum, taken| Needs {
            cpu_milli: sum.cpu_milli.saturating_add(taken.needs.cpu_milli),
            memory: sum.memory.saturating_add(taken.needs.memory),
            disk: sum.disk.saturating_add(taken.needs.disk),
        });
        Top {
            pid: std::process::id(),
            live: (state.live.len() + state.starting.len()) as u64,
            max_live: self.config.max_live,
            starting: state.starting.len() as u64,
            queued: state.queue.len() as u64,
            groups: state.groups_that_wait(),
            execs,
            execs_waiting,
            max_execs: self.config.max_execs,
            cpu_milli: Gauge { used: cpu, promised: promised.cpu_milli, most: capacity.cpu_milli },
            memory: Gauge { used: memory, promised: promised.memory, most: capacity.memory },
            disk_free: storage.free,
            disk_total: storage.total,
            storage_pressure: storage.pressure,
            creates_per_second,
            errors: self.failures.all(),
            hot_roots: hot_roots(live.iter().filter_map(|live| live.root)),
        }
    }

    /// Ends what of a group waits, in one transaction, and what lives when that is said.
    pub(crate) fn cancel(&self, request: &CancelRequest) -> Result<Cancelled, Problem> {
        let command = Cancel { group: request.group, reason: request.reason };
        let queued =
            self.graph().cancel(&clock::meta(&request.meta), command).map_err(|error| error.problem())?;
        for _ in 0..queued {
            self.failures.count(request.reason.class());
        }
        let waiting = locked(&self.state).queue.take_all(Some(request.group));
        waiting.iter().flat_map(|(_, bells)| bells).for_each(|bell| bell.ring());
        let mut live = 0;
        if request.live {
            let all: Vec<_> = locked(&self.state).live.values().cloned().collect();
            for one in all.iter().filter(|live| live.attempt.group_id == request.group) {
                live += u64::from(self.call_off(one, request.reason.class(), request.reason.detail()));
            }
        }
        Ok(Cancelled { queued, live })
    }
}

impl crate::server::State {
    fn groups_that_wait(&self) -> Vec<GroupQueue> {
        let mut waiting = HashMap::<GroupId, (u64, Timestamp)>::new();
        for one in self.queue.waiting() {
            let (count, oldest) = waiting.entry(one.group).or_insert((0, one.queued_at));
            *count += 1;
            *oldest = (*oldest).min(one.queued_at);
        }
        let mut groups: Vec<GroupQueue> = waiting
            .into_iter()
            .map(|(group_id, (waiting, oldest))| GroupQueue {
                group_id,
                waiting,
                live: self.taken.values().filter(|taken| taken.group == group_id).count() as u64,
                reason: self.reason(group_id).as_str().to_owned(),
                oldest,
            })
            .collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.waiting), group.group_id));
        groups
    }

    /// Why attempts of a group waited at the last look.
    pub(crate) fn reason(&self, group: GroupId) -> Reason {
        self.groups.get(&group).and_then(|known| known.reason).unwrap_or(Reason::Attempts)
    }
}

fn hot_roots(roots: impl Iterator<Item = RootId>) -> Vec<HotRoot> {
    let mut counts = HashMap::<RootId, u64>::new();
    roots.for_each(|root| *counts.entry(root).or_default() += 1);
    let mut hot: Vec<HotRoot> = counts.into_iter().map(|(root_id, live)| HotRoot { root_id, live }).collect();
    hot.sort_by_key(|hot| (std::cmp::Reverse(hot.live), hot.root_id.to_string()));
    hot.truncate(HOT_ROOTS);
    hot
}
