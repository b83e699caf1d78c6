//! Admission: the facts of this worker for the scheduler, and what its decisions change here.
//! Invariant: what is admitted is counted from that moment until its sandbox is gone.

use std::sync::Arc;
use std::time::Instant;

use esf_control::scheduler::{self, Facts, Group, Needs, Reason, Shed, Waiting};
use esf_core::record::{Attempt, Node, Purpose};
use esf_core::{AttemptId, Class, GroupId, Problem};

use crate::clock;
use crate::server::activate::full;
use crate::server::house::{House, over_capacity, storage_pressure};
use crate::server::running::{Bell, locked};
use crate::server::{Known, Refused, Starting, State, Worker};

impl Worker {
    /// Lets the scheduler decide over what waits, and wakes whom that concerns.
    pub(super) fn admit(&self, state: &mut State) {
        let now = self.started.elapsed();
        state.again_at = None;
        let live = state.taken.len() as u64;
        state.pace.lives(now, live);
        if state.stopping || state.queue.is_empty() {
            return;
        }
        let decisions = self.decide(state, state.queue.waiting());
        for (attempt, why) in decisions.shed {
            if let Some((_, bells)) = state.queue.take(attempt) {
                bells.iter().for_each(|bell| bell.ring());
                state.refused.insert(attempt, Refused { why, bells });
            }
        }
        for (attempt, _) in decisions.starts {
            let (waiting, bells) = state.queue.take(attempt).expect("started from the queue");
            state.starts += 1;
            state.pace.started(now);
            if let Some(known) = state.groups.get_mut(&waiting.group) {
                known.group.last_start = state.starts;
            }
            waiting.batch.iter().for_each(|batch| state.queue.opened(*batch));
            state.taken.insert(attempt, self.taken(&waiting));
            bells.iter().for_each(|bell| bell.ring());
            state.starting.insert(attempt, Starting { waiting, claimed: false, bells });
        }
        let live = state.taken.len() as u64;
        state.pace.lives(now, live);
        for waits in decisions.waits {
            if let Some(known) = state.groups.get_mut(&waits.group) {
                known.reason = Some(waits.reason);
            }
        }
        if let Some(after) = decisions.again_after {
            state.again_at = Some(Instant::now() + after);
            self.keeper.ring();
        }
    }

    /// What the scheduler says to `waiting`, beside what lives here.
    fn decide(&self, state: &State, waiting: &[Waiting]) -> scheduler::Decisions {
        let now = self.started.elapsed();
        let mut pace = state.pace.clone();
        let worker = scheduler::Worker {
            worker: self.id,
            executors: self.house.executors.clone(),
            capacity: self.house.capacity,
            execs: self.gate.counts().0,
            creates: pace.creates(now, self.config.creates_per_second),
            lived: pace.lived(now),
            storage_pressure: self.house.storage(&self.directory).pressure,
            // Where there is one worker only, every root is as near as another.
            hot: Vec::new(),
        };
        let groups: Vec<Group> = state.groups.values().map(|known| known.group).collect();
        let live: Vec<scheduler::Live> = state.taken.values().copied().collect();
        let facts = Facts {
            workers: std::slice::from_ref(&worker),
            groups: &groups,
            live: &live,
            waiting,
            max_waiting: self.config.max_waiting,
            patience: self.config.patience,
        };
        scheduler::step(clock::now(), &facts)
    }

    fn taken(&self, waiting: &Waiting) -> scheduler::Live {
        scheduler::Live { worker: self.id, group: waiting.group, batch: waiting.batch, needs: waiting.needs }
    }

    /// An attempt as the scheduler sees it.
    pub(crate) fn waiting(attempt: &Attempt, node: &Node) -> Waiting {
        Waiting {
            attempt: attempt.attempt_id,
            group: attempt.group_id,
            // Siblings began on the same node. What runs on a sealed node begins nothing.
            batch: node.parents.first().copied().filter(|_| attempt.purpose == Purpose::Work),
            priority: attempt.priority,
            stage: Waiting::stage_of(attempt),
            executor: attempt.executor,
            needs: House::needs(&attempt.budget),
            root: node.base_root_id.or(node.root_id),
            queued_at: attempt.queued_at,
        }
    }

