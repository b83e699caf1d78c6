//! Checks of the tracked files: licences, unsafe code, paths of a particular machine, lengths.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Failure, source};

const LICENCE: &str = "MIT OR Apache-2.0";
const LICENCE_FILES: &[&str] = &["LICENSE-MIT", "LICENSE-APACHE"];

/// Where unsafe code may be: the crate that makes system calls of its own, and the file that loads machine code.
const UNSAFE_HOMES: &[&str] = &["crates/esf-jail/", "crates/esf-wasi/src/engine/artefact.rs"];

/// Beginnings of paths that exist on somebody's machine only.
const MACHINE_PATHS: &[&str] = &["/root/.cargo", "/root/.rustup", "/Users/", "/mnt/c/"];

/// This file names them, and no other may.
const NAMES_MACHINE_PATHS: &str = "xtask/src/tree.rs";

const LONG: usize = 500;

/// Path and text of every file in the index that is text.
pub(crate) fn tracked(root: &Path) -> Result<Vec<(String, String)>, Failure> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let names = String::from_utf8(output.stdout)?;
    let mut files = Vec::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        // A file that is deleted but still in the index has nothing to check.
        if let Ok(bytes) = std::fs::read(root.join(name))
            && let Ok(text) = String::from_utf8(bytes)
        {
            files.push((name.to_owned(), text));
        }
    }
    Ok(files)
}

/// Findings: packages that do not say the licence, and missing licence texts.
pub(crate) fn check_licences(metadata: &Value, files: &[(String, String)]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if package["license"] != LICENCE {
            let (name, found) = (&package["name"], &package["license"]);
            findings.push(format!("package {name} must say license = \"{LICENCE}\", found {found}"));
        }
    }
    for text in LICENCE_FILES {
        if !files.iter().any(|(path, _)| path == text) {
            findings.push(format!("{text} is missing"));
        }
    }
    findings
}

/// Findings: unsafe code, or leave for it, outside its home.
pub(crate) fn check_unsafe(path: &str, text: &str) -> Vec<String> {
    let is_home = |home: &&str| if home.ends_with('/') { path.starts_with(*home) } else { path == *home };
    if UNSAFE_HOMES.iter().any(is_home) {
        return Vec::new();
    }
    let is_unsafe = |line: &str| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
            || ["allow(unsafe_code", "expect(unsafe_code"].iter().any(|leave| line.contains(leave))
    };
    let code = source::code_only(text);
    let lines = code.lines().enumerate().filter(|(_, line)| is_unsafe(line));
    lines.map(|(at, _)| format!("{path}:{}: unsafe code belongs in {UNSAFE_HOMES:?}", at + 1)).collect()
}

/// Findings: absolute paths of a particular machine.
pub(crate) fn check_machine_paths(path: &str, text: &str) -> Vec<String> {
    if path == NAMES_MACHINE_PATHS {
        return Vec::new();
    }
    let starts_here = |line: &str, at: usize| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || "/._-}~$>".contains(c))
    };
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for prefix in MACHINE_PATHS {
            if line.match_indices(prefix).any(|(at, _)| starts_here(line, at)) {
                findings.push(format!("{path}:{}: {prefix} is a path of one machine", number + 1));
            }
        }
    }
    findings
}

/// Rust files that are longer than one noun usually needs, longest first.
pub(crate) fn long_files(files: &[(String, String)]) -> Vec<(String, usize)> {
    let mut long: Vec<_> = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(path, text)| (path.clone(), text.lines().count()))
        .filter(|(_, lines)| *lines > LONG)
        .collect();
    long.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_has_two_homes() {
        for (text, findings) in [
            ("fn f() { unsafe { g() } }", 1),
            ("unsafe impl Send for X {}", 1),
            ("#![allow(unsafe_code)]", 1),
            ("#![deny(unsafe_code)]", 0),
            ("// unsafe is a word here", 0),
            ("let s = \"unsafe {\";", 0),
            ("fn unsafe_looking() {}", 0),
        ] {
            assert_eq!(check_unsafe("crates/esf-core/src/lib.rs", text).len(), findings, "{text}");
            for (path, home) in [
                ("crates/esf-jail/src/sys.rs", true),
                ("crates/esf-wasi/src/engine/artefact.rs", true),
                ("crates/esf-wasi/src/engine/artefact.rs/more.rs", false),
                ("crates/esf-wasi/src/engine/run.rs", false),
            ] {
                let findings = if home { 0 } else { findings };
                assert_eq!(check_unsafe(path, text).len(), findings, "{path}: {text}");
            }
        }
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for (text, findings) in [
            ("see /Users/me", 1),
            ("\"/root/.cargo\"", 1),
            ("(/mnt/c/x) and /mnt/c/y", 1),
            ("attempts/Users/x", 0),
            ("{attempt}/Users/x", 0),
            ("/Usersx", 0),
            ("$HOME/Users/x", 0),
        ] {
            assert_eq!(check_machine_paths("README.md", text).len(), findings, "{text}");
        }
    }

    #[test]
    fn each_package_says_its_licence() {
        let texts: Vec<_> = LICENCE_FILES.iter().map(|path| (path.to_string(), String::new())).collect();
        for (licence, findings) in [(Value::from(LICENCE), 0), (Value::from("MIT"), 1), (Value::Null, 1)] {
            let metadata = serde_json::json!({"packages": [{"name": "p", "license": licence}]});
            assert_eq!(check_licences(&metadata, &texts).len(), findings, "{metadata}");
        }
        assert_eq!(check_licences(&Value::Null, &[]).len(), 2);
    }

    #[test]
    fn long_files_are_named_longest_first() {
        let file = |path: &str, lines: usize| (path.to_owned(), "x\n".repeat(lines));
        let files = [file("a.rs", 500), file("b.rs", 501), file("c.md", 900), file("d.rs", 700)];
        assert_eq!(long_files(&files), [("d.rs".to_owned(), 700), ("b.rs".to_owned(), 501)]);
    }
}
