//! Test reports, JUnit XML and TAP, as a verdict and a reward (`docs/evaluators.md`). Pure; what it reads
//! was written by the code under test. Invariants: a report that is missing, cut short, malformed or at
//! odds with how the command ended is verdict `error` without a reward, never a reward of zero; work and
//! memory are bounded by the report's length.

use std::collections::BTreeMap;

use esf_core::FailureClass;
use esf_core::record::Verdict;
use serde::Deserialize;

use crate::judge::{Judgement, Outcome};
use crate::{report_junit, report_tap};

/// Longest report in bytes.
pub const MAX_REPORT: usize = 16 << 20;
/// Most tests of a report.
pub const MAX_TESTS: u64 = 1_000_000;

/// The language of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// JUnit XML, as most test runners write it.
    Junit,
    /// The Test Anything Protocol, versions 12 to 14.
    Tap,
}

/// How many tests came to what; each test is counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// They passed.
    pub passed: u64,
    /// They failed, or were planned and never came.
    pub failed: u64,
    /// They broke.
    pub errors: u64,
    /// They were not run, or are not expected to pass yet.
    pub skipped: u64,
    /// Those among `failed` that were planned and never came.
    pub missing: u64,
}

impl Counts {
    /// Tests that were run: all but the skipped.
    pub fn run(&self) -> u64 {
        self.passed + self.failed + self.errors
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let named = [
            ("tests", self.run() + self.skipped),
            ("passed", self.passed),
            ("failed", self.failed),
            ("errors", self.errors),
            ("skipped", self.skipped),
            ("missing", self.missing),
        ];
        named.into_iter().map(|(name, count)| (name.to_owned(), count as f64)).collect()
    }
}

/// Why a report cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadReport(pub(crate) String);

pub(crate) fn bad<T>(reason: impl Into<String>) -> Result<T, BadReport> {
    Err(BadReport(reason.into()))
}

/// The beginning of what a report says, for a refusal.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Counts the tests of a report.
///
/// # Errors
/// `BadReport` for what is too long, cut short, malformed or contradicts itself.
pub fn read(format: Format, bytes: &[u8]) -> Result<Counts, BadReport> {
    if bytes.len() > MAX_REPORT {
        return bad(format!("expected at most {MAX_REPORT} bytes, found {}", bytes.len()));
    }
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let counts = match format {
        Format::Junit => report_junit::read(text),
        Format::Tap => report_tap::read(text),
    }?;
    match counts.run() {
        0 => bad(format!("expected a test that was run, found none ({} skipped)", counts.skipped)),
        _ => Ok(counts),
    }
}

