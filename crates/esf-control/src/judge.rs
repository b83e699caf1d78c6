//! From what an evaluator's run did to a verdict (design section 6): pure, so every odd result is a
//! row of a table test. Invariant: a failure of the run is verdict `error` with a null reward and a
//! class, never a reward of zero.

use std::collections::BTreeMap;

use esf_core::FailureClass;
use esf_core::record::Verdict;
use serde::{Deserialize, Serialize};

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

/// What a run of an evaluator is worth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// `pass`, `fail`, `error`, or the evaluator's own word.
    pub verdict: Verdict,
    /// The reward; null when there is none.
    pub reward: Option<f64>,
    /// Named measurements.
    pub metrics: BTreeMap<String, f64>,
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
}

/// Longest result file in bytes.
pub const MAX_RESULT: usize = 64 << 10;

fn error(class: FailureClass, detail: impl Into<String>) -> Judgement {
    Judgement {
        verdict: Verdict::error(),
        reward: None,
        metrics: BTreeMap::new(),
        failure: Some((class, detail.into())),
    }
}

/// Judges one run. `command` is how the tree's code ended, `score` how the evaluator's own scorer
/// did (when it has one), `result` the bytes of the result file (when it exists).
///
/// Without a result file and without a scorer, exit code 0 is `pass` with reward 1, any other `fail`
/// with reward 0.
pub fn judge(command: Outcome, score: Option<Outcome>, result: Option<&[u8]>) -> Judgement {
    let last = score.unwrap_or(command);
    let class = match last {
        Outcome::Lost(class) => return error(class, "the sandbox of the evaluation was lost"),
        Outcome::TimedOut => return error(FailureClass::UserTimeout, "the evaluation reached its time-out"),
        Outcome::OutOfMemory => return error(FailureClass::UserOom, "the evaluation ran out of memory"),
        Outcome::Exited(_) | Outcome::Signalled(_) => FailureClass::EvaluatorError,
    };
    if let (Some(Outcome::Lost(class)), _) | (None, Outcome::Lost(class)) = (score, command) {
        return error(class, "the sandbox of the evaluation was lost");
    }
    match (score, result) {
        (Some(Outcome::Exited(0)), Some(bytes)) | (None, Some(bytes)) => read_result(bytes),
        (Some(Outcome::Exited(0)), None) => error(class, "the scorer wrote no result file"),
        (Some(ended), _) => error(class, format!("the scorer did not succeed: {ended:?}")),
        (None, None) => match command {
            Outcome::Exited(code) => by_exit_code(code),
            Outcome::Signalled(signal) => error(FailureClass::UserExit, format!("ended by signal {signal}")),
            Outcome::TimedOut | Outcome::OutOfMemory | Outcome::Lost(_) => {
                error(class, "the evaluation did not finish")
            }
        },
    }
}

fn by_exit_code(code: i32) -> Judgement {
    let (verdict, reward) = match code {
        0 => (Verdict::pass(), 1.0),
        126 | 127 => {
            return error(FailureClass::EvaluatorError, format!("the command could not be run: exit {code}"));
        }
        _ => (Verdict::fail(), 0.0),
    };
    Judgement { verdict, reward: Some(reward), metrics: BTreeMap::new(), failure: None }
}

fn read_result(bytes: &[u8]) -> Judgement {
    if bytes.len() > MAX_RESULT {
        let detail = format!("result file: expected at most {MAX_RESULT} bytes, found {}", bytes.len());
        return error(FailureClass::EvaluatorError, detail);
    }
    let result: ResultFile = match serde_json::from_slice(bytes) {
        Ok(result) => result,
        Err(cause) => return error(FailureClass::EvaluatorError, format!("result file: {cause}")),
    };
    let finite = result.reward.iter().chain(result.metrics.values()).all(|value| value.is_finite());
    if !finite {
        return error(FailureClass::EvaluatorError, "result file: expected finite numbers");
    }
    let verdict = match (result.verdict.as_deref(), result.reward) {
        (Some(verdict), _) => verdict.parse::<Verdict>(),
        (None, Some(_)) => "scored".parse(),
        (None, None) => {
            return error(
                FailureClass::EvaluatorError,
                "result file: expected a reward or a verdict, found neither",
            );
        }
    };
    let verdict = match verdict {
        Ok(verdict) => verdict,
        Err(cause) => return error(FailureClass::EvaluatorError, format!("result file: {cause}")),
    };
    let reward = if verdict.is_error() { None } else { result.reward };
    let failure = verdict
        .is_error()
        .then(|| (FailureClass::EvaluatorError, "the evaluator itself reported an error".to_owned()));
    Judgement { verdict, reward, metrics: result.metrics, failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Exited, Lost, OutOfMemory, Signalled, TimedOut};

    #[test]
    fn exit_codes_are_verdicts_when_there_is_nothing_else() {
        let judged = |code| judge(Exited(code), None, None);
        assert_eq!((judged(0).verdict.as_str(), judged(0).reward), ("pass", Some(1.0)));
        assert_eq!((judged(1).verdict.as_str(), judged(1).reward), ("fail", Some(0.0)));
        assert_eq!(judged(127).verdict, Verdict::error());
    }

    #[test]
    fn every_failure_is_an_error_with_its_class_and_no_reward() {
        let good = br#"{"reward":1}"#.as_slice();
        let rows = [
            (TimedOut, None, None, FailureClass::UserTimeout),
            (OutOfMemory, None, Some(good), FailureClass::UserOom),
            (Lost(FailureClass::InfraLost), None, None, FailureClass::InfraLost),
            (Signalled(9), None, None, FailureClass::UserExit),
            (Exited(0), Some(Exited(0)), None, FailureClass::EvaluatorError),
            (Exited(0), Some(Exited(1)), Some(good), FailureClass::EvaluatorError),
            (Exited(0), Some(TimedOut), Some(good), FailureClass::UserTimeout),
            (Exited(0), Some(Lost(FailureClass::InfraLost)), Some(good), FailureClass::InfraLost),
        ];
        for (command, score, result, class) in rows {
            let judgement = judge(command, score, result);
            assert_eq!(judgement.verdict, Verdict::error(), "{command:?} {score:?}");
            assert_eq!(judgement.reward, None);
            assert_eq!(judgement.failure.expect("class").0, class);
        }
    }

    #[test]
    fn a_scorer_reads_a_failed_command() {
        let judgement = judge(Exited(3), Some(Exited(0)), Some(br#"{"reward":0.25,"metrics":{"passed":1}}"#));
        assert_eq!((judgement.verdict.as_str(), judgement.reward), ("scored", Some(0.25)));
        assert_eq!(judgement.metrics["passed"], 1.0);
        let timed_out = judge(TimedOut, Some(Exited(0)), Some(br#"{"reward":0,"verdict":"fail"}"#));
        assert_eq!(timed_out.verdict, Verdict::fail());
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
            &long,
        ] {
            let judgement = judge(Exited(0), None, Some(bytes.as_bytes()));
            assert_eq!((judgement.verdict.as_str(), judgement.reward), ("error", None), "{bytes}");
        }
    }
}
