//! The guest programs that `scripts/wasi-guests` builds, and how a test runs them on either executor.
//! Invariant: programs come from outside the tree (pinned modules, a bound directory), so a tree under
//! test holds nothing that the test did not put there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// Where guests are, or an early end of the test that says what is missing.
#[macro_export]
macro_rules! needs_guests {
    () => {{
        $crate::needs_root!();
        let Some(guests) = $crate::guests::Guests::find() else {
            eprintln!("skipped: the guest programs are not built (scripts/wasi-guests)");
            return;
        };
        guests
    }};
}

/// The directory beside the build that holds `wasm/`, `native/` and `minbase.tar`.
pub(crate) struct Guests {
    directory: PathBuf,
}

/// The two executors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Oci,
    Wasi,
}

impl Guests {
    pub(crate) fn find() -> Option<Self> {
        let target = Path::new(env!("CARGO_BIN_EXE_esf")).ancestors().nth(2).expect("TARGET/PROFILE/esf");
        let directory = target.join("wasi-guests");
        directory.join("wasm/walk.wasm").exists().then_some(Self { directory })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The path of a module, for `--module`.
    pub(crate) fn module(&self, name: &str) -> String {
        self.file(&format!("wasm/{name}.wasm")).display().to_string()
    }

    /// `esf activate NODE --executor wasi` with these modules pinned.
    #[track_caller]
    pub(crate) fn wasi(&self, lab: &Lab, node: &str, modules: &[&str], options: &[&str]) -> String {
        let modules: Vec<String> = modules.iter().map(|name| self.module(name)).collect();
        let pinned = modules.iter().flat_map(|path| ["--module", path]);
        let all: Vec<&str> =
            ["--executor", "wasi"].into_iter().chain(pinned).chain(options.iter().copied()).collect();
        lab.activate_with(node, &all)
    }

    /// An attempt of either executor that has `walk` and `fsop`, its commands' cwd the tree's top.
    #[track_caller]
    pub(crate) fn activate(&self, lab: &Lab, on: On, node: &str) -> String {
        match on {
            On::Wasi => self.wasi(lab, node, &["walk", "fsop"], &[]),
            On::Oci => {
                let bind = format!("{}:/guests", self.file("native").display());
                lab.activate_with(node, &["--base", "host", "--workspace", "/workspace", "--bind-ro", &bind])
            }
        }
    }

    /// A program of an attempt of [`Guests::activate`]; asserts exit 0 and gives what it printed.
    #[track_caller]
    pub(crate) fn run(&self, lab: &Lab, on: On, attempt: &str, program: &str, arguments: &[&str]) -> String {
        let program = match on {
            On::Wasi => format!("{program}.wasm"),
            On::Oci => format!("/guests/{program}"),
        };
        lab.text(["exec", attempt, "--", &program].iter().chain(arguments))
    }

    /// Activate, run one script of `fsop`, suspend: the answers and the sealed node.
    #[track_caller]
    pub(crate) fn step(&self, lab: &Lab, on: On, node: &str, script: &str) -> (String, String) {
        let attempt = self.activate(lab, on, node);
        let answers = self.run(lab, on, &attempt, "fsop", &[script]);
        (answers, lab.suspend(&attempt))
    }

    /// The answers of one script of `fsop` in a directory of this machine.
    #[track_caller]
    pub(crate) fn plain(&self, directory: &Path, script: &str) -> String {
        let output =
            Command::new(self.file("native/fsop")).arg(script).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// The answers that are not `ok`, with their operations.
pub(crate) fn failed(answers: &str) -> Vec<&str> {
    answers.lines().filter(|line| !line.ends_with("ok")).collect()
}

/// What a walk on that executor shows of the tree of a dump: neither owners, attributes and hard links nor,
/// with WASI, modes; there a fifo is one of the "other" kinds.
pub(crate) fn as_walked(dump: &str, on: On) -> Vec<String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [path, kind, mode, _, _, size, content, _, mtime, _] = words[..] else {
            panic!("not a line of a dump: {line}")
        };
        let (kind, mode) = match (on, kind) {
            (On::Wasi, "fifo") => ("other", "-"),
            (On::Wasi, kind) => (kind, "-"),
            (On::Oci, kind) => (kind, mode),
        };
        [path, kind, mode, size, content, mtime].join(" ")
    };
    sorted(dump.lines().map(line))
}

/// The lines of a walk, in the order of [`as_walked`].
pub(crate) fn walked(walk: &str) -> Vec<String> {
    sorted(walk.lines().map(str::to_owned))
}

/// A dump without times: what two runs of one script have in common.
pub(crate) fn timeless(dump: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        words[8] = "-";
        words.join(" ")
    };
    dump.lines().map(line).collect()
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

/// Asserts that two lists of lines are equal and shows only where they are not.
#[track_caller]
pub(crate) fn same(what: &str, found: &[String], expected: &[String]) {
    if found == expected {
        return;
    }
    let only = |these: &[String], those: &[String]| {
        let those: std::collections::HashSet<&String> = those.iter().collect();
        these.iter().filter(|line| !those.contains(line)).take(20).cloned().collect::<Vec<_>>().join("\n")
    };
    panic!("{what}:\nfound only\n{}\nexpected only\n{}", only(found, expected), only(expected, found));
}
