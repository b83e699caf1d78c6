//! The shipped example: each agent earns its reward by the shipped evaluator, without ESF.

use std::fs;
use std::path::Path;

use crate::support::sh_in;

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
