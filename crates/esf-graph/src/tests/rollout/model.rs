//! The delivery against a plain model of it in memory: any sequence of results, deliveries, acknowledgements, leases
//! that end, policies that are published, trainers that go back and refills has the same answers in both.

use std::collections::{BTreeMap, BTreeSet};

use esf_core::ops::rollout::{
    Ack, Begun, Consume, HoldBatch, RefillAgain, Reopen, StartSibling, StartSiblings, Target,
};
use esf_core::time::BootMillis;
use proptest::prelude::*;

use super::{Running, failed, scored, sequences};
use crate::Meta;
use crate::tests::{code, meta};

const CONSUMERS: [&str; 2] = ["all", "usable"];
const STALENESS: u64 = 1;
const REFILLS: u32 = 2;

#[derive(Clone, Debug)]
enum Op {
    /// A waiting sibling begins and ends, with a result that is usable or not.
    Finish {
        usable: bool,
    },
    Publish,
    Consume {
        consumer: usize,
        max: u32,
        lease: u64,
    },
    /// `pick` chooses among all batches there ever were; every `n`th entry is filtered, all else trained on.
    Ack {
        consumer: usize,
        pick: usize,
        filter: usize,
        step: u64,
        some: bool,
    },
    Wait {
        millis: i64,
    },
    Hold {
        pick: usize,
        lease: u64,
    },
    Reopen {
        consumer: usize,
        after: u64,
    },
    Refill {
        pick: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let consumer = || 0..CONSUMERS.len();
    prop_oneof![
        5 => any::<bool>().prop_map(|usable| Op::Finish { usable }),
        1 => Just(Op::Publish),
        6 => (consumer(), 1..5_u32, 1..40_u64).prop_map(|(consumer, max, lease)| Op::Consume { consumer, max, lease }),
        6 => (consumer(), any::<usize>(), 0..4_usize, 1..5_u64, any::<bool>())
            .prop_map(|(consumer, pick, filter, step, some)| Op::Ack { consumer, pick, filter, step, some }),
        2 => (1..30_i64).prop_map(|millis| Op::Wait { millis }),
        1 => (any::<usize>(), 0..2_u64).prop_map(|(pick, lease)| Op::Hold { pick, lease: lease * 20 }),
        1 => (consumer(), 0..4_u64).prop_map(|(consumer, after)| Op::Reopen { consumer, after }),
        3 => any::<usize>().prop_map(|pick| Op::Refill { pick }),
    ]
}

/// What the model knows of an entry.
#[derive(Clone, Debug)]
struct Entry {
    sibling: usize,
    usable: bool,
    version: u64,
    superseded: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// `None`: given back; a batch that merely ended is known by it, one that was undone is not.
    Free(Option<u64>),
    Leased {
        batch: u64,
        until: i64,
    },
    Trained {
        batch: u64,
        step: u64,
    },
    Filtered {
        batch: u64,
    },
    Dropped(&'static str),
}

#[derive(Clone, Debug, Default)]
struct Reader {
    known: bool,
    offered: u64,
    states: BTreeMap<u64, State>,
}

#[derive(Default)]
struct Model {
    now: i64,
    version: u64,
    log: BTreeMap<u64, Entry>,
    next: u64,
    readers: [Reader; 2],
    batches: Vec<(usize, Vec<u64>)>,
    /// Each sibling's entry, when it has ended, and its refills.
    siblings: Vec<(Option<u64>, u32)>,
}

impl Model {
    fn accepted(&self) -> (u64, u64) {
        let mut counts = (0, 0);
        for (sequence, _) in self.log.iter().filter(|(_, entry)| entry.usable && !entry.superseded) {
            let states: Vec<_> =
                self.readers.iter().filter_map(|reader| reader.states.get(sequence)).collect();
            let lost = |state: &&&State| matches!(state, State::Filtered { .. } | State::Dropped("stale"));
            if !states.iter().any(|state| lost(&state)) {
                counts.0 += 1;
                counts.1 += u64::from(states.iter().any(|state| matches!(state, State::Trained { .. })));
            }
        }
        counts
    }

    fn consume(&mut self, consumer: usize, max: usize, lease: u64) -> (Vec<u64>, u64) {
        let now = self.now;
        let reader = &mut self.readers[consumer];
        reader.known = true;
        let free = |state: &State| match state {
            State::Free(_) => true,
            State::Leased { until, .. } => *until <= now,
            State::Trained { .. } | State::Filtered { .. } | State::Dropped(_) => false,
        };
        let old: Vec<u64> = reader.states.iter().filter(|(_, s)| free(s)).map(|(n, _)| *n).collect();
        let new: Vec<u64> = self.log.keys().copied().filter(|n| *n > reader.offered).collect();
        let (mut taken, mut dropped) = (Vec::new(), 0);
        for sequence in old.into_iter().chain(new) {
            if taken.len() == max {
                break;
            }
            let entry = &self.log[&sequence];
            let reason = if entry.superseded {
                Some("superseded")
            } else if consumer == 1 && !entry.usable {
                Some("unusable")
            } else if self.version - entry.version > STALENESS {
                Some("stale")
            } else {
                None
            };
            let batch = self.batches.len() as u64 + 1;
            let until = now + i64::try_from(lease).expect("small");
            let state = reason.map_or(State::Leased { batch, until }, State::Dropped);
            dropped += u64::from(reason.is_some());
            if reason.is_none() {
                taken.push(sequence);
            }
            reader.states.insert(sequence, state);
            reader.offered = reader.offered.max(sequence);
        }
        if !taken.is_empty() {
            self.batches.push((consumer, taken.clone()));
        }
        (taken, dropped)
    }

