//! Runs the tour's commands: shows each as a user would type it, runs this same program, reads its
//! JSON. Ctrl-C reaches the commands too; the tour waits for them, so nothing is left half done.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esf_core::{Class, Problem};
use serde_json::Value;

use crate::context::Context;
use crate::output;

/// What a command printed and how it ended.
pub(super) struct Outcome {
    pub(super) reply: Value,
    pub(super) code: i32,
}

/// A command, and what a user would type for it where that is shorter than its words.
pub(super) struct Shown {
    pub(super) typed: Option<String>,
    pub(super) words: Vec<OsString>,
}

/// The tour's runner.
pub(super) struct Stepper<'a> {
    context: &'a Context,
    program: std::path::PathBuf,
    interrupted: Arc<AtomicBool>,
    number: u32,
}

/// A reply that lacks what the contract promises.
pub(super) fn surprise(expected: &str, found: &Value) -> Problem {
    Problem::new(Class::Failure, "unexpected_reply", "a command answered otherwise than it promises")
        .expected(expected)
        .found(found.to_string().chars().take(400).collect::<String>())
}

/// A step that ended in an error: its own, when it said one.
pub(super) fn failed(what: &str, code: i32, reply: &Value) -> Problem {
    let told: Option<Problem> =
        reply.get("error").and_then(|error| serde_json::from_value(error.clone()).ok());
    told.unwrap_or_else(|| {
        Problem::new(Class::Failure, "step_failed", format!("{what} ended with exit {code}"))
    })
}

/// A text field of a reply.
pub(super) fn text(value: &Value, key: &str) -> Result<String, Problem> {
    value[key].as_str().map(str::to_owned).ok_or_else(|| surprise(key, value))
}

