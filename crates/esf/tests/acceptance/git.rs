//! M04: a commit in, patches and commits out, the same tree id after the round trip; `git status` inside is clean
//! for any uid; what cannot be followed or carried is named, what is refused changes nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Lab, id, said, sh_in};

const AUTHOR: &str =
    "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@d";
const PROJECT: &str = "mkdir -p d/deep sub tracked; echo 1 > d/f; printf 'a\\r\\nb' > d/crlf; : > empty
    printf '#!/bin/sh\\n' > run; chmod 755 run; ln -s d/f link; printf '\\000\\001' > binary
    echo x > 'd/deep/q\"uo te'; echo y > \"$(printf 'tab\\tn\\377')\"; echo upper > README; echo lower > readme
    printf 'build/\\n*.log\\n' > .gitignore; echo kept > tracked/kept.log
    printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 5\\n' > large.bin
    git add -A; git add -f tracked/kept.log
    git update-index --add --cacheinfo 160000,1234567890123456789012345678901234567890,sub";

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git").current_dir(directory).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A repository with two commits on the branch `trunk`.
fn project(lab: &Lab, name: &str, format: &str) -> std::path::PathBuf {
    lab.tree(
        name,
        &format!(
            "git init -q -b trunk --object-format={format}; {AUTHOR}; echo 0 > old; git add old; git commit -qm zero
             {PROJECT}; git commit -qm one"
        ),
    )
}

