//! What the project checks about itself and no compiler does: `check` (crate direction, unsafe code,
//! licences, machine paths, file lengths) and `leaks` (what a test run left on the machine).
//! Each check takes text and gives findings, so that it is tested without a work tree.

mod direction;
mod leaks;
mod source;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

const USAGE: &str = "usage: cargo run -p xtask -- check | leaks record FILE | leaks compare FILE";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["check"] => check(),
        ["leaks", "record", file] => leaks::record(Path::new(file)),
        ["leaks", "compare", file] => leaks::compare(Path::new(file)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every check over the work tree; true when none found anything.
fn check() -> Result<bool, Failure> {
    let root = root();
    let metadata = metadata(&root)?;
    let files = tree::tracked(&root)?;
    let mut findings = direction::check_edges(&direction::edges(&metadata)?);
    findings.extend(tree::check_licences(&metadata, &files));
    for (path, text) in &files {
        findings.extend(tree::check_machine_paths(path, text));
        if path.ends_with(".rs") {
            findings.extend(tree::check_unsafe(path, text));
            findings.extend(direction::check_graph_names(path, text));
        }
    }
    for (path, lines) in tree::long_files(&files) {
        println!("note: {path} has {lines} lines; is there a second noun in it?");
    }
    for finding in &findings {
        eprintln!("error: {finding}");
    }
    println!("checked {} files: {} findings", files.len(), findings.len());
    Ok(findings.is_empty())
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the work tree").to_owned()
}

fn metadata(root: &Path) -> Result<Value, Failure> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
