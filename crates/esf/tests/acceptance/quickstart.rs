//! The tour does the main job on the shipped project and on a tree of the user's own, and what it
//! shows works by hand afterwards.

use std::process::{Command, Output};

use crate::needs_root;
use crate::support::*;

#[test]
fn the_shipped_project_from_import_to_patch() {
    needs_root!();
    let lab = Lab::new();
    let output = lab.output(["quickstart"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for (agent, verdict, reward) in
        [("wrong", "fail", "0.60"), ("half", "fail", "0.80"), ("right", "pass", "1.00")]
    {
        let row = table.lines().find(|line| line.starts_with(agent)).expect("a row for each agent");
        let row: Vec<&str> = row.split_whitespace().collect();
        assert!(row.ends_with(&[verdict, reward]), "{row:?}");
    }
    let group = lab.inspect("quickstart");
    assert_eq!(group["group"]["generation"], 1);
    assert!(lab.cat("quickstart:@", "count.awk").starts_with(b"# Prints"));
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(shown.contains("stale_generation"), "{shown}");
    assert_eq!(lab.json(["ps"])["attempts"].as_array().unwrap().len(), 0);
    by_hand(&lab, &shown);

    lab.text(["quickstart"]);
    assert_eq!(
        lab.json(["ls"])["groups"].as_array().unwrap().len(),
        2,
        "a second tour has a group of its own"
    );
    lab.json(["fsck"]);
}

/// Runs the shown commands that make sense a second time, as a user would, in a shell.
fn by_hand(lab: &Lab, shown: &str) {
    let bin = lab.path("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_esf"), bin.join("esf")).unwrap();
    let commands: Vec<&str> = shown.lines().filter_map(|line| line.trim().strip_prefix("$ esf ")).collect();
    assert!(commands.len() >= 12, "{commands:?}");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let run = |command: &str| -> Output {
        Command::new("sh").args(["-c", command]).env("PATH", &path).output().unwrap()
    };
    let winner = lab.inspect("quickstart")["group"]["canonical_node_id"].as_str().unwrap().to_owned();
    let again = commands.iter().filter(|command| {
        let of_winner =
            command.contains(&winner) && (command.contains(" evaluate ") || command.contains(" run "));
        of_winner || command.contains(" fork ") || command.ends_with(" gc") || command.ends_with(" df")
    });
    let mut count = 0;
    for command in again {
        let output = run(&format!("esf {command}"));
        assert!(output.status.success(), "{command}: {}", said(&output));
        count += 1;
    }
    assert_eq!(count, 5, "fork, run, evaluate, gc, df: {commands:?}");
    let stale = commands.iter().filter(|command| command.contains(" promote "));
    for command in stale {
        assert_eq!(run(&format!("esf {command}")).status.code(), Some(4), "{command}");
    }
}

#[test]
fn a_tree_of_the_user_s_own() {
    needs_root!();
    let lab = Lab::new();
    let tree = lab.tree(
        "project",
        "git init -q . && mkdir bin && echo 'echo hello' > bin/run && chmod 755 bin/run && head -c 5000 /dev/urandom > data \
         && git add . && git -c user.name=n -c user.email=e commit -q -m first",
    );
    let mut tour = lab.esf(["quickstart"]);
    tour.arg(&tree).args([
        "--agent",
        "echo 'echo bye' > bin/run",
        "--agent",
        "rm data; exit 3",
        "--test",
        "sh bin/run | grep bye",
    ]);
    let output = tour.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let patch = lab.path("s-quickstart").join("quickstart.patch");
    sh_in(
        &tree,
        &format!(
            "git apply '{}' && test \"$(sh bin/run)\" = bye && test -x bin/run && git status --porcelain",
            patch.display()
        ),
    );

    let generic = lab.esf(["quickstart"]).arg(&tree).output().unwrap();
    assert_eq!(generic.status.code(), Some(0), "{}", said(&generic));
}
