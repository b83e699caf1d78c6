//! `git merge-tree` is the oracle of the three-way merge with lines (acceptance M02): on thousands of random trees,
//! renames off, both must come to the same tree by git's own id when it is clean; and when it is not, to
//! the same paths in conflict with the same contents on each side, to a kind that git's message allows, and
//! to the same entries everywhere else.
//!
//! On purpose different, so compared by what must hold all the same:
//! - Where one side has a directory and the other something else, ours is one conflict at that path and keeps
//!   *ours* whole; git moves the file out of the way and may tell of paths beneath. The path must be told by
//!   both, and what lies beneath it is not compared.
//! - Git knows no conflict of modes by themselves: an executable bit that both added differently is a
//!   conflict of contents for it.
//!
//! No line is twice in a file, so that differences of lines are not a matter of taste, and contents name
//! their path.

mod git;

use std::collections::{BTreeMap, BTreeSet};

use esf_core::manifest::{
    Attrs, Entry, EntryKind, MemoryObjects, Mode, Root, RootPin, store_top, store_tree, walk,
};
use esf_core::merge::lines::merge_lines;
use esf_core::merge::{Conflict, ConflictKind, Contents, Merge, Term, merge3_with};
use esf_core::{BlobId, Digest, Name, TreeId};
use proptest::prelude::*;

/// The bytes of everything, by digest.
type Blobs = BTreeMap<Digest, Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    File { executable: bool, text: Text },
    Symlink(u8),
}

/// Contents: one of several forms of each line, or none of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    lines: [u8; 6],
    /// Line ends of Windows.
    carriage: bool,
    /// Whether the last line has an end.
    ended: bool,
    /// Whether a NUL makes it no text.
    binary: bool,
}

pub(crate) type Tree = BTreeMap<Vec<u8>, Leaf>;

/// One random case: base, ours, theirs.
pub(crate) type Case = [Tree; 3];

impl Leaf {
    pub(crate) fn bytes(&self, path: &[u8]) -> Vec<u8> {
        let path = String::from_utf8_lossy(path);
        match self {
            Self::File { text, .. } => text.of(&path),
            Self::Symlink(target) => format!("target-{target}-of-{path}").into_bytes(),
        }
    }

    pub(crate) fn git_mode(&self) -> &'static str {
        match self {
            Self::File { executable: false, .. } => "100644",
            Self::File { executable: true, .. } => "100755",
            Self::Symlink(_) => "120000",
        }
    }
}

impl Text {
    fn of(&self, path: &str) -> Vec<u8> {
        let end = if self.carriage { "\r\n" } else { "\n" };
        let lines = self.lines.iter().enumerate().filter(|(_, form)| **form > 0);
        let mut text: String = lines.map(|(line, form)| format!("{path} {line} {form}{end}")).collect();
        if !self.ended {
            text.truncate(text.trim_end_matches(end).len());
        }
        let mut bytes = text.into_bytes();
        bytes.extend(self.binary.then_some(0));
        bytes
    }
}

fn manifest(objects: &mut MemoryObjects, blobs: &mut Blobs, tree: &Tree, prefix: &[u8]) -> TreeId {
    let mut below: BTreeMap<&[u8], Option<&Leaf>> = BTreeMap::new();
    for (path, leaf) in tree.iter().filter(|(path, _)| path.starts_with(prefix)) {
        let rest = &path[prefix.len()..];
        match rest.iter().position(|byte| *byte == b'/') {
            Some(slash) => below.insert(&rest[..slash], None),
            None => below.insert(rest, Some(leaf)),
        };
    }
    let mut entries = Vec::new();
    for (name, leaf) in below {
        let path = [prefix, name].concat();
        let (mode, kind) = match leaf {
            None => {
                let tree = manifest(objects, blobs, tree, &[prefix, name, b"/"].concat());
                (0o755, EntryKind::Directory { tree })
            }
            Some(leaf @ Leaf::File { executable, .. }) => {
                let bytes = leaf.bytes(&path);
                let kind = EntryKind::File { size: bytes.len() as u64, blob: BlobId::of(&bytes) };
                blobs.insert(Digest::of(&bytes), bytes);
                (if *executable { 0o755 } else { 0o644 }, kind)
            }
            Some(leaf) => {
                let bytes = leaf.bytes(&path);
                blobs.insert(Digest::of(&bytes), bytes.clone());
                (0o777, EntryKind::Symlink { target: bytes.into() })
            }
        };
        entries.push(Entry { name: Name::new(name).unwrap(), mode: Mode::of_stat(mode), kind });
    }
    store_tree(objects, entries).unwrap()
}

fn root(objects: &mut MemoryObjects, blobs: &mut Blobs, tree: &Tree) -> RootPin {
    let tree = manifest(objects, blobs, tree, b"");
    store_top(objects, Root { mode: Mode::of_stat(0o755), tree }, &Attrs::default()).unwrap()
}