/// Judges a command that ended by itself by the report it left. The reward is the share of passed tests
/// among those that were run; the verdict is `pass` when none failed.
pub(crate) fn judge_report(format: Format, command: Outcome, report: &[u8]) -> Judgement {
    let error = |detail: String| Judgement::error(FailureClass::EvaluatorError, format!("report: {detail}"));
    let counts = match read(format, report) {
        Ok(counts) => counts,
        Err(cause) => return error(cause.to_string()),
    };
    let none_failed = counts.failed + counts.errors == 0;
    if none_failed && command != Outcome::Exited(0) {
        return error(format!(
            "it is not the whole story: no test failed, and the command {}",
            command.words()
        ));
    }
    Judgement {
        verdict: if none_failed { Verdict::pass() } else { Verdict::fail() },
        reward: Some(counts.passed as f64 / counts.run() as f64),
        metrics: counts.metrics(),
        values: Vec::new(),
        failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAP: &[u8] = b"1..4\nok 1\nnot ok 2\nok 3 # SKIP\nok 4\n";
    const JUNIT: &[u8] =
        b"<testsuite tests='2'><testcase name='a'/><testcase name='b'><failure/></testcase></testsuite>";

    #[test]
    fn the_reward_is_the_share_of_what_was_run() {
        let judged = judge_report(Format::Tap, Outcome::Exited(1), TAP);
        assert_eq!((judged.verdict.as_str(), judged.reward), ("fail", Some(2.0 / 3.0)));
        let named = [("tests", 4.0), ("passed", 2.0), ("failed", 1.0), ("errors", 0.0), ("skipped", 1.0)];
        for (name, value) in named {
            assert_eq!(judged.metrics[name], value, "{name}");
        }
        let judged = judge_report(Format::Junit, Outcome::Exited(1), JUNIT);
        assert_eq!((judged.verdict.as_str(), judged.reward), ("fail", Some(0.5)));
        let judged = judge_report(Format::Tap, Outcome::Exited(0), b"1..1\nok 1\n");
        assert_eq!((judged.verdict.as_str(), judged.reward), ("pass", Some(1.0)));
    }

    #[test]
    fn what_is_not_the_whole_story_has_no_reward() {
        let rows: [(Outcome, &[u8]); 5] = [
            (Outcome::Exited(0), b""),
            (Outcome::Exited(0), b"1..0 # SKIP no compiler\n"),
            (Outcome::Exited(0), b"1..1\nok 1 # SKIP\n"),
            (Outcome::Exited(2), b"1..1\nok 1\n"),
            (Outcome::Signalled(11), b"1..1\nok 1\n"),
        ];
        for (command, report) in rows {
            let judged = judge_report(Format::Tap, command, report);
            assert_eq!((judged.verdict.as_str(), judged.reward), ("error", None), "{command:?} {report:?}");
            assert_eq!(judged.failure.expect("class").0, FailureClass::EvaluatorError);
        }
        let long = vec![b'#'; MAX_REPORT + 1];
        assert!(read(Format::Tap, &long).is_err(), "too long");
    }

    /// Words that reports are made of, so that random sequences of them come close to real ones.
    fn near_miss() -> impl Strategy<Value = String> {
        let words = [
            "<testsuites>",
            "</testsuites>",
            "<testsuite tests='1'>",
            "</testsuite>",
            "<testcase name='a'/>",
            "<testcase>",
            "</testcase>",
            "<failure/>",
            "<error>",
            "</error>",
            "<skipped/>",
            "&lol;",
            "<![CDATA[",
            "]]>",
            "<!--",
            "-->",
            "<?xml version='1.0'?>",
            "<!DOCTYPE a [",
            "<",
            ">",
            "&#0;",
            "'",
            "\"",
            "1..2\n",
            "ok 1\n",
            "not ok 2 # TODO\n",
            "ok\n",
            "Bail out!\n",
            "TAP version 13\n",
            "    ok 1\n",
            "  ---\n",
            "\n",
            "ok 99999999999999999999\n",
            "1..18446744073709551615\n",
            "#",
            "\\#",
            "\0",
        ];
        let word = proptest::sample::select(words.to_vec());
        proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    fn holds(format: Format, bytes: &[u8]) -> Result<(), TestCaseError> {
        let judged = judge_report(format, Outcome::Exited(0), bytes);
        match judged.reward {
            Some(reward) => {
                prop_assert!((0.0..=1.0).contains(&reward) && judged.failure.is_none());
                prop_assert!((reward == 1.0) == (judged.verdict == Verdict::pass()));
            }
            None => prop_assert!(judged.verdict.is_error() && judged.failure.is_some()),
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            for format in [Format::Junit, Format::Tap] {
                holds(format, &bytes)?;
            }
        }

        #[test]
        fn anything_like_a_report_is_judged(text in near_miss()) {
            for format in [Format::Junit, Format::Tap] {
                holds(format, text.as_bytes())?;
            }
        }

        /// A report cut anywhere before its end has no reward, or (TAP, plan first) a smaller one.
        #[test]
        fn a_report_that_is_cut_is_never_worth_more(passed in 1usize..20, failed in 0usize..5, at in any::<prop::sample::Index>()) {
            let total = passed + failed;
            let line = |number: usize| format!("{}ok {number}\n", if number <= passed { "" } else { "not " });
            let tap = (1..=total).fold(format!("1..{total}\n"), |text, number| text + &line(number));
            let case = |number: usize| if number < passed { "<testcase/>" } else { "<testcase><failure/></testcase>" };
            let junit = (0..total).fold("<testsuite>".to_owned(), |text, n| text + case(n)) + "</testsuite>";
            let full = passed as f64 / total as f64;
            let cut = judge_report(Format::Tap, Outcome::Exited(1), &tap.as_bytes()[..at.index(tap.len())]);
            prop_assert!(cut.reward.is_none_or(|reward| reward <= full), "{cut:?}");
            let cut = judge_report(Format::Junit, Outcome::Exited(1), &junit.as_bytes()[..at.index(junit.len())]);
            prop_assert_eq!(cut.reward, None);
        }
    }
}
