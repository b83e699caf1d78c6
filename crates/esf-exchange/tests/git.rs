//! The oracle of commits is git itself: what is written has the tree id that git computes, what is read is the
//! tree that was written, and the private repository of an import is whole and clean.

mod support;

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;

use esf_core::diff::diff;
use esf_core::manifest::MemoryObjects;
use esf_exchange::git::{
    Author, Bench, Commits, Error as GitError, Git, ObjectFormat, Options, Person, import,
};
use esf_layerstack::Form;
use proptest::prelude::*;
use support::{InMemory, Tree, git, have_git, pin, read_tree, trees, write_tree};

fn author(message: &str) -> Author {
    Author { person: Person::new("A <b>", "a b@c"), seconds: 5, message: message.to_owned() }
}

fn said(directory: &Path, arguments: &[&str]) -> String {
    let output = git(directory).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The id that git gives to `tree`.
fn tree_id(directory: &Path, tree: &Tree, format: &str) -> String {
    fs::create_dir(directory).unwrap();
    said(directory, &["init", "-q", &format!("--object-format={format}")]);
    write_tree(directory, tree);
    said(directory, &["add", "-A", "-f"]);
    said(directory, &["write-tree"])
}

/// Writes `before` whole and `after` as its changes; answers the two commits.
fn commits(bench: &Bench, before: &Tree, after: &Tree) -> Vec<String> {
    let mut objects = MemoryObjects::default();
    let (old, new) = (pin(&mut objects, before), pin(&mut objects, after));
    let none = HashSet::new();
    let mut writing = Commits::begin(bench).unwrap();
    writing.whole(&author("one"), None, (&objects, &old, &InMemory(before)), &[], &none).unwrap();
    let changes = diff(&objects, &old, &new).unwrap();
    writing.changed(&author("two"), None, &changes, &InMemory(after), &[], &none).unwrap();
    let (names, _) = writing.finish().unwrap();
    names
}

fn round_trip(before: &Tree, after: &Tree, format: ObjectFormat, name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::make(Git::system(), &dir.path().join("bench"), format).unwrap();
    for (at, (id, tree)) in commits(&bench, before, after).iter().zip([before, after]).enumerate() {
        let commit = bench.commit(id).unwrap().unwrap();
        assert_eq!(commit.tree, tree_id(&dir.path().join(format!("oracle{at}")), tree, name));
        let to = dir.path().join(format!("in{at}"));
        fs::create_dir(&to).unwrap();
        let work = Bench::make(Git::system(), &dir.path().join(format!("work{at}")), format).unwrap();
        work.borrow_from(&bench.directory().join("objects")).unwrap();
        let options = Options { private: true, ..Options::default() };
        import(&work, &commit, &File::open(&to).unwrap().into(), Form::Native, &options).unwrap();
        assert_eq!(read_tree(&to), *tree);
        assert_eq!(said(&to, &["status", "--porcelain", "--ignored"]), "");
        // With nothing believed of the index: every file is hashed again.
        said(&to, &["update-index", "-q", "--really-refresh"]);
        fs::remove_file(to.join(".git/index")).unwrap();
        said(&to, &["reset", "-q"]);
        assert_eq!(said(&to, &["status", "--porcelain"]), "");
        said(&to, &["fsck", "--strict"]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn commits_of_random_trees_are_those_of_git((before, after) in trees(), sha256 in any::<bool>()) {
        if have_git() {
            let (format, name) =
                if sha256 { (ObjectFormat::Sha256, "sha256") } else { (ObjectFormat::Sha1, "sha1") };
            round_trip(&before, &after, format, name);
        }
    }
}

#[test]
fn the_same_nodes_give_the_same_commits() {
    if !have_git() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::from([(b"a".to_vec(), support::Entry::Symlink(b"b".to_vec()))]);
    let made = |name: &str| {
        let bench = Bench::make(Git::system(), &dir.path().join(name), ObjectFormat::Sha1).unwrap();
        commits(&bench, &tree, &Tree::new())
    };
    assert_eq!(made("one"), made("two"));
}

#[test]
fn without_git_it_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::make(Git::at("/nonexistent/git"), &dir.path().join("b"), ObjectFormat::Sha1).unwrap();
    let error = bench.commit("0123").unwrap_err();
    assert!(matches!(error, GitError::Missing { .. }), "{error}");
    assert_eq!(error.problem().code, "git_missing");
}