/// What we make of a case: the outcome, and every file and symlink of the result as git's tree has it.
struct Ours {
    merge: Merge,
    leaves: git::Leaves,
    blobs: Blobs,
    /// How many files had their lines merged.
    line_merged: usize,
}

fn merge_ours(case: &Case) -> Ours {
    let (mut objects, mut blobs) = (MemoryObjects::default(), Blobs::new());
    let [base, ours, theirs] = case.each_ref().map(|tree| root(&mut objects, &mut blobs, tree));
    let mut made = objects.clone();
    let mut merged = Vec::new();
    let merge = merge3_with(&objects, &mut made, [&base, &ours, &theirs], &mut |_, sides| {
        let [base, ours, theirs] = sides.map(|side| &blobs[side.blob.digest()]);
        let bytes = merge_lines(base, ours, theirs)?;
        let contents = Contents { blob: BlobId::of(&bytes), size: bytes.len() as u64 };
        merged.push(bytes);
        Some(contents)
    })
    .unwrap();
    let line_merged = merged.len();
    blobs.extend(merged.into_iter().map(|bytes| (Digest::of(&bytes), bytes)));
    let mut leaves = git::Leaves::new();
    for entry in walk(&made, &merge.root) {
        let entry = entry.unwrap();
        let mode = match entry.kind {
            EntryKind::Symlink { .. } => "120000",
            EntryKind::File { .. } if entry.mode.bits() & 0o100 == 0 => "100644",
            EntryKind::File { .. } => "100755",
            EntryKind::Directory { .. } | EntryKind::Fifo => continue,
        };
        let bytes = &blobs[&entry.kind.digest().expect("files and symlinks have one")];
        leaves.insert(entry.path, (mode.to_owned(), git::id("blob", bytes)));
    }
    Ours { merge, leaves, blobs, line_merged }
}

fn is_at_or_beneath(path: &[u8], upper: &[u8]) -> bool {
    path.strip_prefix(upper).is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

/// The kinds of conflict that git's messages at a path stand for.
fn allowed(messages: &[(String, String)]) -> BTreeSet<ConflictKind> {
    use ConflictKind::*;
    let kinds = |(kind, text): &(String, String)| match kind.as_str() {
        "CONFLICT (contents)" | "CONFLICT (binary)" if text.contains("(add/add)") => vec![AddAdd, Mode],
        "CONFLICT (contents)" | "CONFLICT (binary)" => vec![Content, AddAdd, SymlinkTarget, Mode],
        "CONFLICT (modify/delete)" => vec![ModifyDelete],
        "CONFLICT (file/directory)" => vec![DirectoryFile],
        "CONFLICT (distinct modes)" => vec![Type],
        "Auto-merging" => vec![],
        other => panic!("git tells of {other}: {text}"),
    };
    messages.iter().flat_map(kinds).collect()
}

/// The contents that a conflict names for each side, by git's ids; a directory is none of git's.
fn stages(conflict: &Conflict, blobs: &Blobs) -> [Option<String>; 3] {
    let id = |term: &Option<Term>| {
        let term = term.as_ref().filter(|term| term.kind != "directory")?;
        Some(git::id("blob", &blobs[&term.digest?]))
    };
    [id(&conflict.base), id(&conflict.ours), id(&conflict.theirs)]
}

fn check(ours: &Ours, git: &git::Merged, trees: &git::Trees) -> Result<(), TestCaseError> {
    let conflicts = &ours.merge.conflicts;
    if git.clean || conflicts.is_empty() {
        prop_assert_eq!(git.clean, conflicts.is_empty(), "{:?} {:?}", git, conflicts);
        prop_assert_eq!(&git::tree_id(&ours.leaves), &git.tree);
        return Ok(());
    }
    let swallowed = |path: &[u8]| {
        conflicts.iter().any(|conflict| {
            conflict.kind == ConflictKind::DirectoryFile
                && path != conflict.path
                && is_at_or_beneath(path, &conflict.path)
        })
    };
    let told: BTreeSet<&Vec<u8>> = git.stages.keys().filter(|path| !swallowed(path)).collect();
    let found: BTreeSet<&Vec<u8>> = conflicts.iter().map(|conflict| &conflict.path).collect();
    prop_assert_eq!(&found, &told, "{:?} {:?}", git, conflicts);
    for conflict in conflicts {
        let kinds = allowed(git.messages.get(&conflict.path).map_or(&[][..], Vec::as_slice));
        prop_assert!(kinds.contains(&conflict.kind), "{:?} {:?}", conflict, git.messages);
        prop_assert_eq!(&stages(conflict, &ours.blobs), &git.stages[&conflict.path], "{:?}", conflict);
    }
    let untouched = |leaves: &git::Leaves| -> git::Leaves {
        let out = |path: &[u8]| conflicts.iter().any(|conflict| is_at_or_beneath(path, &conflict.path));
        leaves.clone().into_iter().filter(|(path, _)| !out(&git::without_side(path))).collect()
    };
    prop_assert_eq!(untouched(&ours.leaves), untouched(&git::leaves(trees, &git.tree)));
    Ok(())
}

fn consistent(list: Vec<(Vec<u8>, Leaf)>) -> Tree {
    let mut tree = Tree::new();
    for (path, leaf) in list {
        tree.retain(|other, _| !is_at_or_beneath(other, &path) && !is_at_or_beneath(&path, other));
        tree.insert(path, leaf);
    }
    tree
}

fn paths() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
        .prop_map(|parts| parts.join("/").into_bytes())
}

