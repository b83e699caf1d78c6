//! The protocol between a search and a proposer, a program of the user's on the host that offers actions:
//! one JSON object a line, a question to it, an answer from it (docs/search.md). Pure: bytes in, values out.
//! Invariant: whatever a proposer writes, what leaves here is bounded, finite and without repetitions, or a
//! typed refusal that quotes it.

use std::collections::HashSet;

use esf_core::record::Json;
use esf_core::search::{Candidate, Candidates};
use esf_core::{Digest, NodeId, RootId, SearchId, canonical};
use serde::{Deserialize, Serialize};

/// Longest line of an answer in bytes, without its end.
pub const MAX_LINE: usize = 1 << 20;
/// Characters of a refused line that are quoted.
const QUOTED: usize = 200;

/// A question: what may be done at this position?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Names the question; the answer has it again.
    pub id: u64,
    /// The search.
    pub search_id: SearchId,
    /// The sealed node of the position; `esf cat NODE:PATH` reads its files.
    pub node_id: Option<NodeId>,
    /// That node's root: equal trees have equal ones.
    pub root_id: Option<RootId>,
    /// That node's logical state.
    pub logical_state: Json,
    /// How many actions lie between the root and here.
    pub depth: u32,
    /// These actions.
    pub actions: Vec<Json>,
    /// What the search's evaluator said of the node, if it was asked.
    pub evaluation: Option<Seen>,
    /// How many further actions are wanted; all there are when null.
    pub want: Option<u32>,
    /// The actions that the position has already.
    pub known: Vec<Json>,
}

/// An evaluation, as a proposer sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The reward; null is not zero.
    pub reward: Option<f64>,
    /// The verdict.
    pub verdict: String,
    /// Named measurements.
    pub metrics: Json,
}

/// An answer that could be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The question's.
    pub id: u64,
    /// The actions, or why the proposer gives none.
    pub offer: Result<Offer, String>,
}

/// What a proposer offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// The actions, each once.
    pub candidates: Candidates,
    /// Whose choice it is there, where a search has several players.
    pub to_move: Option<u8>,
    /// How many repeated an earlier action of the same answer.
    pub merged: u32,
}

/// A line that is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// It did not end.
    #[error("expected a line of at most {MAX_LINE} bytes, found a longer one")]
    TooLong,
    /// It is not the object that was asked for.
    #[error("expected one JSON object with `id` and `actions` or `error`: {reason}; found {found:?}")]
    Shape {
        /// What is wrong with it.
        reason: String,
        /// Its beginning.
        found: String,
    },
    /// It has more actions than allowed.
    #[error("expected at most {most} actions, found {found}")]
    TooMany {
        /// How many are allowed.
        most: usize,
        /// How many there are.
        found: usize,
    },
    /// A player that the search does not have.
    #[error("expected to_move less than {values}, the number of `values` of the search, found {found}")]
    ToMove {
        /// How many values the search has.
        values: u8,
        /// What was said.
        found: u8,
    },
    /// An answer to what is not asked, again.
    #[error("expected answers to open questions, found {found} others, the last to question {id}")]
    Stray {
        /// How many.
        found: u32,
        /// The last one's.
        id: u64,
    },
    /// A prior that is no likelihood.
    #[error("expected a finite prior that is not negative, found {found} for the action at {index}")]
    Prior {
        /// The action's place in the answer, from 0.
        index: usize,
        /// The prior.
        found: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    id: u64,
    actions: Option<Vec<Candidate>>,
    #[serde(default)]
    exhausted: bool,
    to_move: Option<u8>,
    error: Option<String>,
}

/// The line that asks `question`, with its end.
pub fn encode(question: &Question) -> Vec<u8> {
    let mut line = serde_json::to_vec(question).expect("a question has string keys only");
    line.push(b'\n');
    line
}