    /// The refusal, or how many are trained on, filtered, known.
    fn ack(&mut self, consumer: usize, ack: &Ack) -> Result<(u64, u64, u64), &'static str> {
        let of_batch = usize::try_from(ack.batch).ok().and_then(|batch| self.batches.get(batch - 1));
        let Some((_, delivered)) =
            of_batch.filter(|(owner, _)| *owner == consumer && self.readers[consumer].known)
        else {
            return Err("never_leased");
        };
        let filtered: BTreeSet<u64> = ack.filtered.iter().copied().collect();
        let trained = ack.sequences.clone().unwrap_or_else(|| {
            delivered.iter().copied().filter(|sequence| !filtered.contains(sequence)).collect()
        });
        let mut marks: Vec<(u64, State)> = Vec::new();
        let mut repeated = 0;
        let asked: BTreeMap<u64, bool> =
            trained.iter().map(|n| (*n, false)).chain(filtered.iter().map(|n| (*n, true))).collect();
        // The refusal that is told is the first one: trained entries come before filtered ones.
        let mut order: Vec<(u64, bool)> = asked.into_iter().collect();
        order.sort_by_key(|(sequence, filter)| (*filter, *sequence));
        for (sequence, filter) in order {
            let batch = ack.batch;
            let wanted = if filter {
                State::Filtered { batch }
            } else {
                State::Trained { batch, step: ack.trainer_step }
            };
            match &self.readers[consumer].states[&sequence] {
                State::Leased { batch: current, .. }
                | State::Free(Some(current))
                | State::Trained { batch: current, .. }
                | State::Filtered { batch: current }
                    if *current != batch =>
                {
                    return Err("lease_lost");
                }
                State::Leased { .. } | State::Free(Some(_)) => marks.push((sequence, wanted)),
                State::Free(None) | State::Dropped(_) => return Err("ack_differs"),
                state if *state == wanted => repeated += 1,
                State::Trained { .. } | State::Filtered { .. } => return Err("ack_differs"),
            }
        }
        let new = marks.iter().filter(|(_, state)| matches!(state, State::Trained { .. })).count() as u64;
        let counts = (new, marks.len() as u64 - new, repeated);
        self.readers[consumer].states.extend(marks);
        Ok(counts)
    }
}

struct Both {
    running: Running,
    model: Model,
    begun: Vec<Begun>,
}

impl Both {
    fn new() -> Self {
        let running = Running::new(|run| (run.max_staleness, run.max_refills) = (Some(STALENESS), REFILLS));
        let model = Model { now: 1_000, version: 1, next: 1, ..Model::default() };
        Self { running, model, begun: Vec::new() }
    }

    fn at(&self) -> Meta {
        let mut meta = meta();
        meta.boot.millis = BootMillis(self.model.now);
        meta
    }

    fn end(&mut self, sibling: usize, begun: &Begun, usable: bool) {
        let outcome = if usable { scored(1.0) } else { failed(esf_core::FailureClass::UserExit) };
        let outcome =
            if usable { outcome } else { esf_core::rollout::Outcome { usable: Some(false), ..outcome } };
        self.running.finish(begun, outcome).expect("finish");
        let version = self.model.version;
        let sequence = self.model.next;
        self.model.next += 2; // its group event follows
        self.model.log.insert(sequence, Entry { sibling, usable, version, superseded: false });
        self.model.siblings[sibling].0 = Some(sequence);
    }

    fn consume(&mut self, consumer: usize, max: u32, lease_ms: u64) {
        let command = Consume {
            usable_only: Some(consumer == 1),
            lease_ms,
            ..self.running.taking(CONSUMERS[consumer], max)
        };
        let batch = self.running.graph().consume(&self.at(), command).expect("consume");
        let expected = self.model.consume(consumer, max as usize, lease_ms);
        assert_eq!((sequences(&batch), batch.dropped), expected);
        for entry in &batch.deliveries {
            let known = &self.model.log[&entry.delivery.sequence];
            assert_eq!(entry.delivery.usable, known.usable);
            assert_eq!(entry.delivery.sibling_id, Some(self.begun[known.sibling].sibling_id));
        }
    }