fn text() -> impl Strategy<Value = Text> {
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.8), prop::bool::weighted(0.1));
    (prop::array::uniform6(0..3_u8), flags).prop_map(|(lines, (carriage, ended, binary))| Text {
        lines,
        carriage,
        ended,
        binary,
    })
}

fn leaf() -> impl Strategy<Value = Leaf> {
    prop_oneof![
        4 => (any::<bool>(), text()).prop_map(|(executable, text)| Leaf::File { executable, text }),
        1 => (0..2_u8).prop_map(Leaf::Symlink),
    ]
}

/// A change of what is there.
#[derive(Clone, Debug)]
enum Touch {
    Drop,
    Line { line: usize, form: u8 },
    Executable,
    End,
}

fn touch() -> impl Strategy<Value = Touch> {
    prop_oneof![
        1 => Just(Touch::Drop),
        9 => (0..6_usize, 0..5_u8).prop_map(|(line, form)| Touch::Line { line, form }),
        1 => Just(Touch::Executable),
        1 => Just(Touch::End),
    ]
}

fn edited(base: &Tree) -> impl Strategy<Value = Tree> + use<> {
    let base: Vec<_> = base.clone().into_iter().collect();
    let touches = prop::collection::vec((any::<prop::sample::Index>(), touch()), 0..5);
    let puts = prop::collection::vec((paths(), leaf()), 0..2);
    (touches, puts).prop_map(move |(touches, puts)| {
        let mut list = base.clone();
        for (which, touch) in touches.into_iter().filter(|_| !base.is_empty()) {
            let which = which.index(base.len());
            let Some(at) = list.iter().position(|(path, _)| *path == base[which].0) else { continue };
            match (touch, &mut list[at].1) {
                (Touch::Drop, _) => drop(list.remove(at)),
                (Touch::Line { form, .. }, Leaf::Symlink(target)) => *target = form,
                (Touch::Line { line, form }, Leaf::File { text, .. }) => text.lines[line] = form,
                (Touch::Executable, Leaf::File { executable, .. }) => *executable = !*executable,
                (Touch::End, Leaf::File { text, .. }) => text.ended = !text.ended,
                (Touch::Executable | Touch::End, Leaf::Symlink(_)) => {}
            }
        }
        list.extend(puts);
        consistent(list)
    })
}

fn three() -> impl Strategy<Value = Case> {
    prop::collection::vec((paths(), leaf()), 1..7).prop_map(consistent).prop_flat_map(|base| {
        let (ours, theirs) = (edited(&base), edited(&base));
        (Just(base), ours, theirs).prop_map(|(base, ours, theirs)| [base, ours, theirs])
    })
}

proptest! {
    // Each draw is a batch, because starting git costs far more than a merge.
    #![proptest_config(ProptestConfig { cases: 2, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn merges_and_conflicts_are_those_of_git(cases in prop::collection::vec(three(), 1500..=1600)) {
        if !git::is_installed() {
            eprintln!("skipped: git is not installed, and it is the oracle of this test");
            return Ok(());
        }
        let (merges, trees) = git::merge_all(&cases);
        prop_assert_eq!(merges.len(), cases.len());
        let (mut kinds, mut clean, mut line_merged) = (BTreeSet::new(), 0, 0);
        for (case, git) in cases.iter().zip(&merges) {
            let ours = merge_ours(case);
            check(&ours, git, &trees).map_err(|error| TestCaseError::fail(format!("{error} {case:?}")))?;
            kinds.extend(ours.merge.conflicts.iter().map(|conflict| conflict.kind));
            clean += usize::from(git.clean);
            line_merged += if git.clean { ours.line_merged } else { 0 };
        }
        // A batch that meets nothing proves nothing.
        if cases.len() >= 1500 {
            prop_assert!(clean > 300 && clean < 1450 && line_merged > 25, "{} {}", clean, line_merged);
            prop_assert!(kinds.len() >= 5, "{:?}", kinds);
        }
    }
}
