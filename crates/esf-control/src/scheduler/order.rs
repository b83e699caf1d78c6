//! In which order attempts have their turn. Invariant: a lane (one group, one executor) has one entry among
//! the turns, which may be out of date; an entry that is not as it was goes back to its new place, and
//! entries only move back within a step, so the first that is up to date is the first of all.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use esf_core::{GroupId, NodeId, Timestamp};

use super::facts::{Facts, Group, Needs, Reason, Stage, Waiting, Waits};
use super::place::{KINDS, Places, place_of, plus, share};

/// Ids are digests already, so eight bytes of one would be a hash; folding a product spreads what is not.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut eight = [0; 8];
        let length = bytes.len().min(8);
        eight[..length].copy_from_slice(&bytes[bytes.len() - length..]);
        let product = u128::from(self.0 ^ u64::from_le_bytes(eight)) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Ids<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// The order within a group. Smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    priority: Reverse<i32>,
    stage: Stage,
    queued_at: Timestamp,
    item: u32,
}

/// The order of lanes. Smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LaneKey {
    priority: Reverse<i32>,
    share: u64,
    live: u64,
    last_start: u64,
    first: Key,
    lane: usize,
}

/// What a group has and wants.
struct Account {
    group: Group,
    live: u64,
    taken: Needs,
    waiting: u64,
    reason: Option<Reason>,
    /// The batch of the first of its attempts that would begin something.
    batch: Option<Option<NodeId>>,
    /// Whether the order changes when a batch is begun: not when all of them are of one.
    mixed: bool,
}

impl Account {
    fn is_full(&self) -> bool {
        self.group.max_live.is_some_and(|most| self.live >= most)
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) item: usize,
    lane: usize,
}

/// All that wait, in order.
pub(super) struct Order<'a> {
    waiting: &'a [Waiting],
    accounts: Vec<Account>,
    /// The account of each that waits.
    account_of: Vec<u32>,
    /// Started or shed.
    done: Vec<bool>,
    opened: HashSet<NodeId, BuildHasherDefault<IdHasher>>,
    lanes: Vec<BinaryHeap<Reverse<Key>>>,
    turns: BinaryHeap<Reverse<LaneKey>>,
    /// By account: the first that waits of each batch that would be begun; `next` has the others.
    siblings: HashMap<usize, Ids<NodeId, u32>>,
    next: Vec<u32>,
    starts: u64,
    total: (u64, Needs),
}

const NONE: u32 = u32::MAX;

impl<'a> Order<'a> {
    pub(super) fn new(facts: &Facts<'a>) -> Self {
        let mut order = Self {
            waiting: facts.waiting,
            accounts: facts.groups.iter().map(|group| account(*group)).collect(),
            account_of: Vec::with_capacity(facts.waiting.len()),
            done: vec![false; facts.waiting.len()],
            opened: HashSet::default(),
            lanes: Vec::new(),
            turns: BinaryHeap::new(),
            siblings: HashMap::new(),
            next: Vec::new(),
            starts: facts.groups.iter().map(|group| group.last_start).max().unwrap_or(0),
            total: total(facts),
        };
        let mut known: Ids<GroupId, u32> =
            (0..).zip(facts.groups).map(|(at, group)| (group.group, at)).collect();
        order.count_waiting(&mut known);
        order.count_live(facts, &known);
        order
    }

    fn count_live(&mut self, facts: &Facts<'_>, known: &Ids<GroupId, u32>) {
        for live in facts.live {
            if let Some(at) = known.get(&live.group) {
                let account = &mut self.accounts[*at as usize];
                account.live += 1;
                account.taken = plus(&account.taken, &live.needs);
            }
            self.opened.extend(live.batch);
        }
    }