    /// Remembers the group of an attempt: its quota, its budgets and its age.
    pub(super) fn know(&self, state: &mut State, group: &esf_core::record::Group) {
        let facts = Group {
            group: group.group_id,
            max_live: group.policy.quotas.max_live_attempts,
            created_at: group.created_at,
            last_start: 0,
        };
        let known = Known { group: facts, budgets: group.policy.budgets(), reason: None };
        state.groups.entry(group.group_id).or_insert(known);
    }

    /// For what is asked anew, before anything is recorded: refuses what this machine could never hold, and
    /// anything new while its file system is nearly full.
    pub(crate) fn refuse_at_the_door(&self, needs: &Needs, new: bool) -> Result<(), Problem> {
        self.house.holds(needs)?;
        let storage = self.house.storage(&self.directory);
        if new && storage.pressure { Err(storage_pressure(storage)) } else { Ok(()) }
    }

    /// For `no_wait`: says that there is no room before anything is recorded. Room that goes between
    /// this and the start is noticed there.
    pub(crate) fn refuse_when_full(
        &self,
        waiting: &Waiting,
        group: &esf_core::record::Group,
    ) -> Result<(), Problem> {
        let mut state = locked(&self.state);
        self.know(&mut state, group);
        let decisions = self.decide(&state, std::slice::from_ref(waiting));
        match decisions.waits.first() {
            None => Ok(()),
            Some(waits) => Err(self.no_room(&state, waits.group, waits.reason)),
        }
    }

    /// Why one of a group does not start now, as a problem.
    pub(super) fn no_room(&self, state: &State, group: GroupId, reason: Reason) -> Problem {
        let here = |taken: &&scheduler::Live| taken.group == group;
        match (reason, state.groups.get(&group).and_then(|known| known.group.max_live)) {
            (Reason::GroupQuota, Some(quota)) => {
                let used = state.taken.values().filter(here).count() as u64;
                full("the group", "max_live_attempts", used, quota)
            }
            (Reason::Storage, _) => storage_pressure(self.house.storage(&self.directory)),
            (Reason::Attempts, _) => {
                full("the worker", "max_live", state.taken.len() as u64, self.config.max_live)
            }
            (reason, _) => {
                let message = format!("the worker has no room for another live attempt: {}", reason.as_str());
                Problem::new(Class::Refused, "quota", message)
                    .remedy("wait for some to end, or leave out --no-wait; `esf top` shows what is used")
                    .retryable()
            }
        }
    }

    /// Why an attempt was refused while it waited, as a problem.
    pub(crate) fn refusal(&self, why: Shed) -> Problem {
        match why {
            Shed::OverCapacity { what, needed, most } => over_capacity(what.as_str(), needed, most, "units"),
            Shed::Storage => storage_pressure(self.house.storage(&self.directory)),
            Shed::QueueFull { waiting, most } => Problem::new(
                Class::Refused,
                "queue_full",
                "more attempts wait than may: the youngest are refused",
            )
            .expected(format!("at most {most} that wait"))
            .found(format!("{waiting}"))
            .remedy("wait until some have ended, then try again")
            .retryable(),
        }
    }

    /// Takes one of those who wait for an attempt away; true when it was the last and nobody has begun to
    /// start it, so that it leaves the queue, or its slot, as well.
    pub(crate) fn leave(&self, id: AttemptId, bell: &Arc<Bell>) -> bool {
        let mut state = locked(&self.state);
        if let Some(last) = state.queue.leave(id, bell) {
            return last;
        }
        let last = state.starting.get_mut(&id).is_some_and(|starting| {
            starting.bells.retain(|other| !Arc::ptr_eq(other, bell));
            !starting.claimed && starting.bells.is_empty()
        });
        if last {
            state.starting.remove(&id);
            state.taken.remove(&id);
            self.admit(&mut state);
        }
        last
    }
}
