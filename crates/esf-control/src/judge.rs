//! From what an evaluator's run did to a verdict (design section 6): pure, so every odd result is a
//! row of a table test. Invariant: a failure of the run is verdict `error` with a null reward and a
//! class, never a reward of zero.

use std::collections::BTreeMap;

use esf_core::FailureClass;
use esf_core::record::Verdict;
use serde::{Deserialize, Serialize};

use crate::report::{Format, judge_report};

/// How a command of the evaluator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// At its time-out.
    TimedOut,
    /// At its memory limit.
    OutOfMemory,
    /// The sandbox went away, or could not be made.
    Lost(FailureClass),
}

impl Outcome {
    /// How it ended, in words.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Exited(code) => format!("ended with code {code}"),
            Self::Signalled(signal) => format!("ended by signal {signal}"),
            Self::TimedOut => "reached its time-out".to_owned(),
            Self::OutOfMemory => "ran out of memory".to_owned(),
            Self::Lost(class) => format!("was lost ({})", class.as_str()),
        }
    }
}

/// What a run of an evaluator is worth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// `pass`, `fail`, `error`, or the evaluator's own word.
    pub verdict: Verdict,
    /// The reward; null when there is none.
    pub reward: Option<f64>,
    /// Named measurements.
    pub metrics: BTreeMap<String, f64>,
    /// One reward for each player or objective, for a search of several; empty when there are none.
    pub values: Vec<f64>,
    /// Why the verdict is `error`.
    pub failure: Option<(FailureClass, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultFile {
    reward: Option<f64>,
    verdict: Option<String>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
    #[serde(default)]
    values: Vec<f64>,
}

/// Longest result file in bytes.
pub const MAX_RESULT: usize = 64 << 10;

impl Judgement {
    /// A run that failed: verdict `error`, no reward.
    pub fn error(class: FailureClass, detail: impl Into<String>) -> Self {
        let (verdict, failure) = (Verdict::error(), Some((class, detail.into())));
        Self { verdict, reward: None, metrics: BTreeMap::new(), values: Vec::new(), failure }
    }
}

/// A file that a run should have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// It is not there.
    Nothing,
    /// Its bytes.
    Bytes(&'a [u8]),
    /// Something is there that is not taken, and why: a link, a fifo, a file that is too long.
    Unusable(&'a str),
}

impl<'a> Found<'a> {
    fn bytes(self, what: &str) -> Result<&'a [u8], Judgement> {
        let error = |detail: String| Err(Judgement::error(FailureClass::EvaluatorError, detail));
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Nothing => error(format!("{what}: there is none")),
            Self::Unusable(why) => error(format!("{what}: {why}")),
        }
    }
}