/// Reads one line of a proposer, without its end. Of actions that repeat an earlier one, by their key or else by
/// the action itself, the first stands.
///
/// # Errors
/// `BadAnswer`, with what was expected and found.
pub fn decode(line: &[u8], most_actions: usize) -> Result<Answer, BadAnswer> {
    if line.len() > MAX_LINE {
        return Err(BadAnswer::TooLong);
    }
    let shape = |reason: String| BadAnswer::Shape { reason, found: quote(line) };
    let read: AnswerLine = serde_json::from_slice(line).map_err(|error| shape(error.to_string()))?;
    let offer = match (read.actions, read.error) {
        (Some(actions), None) => Ok(offer(actions, read.exhausted, read.to_move, most_actions)?),
        (None, Some(error)) => Err(error.chars().take(QUOTED * 5).collect()),
        (Some(_), Some(_)) => return Err(shape("`actions` and `error` exclude each other".to_owned())),
        (None, None) => return Err(shape("neither `actions` nor `error`".to_owned())),
    };
    Ok(Answer { id: read.id, offer })
}

fn offer(
    actions: Vec<Candidate>,
    exhausted: bool,
    to_move: Option<u8>,
    most: usize,
) -> Result<Offer, BadAnswer> {
    let candidates = check(Candidates { actions, exhausted }, most)?;
    let before = candidates.actions.len();
    let candidates = distinct(candidates);
    let merged = u32::try_from(before - candidates.actions.len()).unwrap_or(u32::MAX);
    Ok(Offer { candidates, to_move, merged })
}

/// Refuses candidates that are too many or have a prior that is no likelihood.
///
/// # Errors
/// `BadAnswer::TooMany`, `BadAnswer::Prior`.
pub fn check(candidates: Candidates, most: usize) -> Result<Candidates, BadAnswer> {
    let found = candidates.actions.len();
    if found > most {
        return Err(BadAnswer::TooMany { most, found });
    }
    let bad = |candidate: &Candidate| !(candidate.prior.is_finite() && candidate.prior >= 0.0);
    match candidates.actions.iter().position(bad) {
        Some(index) => Err(BadAnswer::Prior { index, found: candidates.actions[index].prior.to_string() }),
        None => Ok(candidates),
    }
}

fn distinct(mut candidates: Candidates) -> Candidates {
    let mut seen: HashSet<Digest> = HashSet::new();
    candidates.actions.retain(|candidate| {
        seen.insert(match &candidate.key {
            Some(key) => Digest::in_context("esf candidate key v1", key.as_bytes()),
            None => canonical::digest("esf candidate v1", &candidate.action),
        })
    });
    candidates
}

/// The beginning of a line, for an error.
fn quote(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * QUOTED)]);
    let mut quoted: String = text.chars().take(QUOTED).collect();
    if quoted.len() < line.len() {
        quoted.push('…');
    }
    quoted
}

/// Cuts a stream of bytes into lines; never holds more than one line's bound.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
    skipping: bool,
}

