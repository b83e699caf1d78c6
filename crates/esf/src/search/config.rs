//! A search.toml: `[search]` is how a search searches, `[run]` who proposes, applies and evaluates for
//! `esf search run` (docs/search.md). Invariant: what was read is complete and bounded, and paths are
//! taken from the file's own directory.

use std::fs;
use std::path::{Path, PathBuf};

use esf_core::search::Config;
use esf_core::{Class, Problem, units};
use serde::Deserialize;

use crate::context::io_problem;
use crate::evaluation::Prepared;

/// Longest file in bytes.
const MAX_TEXT: u64 = 1 << 20;
/// The most rollouts at one time.
const MAX_PARALLEL: u32 = 1024;

/// A file that was read.
pub(super) struct SearchFile {
    /// Where it is.
    pub(super) path: PathBuf,
    /// The `[search]` table, its defaults filled in.
    pub(super) search: Config,
    /// The `[run]` table.
    pub(super) run: Option<Run>,
}

/// How a search is run.
pub(super) struct Run {
    /// The file's directory, where the proposer runs.
    pub(super) directory: PathBuf,
    /// The proposer: a program of this machine and its arguments.
    pub(super) proposer: Vec<String>,
    /// What takes an action inside a sandbox, unless the action says it itself.
    pub(super) apply: Option<Vec<String>>,
    /// The evaluator file whose rewards are the values.
    pub(super) evaluator: PathBuf,
    /// An evaluator file that is asked once about the best node.
    pub(super) final_evaluator: Option<PathBuf>,
    /// Rollouts at one time.
    pub(super) parallel: u32,
    /// Milliseconds that taking an action may last; the group's budget of an agent when not said.
    pub(super) apply_timeout_ms: Option<u64>,
    /// Milliseconds that the proposer may be silent while it is asked.
    pub(super) proposer_timeout_ms: u64,
    /// How often a question is asked before the run ends.
    pub(super) proposer_tries: u32,
    /// The most actions of one answer.
    pub(super) max_actions: usize,
    /// Milliseconds for which a rollout is held without a sign of life.
    pub(super) lease_ms: u64,
    /// Verdicts after which nothing follows: such a position ends.
    pub(super) terminal: Vec<String>,
    /// Whether a state that is a position already is evaluated once only.
    pub(super) reuse: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    search: Config,
    run: Option<RunText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunText {
    proposer: Vec<String>,
    apply: Option<Vec<String>>,
    evaluator: PathBuf,
    #[serde(rename = "final")]
    final_evaluator: Option<PathBuf>,
    #[serde(default = "four")]
    parallel: u32,
    apply_timeout: Option<String>,
    #[serde(default = "two_minutes")]
    proposer_timeout: String,
    #[serde(default = "three")]
    proposer_tries: u32,
    #[serde(default = "thousand")]
    max_actions: usize,
    #[serde(default = "two_minutes")]
    lease: String,
    #[serde(default)]
    terminal: Vec<String>,
    #[serde(default = "yes")]
    reuse: bool,
}

fn four() -> u32 {
    4
}

fn three() -> u32 {
    3
}

fn thousand() -> usize {
    1000
}

fn yes() -> bool {
    true
}

fn two_minutes() -> String {
    "2m".to_owned()
}

fn bad(path: &Path, reason: String) -> Problem {
    Problem::new(Class::Usage, "bad_config", reason)
        .expected("a TOML file with the tables [search] and, for `esf search run`, [run]; see docs/search.md")
        .found(path.display().to_string())
}

/// Says what named the file that a problem is about.
pub(super) fn named(key: &str, problem: Problem) -> Problem {
    Problem { message: format!("{key}: {}", problem.message), ..problem }
}

/// Refuses the shapes that are often mistaken, and shows the right ones.
fn shapes(text: &str) -> Result<(), String> {
    // What is no TOML at all is told by whoever reads it next.
    let Ok(file) = text.parse::<toml::Table>() else { return Ok(()) };
    let plain = |table: &str, key: &str| file.get(table)?.get(key)?.as_str().map(str::to_owned);
    for key in ["proposer", "apply"] {
        if let Some(found) = plain("run", key) {
            return Err(format!("{key}: expected a list, {key} = [{found:?}], found the text {found:?}"));
        }
    }
    for key in ["policy", "first_play", "normalize", "objective"] {
        if let Some(found) = plain("search", key) {
            let more = if matches!(&*found, "ucb1" | "puct") { ", c = 1.25" } else { "" };
            let right = format!("{key} = {{ kind = {found:?}{more} }}");
            return Err(format!("{key}: expected a table, {right}, found the text {found:?}"));
        }
    }
    Ok(())
}

impl SearchFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// `bad_config` naming what cannot be used, and what the file system says.
    pub(super) fn read(path: &Path) -> Result<Self, Problem> {
        let unread = |error| named("--config", io_problem("read", path, &error));
        let size = fs::metadata(path).map_err(unread)?.len();
        if size > MAX_TEXT {
            return Err(bad(path, format!("{size} bytes are more than {MAX_TEXT}")));
        }
        let text = fs::read_to_string(path).map_err(|error| io_problem("read", path, &error))?;
        let path = std::path::absolute(path).map_err(|error| io_problem("find", path, &error))?;
        Self::parse(&path, &text).map_err(|reason| bad(&path, reason))
    }