    fn count_waiting(&mut self, known: &mut Ids<GroupId, u32>) {
        let mut last: Option<(GroupId, u32)> = None;
        for waiting in self.waiting {
            let at = match last {
                Some((group, at)) if group == waiting.group => at,
                _ => *known.entry(waiting.group).or_insert_with(|| {
                    // Nothing is known of it but that it waits.
                    let (created_at, group) = (waiting.queued_at, waiting.group);
                    self.accounts.push(account(Group { group, max_live: None, created_at, last_start: 0 }));
                    u32::try_from(self.accounts.len() - 1).expect("fewer groups than attempts")
                }),
            };
            last = Some((waiting.group, at));
            self.account_of.push(at);
            self.accounts[at as usize].waiting += 1;
            if waiting.stage == Stage::Opened {
                self.opened.extend(waiting.batch);
            }
        }
    }

    /// The stage of one that waits, with what is known of its siblings.
    pub(super) fn stage(&self, item: usize) -> Stage {
        let waiting = &self.waiting[item];
        match (waiting.stage, waiting.batch) {
            (Stage::New, Some(batch)) if self.opened.contains(&batch) => Stage::Opened,
            (stage, _) => stage,
        }
    }

    pub(super) fn key(&self, item: usize) -> Key {
        let waiting = &self.waiting[item];
        Key {
            priority: Reverse(waiting.priority),
            stage: self.stage(item),
            queued_at: waiting.queued_at,
            item: u32::try_from(item).expect("fewer than four thousand million attempts wait"),
        }
    }

    /// The items of each group that are not done, the youngest group first.
    pub(super) fn youngest_first(&self) -> Vec<Vec<usize>> {
        let mut items = vec![Vec::new(); self.accounts.len()];
        for (item, account) in self.account_of.iter().enumerate().filter(|(item, _)| !self.done[*item]) {
            items[*account as usize].push(item);
        }
        let mut by_age: Vec<usize> = (0..items.len()).filter(|at| !items[*at].is_empty()).collect();
        by_age.sort_by_key(|at| {
            let group = &self.accounts[*at].group;
            Reverse((group.created_at, group.group))
        });
        by_age.into_iter().map(|at| std::mem::take(&mut items[at])).collect()
    }

    /// How many are neither started nor shed.
    pub(super) fn left(&self) -> u64 {
        self.accounts.iter().map(|account| account.waiting).sum()
    }

    pub(super) fn shed(&mut self, item: usize) {
        self.done[item] = true;
        self.accounts[self.account_of[item] as usize].waiting -= 1;
    }

    /// Orders those who may have a turn: their group has room, and somebody starts their kind.
    pub(super) fn arrange(&mut self, places: &mut Places) {
        let mut items = vec![Vec::new(); self.accounts.len() * KINDS];
        for (item, waiting) in self.waiting.iter().enumerate().filter(|(item, _)| !self.done[*item]) {
            let at = self.account_of[item] as usize;
            if self.accounts[at].is_full() {
                self.accounts[at].reason = Some(Reason::GroupQuota);
                continue;
            }
            if let Some(reason) = places.closed_reason(waiting.executor) {
                self.accounts[at].reason.get_or_insert(reason);
                continue;
            }
            let key = self.key(item);
            let account = &mut self.accounts[at];
            match key.stage {
                Stage::New => {
                    account.mixed |= *account.batch.get_or_insert(waiting.batch) != waiting.batch;
                }
                // What would be begun goes in among these once it is.
                Stage::Opened => account.mixed = true,
                Stage::Salvage | Stage::Evaluate | Stage::Retry => {}
            }
            items[at * KINDS + place_of(waiting.executor)].push(Reverse(key));
        }
        self.lanes = items.into_iter().map(BinaryHeap::from).collect();
        self.turns = (0..self.lanes.len()).filter_map(|lane| self.lane_key(lane).map(Reverse)).collect();
    }

    fn lane_key(&mut self, lane: usize) -> Option<LaneKey> {
        let first = loop {
            let Reverse(first) = *self.lanes[lane].peek()?;
            if !self.done[first.item as usize] {
                break first;
            }
            self.lanes[lane].pop();
        };
        let account = &self.accounts[lane / KINDS];
        let (attempts, all) = &self.total;
        let taken = &account.taken;
        let by_needs = share(taken.memory, all.memory).max(share(taken.cpu_milli, all.cpu_milli));
        Some(LaneKey {
            priority: first.priority,
            share: share(account.live, *attempts).max(by_needs),
            live: account.live,
            last_start: account.group.last_start,
            first,
            lane,
        })
    }

