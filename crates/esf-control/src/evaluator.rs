//! The evaluator file: a TOML text that says how a sealed node is tested (cli.md, "An evaluator
//! file"). Invariant: an `Evaluator` is complete and bounded; its digest pins the text and the bytes
//! of its files, so a result can always name exactly what judged it.

use std::collections::BTreeMap;

use esf_core::environment::Limits;
use esf_core::{Digest, units};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Deserialize;

use crate::report::Format;

/// A parsed evaluator.
#[derive(Debug, Clone)]
pub struct Evaluator {
    /// What it is called.
    pub name: String,
    /// Its version; a change of meaning needs a new one.
    pub version: String,
    /// The program and arguments that run the tree's code; its exit code reports.
    pub command: Vec<String>,
    /// Milliseconds that `command` and `score` may take, each; the group's budget for verifying when absent.
    pub timeout_ms: Option<u64>,
    /// A directory, relative to the evaluator file, laid read-only over the sealed tree.
    pub files: Option<String>,
    /// The same for the sandbox of `score`, instead of `files`: what the tree's code must never see.
    pub score_files: Option<String>,
    /// Globs of the tree's paths that the run does not see.
    pub hide: Vec<String>,
    /// The evaluator's own program that reads the outcome and writes the result.
    pub score: Option<Vec<String>>,
    /// The test report that `command` leaves, which is then what it is judged by.
    pub report: Option<Report>,
    /// Whether `command` writes the result itself; when absent, whether its files or words speak of one.
    pub result: Option<bool>,
    /// Files that `command` leaves for `score`: the name there, and the path in the tree.
    pub collect: BTreeMap<String, String>,
    /// Who runs `command` inside; the environment's own user when absent.
    pub user: Option<String>,
    /// Limits of each sandbox beyond, or instead of, those of the group's environment.
    pub limits: Limits,
    /// Variables of both programs.
    pub environment: BTreeMap<String, String>,
    /// How often it is run.
    pub repeat: u32,
    text_digest: Digest,
}

/// A test report.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Its language.
    pub format: Format,
    /// Its path in the tree; the command's standard output when absent.
    pub path: Option<String>,
}

/// What a run is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgedBy {
    /// The exit code of `command`.
    ExitCode,
    /// The result file that `command` writes.
    Result,
    /// The test report that `command` leaves.
    Report,
    /// The result file that `score` writes.
    Score,
}

/// An evaluator file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an evaluator: {reason}")]
pub struct InvalidEvaluator {
    /// What is wrong with it, and where.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    version: String,
    command: Vec<String>,
    timeout: Option<String>,
    files: Option<String>,
    score_files: Option<String>,
    #[serde(default)]
    hide: Vec<String>,
    score: Option<Vec<String>>,
    report: Option<Report>,
    result: Option<bool>,
    #[serde(default)]
    collect: BTreeMap<String, String>,
    user: Option<String>,
    #[serde(default)]
    limits: LimitsFile,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default = "one")]
    repeat: u32,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsFile {
    cpus: Option<f64>,
    memory: Option<String>,
    pids: Option<u64>,
}

impl LimitsFile {
    fn read(self) -> Result<Limits, InvalidEvaluator> {
        let cpus = self.cpus.map(|cpus| match (0.01..=4096.0).contains(&cpus) {
            true => Ok((cpus * 1000.0).round() as u64),
            false => refuse(format!("limits.cpus: expected 0.01 to 4096, found {cpus}")),
        });
        let size = |text: String| match units::parse_size(&text) {
            Ok(bytes) => Ok(bytes),
            Err(error) => refuse(format!("limits.memory: {error}")),
        };
        let memory = self.memory.map(size).transpose()?;
        Ok(Limits { cpu_milli: cpus.transpose()?, memory, pids: self.pids, disk: None })
    }
}