    fn parse(path: &Path, text: &str) -> Result<Self, String> {
        shapes(text)?;
        let file: FileText = toml::from_str(text).map_err(|error| error.to_string())?;
        let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
        let run = file.run.map(|run| Run::new(directory, run)).transpose()?;
        Ok(Self { path: path.to_owned(), search: file.search, run })
    }

    /// The evaluator of the `[run]` table, and its digest in the settings: only its evaluations count.
    ///
    /// # Errors
    /// `bad_evaluator`; `evaluator_changed` when the `[search]` table names another.
    pub(super) fn pin_evaluator(&mut self) -> Result<Option<Prepared>, Problem> {
        let Some(run) = &self.run else { return Ok(None) };
        let key = format!("evaluator in [run] of {}", self.path.display());
        let prepared = Prepared::read(&run.evaluator).map_err(|problem| named(&key, problem))?;
        match self.search.evaluator {
            Some(pinned) if pinned != prepared.digest() => Err(Problem::new(
                Class::Conflict,
                "evaluator_changed",
                format!("{} is not the evaluator that [search] names", run.evaluator.display()),
            )
            .expected(pinned.to_string())
            .found(prepared.digest().to_string())
            .remedy("leave `evaluator` out of [search], or name the right file in [run]")),
            _ => {
                self.search.evaluator = Some(prepared.digest());
                Ok(Some(prepared))
            }
        }
    }
}

impl Run {
    fn new(directory: PathBuf, text: RunText) -> Result<Self, String> {
        if text.proposer.is_empty() || text.apply.as_ref().is_some_and(Vec::is_empty) {
            return Err(
                "proposer and apply: expected a program and its arguments, found an empty list".to_owned()
            );
        }
        if !(1..=MAX_PARALLEL).contains(&text.parallel) {
            return Err(format!("parallel: expected 1 to {MAX_PARALLEL}, found {}", text.parallel));
        }
        if !(1..=100).contains(&text.proposer_tries) || !(1..=100_000).contains(&text.max_actions) {
            return Err("proposer_tries: expected 1 to 100; max_actions: expected 1 to 100000".to_owned());
        }
        let duration = |name: &str, text: &str| match units::parse_duration_ms(text) {
            Ok(0) => Err(format!("{name}: expected more than zero")),
            Ok(ms) => Ok(ms),
            Err(error) => Err(format!("{name}: {error}")),
        };
        Ok(Self {
            proposer: text.proposer,
            apply: text.apply,
            evaluator: directory.join(text.evaluator),
            final_evaluator: text.final_evaluator.map(|path| directory.join(path)),
            parallel: text.parallel,
            apply_timeout_ms: text.apply_timeout.map(|text| duration("apply_timeout", &text)).transpose()?,
            proposer_timeout_ms: duration("proposer_timeout", &text.proposer_timeout)?,
            proposer_tries: text.proposer_tries,
            max_actions: text.max_actions,
            lease_ms: duration("lease", &text.lease)?,
            terminal: text.terminal,
            reuse: text.reuse,
            directory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "[run]\nproposer = [\"./p\"]\nevaluator = \"e.toml\"\n";

    fn parse(text: &str) -> Result<SearchFile, String> {
        SearchFile::parse(Path::new("/d/search.toml"), text)
    }

    #[test]
    fn a_short_file_is_whole() {
        let file = parse(&format!("[search]\nseed = 7\nbudget = {{ rollouts = 9 }}\n{RUN}")).expect("valid");
        assert_eq!((file.search.seed, file.search.budget.rollouts), (7, Some(9)));
        let run = file.run.expect("said");
        assert_eq!((run.evaluator, run.parallel), (PathBuf::from("/d/e.toml"), 4));
        assert_eq!((run.apply_timeout_ms, run.lease_ms), (None, 120_000));
        assert!(parse("").expect("valid").run.is_none());
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for text in [
            "x",
            "[search]\npolicy = \"ucb1\"",
            "[run]\nproposer = \"./p.sh\"\nevaluator = \"e\"",
            "surprise = 1",
            "[search]\nsurprise = 1",
            "[search]\npolicy = { kind = \"magic\" }",
            "[run]\nproposer = [\"p\"]",
            "[run]\nproposer = []\nevaluator = \"e\"",
            &format!("{RUN}apply = []"),
            &format!("{RUN}parallel = 0"),
            &format!("{RUN}parallel = 1025"),
            &format!("{RUN}lease = \"0s\""),
            &format!("{RUN}apply_timeout = \"5\""),
            &format!("{RUN}proposer_tries = 0"),
            &format!("{RUN}max_actions = 0"),
            &format!("{RUN}surprise = 1"),
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let said = |text: &str| parse(text).err().unwrap_or_default();
        let policy = said("[search]\npolicy = \"ucb1\"");
        assert!(policy.contains("policy = { kind = \"ucb1\", c = 1.25 }"), "{policy}");
        let proposer = said("[run]\nproposer = \"./p.sh\"\nevaluator = \"e\"");
        assert!(proposer.contains("proposer = [\"./p.sh\"]"), "{proposer}");
    }
}