    /// Who is next, unless nobody is.
    pub(super) fn next(&mut self) -> Option<Turn> {
        loop {
            let Reverse(top) = self.turns.pop()?;
            let account = &mut self.accounts[top.lane / KINDS];
            if account.is_full() {
                account.reason.get_or_insert(Reason::GroupQuota);
                continue;
            }
            match self.lane_key(top.lane) {
                None => {}
                Some(now) if now != top => self.turns.push(Reverse(now)),
                Some(now) => return Some(Turn { item: now.first.item as usize, lane: now.lane }),
            }
        }
    }

    /// It was given a place.
    pub(super) fn started(&mut self, turn: Turn) {
        let waiting = &self.waiting[turn.item];
        self.done[turn.item] = true;
        self.starts += 1;
        let account = &mut self.accounts[turn.lane / KINDS];
        account.live += 1;
        account.waiting -= 1;
        account.taken = plus(&account.taken, &waiting.needs);
        account.group.last_start = self.starts;
        if let Some(batch) = waiting.batch
            && self.opened.insert(batch)
            && self.accounts[turn.lane / KINDS].mixed
        {
            self.open(turn.lane / KINDS, batch);
        }
        let next = self.lane_key(turn.lane).map(Reverse);
        self.turns.extend(next);
    }

    /// It has no place now, and nobody behind it in its lane overtakes it.
    pub(super) fn blocked(&mut self, turn: Turn, reason: Reason) {
        self.accounts[turn.lane / KINDS].reason.get_or_insert(reason);
    }

    /// Moves the siblings of one that was begun to the front of what would be begun. Their old entries
    /// stay behind, and are passed by when they come up.
    fn open(&mut self, account: usize, batch: NodeId) {
        if !self.siblings.contains_key(&account) {
            let links = self.link(account);
            self.siblings.insert(account, links);
        }
        let mut item = self.siblings[&account].get(&batch).copied().unwrap_or(NONE);
        while item != NONE {
            if !self.done[item as usize] {
                let lane = account * KINDS + place_of(self.waiting[item as usize].executor);
                let key = self.key(item as usize);
                self.lanes[lane].push(Reverse(key));
            }
            item = self.next[item as usize];
        }
    }

    fn link(&mut self, account: usize) -> Ids<NodeId, u32> {
        if self.next.is_empty() {
            self.next = vec![NONE; self.waiting.len()];
        }
        let mut first = Ids::<NodeId, u32>::default();
        for lane in &self.lanes[account * KINDS..(account + 1) * KINDS] {
            for Reverse(key) in lane.iter().filter(|Reverse(key)| key.stage == Stage::New) {
                if let Some(batch) = self.waiting[key.item as usize].batch {
                    self.next[key.item as usize] = first.insert(batch, key.item).unwrap_or(NONE);
                }
            }
        }
        first
    }

    /// The groups that go on waiting.
    pub(super) fn waits(&self) -> Vec<Waits> {
        let left = self.accounts.iter().filter(|account| account.waiting > 0);
        let waits = left.map(|account| Waits {
            group: account.group.group,
            waiting: account.waiting,
            reason: account.reason.expect("who waits on was full, or found no place"),
        });
        waits.collect()
    }
}

fn account(group: Group) -> Account {
    Account { group, live: 0, taken: Needs::default(), waiting: 0, reason: None, batch: None, mixed: false }
}

/// What all workers have together.
fn total(facts: &Facts<'_>) -> (u64, Needs) {
    let capacities = facts.workers.iter().map(|worker| worker.capacity);
    capacities.fold((0, Needs::default()), |(attempts, needs), capacity| {
        let more = Needs { cpu_milli: capacity.cpu_milli, memory: capacity.memory, disk: capacity.disk };
        (attempts.saturating_add(capacity.attempts), plus(&needs, &more))
    })
}
