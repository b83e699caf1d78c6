//! A conversation with a proposer, as a step function: questions and what the process does go in, what is to be
//! done comes out as data. Several questions may be open at once; answers come in any order.
//! Invariant: every question is answered or fails, after at most `tries` times of being asked without an
//! answer; a process that says nothing for `timeout_ms` while a question is open is killed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::proposer::{BadAnswer, Offer, Question, decode, encode};

/// What a proposer is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Milliseconds of silence while a question is open.
    pub timeout_ms: u64,
    /// How often a question is asked before it fails.
    pub tries: u32,
    /// The most actions in an answer.
    pub most_actions: usize,
    /// The values of the search: `to_move` is less than that.
    pub values: u8,
}

/// How many answers to nothing that is asked are let pass, one after the other.
const STRAYS: u32 = 8;

/// How a question came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The process ended, or could not be started.
    Died,
    /// It said nothing for too long.
    Silent,
    /// It wrote what is no answer.
    BadAnswer,
    /// It answered that it cannot.
    Refused,
}

impl FaultKind {
    /// A stable code for errors.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Died => "proposer_died",
            Self::Silent => "proposer_timeout",
            Self::BadAnswer => "proposer_bad_answer",
            Self::Refused => "proposer_error",
        }
    }
}

/// Why a question failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proposer gave no actions in {tries} tries; at last: {detail}")]
pub struct Fault {
    /// How its last try came to nothing.
    pub kind: FaultKind,
    /// The same in words.
    pub detail: String,
    /// How often it was asked.
    pub tries: u32,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Start a process; one that runs is killed first, with all that it started.
    Start,
    /// Kill it, with all that it started.
    Stop,
    /// Write these bytes to it.
    Send(Vec<u8>),
    /// A question is answered.
    Offered(u64, Offer),
    /// A question failed.
    Failed(u64, Fault),
    /// Tell a user.
    Warn(String),
}

#[derive(Debug)]
struct Open {
    question: Question,
    failed: u32,
}

/// The state of a conversation.
#[derive(Debug)]
pub struct Conversation {
    limits: Limits,
    open: BTreeMap<u64, Open>,
    next_id: u64,
    running: bool,
    /// Whether the running process has answered anything.
    useful: bool,
    /// How much it has said since that was of no use, and asked by nobody.
    strays: u32,
    /// When it last answered or was asked while nothing was open, in the caller's milliseconds.
    heard_at: u64,
}