    fn refill(&mut self, pick: usize) {
        if self.begun.is_empty() {
            return;
        }
        let index = pick % self.begun.len();
        let sibling_id = self.begun[index].sibling_id;
        let (end, refills) = self.model.siblings[index];
        let used = end.is_some_and(|end| {
            let states = self.model.readers.iter().filter_map(|reader| reader.states.get(&end));
            states.into_iter().any(|state| matches!(state, State::Trained { .. } | State::Filtered { .. }))
        });
        let command = RefillAgain { target: Target::Sibling(sibling_id) };
        let answer = self.running.graph().refill(&self.at(), command);
        let expected = match () {
            () if refills >= REFILLS => Some("no_refill"),
            () if used => Some("already_used"),
            () => None,
        };
        assert_eq!(answer.as_ref().err().map(code).as_deref(), expected);
        let (Some(end), None) = (end, expected) else { return };
        self.model.log.get_mut(&end).expect("its end").superseded = true;
        self.model.siblings[index] = (None, refills + 1);
        let start = StartSiblings { siblings: vec![StartSibling::of(sibling_id)], ..self.running.ask(0) };
        let begun = self.running.graph().start_siblings(&self.at(), start).expect("start").begun.remove(0);
        self.end(index, &begun, true);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Finish { usable } => {
                self.running.add(1, 1);
                let begun = self.running.next(1).begun.remove(0);
                self.begun.push(begun.clone());
                self.model.siblings.push((None, 0));
                self.end(self.begun.len() - 1, &begun, usable);
            }
            Op::Publish => {
                self.model.version += 1;
                self.running.publish(self.model.version);
            }
            Op::Consume { consumer, max, lease } => self.consume(consumer, max, lease),
            Op::Ack { consumer, pick, filter, step, some } => {
                let batch = (pick % (self.model.batches.len() + 1)) as u64 + 1;
                let owned = self.model.batches.get(usize::try_from(batch - 1).expect("small"));
                let all = owned.map_or(Vec::new(), |(_, sequences)| sequences.clone());
                let chosen = |n: &&u64| filter > 0 && (**n / 2).is_multiple_of(filter as u64 + 1);
                let filtered: Vec<u64> = all.iter().filter(chosen).copied().collect();
                let rest: Vec<u64> = all.iter().filter(|n| !chosen(n)).take(2).copied().collect();
                let ack = Ack {
                    run_id: self.running.run,
                    consumer: CONSUMERS[consumer].to_owned(),
                    batch,
                    sequences: some.then_some(rest),
                    filtered,
                    trainer_step: step,
                };
                let answer = self.running.graph().ack(&self.at(), ack.clone());
                let answer =
                    answer.map(|a| (a.trained, a.filtered, a.repeated)).map_err(|error| code(&error));
                assert_eq!(answer, self.model.ack(consumer, &ack).map_err(str::to_owned), "{ack:?}");
            }
            Op::Wait { millis } => self.model.now += millis,
            Op::Hold { pick, lease } => {
                if self.model.batches.is_empty() {
                    return;
                }
                let index = pick % self.model.batches.len();
                let (consumer, batch) = (self.model.batches[index].0, index as u64 + 1);
                let name = CONSUMERS[consumer].to_owned();
                let hold = HoldBatch { run_id: self.running.run, consumer: name, batch, lease_ms: lease };
                let changed = self.running.graph().hold_batch(&self.at(), hold).expect("hold");
                let until = self.model.now + i64::try_from(lease).expect("small");
                let mut expected = 0;
                for state in self.model.readers[consumer].states.values_mut() {
                    if matches!(state, State::Leased { batch: current, .. } if *current == batch) {
                        *state = if lease == 0 {
                            State::Free(Some(batch))
                        } else {
                            State::Leased { batch, until }
                        };
                        expected += 1;
                    }
                }
                assert_eq!(changed, expected);
            }
            Op::Reopen { consumer, after } => {
                let name = CONSUMERS[consumer].to_owned();
                let command = Reopen { run_id: self.running.run, consumer: name, after_step: after };
                let answer = self.running.graph().reopen(&self.at(), command);
                if !self.model.readers[consumer].known {
                    assert_eq!(code(&answer.expect_err("unknown")), "never_leased");
                    return;
                }
                let mut expected = 0;
                for state in self.model.readers[consumer].states.values_mut() {
                    if matches!(state, State::Trained { step, .. } if *step > after) {
                        *state = State::Free(None);
                        expected += 1;
                    }
                }
                assert_eq!(answer.expect("reopen").reopened, expected);
            }
            Op::Refill { pick } => self.refill(pick),
        }
        let counts = self.running.now().counts;
        assert_eq!((counts.accepted, counts.trained), self.model.accepted(), "after {op:?}");
    }

    /// Everything that is left is delivered, once more or for the first time, to each of the consumers.
    fn drain(&mut self) {
        self.model.now += 1_000;
        for consumer in 0..CONSUMERS.len() {
            self.consume(consumer, 1_000, 10);
            let reader = &self.model.readers[consumer];
            assert!(self.model.log.keys().all(|sequence| reader.states.contains_key(sequence)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn delivery_is_as_a_plain_model_of_it(ops in proptest::collection::vec(op(), 1..60)) {
        let mut both = Both::new();
        for op in &ops {
            both.step(op);
        }
        both.drain();
        both.running.sound();
    }
}
