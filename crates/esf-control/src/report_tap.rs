//! The Test Anything Protocol. Invariants: a plan says how many tests there are, and what contradicts it
//! (a number twice, one beyond it, a second plan) is refused; indented lines belong to the line they
//! explain and count nothing; other lines are what programs print besides.

use crate::report::{BadReport, Counts, MAX_TESTS, bad, cut};

#[derive(Default)]
struct Tap {
    plan: Option<u64>,
    /// Whether test lines came before the plan, which then ends the report.
    plan_last: bool,
    seen: Vec<bool>,
    came: u64,
    counts: Counts,
}

/// What a line of a test says about it.
#[derive(PartialEq, Eq)]
enum Directive {
    None,
    Skip,
    Todo,
}

/// Counts the tests of a TAP stream.
pub(crate) fn read(text: &str) -> Result<Counts, BadReport> {
    let mut tap = Tap::default();
    for line in text.lines() {
        tap.take(line.trim_end_matches('\r'))?;
    }
    tap.end()
}

impl Tap {
    fn take(&mut self, line: &str) -> Result<(), BadReport> {
        if let Some(reason) = line.trim_start().strip_prefix("Bail out!") {
            let reason: String = reason.trim().chars().take(200).collect();
            return bad(format!("the tests bailed out: {reason:?}"));
        }
        if let Some(version) = line.strip_prefix("TAP version ") {
            return match version.trim() {
                "12" | "13" | "14" => Ok(()),
                other => bad(format!("expected TAP version 12, 13 or 14, found {:?}", cut(other))),
            };
        }
        if let Some(last) = line.strip_prefix("1..") {
            return self.planned(last);
        }
        match line.strip_prefix("not ok").or_else(|| line.strip_prefix("ok")) {
            Some(rest) if rest.is_empty() || rest.starts_with([' ', '\t']) => {
                self.test(line.starts_with("ok"), rest)
            }
            _ => Ok(()),
        }
    }

    fn planned(&mut self, last: &str) -> Result<(), BadReport> {
        let number = last.split('#').next().unwrap_or("").trim();
        let Ok(number) = number.parse::<u64>() else {
            return bad(format!("expected a plan 1..N, found 1..{:?}", cut(last)));
        };
        if number > MAX_TESTS {
            return bad(format!("expected at most {MAX_TESTS} tests, found a plan of {number}"));
        }
        if let Some(plan) = self.plan.replace(number) {
            return bad(format!("expected one plan, found 1..{plan} and 1..{number}"));
        }
        self.plan_last = self.came > 0;
        Ok(())
    }

    fn test(&mut self, ok: bool, rest: &str) -> Result<(), BadReport> {
        if self.plan_last {
            return bad("expected the plan first or last, found it between tests");
        }
        let rest = rest.trim_start();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, description) = rest.split_at(digits);
        let alone = description.is_empty() || description.starts_with(char::is_whitespace);
        let number = match number {
            "" => self.came + 1,
            // A description may begin with a number: `ok 2nd try`.
            _ if !alone => self.came + 1,
            digits => digits.parse().unwrap_or(u64::MAX),
        };
        self.mark(number)?;
        let counter = match (ok, directive(description)) {
            (true, Directive::None) => &mut self.counts.passed,
            (true, Directive::Skip) | (_, Directive::Todo) => &mut self.counts.skipped,
            (false, Directive::None | Directive::Skip) => &mut self.counts.failed,
        };
        *counter += 1;
        Ok(())
    }

    fn mark(&mut self, number: u64) -> Result<(), BadReport> {
        if !(1..=MAX_TESTS).contains(&number) {
            return bad(format!("expected test numbers from 1 to {MAX_TESTS}, found {number}"));
        }
        let index = usize::try_from(number).expect("bounded above");
        if self.seen.len() <= index {
            self.seen.resize(index + 1, false);
        }
        if std::mem::replace(&mut self.seen[index], true) {
            return bad(format!("expected each test once, found number {number} twice"));
        }
        self.came += 1;
        Ok(())
    }

    fn end(mut self) -> Result<Counts, BadReport> {
        let Some(plan) = self.plan else {
            return bad("expected a plan 1..N, found none: it may be cut short");
        };
        // Index 0 is never marked.
        let highest = self.seen.len().saturating_sub(1) as u64;
        if highest > plan {
            return bad(format!("expected tests 1 to {plan} of the plan, found number {highest}"));
        }
        self.counts.missing = plan - self.came;
        self.counts.failed += self.counts.missing;
        Ok(self.counts)
    }
}

/// The directive after the first `#` that is not escaped.
fn directive(description: &str) -> Directive {
    let mut escaped = false;
    let hash = description.char_indices().find(|(_, c)| {
        let found = *c == '#' && !escaped;
        escaped = *c == '\\' && !escaped;
        found
    });
    let Some((at, _)) = hash else { return Directive::None };
    let word = description[at + 1..].split_whitespace().next().unwrap_or("").to_ascii_lowercase();
    match word {
        word if word.starts_with("skip") => Directive::Skip,
        word if word == "todo" => Directive::Todo,
        _ => Directive::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> [u64; 4] {
        let counts = read(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        [counts.passed, counts.failed, counts.skipped, counts.missing]
    }

    #[test]
    fn tests_are_counted_once_each() {
        let rows: [(&str, [u64; 4]); 10] = [
            ("1..2\nok 1 - a\nok 2 - b\n", [2, 0, 0, 0]),
            ("TAP version 14\r\nok\r\nnot ok\r\n1..2\r\n", [1, 1, 0, 0]),
            ("1..3\nok 2\nok 1\nnot ok 3 # TODO later\n", [2, 0, 1, 0]),
            ("1..2\nok 1 # skip no network\nnot ok 2 # SKIP\n", [0, 1, 1, 0]),
            ("1..2\nok 1 - issue \\# SKIP\nok 2 - done # TODOS\n", [2, 0, 0, 0]),
            (
                "1..1\n    1..2\n    ok 1\n    not ok 2\nnot ok 1 - outer\n  ---\n  ok 7\n  ...\n",
                [0, 1, 0, 0],
            ),
            ("noise\nokay\nok1\nok-2\n1..1\nok 2nd try\n# ok 5\n", [1, 0, 0, 0]),
            ("1..5\nok 1\nnot ok 4\n", [1, 4, 0, 3]),
            ("1..0 # SKIP nothing here\n", [0, 0, 0, 0]),
            ("1..2\nok 1\nok 2", [2, 0, 0, 0]),
        ];
        for (text, expected) in rows {
            assert_eq!(counted(text), expected, "{text:?}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for text in [
            "",
            "ok 1\nok 2\n",
            "1..2\nok 1\nok 1\n",
            "1..1\nok 1\nok 2\n",
            "1..1\nok 1\nok\n",
            "1..2\n1..2\nok 1\nok 2\n",
            "ok 1\n1..2\nok 2\n",
            "1..2\nok 0\nok 1\n",
            "1..2\nok 1\nBail out! no database\n",
            "1..2\nok 1\n    Bail out!\nok 2\n",
            "1..NaN\n",
            "1..-1\n",
            "1..99999999999999999999\n",
            "1..1000001\n",
            "1..1\nok 99999999999999999999\n",
            "TAP version 15\n1..1\nok 1\n",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
