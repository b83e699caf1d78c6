//! Git as an oracle, many merges in one process: commits go in through `fast-import`, merges come out of
//! `merge-tree --stdin`, and trees out of `cat-file --batch`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use sha1::{Digest as _, Sha1};

use crate::Case;

/// Files and symlinks by path: git's mode, and the id of the contents.
pub(crate) type Leaves = BTreeMap<Vec<u8>, (String, String)>;

/// Entries of trees by the tree's id: mode, name, id.
pub(crate) type Trees = BTreeMap<String, Vec<(String, Vec<u8>, String)>>;

/// What git makes of one case.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    pub(crate) clean: bool,
    pub(crate) tree: String,
    /// Ids of contents in base, ours, theirs, of each path in conflict.
    pub(crate) stages: BTreeMap<Vec<u8>, [Option<String>; 3]>,
    /// Kind and text of what is told of a path.
    pub(crate) messages: BTreeMap<Vec<u8>, Vec<(String, String)>>,
}

fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs([("HOME", "/nonexistent"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CEILING_DIRECTORIES", "/")]);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn is_installed() -> bool {
    Command::new("git").arg("version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs git on `input` and gives what it writes.
fn piped(dir: &Path, arguments: &[&str], input: Vec<u8>) -> Vec<u8> {
    let mut child = git(dir).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "git {arguments:?}");
    output.stdout
}

/// Merges each case's ours and theirs, renames off; also every tree of those that conflict.
pub(crate) fn merge_all(cases: &[Case]) -> (Vec<Merged>, Trees) {
    let repository = tempfile::tempdir().unwrap();
    let dir = repository.path();
    assert!(git(dir).args(["init", "-q", "--bare", "."]).status().unwrap().success());
    let mut stream = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        commits(&mut stream, index, case);
    }
    piped(dir, &["fast-import", "--quiet"], stream);
    let pairs: String = (0..cases.len()).map(|index| format!("ours{index} theirs{index}\n")).collect();
    let output = piped(dir, &["merge-tree", "--stdin", "-z", "-X", "no-renames"], pairs.into_bytes());
    let mut words = output.split(|byte| *byte == 0);
    let merges: Vec<Merged> = cases.iter().map(|_| merged(&mut words)).collect();
    assert_eq!(words.collect::<Vec<_>>(), [b""], "everything was read");
    let wanted = merges.iter().filter(|merge| !merge.clean).map(|merge| merge.tree.clone()).collect();
    let trees = read_trees(dir, wanted);
    (merges, trees)
}

/// Three commits: the base, and the two sides on top of it.
fn commits(stream: &mut Vec<u8>, index: usize, case: &Case) {
    for (nth, (tree, side)) in case.iter().zip(["ours", "ours", "theirs"]).enumerate() {
        let mark = 3 * index + nth + 1;
        stream.extend(format!("commit refs/heads/{side}{index}\nmark :{mark}\n").as_bytes());
        stream.extend(b"committer t <t@t> 0 +0000\ndata 0\n");
        if nth > 0 {
            stream.extend(format!("from :{}\n", 3 * index + 1).as_bytes());
        }
        stream.extend(b"deleteall\n");
        for (path, leaf) in tree {
            let bytes = leaf.bytes(path);
            stream.extend(format!("M {} inline ", leaf.git_mode()).as_bytes());
            stream.extend(path);
            stream.extend(format!("\ndata {}\n", bytes.len()).as_bytes());
            stream.extend(bytes);
            stream.push(b'\n');
        }
    }
}

/// One merge's part of the output: whether it is clean, the tree; of one that is not, a line for each stage,
/// and what is told.
fn merged<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Merged {
    let mut next = || String::from_utf8(words.next().expect("git says more").to_vec()).unwrap();
    let mut merge = Merged { clean: next() == "1", tree: next(), ..Merged::default() };
    if merge.clean {
        assert_eq!(next(), "");
        return merge;
    }
    loop {
        let line = next();
        let Some((head, path)) = line.split_once('\t') else { break };
        let [_, id, stage] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let stage: usize = stage.parse().unwrap();
        let stages = merge.stages.entry(without_side(path.as_bytes())).or_default();
        stages[stage - 1] = Some(id.to_owned());
    }
    loop {
        let count = next();
        if count.is_empty() {
            return merge;
        }
        let paths: Vec<String> = (0..count.parse().unwrap()).map(|_| next()).collect();
        let message = (next(), next());
        for path in paths {
            merge.messages.entry(without_side(path.as_bytes())).or_default().push(message.clone());
        }
    }
}

/// Git moves a file out of a directory's way by appending the side's name; the path is what conflicts.
pub(crate) fn without_side(path: &[u8]) -> Vec<u8> {
    for side in [b"~ours".as_slice(), b"~theirs"] {
        if let Some(at) = path.windows(side.len()).position(|window| window == side) {
            return path[..at].to_vec();
        }
    }
    path.to_vec()
}

/// Git's id of an object.
pub(crate) fn id(kind: &str, bytes: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("{kind} {}\0", bytes.len()));
    hasher.update(bytes);
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Git's id of the tree that has these files.
pub(crate) fn tree_id(leaves: &Leaves) -> String {
    let mut below: BTreeMap<Vec<u8>, Leaves> = BTreeMap::new();
    let mut entries: Vec<(Vec<u8>, String, String)> = Vec::new();
    for (path, (mode, id)) in leaves {
        match path.iter().position(|byte| *byte == b'/') {
            None => entries.push((path.clone(), mode.clone(), id.clone())),
            Some(slash) => {
                let rest = (path[slash + 1..].to_vec(), (mode.clone(), id.clone()));
                below.entry(path[..slash].to_vec()).or_default().extend([rest]);
            }
        }
    }
    // A directory is sorted as if its name ended in a slash.
    let directories = below.iter().map(|(name, leaves)| ([&name[..], b"/"].concat(), leaves));
    entries.extend(directories.map(|(name, leaves)| (name, "40000".to_owned(), tree_id(leaves))));
    entries.sort();
    let mut bytes = Vec::new();
    for (name, mode, id) in entries {
        bytes.extend(mode.as_bytes());
        bytes.push(b' ');
        bytes.extend(name.strip_suffix(b"/").unwrap_or(&name));
        bytes.push(0);
        bytes.extend((0..20).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()));
    }
    id("tree", &bytes)
}

/// The files beneath a tree.
pub(crate) fn leaves(trees: &Trees, tree: &str) -> Leaves {
    let mut leaves = Leaves::new();
    for (mode, name, id) in &trees[tree] {
        if mode == "40000" {
            let below = self::leaves(trees, id);
            leaves.extend(below.into_iter().map(|(path, leaf)| ([&name[..], b"/", &path].concat(), leaf)));
        } else {
            leaves.insert(name.clone(), (mode.clone(), id.clone()));
        }
    }
    leaves
}

/// Trees and all beneath them, a level at a time.
fn read_trees(dir: &Path, mut wanted: BTreeSet<String>) -> Trees {
    let mut trees = Trees::new();
    while !wanted.is_empty() {
        let ids: String = wanted.iter().map(|id| format!("{id}\n")).collect();
        let output = piped(dir, &["cat-file", "--batch"], ids.into_bytes());
        let mut rest = output.as_slice();
        let mut below = BTreeSet::new();
        for id in &wanted {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
            let size = std::str::from_utf8(&rest[..end]).unwrap().rsplit(' ').next().unwrap();
            let size: usize = size.parse().unwrap();
            let entries = entries(&rest[end + 1..][..size]);
            let directories = entries.iter().filter(|(mode, ..)| mode == "40000").map(|(.., id)| id.clone());
            below.extend(directories);
            trees.insert(id.clone(), entries);
            rest = &rest[end + 1 + size + 1..];
        }
        wanted = below.into_iter().filter(|id| !trees.contains_key(id)).collect();
    }
    trees
}

fn entries(mut bytes: &[u8]) -> Vec<(String, Vec<u8>, String)> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').unwrap();
        let nul = bytes.iter().position(|byte| *byte == 0).unwrap();
        let mode = String::from_utf8(bytes[..space].to_vec()).unwrap();
        entries.push((mode, bytes[space + 1..nul].to_vec(), hex(&bytes[nul + 1..nul + 21])));
        bytes = &bytes[nul + 21..];
    }
    entries
}