/// What says how well the command did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Evidence<'a> {
    /// Its exit code: 0 is `pass` with reward 1, any other `fail` with reward 0.
    ExitCode,
    /// The result file that it writes itself.
    Result(Found<'a>),
    /// The result file of a scorer that ended so.
    Score(Outcome, Found<'a>),
    /// The test report that it leaves.
    Report(Format, Found<'a>),
}

/// Judges one run from how its command, which runs the tree's code, ended and what it left.
pub fn judge(command: Outcome, evidence: Evidence<'_>) -> Judgement {
    let judged = match (failed_run(command), evidence) {
        // A scorer may make something of a command that failed in any way, but not of one that was lost.
        (Some(failed), Evidence::Score(..)) if matches!(command, Outcome::Lost(_)) => Err(failed),
        (_, Evidence::Score(ended, result)) => match (failed_run(ended), ended) {
            (Some(failed), _) => Err(failed),
            (None, Outcome::Exited(0)) => result.bytes("result file of the scorer").map(read_result),
            (None, _) => Err(Judgement::error(
                FailureClass::EvaluatorError,
                format!("the scorer did not succeed: {}", ended.words()),
            )),
        },
        (Some(failed), _) => Err(failed),
        (None, Evidence::Report(format, report)) => {
            report.bytes("report").map(|bytes| judge_report(format, command, bytes))
        }
        (None, evidence) => match (command, evidence) {
            (Outcome::Exited(_), Evidence::Result(result)) => result.bytes("result file").map(read_result),
            (Outcome::Exited(code), _) => Ok(by_exit_code(code)),
            (ended, _) => {
                Err(Judgement::error(FailureClass::UserExit, format!("the command {}", ended.words())))
            }
        },
    };
    judged.unwrap_or_else(|failed| failed)
}

/// The judgement of a run that came to nothing that could be judged; nothing for one that ended by itself.
pub(crate) fn failed_run(outcome: Outcome) -> Option<Judgement> {
    let (class, detail) = match outcome {
        Outcome::Lost(class) => (class, "the sandbox of the evaluation was lost"),
        Outcome::TimedOut => (FailureClass::UserTimeout, "the evaluation reached its time-out"),
        Outcome::OutOfMemory => (FailureClass::UserOom, "the evaluation ran out of memory"),
        Outcome::Exited(_) | Outcome::Signalled(_) => return None,
    };
    Some(Judgement::error(class, detail))
}

fn by_exit_code(code: i32) -> Judgement {
    let (verdict, reward) = match code {
        0 => (Verdict::pass(), 1.0),
        126 | 127 => {
            return Judgement::error(
                FailureClass::EvaluatorError,
                format!("the command could not be run: exit {code}"),
            );
        }
        _ => (Verdict::fail(), 0.0),
    };
    Judgement { verdict, reward: Some(reward), metrics: BTreeMap::new(), values: Vec::new(), failure: None }
}

fn read_result(bytes: &[u8]) -> Judgement {
    if bytes.len() > MAX_RESULT {
        let detail = format!("result file: expected at most {MAX_RESULT} bytes, found {}", bytes.len());
        return Judgement::error(FailureClass::EvaluatorError, detail);
    }
    let result: ResultFile = match serde_json::from_slice(bytes) {
        Ok(result) => result,
        Err(cause) => return Judgement::error(FailureClass::EvaluatorError, format!("result file: {cause}")),
    };
    let numbers = result.reward.iter().chain(result.metrics.values()).chain(&result.values);
    let finite = numbers.into_iter().all(|value| value.is_finite());
    if !finite {
        return Judgement::error(FailureClass::EvaluatorError, "result file: expected finite numbers");
    }
    let reward = result.reward.or(result.values.first().copied());
    let verdict = match (result.verdict.as_deref(), reward) {
        (Some(verdict), _) => verdict.parse::<Verdict>(),
        (None, Some(_)) => "scored".parse(),
        (None, None) => {
            return Judgement::error(
                FailureClass::EvaluatorError,
                "result file: expected a reward or a verdict, found neither",
            );
        }
    };
    let verdict = match verdict {
        Ok(verdict) => verdict,
        Err(cause) => return Judgement::error(FailureClass::EvaluatorError, format!("result file: {cause}")),
    };
    let reward = reward.filter(|_| !verdict.is_error());
    let failure = verdict
        .is_error()
        .then(|| (FailureClass::EvaluatorError, "the evaluator itself reported an error".to_owned()));
    Judgement { verdict, reward, metrics: result.metrics, values: result.values, failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Evidence::{ExitCode, Report, Result, Score};
    use Found::{Bytes, Nothing, Unusable};
    use Outcome::{Exited, Lost, OutOfMemory, Signalled, TimedOut};

    #[test]
    fn exit_codes_are_verdicts_when_there_is_nothing_else() {
        let judged = |code| judge(Exited(code), ExitCode);
        assert_eq!((judged(0).verdict.as_str(), judged(0).reward), ("pass", Some(1.0)));
        assert_eq!((judged(1).verdict.as_str(), judged(1).reward), ("fail", Some(0.0)));
        assert_eq!(judged(127).verdict, Verdict::error());
    }

    #[test]
    fn every_failure_is_an_error_with_its_class_and_no_reward() {
        let good = Bytes(br#"{"reward":1}"#);
        let lost = Lost(FailureClass::InfraLost);
        let rows = [
            (TimedOut, ExitCode, FailureClass::UserTimeout),
            (TimedOut, Result(good), FailureClass::UserTimeout),
            (OutOfMemory, Result(good), FailureClass::UserOom),
            (OutOfMemory, Report(Format::Tap, good), FailureClass::UserOom),
            (lost, ExitCode, FailureClass::InfraLost),
            (lost, Score(Exited(0), good), FailureClass::InfraLost),
            (Signalled(9), ExitCode, FailureClass::UserExit),
            (Signalled(9), Result(good), FailureClass::UserExit),
            (Exited(0), Result(Nothing), FailureClass::EvaluatorError),
            (Exited(1), Result(Nothing), FailureClass::EvaluatorError),
            (Exited(0), Report(Format::Tap, Nothing), FailureClass::EvaluatorError),
            (Exited(0), Score(Exited(0), Nothing), FailureClass::EvaluatorError),
            (Exited(0), Score(Exited(0), Unusable("a link")), FailureClass::EvaluatorError),
            (Exited(0), Result(Unusable("a link")), FailureClass::EvaluatorError),
            (Exited(0), Report(Format::Junit, Unusable("a link")), FailureClass::EvaluatorError),
            (Exited(0), Score(Exited(1), good), FailureClass::EvaluatorError),
            (Exited(0), Score(Signalled(9), good), FailureClass::EvaluatorError),
            (Exited(0), Score(TimedOut, good), FailureClass::UserTimeout),
            (Exited(0), Score(OutOfMemory, good), FailureClass::UserOom),
            (Exited(0), Score(lost, good), FailureClass::InfraLost),
        ];
        for (command, evidence, class) in rows {
            let judgement = judge(command, evidence);
            assert_eq!(judgement.verdict, Verdict::error(), "{command:?} {evidence:?}");
            assert_eq!(judgement.reward, None);
            assert_eq!(judgement.failure.expect("class").0, class, "{command:?} {evidence:?}");
        }
    }

    #[test]
    fn a_scorer_reads_a_failed_command() {
        let result = br#"{"reward":0.25,"metrics":{"passed":1}}"#;
        let judgement = judge(Exited(3), Score(Exited(0), Bytes(result)));
        assert_eq!((judgement.verdict.as_str(), judgement.reward), ("scored", Some(0.25)));
        assert_eq!(judgement.metrics["passed"], 1.0);
        let result = br#"{"reward":0,"verdict":"fail"}"#;
        assert_eq!(judge(TimedOut, Score(Exited(0), Bytes(result))).verdict, Verdict::fail());
    }

    #[test]
    fn several_values_are_kept_and_the_first_is_the_reward_unless_said() {
        let judged = |text: &str| judge(Exited(0), Result(Bytes(text.as_bytes())));
        let two = judged("{\"values\":[0.5,-0.5]}");
        assert_eq!((two.verdict.as_str(), two.reward, two.values), ("scored", Some(0.5), vec![0.5, -0.5]));
        let said = judged("{\"values\":[0.5,-0.5],\"reward\":0,\"verdict\":\"fail\"}");
        assert_eq!((said.verdict.as_str(), said.reward), ("fail", Some(0.0)));
        assert_eq!(judged("{\"values\":[1,1e999]}").verdict.as_str(), "error");
    }

    #[test]
    fn forged_and_broken_results_are_refused() {
        let long = format!("{{\"verdict\":\"{}\"}}", "x".repeat(MAX_RESULT));
        for bytes in [
            "",
            "{",
            "null",
            "[]",
            "{}",
            "{\"reward\":NaN}",
            "{\"reward\":Infinity}",
            "{\"reward\":1e999}",
            "{\"reward\":1}{\"reward\":2}",
            "{\"reward\":1,\"reward\":2}",
            "{\"reward\":\"1\"}",
            "{\"reward\":1,\"extra\":1}",
            "{\"verdict\":\"\"}",
            "{\"reward\":-Infinity,\"verdict\":\"pass\"}",
            "{\"reward\":1,\"metrics\":{\"x\":NaN}}",
            "{\"reward\":1,\"metrics\":{\"x\":1e999}}",
            "\0",
            &long,
        ] {
            let judgement = judge(Exited(0), Result(Bytes(bytes.as_bytes())));
            assert_eq!((judgement.verdict.as_str(), judgement.reward), ("error", None), "{bytes}");
        }
    }
}
