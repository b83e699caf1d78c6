//! Merges as an agent at the keyboard meets them (M01, M03): conflicts that can be looked at, resolved and
//! promoted, lines on request, and who collides with whom.

use serde_json::json;

use crate::needs_root;
use crate::support::*;

#[test]
fn m01_a_conflict_is_read_resolved_and_promoted() {
    needs_root!();
    let lab = Lab::new();
    let start = lab.group("g", &lab.tree("t", "printf 'a\\nb\\nc\\n' > f; printf 'a\\nb\\nc\\n' > t.py"));
    let ours = lab.step(&start, "sed -i 1s/a/A/ f t.py; chmod 755 f");
    let theirs = lab.step(&start, "sed -i 1s/a/1/ f; sed -i 3s/c/C/ t.py; echo n > new");
    let merge = ["merge", &ours, &theirs, "--expect", "0"];

    let matrix = lab.json(["merge", "--matrix", "g"]);
    let cell = &matrix["matrix"][0];
    assert_eq!(
        (&cell["ours"], &cell["theirs"], &cell["outcome"]),
        (&json!(ours), &json!(theirs), &json!("conflicted"))
    );
    let before = lab.events();
    let dry =
        lab.esf(merge.iter().chain(&["--dry-run", "--text-glob", "*.py", "-o", "json"])).output().unwrap();
    assert_eq!((dry.status.code(), lab.events()), (Some(4), before), "a dry run writes nothing");
    let refused = refusal(&dry).unwrap();
    assert!(refused.text().contains("without --dry-run a draft is made"), "{refused:?}");

    let output = lab.esf(merge.iter().chain(&["--text-glob", "*.py", "-o", "json"])).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let told = parsed(&output);
    assert_eq!(parsed(&dry)["conflicts"], told["conflicts"]);
    assert_eq!((&told["outcome"], &told["line_merged"]), (&json!("conflicted"), &json!(["t.py"])));
    let conflict = &told["conflicts"][0];
    assert_eq!((&conflict["path"], &conflict["kind"]), (&json!("f"), &json!("content")));
    for (side, first) in [("base", "a"), ("ours", "A"), ("theirs", "1")] {
        let node = id(conflict, &format!("{side}_node"));
        assert_eq!(lab.cat(&node, "f"), format!("{first}\nb\nc\n").as_bytes(), "{side}");
    }
    let draft = id(&told["node"], "node_id");
    assert!(lab.text(["ls", "g"]).contains("draft, 1 conflicts"));
    assert_eq!(lab.inspect(&draft)["node"]["merge"]["conflicts"], told["conflicts"]);
    assert_eq!(lab.refused(["promote", &draft, "--expect", "0"]).code(), "not_sealed");

    let attempt = lab.activate(&draft);
    assert_eq!(
        lab.sh(&attempt, "cat t.py new; stat -c %a f; printf 'A1\\nb\\nc\\n' > f"),
        "A\nb\nC\nn\n755\n"
    );
    let resolved = lab.suspend(&attempt);
    assert_eq!(lab.inspect(&resolved)["node"]["parents"], json!([ours, theirs]));
    // Lines were merged in it: an evaluation first.
    let refusal = lab.refused(["promote", &resolved, "--expect", "0"]);
    assert_eq!((refusal.code(), refusal.exit), ("evaluation_wanted", 5));
    let evaluator = lab.path("e.toml");
    std::fs::write(
        &evaluator,
        "name = \"e\"\nversion = \"1\"\ncommand = [\"grep\", \"-q\", \"C\", \"t.py\"]\n",
    )
    .unwrap();
    lab.json(["evaluate", &resolved, "--evaluator", evaluator.to_str().unwrap()]);
    assert_eq!(lab.json(["promote", &resolved, "--expect", "0"])["group"]["generation"], 1);
    assert_eq!(lab.cat(&resolved, "f"), b"A1\nb\nc\n");
    lab.stop_worker();
}

#[test]
fn merges_of_unrelated_groups_are_refused_by_name() {
    let lab = Lab::new();
    let tree = lab.tree("t", "echo 1 > f");
    let (one, other) = (lab.group("g", &tree), lab.group("h", &tree));
    assert_eq!(lab.refused(["merge", &one, &other, "--expect", "0"]).code(), "other_group");
    assert_eq!(lab.refused(["merge", "--matrix", &one, &other]).code(), "other_group");
    assert_eq!(lab.refused(["merge", "--matrix", "g"]).code(), "bad_request");
}