impl Lines {
    /// Takes what was read; gives the lines that are whole now, without their ends, and `TooLong` once
    /// for each that has outgrown its bound. Lines of nothing but white space are left out.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, BadAnswer>> {
        let mut lines = Vec::new();
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let ends = parts.peek().is_some();
            if !self.skipping && self.begun.len() + part.len() > MAX_LINE {
                self.skipping = true;
                self.begun = Vec::new();
                lines.push(Err(BadAnswer::TooLong));
            }
            if !self.skipping {
                self.begun.extend_from_slice(part);
            }
            if ends {
                let line = std::mem::take(&mut self.begun);
                if !line.trim_ascii().is_empty() {
                    lines.push(Ok(line));
                }
                self.skipping = false;
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Answer, BadAnswer> {
        decode(text.as_bytes(), 3)
    }

    #[test]
    fn an_answer_is_read_and_repetitions_are_merged() {
        let line = r#"{"id":7,"actions":[{"action":{"a":1,"b":2},"prior":0.5},{"action":{"b":2,"a":1}},{"action":3,"key":"k"}],"exhausted":true,"to_move":1}"#;
        let answer = read(line).expect("valid");
        let offer = answer.offer.expect("an offer");
        assert_eq!((answer.id, offer.merged, offer.to_move), (7, 1, Some(1)));
        assert_eq!(offer.candidates.actions.len(), 2);
        assert_eq!(offer.candidates.actions[0].prior, 0.5, "the first stands");
        assert!(offer.candidates.exhausted);
        let keyed = r#"{"id":7,"actions":[{"action":1,"key":"k"},{"action":2,"key":"k"}]}"#;
        assert_eq!(read(keyed).expect("valid").offer.expect("an offer").candidates.actions.len(), 1);
        let refusal = read(r#"{"id":1,"error":"no model"}"#).expect("valid");
        assert_eq!(refusal.offer, Err("no model".to_owned()));
    }

    #[test]
    fn what_is_no_answer_is_refused_with_what_was_found() {
        for line in [
            "",
            "hello",
            "[]",
            "{}",
            r#"{"id":1}"#,
            r#"{"id":1,"actions":[],"error":"x"}"#,
            r#"{"id":-1,"actions":[]}"#,
            r#"{"id":1,"actions":[{"prior":1}]}"#,
            r#"{"id":1,"actions":[{"action":1,"prior":NaN}]}"#,
            r#"{"id":1,"actions":[{"action":1,"prior":1e999}]}"#,
            r#"{"id":1,"actions":[],"surprise":1}"#,
        ] {
            let refused = read(line).expect_err(line);
            assert!(matches!(refused, BadAnswer::Shape { .. }), "{line}: {refused}");
        }
        let negative = read(r#"{"id":1,"actions":[{"action":1},{"action":2,"prior":-0.5}]}"#);
        assert_eq!(negative, Err(BadAnswer::Prior { index: 1, found: "-0.5".to_owned() }));
        let many = read(r#"{"id":1,"actions":[{"action":1},{"action":2},{"action":3},{"action":4}]}"#);
        assert_eq!(many, Err(BadAnswer::TooMany { most: 3, found: 4 }));
        assert_eq!(decode(&vec![b' '; MAX_LINE + 1], 3), Err(BadAnswer::TooLong));
        let long = decode(&vec![b'x'; MAX_LINE], 3).expect_err("garbage");
        assert!(long.to_string().len() < 1000, "a refusal is bounded");
    }

    #[test]
    fn a_question_is_one_line() {
        let question = Question {
            id: 1,
            search_id: SearchId::from_bytes([0; 16]),
            node_id: None,
            root_id: None,
            logical_state: json!({"a": "b\nc"}),
            depth: 1,
            actions: vec![json!("x\ny")],
            evaluation: None,
            want: None,
            known: Vec::new(),
        };
        let line = encode(&question);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Question>(&line).expect("JSON"), question);
    }

    #[test]
    fn a_line_without_end_is_refused_once_and_not_kept() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for _ in 0..160 {
            found.extend(lines.push(&[b'x'; 1 << 16]));
            assert!(lines.begun.len() <= MAX_LINE);
        }
        assert_eq!(found, [Err(BadAnswer::TooLong)]);
        assert_eq!(lines.push(b"x\nnext\n"), [Ok(b"next".to_vec())]);
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_come(text in "[a\n ]{0,60}", cuts in prop::collection::vec(0..60_usize, 0..6)) {
            let bytes = text.as_bytes();
            let whole = Lines::default().push(bytes);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut lines = Lines::default();
            let mut pieces = Vec::new();
            let mut from = 0;
            for at in cuts.into_iter().chain([bytes.len()]) {
                pieces.extend(lines.push(&bytes[from..at]));
                from = at;
            }
            prop_assert_eq!(pieces, whole);
        }

        #[test]
        fn no_line_breaks_it(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&line, 4);
        }
    }
}
