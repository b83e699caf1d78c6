//! JUnit XML. Invariants: what is counted are the `testcase` elements, once each, not what attributes
//! claim, and claims that contradict them are refused; a document type, and with it every entity that
//! could grow, is refused; memory is bounded by the depth, which is bounded.

use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::report::{BadReport, Counts, MAX_TESTS, bad, cut};

/// Deepest element.
const MAX_DEPTH: usize = 64;
/// Most attributes of a suite or a test: each is compared with all before it.
const MAX_ATTRIBUTES: usize = 64;

/// An open element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Suites(Claims),
    Suite(Claims),
    Case(Came),
    Other,
}

/// What a suite says it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Claims {
    tests: Option<u64>,
    bad: u64,
    /// Tests before it was opened, and those directly in it.
    before: u64,
    direct: u64,
    bad_before: u64,
}

/// What a test came to: later ones outweigh earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    Passed,
    Skipped,
    Failed,
    Broke,
}

#[derive(Default)]
struct Junit {
    open: Vec<Open>,
    begun: bool,
    counts: Counts,
}

/// Counts the tests of a JUnit report.
pub(crate) fn read(text: &str) -> Result<Counts, BadReport> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().enable_all_checks(true);
    let mut junit = Junit::default();
    loop {
        let at = reader.buffer_position();
        let event = reader
            .read_event()
            .map_err(|cause| BadReport(format!("not well-formed XML near byte {at}: {cause}")))?;
        match event {
            Event::Start(element) => junit.start(&element)?,
            Event::Empty(element) => {
                junit.start(&element)?;
                junit.end()?;
            }
            Event::End(_) => junit.end()?,
            Event::Text(text) if junit.open.is_empty() && !text.trim().is_empty() => {
                return bad(format!("expected nothing beside the report, found text near byte {at}"));
            }
            Event::CData(_) | Event::GeneralRef(_) if junit.open.is_empty() => {
                return bad(format!("expected nothing beside the report, found text near byte {at}"));
            }
            Event::DocType(_) => return bad("expected no document type: entities are not expanded"),
            Event::Eof => return junit.finish(),
            Event::Text(_)
            | Event::CData(_)
            | Event::GeneralRef(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_) => {}
        }
    }
}

impl Junit {
    fn start(&mut self, element: &BytesStart<'_>) -> Result<(), BadReport> {
        if self.open.len() == MAX_DEPTH {
            return bad(format!("expected elements at most {MAX_DEPTH} deep"));
        }
        let name = element.local_name();
        let name = name.as_ref();
        let parent = self.open.last().copied();
        let opened = match (name, parent) {
            ("testsuites", None) if !self.begun => Open::Suites(self.claims(element)?),
            ("testsuite", None) if !self.begun => Open::Suite(self.claims(element)?),
            (_, None) => return bad(format!("expected one testsuites or testsuite, found {:?}", cut(name))),
            ("testsuite", Some(Open::Suites(_) | Open::Suite(_))) => Open::Suite(self.claims(element)?),
            ("testcase", Some(Open::Suites(_) | Open::Suite(_))) => self.case(element)?,
            ("testsuites" | "testsuite" | "testcase", _) => {
                return bad(format!("expected a {name} in a suite only"));
            }
            ("failure", _) => self.came(Came::Failed),
            ("error", _) => self.came(Came::Broke),
            ("skipped", _) => self.came(Came::Skipped),
            _ => Open::Other,
        };
        self.begun = true;
        self.open.push(opened);
        Ok(())
    }

    /// A child that says how the test above it ended; one of a suite itself is an error beside its tests.
    fn came(&mut self, came: Came) -> Open {
        match self.open.last_mut() {
            Some(Open::Case(so_far)) => *so_far = (*so_far).max(came),
            Some(Open::Suites(_) | Open::Suite(_)) if came >= Came::Failed => self.counts.errors += 1,
            _ => {}
        }
        Open::Other
    }

    fn case(&mut self, element: &BytesStart<'_>) -> Result<Open, BadReport> {
        if let Some(Open::Suites(claims) | Open::Suite(claims)) = self.open.last_mut() {
            claims.direct += 1;
        }
        let mut came = Came::Passed;
        each_attribute(element, |name, value| {
            let not_run = ["notrun", "suppressed", "skipped", "disabled"];
            if matches!(name, "status" | "result") && not_run.contains(&value) {
                came = Came::Skipped;
            }
            Ok(())
        })?;
        Ok(Open::Case(came))
    }

    fn claims(&self, element: &BytesStart<'_>) -> Result<Claims, BadReport> {
        let counts = self.counts;
        let mut claims = Claims {
            before: counts.run() + counts.skipped,
            bad_before: counts.failed + counts.errors,
            ..Claims::default()
        };
        each_attribute(element, |name, value| {
            if !matches!(name, "tests" | "failures" | "errors") {
                return Ok(());
            }
            let Some(number) = value.trim().parse().ok().filter(|number| *number <= MAX_TESTS) else {
                return bad(format!("expected a count in {name}, found {:?}", cut(value)));
            };
            match name {
                "tests" => claims.tests = Some(number),
                _ => claims.bad += number,
            }
            Ok(())
        })?;
        Ok(claims)
    }

    fn end(&mut self) -> Result<(), BadReport> {
        match self.open.pop() {
            Some(Open::Case(came)) => {
                let counts = &mut self.counts;
                let counter = match came {
                    Came::Passed => &mut counts.passed,
                    Came::Skipped => &mut counts.skipped,
                    Came::Failed => &mut counts.failed,
                    Came::Broke => &mut counts.errors,
                };
                *counter += 1;
                match counts.run() + counts.skipped {
                    total if total > MAX_TESTS => bad(format!("expected at most {MAX_TESTS} tests")),
                    _ => Ok(()),
                }
            }
            Some(Open::Suites(claims) | Open::Suite(claims)) => self.holds(claims),
            Some(Open::Other) | None => Ok(()),
        }
    }