fn one() -> u32 {
    1
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, InvalidEvaluator> {
    Err(InvalidEvaluator { reason: reason.into() })
}

/// A relative path that stays inside.
fn is_inside(path: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.split('/').all(plain)
}

impl Evaluator {
    /// Longest evaluator file in bytes.
    pub const MAX_TEXT: usize = 64 << 10;
    /// What a program that writes the result file has in it.
    pub const RESULT_WORDS: [&str; 2] = ["ESF_RESULT", "/run/esf/result"];
    /// Most runs for one request.
    pub const MAX_REPEAT: u32 = 1000;

    /// Reads the text of an evaluator file.
    ///
    /// # Errors
    /// `InvalidEvaluator` for a text that is not TOML, an unknown or missing field, an empty
    /// command, a time-out of zero, a `files` path that leaves its directory, or a bad glob.
    pub fn parse(text: &str) -> Result<Self, InvalidEvaluator> {
        if text.len() > Self::MAX_TEXT {
            return refuse(format!("expected at most {} bytes, found {}", Self::MAX_TEXT, text.len()));
        }
        let file: File =
            toml::from_str(text).map_err(|error| InvalidEvaluator { reason: error.to_string() })?;
        let timeout_ms = file.timeout.as_deref().map(units::parse_duration_ms).transpose();
        let timeout_ms =
            timeout_ms.map_err(|error| InvalidEvaluator { reason: format!("timeout: {error}") })?;
        let evaluator = Self {
            name: file.name,
            version: file.version,
            command: file.command,
            timeout_ms,
            files: file.files,
            score_files: file.score_files,
            hide: file.hide,
            score: file.score,
            report: file.report,
            result: file.result,
            collect: file.collect,
            user: file.user,
            limits: file.limits.read()?,
            environment: file.environment,
            repeat: file.repeat,
            text_digest: Digest::in_context("esf evaluator text v1", text.as_bytes()),
        };
        evaluator.check()?;
        Ok(evaluator)
    }

    fn check(&self) -> Result<(), InvalidEvaluator> {
        let label = |text: &str| (1..=128).contains(&text.len()) && !text.chars().any(char::is_control);
        if !label(&self.name) || !label(&self.version) {
            return refuse("name and version: expected 1 to 128 printable characters each");
        }
        if self.command.is_empty() || self.score.as_ref().is_some_and(Vec::is_empty) {
            return refuse("command and score: expected a program and its arguments, found an empty list");
        }
        if self.timeout_ms == Some(0) {
            return refuse("timeout: expected more than zero");
        }
        if !(1..=Self::MAX_REPEAT).contains(&self.repeat) {
            return refuse(format!("repeat: expected 1 to {}, found {}", Self::MAX_REPEAT, self.repeat));
        }
        let mut directories = self.files.iter().chain(&self.score_files);
        if let Some(files) = directories.find(|files| !is_inside(files)) {
            return refuse(format!("files: expected a directory beside the evaluator file, found {files:?}"));
        }
        self.check_outcome()?;
        if let Some(name) = self.environment.keys().find(|name| name.is_empty() || name.contains(['=', '\0']))
        {
            return refuse(format!("environment: not a variable name: {name:?}"));
        }
        self.hidden().map(drop)
    }

    /// One thing judges a run, and what belongs to another is refused.
    fn check_outcome(&self) -> Result<(), InvalidEvaluator> {
        if self.report.is_some() && self.score.is_some() {
            return refuse("report and score: expected one of them to judge, found both");
        }
        if self.result.is_some() && (self.report.is_some() || self.score.is_some()) {
            return refuse("result: it is about a command that is judged by neither report nor score");
        }
        if self.result == Some(true) && self.user.is_some() {
            return refuse("user: another user cannot write the result file; leave that to score");
        }
        if (!self.collect.is_empty() || self.score_files.is_some()) && self.score.is_none() {
            return refuse("collect and score_files: expected a score that reads them");
        }
        let taken = ["files", "result.json", "command.stdout", "command.stderr"];
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_name = |name: &str| {
            (1..=64).contains(&name.len())
                && name.chars().all(plain)
                && !name.starts_with('.')
                && !taken.contains(&name)
        };
        if let Some(name) = self.collect.keys().find(|name| !is_name(name)) {
            return refuse(format!(
                "collect: expected names of letters, digits, `.`, `_` and `-`, found {name:?}"
            ));
        }
        match self.left_paths().find(|path| !is_inside(path)) {
            Some(path) => refuse(format!("report and collect: expected a path of the tree, found {path:?}")),
            None => Ok(()),
        }
    }

    /// The paths of the tree that `command` leaves something at; what the tree itself has there is hidden
    /// from the run, so that it is never taken for what the run left.
    pub fn left_paths(&self) -> impl Iterator<Item = &str> {
        let report = self.report.iter().filter_map(|report| report.path.as_deref());
        report.chain(self.collect.values().map(String::as_str))
    }

    /// What a run is judged by; `files_speak` tells whether one of the evaluator's files has one of
    /// `RESULT_WORDS`. An evaluator that never speaks of a result cannot mean to write one, and then
    /// nobody else's is taken for it.
    pub fn judged_by(&self, files_speak: bool) -> JudgedBy {
        let speaks = |text: &String| Self::RESULT_WORDS.iter().any(|word| text.contains(word));
        match (&self.score, &self.report, self.result) {
            (Some(_), _, _) => JudgedBy::Score,
            (None, Some(_), _) => JudgedBy::Report,
            (None, None, Some(true)) => JudgedBy::Result,
            (None, None, Some(false)) => JudgedBy::ExitCode,
            (None, None, None) if files_speak || self.command.iter().any(speaks) => JudgedBy::Result,
            (None, None, None) => JudgedBy::ExitCode,
        }
    }

    /// The matcher of the paths that a run must not see; a pattern without `/` matches at any depth.
    ///
    /// # Errors
    /// `InvalidEvaluator` naming the glob that cannot be read.
    pub fn hidden(&self) -> Result<GlobSet, InvalidEvaluator> {
        let mut set = GlobSetBuilder::new();
        for pattern in &self.hide {
            let anywhere = if pattern.contains('/') { pattern.clone() } else { format!("**/{pattern}") };
            let glob = GlobBuilder::new(anywhere.trim_start_matches('/')).literal_separator(true).build();
            set.add(glob.map_err(|error| InvalidEvaluator { reason: format!("hide: {error}") })?);
        }
        set.build().map_err(|error| InvalidEvaluator { reason: format!("hide: {error}") })
    }

    /// The digest that pins this evaluator together with the digests of its directories of files, in the
    /// order of their fields.
    pub fn digest(&self, files: &[Digest]) -> Digest {
        let mut bytes = self.text_digest.as_bytes().to_vec();
        bytes.extend(files.iter().flat_map(|digest| digest.as_bytes()));
        Digest::in_context("esf evaluator v1", &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"tests\"\nversion = \"1\"\ncommand = [\"sh\", \"t.sh\"]\n";

    #[test]
    fn defaults_are_filled_in_and_the_digest_pins_text_and_files() {
        let evaluator = Evaluator::parse(GOOD).expect("valid");
        assert_eq!((evaluator.timeout_ms, evaluator.repeat), (None, 1));
        let other = Evaluator::parse(&format!("{GOOD}repeat = 2\n")).expect("valid");
        assert_ne!(evaluator.digest(&[]), other.digest(&[]));
        assert_ne!(evaluator.digest(&[]), evaluator.digest(&[Digest::of(b"files")]));
    }

    #[test]
    fn refuses_what_it_could_not_run() {
        for line in [
            "timeout = \"0s\"",
            "timeout = \"5\"",
            "files = \"../x\"",
            "files = \"/etc\"",
            "score = []",
            "repeat = 0",
            "hide = [\"[\"]",
            "surprise = 1",
            "environment = { \"A=B\" = \"c\" }",
            "report = { format = \"html\" }",
            "report = { format = \"tap\", path = \"../r\" }",
            "report = { format = \"tap\", path = \"/tmp/r\" }",
            "report = { format = \"tap\", surprise = 1 }",
            "report = { format = \"tap\" }\nscore = [\"s\"]",
            "report = { format = \"tap\" }\nresult = true",
            "collect = { a = \"r.xml\" }",
            "score = [\"s\"]\ncollect = { \"a/b\" = \"r.xml\" }",
            "score = [\"s\"]\ncollect = { \"result.json\" = \"r.xml\" }",
            "score = [\"s\"]\ncollect = { a = \"\" }",
            "score = [\"s\"]\nresult = false",
            "score = [\"s\"]\nscore_files = \"..\"",
            "score_files = \"own\"",
            "user = \"user\"\nresult = true",
            "limits = { memory = \"much\" }",
            "limits = { cpus = nan }",
            "limits = { cpus = 0 }",
            "limits = { disk = \"1g\" }",
        ] {
            assert!(Evaluator::parse(&format!("{GOOD}{line}\n")).is_err(), "{line}");
        }
        assert!(Evaluator::parse("name = \"x\"").is_err());
    }

    #[test]
    fn one_thing_judges_a_run() {
        let by = |lines: &str, files_speak| {
            Evaluator::parse(&format!("{GOOD}{lines}\n")).expect("valid").judged_by(files_speak)
        };
        assert_eq!(by("", false), JudgedBy::ExitCode);
        assert_eq!(by("", true), JudgedBy::Result);
        assert_eq!(by("result = false", true), JudgedBy::ExitCode);
        assert_eq!(by("result = true", false), JudgedBy::Result);
        assert_eq!(by("score = [\"s\"]", true), JudgedBy::Score);
        assert_eq!(by("report = { format = \"junit\", path = \"r.xml\" }", true), JudgedBy::Report);
        let inline = "name = \"n\"\nversion = \"1\"\ncommand = [\"sh\", \"-c\", \"echo 1 > $ESF_RESULT\"]\n";
        assert_eq!(Evaluator::parse(inline).expect("valid").judged_by(false), JudgedBy::Result);
    }

    #[test]
    fn limits_are_read() {
        let text = format!("{GOOD}limits = {{ cpus = 1.5, memory = \"64m\", pids = 7 }}\n");
        let limits = Limits { cpu_milli: Some(1500), memory: Some(64 << 20), pids: Some(7), disk: None };
        assert_eq!(Evaluator::parse(&text).expect("valid").limits, limits);
    }

    #[test]
    fn a_bare_pattern_hides_at_any_depth_and_a_path_only_there() {
        let text = format!("{GOOD}hide = [\"conftest.py\", \"reports/*\", \"*.pth\"]\n");
        let hidden = Evaluator::parse(&text).expect("valid").hidden().expect("valid");
        for path in ["conftest.py", "a/b/conftest.py", "reports/x", "lib/x.pth"] {
            assert!(hidden.is_match(path), "{path}");
        }
        for path in ["conftest.pyc", "a/reports/x", "reports/a/b"] {
            assert!(!hidden.is_match(path), "{path}");
        }
    }
}
