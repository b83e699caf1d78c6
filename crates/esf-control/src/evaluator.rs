//! The evaluator file: a TOML text that says how a sealed node is tested (cli.md, "An evaluator
//! file"). Invariant: an `Evaluator` is complete and bounded; its digest pins the text and the bytes
//! of its files, so a result can always name exactly what judged it.

use std::collections::BTreeMap;

use esf_core::{Digest, units};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Deserialize;

/// A parsed evaluator.
#[derive(Debug, Clone)]
pub struct Evaluator {
    /// What it is called.
    pub name: String,
    /// Its version; a change of meaning needs a new one.
    pub version: String,
    /// The program and arguments that run the tree's code; its exit code reports.
    pub command: Vec<String>,
    /// Milliseconds that `command` and `score` may take, each.
    pub timeout_ms: u64,
    /// A directory, relative to the evaluator file, laid read-only over the sealed tree.
    pub files: Option<String>,
    /// Globs of the tree's paths that the run does not see.
    pub hide: Vec<String>,
    /// The evaluator's own program that reads the outcome and writes the result.
    pub score: Option<Vec<String>>,
    /// Variables of both programs.
    pub environment: BTreeMap<String, String>,
    /// How often it is run.
    pub repeat: u32,
    text_digest: Digest,
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
    #[serde(default = "default_timeout")]
    timeout: String,
    files: Option<String>,
    #[serde(default)]
    hide: Vec<String>,
    score: Option<Vec<String>>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default = "one")]
    repeat: u32,
}

fn default_timeout() -> String {
    "10m".to_owned()
}

fn one() -> u32 {
    1
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, InvalidEvaluator> {
    Err(InvalidEvaluator { reason: reason.into() })
}

impl Evaluator {
    /// Longest evaluator file in bytes.
    pub const MAX_TEXT: usize = 64 << 10;
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
        let timeout_ms = units::parse_duration_ms(&file.timeout)
            .map_err(|error| InvalidEvaluator { reason: format!("timeout: {error}") })?;
        let evaluator = Self {
            name: file.name,
            version: file.version,
            command: file.command,
            timeout_ms,
            files: file.files,
            hide: file.hide,
            score: file.score,
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
        if self.timeout_ms == 0 {
            return refuse("timeout: expected more than zero");
        }
        if !(1..=Self::MAX_REPEAT).contains(&self.repeat) {
            return refuse(format!("repeat: expected 1 to {}, found {}", Self::MAX_REPEAT, self.repeat));
        }
        if let Some(files) = &self.files {
            let inside = !files.is_empty()
                && !files.starts_with('/')
                && files.split('/').all(|part| !part.is_empty() && part != "..");
            if !inside {
                return refuse(format!(
                    "files: expected a directory beside the evaluator file, found {files:?}"
                ));
            }
        }
        if let Some(name) = self.environment.keys().find(|name| name.is_empty() || name.contains(['=', '\0']))
        {
            return refuse(format!("environment: not a variable name: {name:?}"));
        }
        self.hidden().map(drop)
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

    /// The digest that pins this evaluator together with its files' digest (a root id, or nothing).
    pub fn digest(&self, files: Option<&Digest>) -> Digest {
        let mut bytes = self.text_digest.as_bytes().to_vec();
        bytes.extend(files.map(|digest| digest.as_bytes().to_vec()).unwrap_or_default());
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
        assert_eq!((evaluator.timeout_ms, evaluator.repeat), (600_000, 1));
        let other = Evaluator::parse(&format!("{GOOD}repeat = 2\n")).expect("valid");
        assert_ne!(evaluator.digest(None), other.digest(None));
        assert_ne!(evaluator.digest(None), evaluator.digest(Some(&Digest::of(b"files"))));
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
        ] {
            assert!(Evaluator::parse(&format!("{GOOD}{line}\n")).is_err(), "{line}");
        }
        assert!(Evaluator::parse("name = \"x\"").is_err());
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