    /// Some runners count the tests of inner suites in the outer ones and some do not; both are right.
    fn holds(&self, claims: Claims) -> Result<(), BadReport> {
        let counts = self.counts;
        let found = counts.run() + counts.skipped - claims.before;
        let found_bad = counts.failed + counts.errors - claims.bad_before;
        match claims.tests {
            Some(tests) if tests != found && tests != claims.direct => {
                bad(format!("a suite says that it has {tests} tests, and {found} came"))
            }
            _ if claims.bad > 0 && found_bad == 0 => {
                bad(format!("a suite says that {} tests failed or broke, and none did", claims.bad))
            }
            _ => Ok(()),
        }
    }

    fn finish(self) -> Result<Counts, BadReport> {
        match (self.begun, self.open.len()) {
            (false, _) => bad("expected a JUnit report, found an empty one"),
            (true, 0) => Ok(self.counts),
            (true, open) => bad(format!("it is cut short: {open} elements are open at its end")),
        }
    }
}

fn each_attribute(
    element: &BytesStart<'_>,
    mut take: impl FnMut(&str, &str) -> Result<(), BadReport>,
) -> Result<(), BadReport> {
    for (number, attribute) in element.attributes().enumerate() {
        if number == MAX_ATTRIBUTES {
            return bad(format!("expected at most {MAX_ATTRIBUTES} attributes"));
        }
        let attribute =
            attribute.map_err(|cause| BadReport(format!("not well-formed XML, an attribute: {cause}")))?;
        take(attribute.key.as_ref(), &attribute.value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> [u64; 4] {
        let counts = read(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        [counts.passed, counts.failed, counts.errors, counts.skipped]
    }

    #[test]
    fn what_runners_write_is_counted() {
        let pytest = r#"<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite
            name="pytest" errors="1" failures="1" skipped="1" tests="4" time="0.05" hostname="h">
            <testcase classname="t" name="test_a" time="0.001" />
            <testcase classname="t" name="test_b" time="0.001"><failure message="assert &lt;1&gt; &#10; &amp;">E</failure></testcase>
            <testcase classname="t" name="test_c" time="0.0"><skipped type="pytest.skip" message="no">t</skipped></testcase>
            <testcase classname="t" name="test_d" time="0.0"><error message="setup">x</error><system-out><![CDATA[<testcase/>]]></system-out></testcase>
            </testsuite></testsuites>"#;
        assert_eq!(counted(pytest), [1, 1, 1, 1]);
        let gtest = r#"<testsuites tests="2" failures="0" disabled="1" errors="0"><testsuite name="A" tests="2" disabled="1">
            <testcase name="x" status="run" result="completed"/><testcase name="y" status="notrun" result="suppressed"/>
            </testsuite></testsuites>"#;
        assert_eq!(counted(gtest), [1, 0, 0, 1]);
        let nested = "<testsuites><testsuite tests='1'><testsuite tests='2'><testcase/><testcase/></testsuite>\
            <testcase/></testsuite></testsuites>";
        assert_eq!(counted(nested), [3, 0, 0, 0]);
        // One that failed and broke, twice over, is one test; so is one that is reported twice two.
        let twice = "<testsuite><testcase name='a'><failure/><failure/><error/></testcase>\
            <testcase name='b'><skipped/><failure/></testcase><testcase name='b'/></testsuite>";
        assert_eq!(counted(twice), [1, 1, 1, 0]);
        assert_eq!(counted("<testsuite><testcase/><error>import failed</error></testsuite>"), [1, 0, 1, 0]);
    }

    #[test]
    fn hostile_and_broken_ones_are_refused() {
        let deep = "<testsuite>".repeat(100_000);
        let wide = format!(
            "<testsuite {}><testcase/></testsuite>",
            (0..100).map(|n| format!("a{n}='' ")).collect::<String>()
        );
        let bomb = "<!DOCTYPE l [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]><testsuite>&b;<testcase/></testsuite>";
        for text in [
            "",
            "plain text",
            "<html><testcase/></html>",
            "<testcase/>",
            "<testsuite><testcase/>",
            "<testsuite><testcase></testsuite>",
            "<testsuite><testcase/></testsuite><testsuite><testcase/></testsuite>",
            "<testsuite><testcase/></testsuite>ok",
            "<testsuite tests='NaN'><testcase/></testsuite>",
            "<testsuite tests='-1'><testcase/></testsuite>",
            "<testsuite tests='1e999'><testcase/></testsuite>",
            "<testsuite tests='3'><testcase/></testsuite>",
            "<testsuite tests='0'><testcase/></testsuite>",
            "<testsuite failures='1'><testcase/></testsuite>",
            "<testsuite errors='18446744073709551615' failures='1'><testcase/></testsuite>",
            "<testsuite tests='1' tests='1'><testcase/></testsuite>",
            "<testsuite tests=1><testcase/></testsuite>",
            "<testsuite><testcase><testcase/></testcase></testsuite>",
            "<testsuite><testcase><testsuite/></testcase></testsuite>",
            "<testsuite><testcase/><!-- ",
            "<testsuite><testcase/><![CDATA[ </testsuite>",
            &deep,
            &wide,
            bomb,
        ] {
            assert!(read(text).is_err(), "{:?}", cut(text));
        }
    }
}