impl<'a> Stepper<'a> {
    pub(super) fn new(context: &'a Context) -> Result<Self, Problem> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(|error| {
                Problem::new(Class::Failure, "signals", format!("cannot watch for signals: {error}"))
            })?;
        }
        Ok(Self { context, program: context.program()?, interrupted, number: 0 })
    }

    /// The program as a user types it, with the store when it is not the default one.
    pub(super) fn program(&self) -> String {
        match self.context.store_option() {
            Some(store) => format!("esf --store {}", quote(&store.to_string_lossy())),
            None => "esf".to_owned(),
        }
    }

    pub(super) fn say(&self, text: &str) {
        eprintln!("{text}");
    }

    pub(super) fn title(&mut self, text: &str) {
        self.number += 1;
        eprintln!("\n{}. {text}", self.number);
    }

    pub(super) fn result(&self, text: &str) -> Result<(), Problem> {
        output::write_out(text.as_bytes()).map_err(|error| {
            Problem::new(Class::Failure, "stdout", format!("cannot write to stdout: {error}"))
        })
    }

    /// A group name that is not taken: `base`, `base-2`, …
    pub(super) fn free_name(&self, base: &str) -> Result<String, Problem> {
        if !self.context.store_exists() {
            return Ok(base.to_owned());
        }
        let listing = self.finish(self.start(&["ls".into()])?)?;
        let groups = listing.reply["groups"].as_array().cloned().unwrap_or_default();
        let taken = |name: &str| groups.iter().any(|group| group["name"].as_str() == Some(name));
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        Ok(std::iter::once(base.to_owned())
            .chain(numbered)
            .find(|name| !taken(name))
            .expect("numbers do not end"))
    }

    /// Runs one command; its error is the tour's.
    pub(super) fn esf(&mut self, words: &[OsString]) -> Result<Value, Problem> {
        let outcome = self.esf_any(words)?;
        match outcome.code {
            0 => Ok(outcome.reply),
            code => Err(failed("a step", code, &outcome.reply)),
        }
    }

    /// Runs one command, whatever its end.
    pub(super) fn esf_any(&mut self, words: &[OsString]) -> Result<Outcome, Problem> {
        self.show(&self.typed(words));
        let begun = Instant::now();
        let outcome = self.finish(self.start(words)?)?;
        eprintln!("  {:.0?}", begun.elapsed());
        Ok(outcome)
    }

    /// Runs several commands at the same time; outcomes in their order.
    pub(super) fn esf_together(&mut self, commands: Vec<Shown>) -> Result<Vec<Outcome>, Problem> {
        for Shown { typed, words } in &commands {
            self.show(&typed.clone().unwrap_or_else(|| self.typed(words)));
        }
        let begun = Instant::now();
        let started: Result<Vec<Child>, Problem> =
            commands.iter().map(|shown| self.start(&shown.words)).collect();
        let outcomes = std::thread::scope(|scope| {
            let waiting: Vec<_> =
                started?.into_iter().map(|child| scope.spawn(|| self.finish(child))).collect();
            let joined =
                waiting.into_iter().map(|thread| thread.join().expect("a waiting thread does not panic"));
            joined.collect::<Result<Vec<_>, _>>()
        });
        eprintln!("  {:.0?}", begun.elapsed());
        outcomes
    }

    /// Shows that `git apply` takes the patch, where git is installed.
    pub(super) fn git_apply_check(&self, tree: &Path, patch: &Path) -> Result<(), Problem> {
        let words =
            ["-C".into(), tree.as_os_str().to_owned(), "apply".into(), "--check".into(), patch.into()];
        eprintln!("  $ git {}", self.typed(&words));
        let mut git = Command::new("git");
        if let Some(parent) = tree.parent() {
            // A repository around the tree would make git read the patch against that one's top.
            git.env("GIT_CEILING_DIRECTORIES", parent);
        }
        match git.args(words).stdin(Stdio::null()).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Problem::new(Class::Failure, "patch_refused", format!("git apply: {status}"))
                .remedy("did the tree change since the tour imported it? run the tour again")),
            Err(error) => {
                eprintln!("  (git is not installed here, so nothing checked the patch: {error})");
                Ok(())
            }
        }
    }

    fn typed(&self, words: &[OsString]) -> String {
        words.iter().map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    fn show(&self, typed: &str) {
        eprintln!("  $ {} {}", self.program(), output::printable(typed));
    }

    fn start(&self, words: &[OsString]) -> Result<Child, Problem> {
        let mut command = Command::new(&self.program);
        command.arg("--store").arg(self.context.dir()).args(["-o", "json"]);
        if let Some(actor) = self.context.actor_option() {
            command.args(["--actor", actor]);
        }
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| crate::context::io_problem("start", &self.program, &error))
    }

    /// Waits for a command. An interrupt is passed on once, and the wait goes on: the command ends
    /// in its own orderly way.
    fn finish(&self, mut child: Child) -> Result<Outcome, Problem> {
        let out = reader(child.stdout.take());
        let err = progress(child.stderr.take());
        let mut passed_on = false;
        let status = loop {
            let ended = child
                .try_wait()
                .map_err(|error| crate::context::io_problem("wait for", &self.program, &error))?;
            if let Some(status) = ended {
                break status;
            }
            if self.interrupted.load(Ordering::Relaxed) && !passed_on {
                passed_on = true;
                let pid = rustix::process::Pid::from_child(&child);
                // It may have ended by itself just now, which is as good.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let out = out.join().expect("the reader does not panic");
        let err = err.join().expect("the reader does not panic");
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Problem::new(
                Class::Failure,
                "interrupted",
                "interrupted; nothing is left half done",
            )
            .remedy("run the tour again: it makes a new group"));
        }
        let code = status.code().unwrap_or(125);
        let last = |text: &str| text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let error = || last(&err).filter(|value| value.get("error").is_some());
        let reply = last(&out).or_else(error).unwrap_or(Value::Null);
        Ok(Outcome { reply, code })
    }
}

fn reader(pipe: Option<std::process::ChildStdout>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What could not be read shows as a missing reply, which is reported.
            let _ = std::io::Read::read_to_end(&mut pipe, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Passes a command's progress on, and keeps its lines for the error that may be among them.
fn progress(pipe: Option<std::process::ChildStderr>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut kept = String::new();
        let Some(pipe) = pipe else { return kept };
        for line in std::io::BufRead::lines(std::io::BufReader::new(pipe)).map_while(Result::ok) {
            if !line.starts_with("{\"error\"") {
                // Progress that nobody can see is not worth failing for.
                let _ = writeln!(std::io::stderr().lock(), "  | {}", output::printable(&line));
            }
            kept.push_str(&line);
            kept.push('\n');
        }
        kept
    })
}

pub(super) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn shown_commands_can_be_pasted() {
        assert_eq!(super::quote("a/b:@"), "a/b:@");
        assert_eq!(super::quote("it's"), "'it'\\''s'");
        assert_eq!(super::quote(""), "''");
    }
}