fn import(lab: &Lab, name: &str, source: &str) -> (String, String) {
    let output = lab.output(["-o", "json", "group", "create", name, "--from", source]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    (id(&made["group"], "canonical_node_id"), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn export(lab: &Lab, node: &str, format: &str, to: &Path, more: &[&str]) -> Value {
    let to = to.to_str().unwrap();
    let arguments = ["export", node, "--format", format, "--to", to];
    lab.json(arguments.iter().chain(more))["export"].take()
}

#[test]
fn a_commit_comes_back_as_the_same_tree_and_is_clean_inside_for_any_user() {
    let lab = Lab::new();
    let source = project(&lab, "src", "sha1");
    sh_in(&source, "echo dirty >> d/f; echo new > untracked");
    let before = fs::read(source.join(".git/index")).unwrap();
    let (node, told) = import(&lab, "g", &format!("git:{}@trunk", source.display()));
    for expected in [
        "uncommitted changes of 2 paths",
        "d/f",
        "untracked",
        "git-lfs",
        "large.bin",
        "sub: a submodule at commit 12345",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert_eq!(fs::read(source.join(".git/index")).unwrap(), before, "the user's index is only read");
    let provenance = &lab.inspect(&node)["node"]["provenance"]["git"];
    assert_eq!(provenance["commit"], git(&source, &["rev-parse", "trunk"]).as_str());
    assert_eq!(provenance["submodules"][0]["path"], "sub");
    assert_eq!(provenance["lfs_pointers"][0], "large.bin");

    let tree = git(&source, &["rev-parse", "trunk^{tree}"]);
    let there = export(&lab, &node, "git", &lab.path("new.git"), &[]);
    assert_eq!(there["summary"]["tree"], tree.as_str());
    assert_eq!(git(&lab.path("new.git"), &["rev-parse", "main^{tree}"]), tree);
    lab.json(["verify", lab.path("new.git").to_str().unwrap()]);

    let attempt = lab.activate(&node);
    for user in ["0", "1000", "4321"] {
        let script = "git status --porcelain && git diff --stat && git log --format=%s";
        let said = lab.text(["exec", "-u", user, &attempt, "--", "sh", "-c", script]);
        assert_eq!(said, "one\n", "as {user}");
    }
    // What is edited within the second of the commit is seen.
    assert_eq!(
        lab.sh(&attempt, "echo 2 > d/f; git status --porcelain; git diff | tail -n 1"),
        " M d/f\n+2\n"
    );
    lab.sh(
        &attempt,
        "git -c user.name=x -c user.email=x@y commit -qam inside && git status --porcelain && git fsck",
    );
    lab.release(&attempt);
}

#[test]
fn a_change_leaves_as_patch_as_branch_and_as_series() {
    let lab = Lab::new();
    let source = project(&lab, "src", "sha1");
    let (start, _) = import(&lab, "g", &format!("git:{}", source.display()));
    let first = lab.step(
        &start,
        "echo 2 >> d/f; chmod 755 d/crlf; printf 'a\\r\\nc' > d/crlf; echo more >> tracked/kept.log
         mkdir build; echo o > build/o; echo l > d/x.log; rm binary; ln -sf README link; mkfifo pipe; mkdir hollow",
    );
    let node = lab
        .step(&first, "mkdir n; echo n > n/n; rm README; rm -r d/deep; echo file > d/deep; echo z > build/z");

    let patch = export(&lab, &node, "patch", &lab.path("p.patch"), &["--from", &start]);
    assert_eq!(patch["summary"]["ignored"], 3);
    let reasons = patch["left_out"].to_string();
    for expected in ["pipe", "a fifo", "hollow", "an empty directory", "build/o"] {
        assert!(reasons.contains(expected), "{expected}: {reasons}");
    }
    let whole = export(&lab, &node, "git", &source, &["--branch", "work"]);
    let base = git(&source, &["rev-parse", "trunk"]);
    assert_eq!(whole["summary"]["parent"], base.as_str());
    assert_eq!(git(&source, &["rev-parse", "work^"]), base);
    assert_eq!(git(&source, &["status", "--porcelain"]), "", "working tree and index stay as they are");
    let message = git(&source, &["log", "-1", "--format=%(trailers)", "work"]);
    assert!(
        message.contains(&format!("Esf-Node: {node}")) && message.contains("Esf-Attempt: att_"),
        "{message}"
    );
    let tree = git(&source, &["rev-parse", "work^{tree}"]);
    let names = git(&source, &["ls-tree", "-r", "--name-only", "work"]);
    assert!(
        names.contains("tracked/kept.log") && !names.contains("build/") && !names.contains("x.log"),
        "{names}"
    );
    assert!(git(&source, &["ls-tree", "work", "sub"]).starts_with("160000 commit 1234567890"), "{names}");

    // The patch gives the very tree of the branch.
    sh_in(&source, &format!("git apply --index {}", lab.path("p.patch").display()));
    assert_eq!(git(&source, &["write-tree"]), tree);
    sh_in(&source, "git reset -q --hard");
    // So do the mails, and so does a branch of one commit for each node.
    let mails = export(&lab, &node, "patch", &lab.path("mails"), &["--series"]);
    assert_eq!(mails["summary"]["patches"], 2);
    sh_in(
        &source,
        &format!("{AUTHOR}; git checkout -qb am; git am -q {}/*.patch", lab.path("mails").display()),
    );
    assert_eq!(git(&source, &["rev-parse", "am^{tree}"]), tree);
    assert_eq!(git(&source, &["log", "-1", "--format=%(trailers:key=Esf-Node,valueonly)"]), node);
    let series = export(&lab, &node, "git", &source, &["--branch", "steps", "--series"]);
    assert_eq!(series["summary"]["commits"].as_array().unwrap().len(), 2);
    assert_eq!(git(&source, &["rev-parse", "steps^{tree}"]), tree);
    assert_eq!(git(&source, &["rev-parse", "steps~2"]), base);
    // With everything that is ignored.
    export(&lab, &node, "git", &source, &["--branch", "all", "--include-ignored"]);
    assert!(git(&source, &["ls-tree", "-r", "--name-only", "all"]).contains("build/z"));

    // Again is the same commit; a later node goes on from it; another line does not.
    assert_eq!(export(&lab, &node, "git", &source, &["--branch", "work"])["digest"], whole["digest"]);
    let later = lab.step(&node, "echo later > later");
    export(&lab, &later, "git", &source, &["--branch", "work"]);
    assert_eq!(git(&source, &["rev-parse", "work~1"]), whole["digest"].as_str().unwrap());
    let other = lab.step(&start, "echo other > other");
    let tip = git(&source, &["rev-parse", "work"]);
    let to = source.to_str().unwrap();
    let refused = lab.refused(["export", &other, "--format", "git", "--to", to, "--branch", "work"]);
    assert_eq!((refused.exit, refused.code()), (4, "not_descendant"));
    let refused = lab.refused(["export", &other, "--format", "git", "--to", to, "--branch", "am"]);
    assert_eq!((refused.exit, refused.code()), (4, "branch_checked_out"));
    assert_eq!(git(&source, &["rev-parse", "work"]), tip);
}

#[test]
fn an_export_is_repeated_by_its_key_and_replaces_nothing() {
    let lab = Lab::new();
    let source = project(&lab, "src", "sha256");
    let (start, _) = import(&lab, "g", &format!("git:{}@HEAD~0", source.display()));
    let tree = git(&source, &["rev-parse", "HEAD^{tree}"]);
    assert_eq!(export(&lab, &start, "git", &lab.path("n.git"), &[])["summary"]["tree"], tree.as_str());
    let node = lab.step(&start, "git status --porcelain | grep . && exit 1; echo 2 > d/f");
    let to = lab.path("p.patch");
    let request =
        ["--idempotency-key", "k", "export", &node, "--format", "patch", "--to", to.to_str().unwrap()];
    let answer = lab.json(request);
    let text = fs::read(&to).unwrap();
    assert_eq!(lab.json(request), answer);
    let refused = lab.refused(&request[2..]);
    assert_eq!((refused.exit, refused.code()), (4, "target_exists"));
    assert_eq!(fs::read(&to).unwrap(), text);
    fs::write(&to, "somebody's own").unwrap();
    assert_eq!(lab.refused(request).code(), "target_exists");
    assert_eq!(fs::read(&to).unwrap(), b"somebody's own");
    let refused = lab.refused(["export", &node, "--format", "git", "--to", to.to_str().unwrap()]);
    assert_eq!(refused.code(), "target_exists");
}

#[test]
fn a_hostile_repository_runs_nothing_and_bad_sources_are_refused() {
    let lab = Lab::new();
    let source = project(&lab, "src", "sha1");
    let mark = lab.path("ran");
    let evil = format!("touch {}", mark.display());
    sh_in(
        &source,
        &format!(
            "echo '* filter=evil' > .gitattributes; {AUTHOR}; git add .gitattributes; git commit -qm attributes
             printf '#!/bin/sh\\n{evil}\\n' > .git/evil; chmod 755 .git/evil
             for hook in post-checkout post-index-change reference-transaction post-commit pre-auto-gc; do
                 cp .git/evil .git/hooks/$hook; done
             git config filter.evil.clean .git/evil; git config filter.evil.smudge .git/evil
             git config filter.evil.required true; git config core.fsmonitor \"$PWD/.git/evil\"
             git config diff.external .git/evil; git config core.pager .git/evil; touch d/f; rm -f {}",
            mark.display()
        ),
    );
    let (node, _) = import(&lab, "g", &format!("git:{}", source.display()));
    let (_, _) = import(&lab, "bare", &format!("git:{}@trunk~1", source.join(".git").display()));
    let node = lab.step(&node, "echo 2 > d/f");
    export(&lab, &node, "git", &source, &["--branch", "work"]);
    assert!(!mark.exists(), "a program of the repository ran");

    let text = |rest: &str| format!("git:{rest}");
    let table = [
        (text(&format!("{}@nothing", source.display())), "revision_missing"),
        (text(&format!("{}@--help", source.display())), "revision_missing"),
        (text(&format!("{}@trunk^{{tree}}", source.display())), "revision_missing"),
        (text(lab.tree("plain", "true").to_str().unwrap()), "not_a_repository"),
        (text(source.join("d").to_str().unwrap()), "not_a_repository"),
        (text("/nowhere/at/all@HEAD"), "source_missing"),
    ];
    for (source, code) in table {
        let refused = lab.refused(["group", "create", "bad", "--from", &source]);
        assert_eq!(refused.code(), code, "{source}: {}", refused.text());
    }
    // A tree that git itself would not check out.
    sh_in(
        &source,
        &format!(
            "{AUTHOR}; blob=$(git hash-object -w --stdin < /dev/null)
             tree=$(printf \"100644 blob $blob\\tconfig\\n\" | git mktree)
             top=$(printf \"040000 tree $tree\\t.git\\n\" | git mktree)
             git update-ref refs/heads/evil $(git commit-tree -m evil $top)"
        ),
    );
    let refused =
        lab.refused(["group", "create", "bad", "--from", &format!("git:{}@evil", source.display())]);
    assert_eq!(refused.code(), "git_refused", "{}", refused.text());
    // An object that a partial clone left out is not fetched.
    sh_in(&source, "rm -f .git/objects/$(git rev-parse trunk:run | sed 's#^..#&/#')");
    let refused = lab.refused(["group", "create", "bad", "--from", &format!("git:{}", source.display())]);
    assert_eq!(refused.code(), "git_object_missing", "{}", refused.text());
    assert!(refused.text().contains("run"));
    assert!(!lab.json(["ls"]).to_string().contains("\"bad\""));
}
