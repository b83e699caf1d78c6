//! Who lives next, and where: a pure decision over workers, what lives and what waits (design section 6).
//! `docs/scheduler.md` says the rules for users.
//!
//! Invariants: no bound of a worker or a group is ever exceeded; the same facts give the same decisions. The
//! order is: higher priority; among groups of one priority the one with the smallest share of the workers,
//! and of those the one served longest ago; within a group what finishes something that was begun; then
//! first in, first out. An attempt that does not fit holds back its own group's later ones for the same
//! executor and nobody else, until it has waited for `patience`: then a worker is kept free for it.
//!
//! A step looks at each waiting attempt once and orders only the groups that may start something, so that
//! it costs little however many wait.

mod facts;
mod order;
mod pace;
mod place;
mod shed;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use esf_core::Timestamp;

pub use facts::{
    Capacity, Decisions, Facts, GROWTH_WINDOW, Group, Live, Needs, Reason, Shed, Stage, Waiting, Waits,
    Worker,
};
pub use pace::Pace;

use order::Order;
use place::{Places, Room};

/// Decides what is started, what is shed, and why the rest waits.
pub fn step(now: Timestamp, facts: &Facts<'_>) -> Decisions {
    let rooms = rooms(facts);
    let mut order = Order::new(facts);
    let mut decisions = Decisions { shed: shed::shed(facts, &rooms, &mut order), ..Decisions::default() };
    start(now, facts, Places::new(facts, rooms), &mut order, &mut decisions);
    decisions.waits = order.waits();
    let passing = decisions.waits.iter().filter_map(|waits| waits.reason.passes());
    decisions.again_after = passing.min();
    decisions
}

/// What is left of each worker beside what lives there.
fn rooms(facts: &Facts<'_>) -> Vec<Room> {
    let places: std::collections::HashMap<_, _> =
        facts.workers.iter().enumerate().map(|(at, worker)| (worker.worker, at)).collect();
    let mut used = vec![(0_u64, Needs::default()); facts.workers.len()];
    for live in facts.live {
        if let Some(at) = places.get(&live.worker) {
            let (count, needs) = &mut used[*at];
            *count += 1;
            *needs = place::plus(needs, &live.needs);
        }
    }
    facts.workers.iter().zip(used).map(|(worker, (live, taken))| Room::of(worker, live, taken)).collect()
}

fn start(
    now: Timestamp,
    facts: &Facts<'_>,
    mut places: Places,
    order: &mut Order<'_>,
    decisions: &mut Decisions,
) {
    order.arrange(&mut places);
    while let Some(turn) = order.next() {
        let waiting = &facts.waiting[turn.item];
        match places.find(waiting.executor, waiting.root, &waiting.needs) {
            Some(at) => {
                places.take(at, waiting.root, &waiting.needs);
                order.started(turn);
                decisions.starts.push((waiting.attempt, facts.workers[at].worker));
            }
            None => {
                let closed = places.closed_reason(waiting.executor);
                let reason = closed.unwrap_or_else(|| places.reason(waiting.executor, &waiting.needs));
                if closed.is_none() && waited(now, waiting.queued_at) >= facts.patience {
                    places.reserve(waiting.executor, &waiting.needs);
                }
                order.blocked(turn, reason);
            }
        }
    }
}

fn waited(now: Timestamp, since: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0))
}
