//! What is ended instead of started. Invariants: what could never live is told so at once; under pressure
//! the youngest group goes first, and what was begun is not shed for want of storage.

use std::collections::BTreeSet;

use super::facts::{Facts, Needs, Reason, Shed, Stage};
use super::order::Order;
use super::place::{KINDS, Room, place_of};
use esf_core::AttemptId;

/// What the workers of one kind say to all attempts.
struct Kind {
    /// The distinct capacities: cpu, memory, disk.
    capacities: BTreeSet<(u64, u64, u64)>,
    /// Whether there are any, and all of them are short of storage.
    pressed: bool,
}

/// Ends what will not be started.
pub(super) fn shed(facts: &Facts<'_>, rooms: &[Room], order: &mut Order<'_>) -> Vec<(AttemptId, Shed)> {
    let kinds = kinds(facts, rooms);
    let mut shed = Vec::new();
    let mut end = |order: &mut Order<'_>, item: usize, why: Shed| {
        order.shed(item);
        shed.push((facts.waiting[item].attempt, why));
    };
    for (item, waiting) in facts.waiting.iter().enumerate() {
        if let Some(why) = over_capacity(&kinds[place_of(waiting.executor)], &waiting.needs) {
            end(order, item, why);
        }
    }
    let left = order.left();
    let mut excess = left.saturating_sub(facts.max_waiting);
    let pressed = kinds.iter().any(|kind| kind.pressed);
    if excess == 0 && !pressed {
        return shed;
    }
    let mut spared = true;
    for mut items in order.youngest_first() {
        if excess > 0 {
            items.sort_by_key(|item| order.key(*item));
        }
        while excess > 0
            && let Some(item) = items.pop()
        {
            end(order, item, Shed::QueueFull { waiting: left, most: facts.max_waiting });
            excess -= 1;
        }
        // One group in a step, so that the older ones have a chance when that was enough.
        let begins = |item: &usize| {
            kinds[place_of(facts.waiting[*item].executor)].pressed && order.stage(*item) == Stage::New
        };
        let begins: Vec<usize> = items.into_iter().filter(begins).collect();
        if spared && !begins.is_empty() {
            spared = false;
            begins.into_iter().for_each(|item| end(order, item, Shed::Storage));
        }
    }
    shed
}

fn kinds(facts: &Facts<'_>, rooms: &[Room]) -> [Kind; KINDS] {
    let mut kinds = [(); KINDS].map(|()| Kind { capacities: BTreeSet::new(), pressed: true });
    for (worker, room) in facts.workers.iter().zip(rooms) {
        for kind in &worker.executors {
            let capacity = &room.capacity;
            let kind = &mut kinds[place_of(*kind)];
            kind.capacities.insert((capacity.cpu_milli, capacity.memory, capacity.disk));
            kind.pressed &= worker.storage_pressure;
        }
    }
    // Without a worker nobody knows.
    kinds.iter_mut().for_each(|kind| kind.pressed &= !kind.capacities.is_empty());
    kinds
}

/// Why no worker of the kind could ever hold it; nothing when there is none to ask.
fn over_capacity(kind: &Kind, needs: &Needs) -> Option<Shed> {
    let holds = |(cpu, memory, disk): &(u64, u64, u64)| {
        needs.cpu_milli <= *cpu && needs.memory <= *memory && needs.disk <= *disk
    };
    if kind.capacities.is_empty() || kind.capacities.iter().any(holds) {
        return None;
    }
    let most = |of: fn(&(u64, u64, u64)) -> u64| kind.capacities.iter().map(of).max().unwrap_or(0);
    let over = [
        (Reason::Memory, needs.memory, most(|capacity| capacity.1)),
        (Reason::Cpu, needs.cpu_milli, most(|capacity| capacity.0)),
        (Reason::Disk, needs.disk, most(|capacity| capacity.2)),
    ];
    // No single worker has enough of everything, though each thing is somewhere: then memory is named.
    let (what, needed, most) = *over.iter().find(|(_, needed, most)| needed > most).unwrap_or(&over[0]);
    Some(Shed::OverCapacity { what, needed, most })
}
