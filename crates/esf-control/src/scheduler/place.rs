//! Where an attempt would live: by executor, then where its root is hot, then where the load is least.
//! Invariant: within a step the load of a worker only grows, so a heap whose entries may be out of date
//! gives the least loaded one all the same: an entry that is not as it was goes back to its new place.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use esf_core::RootId;
use esf_core::environment::ExecutorKind;

use super::facts::{Capacity, Facts, Needs, Reason, Worker};

/// What is left of one worker.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub(super) capacity: Capacity,
    attempts: u64,
    taken: Needs,
    starts: u64,
    grows: u64,
    execs: bool,
    storage: bool,
    reserved: bool,
    executors: [bool; KINDS],
}

/// How many kinds of executor there are, and the place of each.
pub(super) const KINDS: usize = 2;

pub(super) const fn place_of(kind: ExecutorKind) -> usize {
    match kind {
        ExecutorKind::Oci => 0,
        ExecutorKind::Wasi => 1,
    }
}

/// Parts of a million.
pub(super) fn share(used: u64, of: u64) -> u64 {
    if of == 0 {
        return u64::MAX;
    }
    let parts = u128::from(used) * 1_000_000 / u128::from(of);
    u64::try_from(parts).unwrap_or(u64::MAX)
}

impl Room {
    pub(super) fn of(worker: &Worker, live: u64, taken: Needs) -> Self {
        let capacity = worker.capacity;
        let mut executors = [false; KINDS];
        worker.executors.iter().for_each(|kind| executors[place_of(*kind)] = true);
        Self {
            capacity,
            attempts: live,
            taken,
            starts: worker.creates,
            grows: worker.lived.saturating_add(capacity.growth.max(worker.lived / 10)),
            execs: worker.execs < capacity.execs,
            storage: worker.storage_pressure,
            reserved: false,
            executors,
        }
    }

    pub(super) fn executes(&self, kind: ExecutorKind) -> bool {
        self.executors[place_of(kind)]
    }

    /// Why it starts nothing at all, whatever it is.
    pub(super) fn closed(&self) -> Option<Reason> {
        if self.storage {
            Some(Reason::Storage)
        } else if self.attempts >= self.capacity.attempts {
            Some(Reason::Attempts)
        } else if self.starts == 0 {
            Some(Reason::Creates)
        } else if self.attempts >= self.grows {
            Some(Reason::Growth)
        } else if !self.execs {
            Some(Reason::Execs)
        } else if self.reserved {
            Some(Reason::Reserved)
        } else {
            None
        }
    }

    /// Why it does not start one with these needs now.
    pub(super) fn blocks(&self, needs: &Needs) -> Option<Reason> {
        let over = |taken: u64, needed: u64, most: u64| taken.saturating_add(needed) > most;
        if let Some(reason) = self.closed() {
            Some(reason)
        } else if over(self.taken.memory, needs.memory, self.capacity.memory) {
            Some(Reason::Memory)
        } else if over(self.taken.cpu_milli, needs.cpu_milli, self.capacity.cpu_milli) {
            Some(Reason::Cpu)
        } else if over(self.taken.disk, needs.disk, self.capacity.disk) {
            Some(Reason::Disk)
        } else {
            None
        }
    }

    /// Whether one with these needs could ever live here.
    pub(super) fn holds(&self, needs: &Needs) -> bool {
        let most = &self.capacity;
        needs.memory <= most.memory && needs.cpu_milli <= most.cpu_milli && needs.disk <= most.disk
    }

    /// How full it is, in parts of a million, by what there is least of.
    pub(super) fn load(&self) -> u64 {
        let by_memory = share(self.taken.memory, self.capacity.memory);
        let by_cpu = share(self.taken.cpu_milli, self.capacity.cpu_milli);
        share(self.attempts, self.capacity.attempts).max(by_memory).max(by_cpu)
    }

    pub(super) fn take(&mut self, needs: &Needs) {
        self.attempts += 1;
        self.starts -= 1;
        self.taken = plus(&self.taken, needs);
    }

    pub(super) fn reserve(&mut self) {
        self.reserved = true;
    }

    /// Free memory, then free processors: who has most of them is kept free for one that does not fit.
    pub(super) fn free(&self) -> (u64, u64) {
        let memory = self.capacity.memory.saturating_sub(self.taken.memory);
        (memory, self.capacity.cpu_milli.saturating_sub(self.taken.cpu_milli))
    }
}

pub(super) fn plus(a: &Needs, b: &Needs) -> Needs {
    Needs {
        cpu_milli: a.cpu_milli.saturating_add(b.cpu_milli),
        memory: a.memory.saturating_add(b.memory),
        disk: a.disk.saturating_add(b.disk),
    }
}

