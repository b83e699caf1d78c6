//! The shipped example: each agent earns its reward by the shipped evaluator, without ESF.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::needs_root;
use crate::support::*;

fn examples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
}

#[test]
fn the_evaluator_has_the_project_s_own_cases() {
    let cases = |place: &str| fs::read_to_string(examples().join(place).join("cases.sh")).unwrap();
    assert_eq!(cases("wordcount"), cases("evaluator"));
}

#[test]
fn wrong_half_and_right_are_told_apart() {
    for (agent, reward) in [("true", "0.6"), ("wrong.sh", "0.6"), ("half.sh", "0.8"), ("right.sh", "1.0")] {
        let tree = tempfile::tempdir().unwrap();
        let from = examples().display().to_string();
        let work = match agent {
            "true" => String::new(),
            script => format!("sh -c \"$(cat '{from}/agents/{script}')\""),
        };
        sh_in(tree.path(), &format!("cp '{from}'/wordcount/* .\n{work}"));
        sh_in(tree.path(), &format!("cp '{from}'/evaluator/* . && ESF_RESULT=$PWD/result sh ./evaluate.sh"));
        let result: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(tree.path().join("result")).unwrap()).unwrap();
        assert_eq!(result["reward"], reward.parse::<f64>().unwrap(), "{agent}: {result}");
        assert_eq!(result["verdict"], if reward == "1.0" { "pass" } else { "fail" }, "{agent}");
    }
}

/// The README's commands: build it, run it under WASI, go on under Linux.
#[test]
fn the_c_example_runs_under_wasi_and_its_node_under_linux() {
    needs_root!();
    let lab = Lab::new();
    let module = lab.path("tally.wasm");
    let source = examples().join("tally.c");
    let clang =
        Command::new("clang").args(["--target=wasm32-wasi", "-O2", "-o"]).arg(&module).arg(source).output();
    if !clang.is_ok_and(|built| built.status.success()) {
        eprintln!("skipped: there is no clang with wasi-libc");
        return;
    }
    let node = lab.group("words", &examples().join("wordcount"));
    let module = module.display().to_string();
    let run =
        ["run", &node, "--executor", "wasi", "--module", &module, "-o", "json", "--", "tally", "count.awk"];
    let text = fs::read_to_string(examples().join("wordcount/count.awk")).unwrap();
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let tally = format!("{lines} {words} {} count.awk\n", text.len());
    let made = id(&lab.json(run)["node"], "node_id");
    assert_eq!(String::from_utf8(lab.cat(&made, "tally.txt")).unwrap(), tally);
    let attempt = lab.activate(&made);
    assert_eq!(lab.sh(&attempt, "cat tally.txt && echo more >> tally.txt"), tally);
    let last = lab.suspend(&attempt);
    assert_eq!(String::from_utf8(lab.cat(&last, "tally.txt")).unwrap(), format!("{tally}more\n"));
}