impl Conversation {
    /// A conversation that has not begun; its process is started with the first question.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            open: BTreeMap::new(),
            next_id: 1,
            running: false,
            useful: false,
            strays: 0,
            heard_at: 0,
        }
    }

    /// Asks; the question's id is given, and what is to be done.
    pub fn ask(&mut self, now: u64, mut question: Question) -> (u64, Vec<Act>) {
        let id = self.next_id;
        self.next_id += 1;
        question.id = id;
        if self.open.is_empty() {
            self.heard_at = now;
        }
        let send = Act::Send(encode(&question));
        self.open.insert(id, Open { question, failed: 0 });
        (id, if self.running { vec![send] } else { self.start(now) })
    }

    /// Takes a line that the process wrote, or what is wrong with it.
    pub fn heard(&mut self, now: u64, line: Result<&[u8], BadAnswer>) -> Vec<Act> {
        let answer = match line.and_then(|line| decode(line, self.limits.most_actions)) {
            Ok(answer) => answer,
            Err(bad) => return self.broke(now, FaultKind::BadAnswer, bad.to_string()),
        };
        let values = self.limits.values;
        if let Ok(Offer { to_move: Some(found), .. }) = answer.offer
            && found >= values
        {
            return self.broke(now, FaultKind::BadAnswer, BadAnswer::ToMove { values, found }.to_string());
        }
        let Entry::Occupied(open) = self.open.entry(answer.id) else {
            let id = answer.id;
            self.strays += 1;
            if self.strays > STRAYS {
                let bad = BadAnswer::Stray { found: self.strays, id };
                return self.broke(now, FaultKind::BadAnswer, bad.to_string());
            }
            return vec![Act::Warn(format!("an answer to question {id}, which is not open, is ignored"))];
        };
        self.heard_at = now;
        self.strays = 0;
        match answer.offer {
            Ok(offer) => {
                open.remove();
                self.useful = true;
                vec![Act::Offered(answer.id, offer)]
            }
            Err(reason) => {
                let again = Act::Send(encode(&open.get().question));
                match self.count(answer.id, FaultKind::Refused, &reason) {
                    Some(failed) => vec![failed],
                    None => vec![Act::Warn(format!("asked again; it said: {reason}")), again],
                }
            }
        }
    }

    /// Takes that the process ended, or could not be started.
    pub fn ended(&mut self, now: u64, how: &str) -> Vec<Act> {
        self.running = false;
        if self.open.is_empty() {
            return Vec::new();
        }
        self.broke(now, FaultKind::Died, how.to_owned())
    }

    /// Takes that time has passed.
    pub fn tick(&mut self, now: u64) -> Vec<Act> {
        match self.deadline() {
            Some(deadline) if now >= deadline => {
                let silence = format!("no answer for {} ms", self.limits.timeout_ms);
                self.broke(now, FaultKind::Silent, silence)
            }
            _ => Vec::new(),
        }
    }

    /// When `tick` is due at the latest.
    pub fn deadline(&self) -> Option<u64> {
        (!self.open.is_empty()).then(|| self.heard_at.saturating_add(self.limits.timeout_ms))
    }

    /// The process is of no more use: the oldest question counts a failure, unless others were answered since
    /// the process was started, and what is open is asked of a new one.
    fn broke(&mut self, now: u64, kind: FaultKind, detail: String) -> Vec<Act> {
        if self.open.is_empty() {
            self.strays += 1;
            if self.strays > STRAYS {
                // It is started again with the next question.
                self.running = false;
                return vec![Act::Warn(format!("ended, since it talks unasked: {detail}")), Act::Stop];
            }
            return vec![Act::Warn(format!("ignored, since nothing was asked: {detail}"))];
        }
        let oldest = self.open.keys().next().copied();
        let blamed = oldest.filter(|_| !(self.useful && kind == FaultKind::Died));
        let mut acts: Vec<Act> = blamed.and_then(|id| self.count(id, kind, &detail)).into_iter().collect();
        if acts.is_empty() && blamed.is_some() {
            acts.push(Act::Warn(format!("started again: {detail}")));
        }
        acts.extend(self.start(now));
        acts
    }

    /// Counts a failure of a question; what is to be done if it was the last.
    fn count(&mut self, id: u64, kind: FaultKind, detail: &str) -> Option<Act> {
        let Entry::Occupied(mut open) = self.open.entry(id) else { return None };
        open.get_mut().failed += 1;
        let tries = open.get().failed;
        (tries >= self.limits.tries).then(|| {
            open.remove();
            Act::Failed(id, Fault { kind, detail: detail.to_owned(), tries })
        })
    }

    /// A new process and all that is open. One that is not needed now is started when it is.
    fn start(&mut self, now: u64) -> Vec<Act> {
        self.running = !self.open.is_empty();
        if !self.running {
            return vec![Act::Stop];
        }
        self.useful = false;
        self.strays = 0;
        self.heard_at = now;
        let asked = self.open.values().map(|open| Act::Send(encode(&open.question)));
        std::iter::once(Act::Start).chain(asked).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esf_core::SearchId;
    use proptest::prelude::*;
    use serde_json::Value;

    const LIMITS: Limits = Limits { timeout_ms: 100, tries: 3, most_actions: 10, values: 2 };

    fn question() -> Question {
        Question {
            id: 0,
            search_id: SearchId::from_bytes([0; 16]),
            node_id: None,
            root_id: None,
            logical_state: Value::Null,
            depth: 0,
            actions: Vec::new(),
            evaluation: None,
            want: None,
            known: Vec::new(),
        }
    }

    fn failed(acts: &[Act]) -> Vec<(u64, FaultKind)> {
        let found = acts.iter().filter_map(|act| match act {
            Act::Failed(id, fault) => Some((*id, fault.kind)),
            _ => None,
        });
        found.collect()
    }

    fn sends(acts: &[Act]) -> usize {
        acts.iter().filter(|act| matches!(act, Act::Send(_))).count()
    }

    #[test]
    fn answers_come_in_any_order_and_strangers_are_ignored() {
        let mut talk = Conversation::new(LIMITS);
        let (first, acts) = talk.ask(0, question());
        assert!(matches!(acts[..], [Act::Start, Act::Send(_)]));
        let (second, acts) = talk.ask(1, question());
        assert!(matches!(acts[..], [Act::Send(_)]));
        for (id, expected) in [(second, true), (9, false), (second, false), (first, true)] {
            let line = format!(r#"{{"id":{id},"actions":[]}}"#);
            let acts = talk.heard(2, Ok(line.as_bytes()));
            assert_eq!(matches!(acts[..], [Act::Offered(of, _)] if of == id), expected, "{id} {acts:?}");
        }
        assert_eq!(talk.deadline(), None);
    }

    #[test]
    fn one_that_dies_hangs_or_babbles_is_started_again_so_often_and_no_more() {
        type Break = fn(&mut Conversation, u64) -> Vec<Act>;
        let ways: [(FaultKind, Break); 4] = [
            (FaultKind::Died, |talk, now| talk.ended(now, "exit 1")),
            (FaultKind::Silent, |talk, now| talk.tick(now)),
            (FaultKind::BadAnswer, |talk, now| talk.heard(now, Ok(b"hello"))),
            (FaultKind::BadAnswer, |talk, now| talk.heard(now, Err(BadAnswer::TooLong))),
        ];
        for (kind, break_it) in ways {
            let mut talk = Conversation::new(LIMITS);
            let (id, _) = talk.ask(0, question());
            assert!(talk.tick(99).is_empty());
            for number in 1..=2 {
                let acts = break_it(&mut talk, number * 1000);
                assert!(failed(&acts).is_empty() && acts.contains(&Act::Start), "{kind:?} {acts:?}");
                assert_eq!(sends(&acts), 1, "asked again");
            }
            let acts = break_it(&mut talk, 3000);
            assert_eq!(failed(&acts), [(id, kind)]);
            assert_eq!((sends(&acts), acts.last()), (0, Some(&Act::Stop)));
            assert!(!talk.heard(3001, Ok(b"more")).contains(&Act::Start), "nothing is open");
        }
    }

    #[test]
    fn a_proposer_that_answers_once_and_ends_will_do() {
        let mut talk = Conversation::new(LIMITS);
        let ids: Vec<u64> = (0..8).map(|_| talk.ask(0, question()).0).collect();
        for id in ids {
            let answer = format!(r#"{{"id":{id},"actions":[]}}"#);
            assert!(matches!(talk.heard(1, Ok(answer.as_bytes()))[..], [Act::Offered(..)]));
            assert!(failed(&talk.ended(1, "exit 0")).is_empty());
        }
        assert_eq!(talk.deadline(), None);
        assert_eq!(talk.ask(2, question()).1[0], Act::Start, "started when it is needed");
    }

    #[test]
    fn one_that_says_no_is_asked_again_and_then_believed() {
        let mut talk = Conversation::new(LIMITS);
        let (id, _) = talk.ask(0, question());
        let no = format!(r#"{{"id":{id},"error":"overloaded"}}"#);
        for _ in 0..2 {
            let acts = talk.heard(1, Ok(no.as_bytes()));
            assert!(failed(&acts).is_empty() && sends(&acts) == 1 && !acts.contains(&Act::Start), "{acts:?}");
        }
        assert_eq!(failed(&talk.heard(1, Ok(no.as_bytes()))), [(id, FaultKind::Refused)]);
    }

    #[test]
    fn one_that_answers_what_nobody_asked_or_for_nobody_is_broken() {
        let mut talk = Conversation::new(LIMITS);
        let stray = br#"{"id":99,"actions":[]}"#;
        let (id, _) = talk.ask(0, question());
        for _ in 0..LIMITS.tries - 1 {
            for _ in 0..STRAYS {
                assert!(matches!(talk.heard(1, Ok(stray))[..], [Act::Warn(_)]));
            }
            assert!(talk.heard(1, Ok(stray)).contains(&Act::Start));
        }
        let nobody = format!(r#"{{"id":{id},"actions":[],"to_move":2}}"#);
        let acts = talk.heard(1, Ok(nobody.as_bytes()));
        assert_eq!(failed(&acts), [(id, FaultKind::BadAnswer)]);
        assert!(format!("{acts:?}").contains("to_move less than 2"), "{acts:?}");

        let mut talk = Conversation::new(LIMITS);
        let (id, _) = talk.ask(0, question());
        let answer = format!(r#"{{"id":{id},"actions":[],"to_move":1}}"#);
        assert!(matches!(talk.heard(1, Ok(answer.as_bytes()))[..], [Act::Offered(..)]));
        let stopped = (0..=STRAYS).filter(|_| talk.heard(1, Ok(stray)).contains(&Act::Stop)).count();
        assert_eq!(stopped, 1, "a flood with nothing open ends it");
        assert_eq!(talk.ask(2, question()).1[0], Act::Start);
    }

    proptest! {
        /// Whatever the process does, each question ends exactly once, within its tries.
        #[test]
        fn every_question_ends_once(moves in prop::collection::vec(0..6_u8, 0..200)) {
            let mut talk = Conversation::new(LIMITS);
            let mut open = Vec::new();
            let mut ended = std::collections::BTreeMap::<u64, u32>::new();
            let mut now = 0;
            let settle = |acts: Vec<Act>, open: &mut Vec<u64>, ended: &mut std::collections::BTreeMap<u64, u32>| {
                for act in acts {
                    if let Act::Offered(id, _) | Act::Failed(id, _) = act {
                        open.retain(|known| *known != id);
                        *ended.entry(id).or_default() += 1;
                    }
                }
            };
            let drain = std::iter::repeat_n(3, LIMITS.tries as usize * 200);
            for step in moves.into_iter().chain(drain) {
                now += 7;
                let acts = match (step, open.last()) {
                    (0, _) => {
                        let (id, acts) = talk.ask(now, question());
                        open.push(id);
                        acts
                    }
                    (1, Some(id)) => talk.heard(now, Ok(format!(r#"{{"id":{id},"actions":[]}}"#).as_bytes())),
                    (2, Some(id)) => talk.heard(now, Ok(format!(r#"{{"id":{id},"error":""}}"#).as_bytes())),
                    (3, _) => talk.ended(now, "died"),
                    (4, _) => talk.heard(now, Ok(b"?")),
                    _ => { now += 1000; talk.tick(now) }
                };
                settle(acts, &mut open, &mut ended);
            }
            prop_assert!(open.is_empty());
            prop_assert!(ended.values().all(|times| *times == 1));
            prop_assert_eq!(talk.deadline(), None);
        }
    }
}