/// Workers by load, the least first, then in the order of the facts.
#[derive(Default)]
struct Pool(BinaryHeap<Reverse<(u64, usize)>>);

impl Pool {
    /// The least loaded worker that takes `needs` now, if any; it stays in the pool.
    fn find(&mut self, rooms: &[Room], kind: ExecutorKind, needs: &Needs) -> Option<usize> {
        let mut aside = Vec::new();
        let mut found = None;
        while let Some(Reverse((load, at))) = self.0.pop() {
            let room = &rooms[at];
            // Within a step what is closed stays closed.
            if room.closed().is_some() {
                continue;
            }
            let now = room.load();
            if now != load {
                self.0.push(Reverse((now, at)));
                continue;
            }
            // The same worker may be there twice, when its root became hot meanwhile.
            if aside.last() == Some(&Reverse((load, at))) {
                continue;
            }
            aside.push(Reverse((load, at)));
            if room.executes(kind) && room.blocks(needs).is_none() {
                found = Some(at);
                break;
            }
        }
        self.0.extend(aside);
        found
    }
}

/// All workers, ordered as placement needs them.
pub(super) struct Places {
    pub(super) rooms: Vec<Room>,
    by_kind: [Pool; KINDS],
    hot: HashMap<RootId, Pool>,
    /// Why nobody starts a kind any more, once that is so.
    closed: [Option<Reason>; KINDS],
}

impl Places {
    pub(super) fn new(facts: &Facts<'_>, rooms: Vec<Room>) -> Self {
        let mut by_kind = [Pool::default(), Pool::default()];
        let mut hot = HashMap::<RootId, Pool>::new();
        for (at, (worker, room)) in facts.workers.iter().zip(&rooms).enumerate() {
            if room.closed().is_some() {
                continue;
            }
            let entry = Reverse((room.load(), at));
            for (place, pool) in by_kind.iter_mut().enumerate() {
                if room.executors[place] {
                    pool.0.push(entry);
                }
            }
            worker.hot.iter().for_each(|root| hot.entry(*root).or_default().0.push(entry));
        }
        Self { rooms, by_kind, hot, closed: [None; KINDS] }
    }

    /// Where one begins that starts on `root` with `needs`.
    pub(super) fn find(&mut self, kind: ExecutorKind, root: Option<RootId>, needs: &Needs) -> Option<usize> {
        let hot = root.and_then(|root| self.hot.get_mut(&root));
        if let Some(at) = hot.and_then(|pool| pool.find(&self.rooms, kind, needs)) {
            return Some(at);
        }
        self.by_kind[place_of(kind)].find(&self.rooms, kind, needs)
    }

    /// One that begins on `root` lives there from now on, and its root is ready there for those after it.
    pub(super) fn take(&mut self, at: usize, root: Option<RootId>, needs: &Needs) {
        self.rooms[at].take(needs);
        if let Some(root) = root {
            let entry = Reverse((self.rooms[at].load(), at));
            self.hot.entry(root).or_default().0.push(entry);
        }
    }

    /// Why no worker of this kind starts anything more in this step, when that is so.
    pub(super) fn closed_reason(&mut self, kind: ExecutorKind) -> Option<Reason> {
        if self.closed[place_of(kind)].is_none() {
            let pool = &mut self.by_kind[place_of(kind)].0;
            while let Some(Reverse((_, at))) = pool.peek() {
                // One that is open: the kind is.
                self.rooms[*at].closed()?;
                pool.pop();
            }
            self.closed[place_of(kind)] = Some(self.reason(kind, &Needs::default()));
        }
        self.closed[place_of(kind)]
    }

    /// Why none takes `needs`: what most of the workers of this kind say.
    pub(super) fn reason(&self, kind: ExecutorKind, needs: &Needs) -> Reason {
        let mut said = HashMap::<Reason, usize>::new();
        let able = self.rooms.iter().filter(|room| room.executes(kind));
        able.filter_map(|room| room.blocks(needs)).for_each(|reason| *said.entry(reason).or_default() += 1);
        let most = said.into_iter().max_by_key(|(reason, count)| (*count, Reverse(*reason)));
        most.map_or(Reason::NoWorker, |(reason, _)| reason)
    }

    /// Keeps the worker that is nearest to holding `needs` free for it.
    pub(super) fn reserve(&mut self, kind: ExecutorKind, needs: &Needs) {
        let able = |room: &Room| room.executes(kind) && room.closed().is_none() && room.holds(needs);
        let able = self.rooms.iter().enumerate().filter(|(_, room)| able(room));
        if let Some((at, _)) = able.max_by_key(|(at, room)| (room.free(), Reverse(*at))) {
            self.rooms[at].reserve();
        }
    }
}
