//! The operations that both sides are asked for, and the union's side.

use esf_layerstack::Workspace;
use esf_layerstack::union::{Dir, Errno, File, Kind, Node, Open, SetTime, Union};
use proptest::prelude::*;
use rustix::fs::Timespec;

/// A directory handle: 0 is the top, others are those that were kept, modulo their number.
pub(crate) type At = usize;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Makes a file with the directories above it.
    Fill(String, u8),
    Open(At, String, How),
    Mkdir(At, String),
    Rmdir(At, String),
    Unlink(At, String),
    Symlink(String, At, String),
    Link(At, String, bool, At, String),
    Rename(At, String, At, String),
    Times(At, String, bool, u8),
    Stat(At, String, bool),
    ReadLink(At, String),
    List(At, String),
    RemoveAll(String),
    Fifo(String),
    /// Keeps a file open, or a directory.
    Keep(At, String, bool),
    /// Writes to, or cuts, a file that was kept.
    WriteKept(usize, u8),
    CutKept(usize, u16),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) open: u8,
    /// What to do with a file that could be opened.
    pub(crate) then: Then,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Nothing,
    Write(u16, u8),
    Append(u8),
    Cut(u16),
}

impl How {
    pub(crate) fn open(self) -> Open {
        let bit = |n: u8| self.open & 1 << n != 0;
        Open {
            read: bit(0),
            write: bit(1),
            create: bit(2),
            exclusive: bit(2) && bit(3),
            truncate: bit(4) && bit(1),
            directory: bit(5) && !bit(2),
            follow: bit(6),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Bytes(Vec<u8>),
    Names(Vec<(Vec<u8>, Kind)>),
    Stat(Kind, u64, Option<i64>),
}

pub(crate) type Answer = Result<Outcome, Errno>;

impl Op {
    /// The directories that the operation begins at.
    pub(crate) fn starts(&self) -> Vec<At> {
        match self {
            Self::Link(at, _, _, to, _) | Self::Rename(at, _, to, _) => vec![*at, *to],
            Self::Open(at, ..)
            | Self::Mkdir(at, _)
            | Self::Rmdir(at, _)
            | Self::Unlink(at, _)
            | Self::Symlink(_, at, _)
            | Self::Times(at, ..)
            | Self::Stat(at, ..)
            | Self::ReadLink(at, _)
            | Self::List(at, _)
            | Self::Keep(at, ..) => vec![*at],
            Self::Fill(..) | Self::RemoveAll(_) | Self::Fifo(_) | Self::WriteKept(..) | Self::CutKept(..) => {
                Vec::new()
            }
        }
    }
}

/// One side.
pub(crate) trait Target {
    fn apply(&mut self, op: &Op) -> Answer;
    /// What the files that were kept open read at the end.
    fn kept(&mut self) -> Vec<Vec<u8>>;
}

/// A time that is not this test's run.
pub(crate) fn time(n: u8) -> Timespec {
    Timespec { tv_sec: 1_000_000_000 + i64::from(n), tv_nsec: i64::from(n) * 1_000_001 }
}

fn component() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c", "a", "b", "c", "d\u{e9}\n", ".wh.a"])
}

/// A path as base operations have it.
fn simple() -> impl Strategy<Value = String> {
    prop::collection::vec(component(), 1..4).prop_map(|parts| parts.join("/"))
}

/// A path with everything that can be wrong in one.
fn path() -> impl Strategy<Value = String> {
    let part = prop_oneof![16 => component(), 1 => Just("."), 2 => Just(".."), 1 => Just("")];
    let end = prop::sample::select(vec!["", "", "", "", "", "", "", "/", "/.", "//"]);
    (prop::collection::vec(part, 1..5), end).prop_map(|(parts, end)| {
        let text = parts.join("/") + end;
        text.trim_start_matches('/').to_owned()
    })
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![5 => simple(), 2 => path(), 1 => Just("../a".to_owned()), 1 => Just("/a".to_owned())]
        .prop_filter("a link leads somewhere", |target| !target.is_empty())
}

fn at() -> impl Strategy<Value = At> {
    prop_oneof![3 => Just(0), 1 => 0..8usize]
}

fn how() -> impl Strategy<Value = How> {
    let then = prop_oneof![
        Just(Then::Nothing),
        (any::<u16>(), any::<u8>()).prop_map(|(at, n)| Then::Write(at, n)),
        any::<u8>().prop_map(Then::Append),
        any::<u16>().prop_map(Then::Cut),
    ];
    (any::<u8>(), then).prop_map(|(open, then)| How { open, then })
}

/// Operations of a base or a generation above it.
pub(crate) fn base(links: bool) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (simple(), any::<u8>()).prop_map(|(p, n)| Op::Fill(p, n)),
        3 => simple().prop_map(Op::RemoveAll),
        2 => simple().prop_map(|p| Op::Mkdir(0, p)),
        2 => (target(), simple()).prop_map(|(t, p)| Op::Symlink(t, 0, p)),
        1 => simple().prop_map(Op::Fifo),
        if links { 3 } else { 0 } => (simple(), simple()).prop_map(|(p, q)| Op::Link(0, p, false, 0, q)),
    ];
    prop::collection::vec(op, 3..25)
}

fn any_op(at: impl Strategy<Value = At> + Clone + 'static) -> impl Strategy<Value = Op> {
    let (a, b) = (at.clone(), at);
    prop_oneof![
        2 => (simple(), any::<u8>()).prop_map(|(p, n)| Op::Fill(p, n)),
        6 => (a.clone(), path(), how()).prop_map(|(at, p, how)| Op::Open(at, p, how)),
        3 => (a.clone(), path()).prop_map(|(at, p)| Op::Mkdir(at, p)),
        3 => (a.clone(), path()).prop_map(|(at, p)| Op::Rmdir(at, p)),
        3 => (a.clone(), path()).prop_map(|(at, p)| Op::Unlink(at, p)),
        2 => (target(), a.clone(), path()).prop_map(|(t, at, p)| Op::Symlink(t, at, p)),
        3 => (a.clone(), path(), any::<bool>(), b.clone(), path())
            .prop_map(|(at, p, follow, to, q)| Op::Link(at, p, follow, to, q)),
        7 => (a.clone(), path(), b, path()).prop_map(|(at, p, to, q)| Op::Rename(at, p, to, q)),
        2 => (a.clone(), path(), any::<bool>(), any::<u8>()).prop_map(|(at, p, f, n)| Op::Times(at, p, f, n)),
        2 => (a.clone(), path(), any::<bool>()).prop_map(|(at, p, follow)| Op::Stat(at, p, follow)),
        1 => (a.clone(), path()).prop_map(|(at, p)| Op::ReadLink(at, p)),
        2 => (a.clone(), path()).prop_map(|(at, p)| Op::List(at, p)),
        2 => simple().prop_map(Op::RemoveAll),
        3 => (a, path(), any::<bool>()).prop_map(|(at, p, write)| Op::Keep(at, p, write)),
        1 => (0..8usize, any::<u8>()).prop_map(|(n, byte)| Op::WriteKept(n, byte)),
        1 => (0..8usize, any::<u16>()).prop_map(|(n, size)| Op::CutKept(n, size)),
    ]
}

/// Operations from the top directory.
pub(crate) fn ops() -> impl Strategy<Value = Op> {
    any_op(Just(0))
}

/// Operations from any directory that is open.
pub(crate) fn plain_ops() -> impl Strategy<Value = Op> {
    any_op(at().boxed())
}

/// The bytes that are written for a number.
pub(crate) fn bytes(n: u8) -> Vec<u8> {
    vec![n; usize::from(n) * 40]
}

/// The union's side.
pub(crate) struct Ours {
    pub(crate) union: Union,
    dirs: Vec<Dir>,
    files: Vec<File>,
}

impl Ours {
    pub(crate) fn new(union: Union) -> Self {
        Self { dirs: vec![union.root()], union, files: Vec::new() }
    }

    fn dir(&self, at: At) -> Dir {
        self.dirs[at % self.dirs.len()].clone()
    }

    /// The count of the delta is right, and nothing lies in `work`.
    pub(crate) fn check(&mut self, workspace: &Workspace) {
        self.files.clear();
        self.dirs.truncate(1);
        let fresh = super::union(workspace).delta();
        assert_eq!(self.union.delta(), fresh, "the delta and a recount of it");
        assert_eq!(
            std::fs::read_dir(&workspace.work)
                .expect("list")
                .filter(|entry| {
                    entry.as_ref().expect("entry").file_name().as_encoded_bytes().starts_with(b"union-")
                })
                .count(),
            0
        );
    }

    fn open(&mut self, at: At, path: &str, how: How) -> Answer {
        let node = self.union.open(&self.dir(at), path.as_bytes(), how.open())?;
        let Node::File(file) = node else { return Ok(Outcome::Done) };
        match how.then {
            _ if !file.is_writable() => {}
            Then::Nothing => {}
            Then::Write(at, n) => assert_eq!(file.write_at(&bytes(n), at.into())?, bytes(n).len()),
            Then::Append(n) => assert_eq!(file.append(&bytes(n))?, bytes(n).len()),
            Then::Cut(size) => file.set_size(size.into())?,
        }
        read(&file)
    }

    fn remove_all(&mut self, dir: &Dir, path: &[u8]) -> Result<(), Errno> {
        if self.union.stat_at(dir, path, false)?.kind != Kind::Directory {
            return self.union.unlink(dir, path);
        }
        let how = Open { read: true, directory: true, ..Open::default() };
        let Node::Dir(inside) = self.union.open(dir, path, how)? else { unreachable!("a directory") };
        let names = self.union.list(&inside)?;
        for (name, _) in names.iter() {
            self.remove_all(&inside, name)?;
        }
        self.union.remove_directory(dir, path)
    }
}

fn read(file: &File) -> Answer {
    if !file.is_readable() {
        return Ok(Outcome::Done);
    }
    let mut buffer = vec![0; 100_000];
    let length = file.read_at(&mut buffer, 0)?;
    buffer.truncate(length);
    Ok(Outcome::Bytes(buffer))
}

impl Target for Ours {
    fn apply(&mut self, op: &Op) -> Answer {
        let union = &self.union;
        let done = |()| Outcome::Done;
        match op {
            Op::Fill(path, n) => {
                let root = union.root();
                for (at, _) in path.match_indices('/') {
                    match union.create_directory(&root, &path.as_bytes()[..at]) {
                        Err(error) if error != Errno::EXIST => return Err(error),
                        _ => {}
                    }
                }
                let open = Open { write: true, create: true, truncate: true, ..Open::default() };
                let Node::File(file) = union.open(&root, path.as_bytes(), open)? else {
                    return Err(Errno::ISDIR);
                };
                file.write_at(&bytes(*n), 0).map(|_| Outcome::Done)
            }
            Op::Open(at, path, how) => self.open(*at, path, *how),
            Op::Mkdir(at, path) => union.create_directory(&self.dir(*at), path.as_bytes()).map(done),
            Op::Rmdir(at, path) => union.remove_directory(&self.dir(*at), path.as_bytes()).map(done),
            Op::Unlink(at, path) => union.unlink(&self.dir(*at), path.as_bytes()).map(done),
            Op::Symlink(target, at, path) => {
                union.symlink(target.as_bytes(), &self.dir(*at), path.as_bytes()).map(done)
            }
            Op::Link(at, path, follow, to, new) => {
                union.link(&self.dir(*at), path.as_bytes(), *follow, &self.dir(*to), new.as_bytes()).map(done)
            }
            Op::Rename(at, path, to, new) => {
                union.rename(&self.dir(*at), path.as_bytes(), &self.dir(*to), new.as_bytes()).map(done)
            }
            Op::Times(at, path, follow, n) => union
                .set_times_at(&self.dir(*at), path.as_bytes(), *follow, SetTime::Keep, SetTime::At(time(*n)))
                .map(done),
            Op::Stat(at, path, follow) => {
                let stat = union.stat_at(&self.dir(*at), path.as_bytes(), *follow)?;
                Ok(outcome(stat.kind, stat.size, stat.mtime.tv_sec))
            }
            Op::ReadLink(at, path) => union.read_link(&self.dir(*at), path.as_bytes()).map(Outcome::Bytes),
            Op::List(at, path) => {
                let how = Open { read: true, directory: true, follow: true, ..Open::default() };
                let Node::Dir(dir) = union.open(&self.dir(*at), path.as_bytes(), how)? else {
                    unreachable!("a directory was asked for")
                };
                let listing = union.list(&dir)?;
                let mut names: Vec<_> = listing.iter().map(|(name, kind)| (name.to_vec(), kind)).collect();
                assert_eq!(names.len(), listing.len());
                names.sort();
                Ok(Outcome::Names(names))
            }
            Op::RemoveAll(path) => {
                let root = union.root();
                self.remove_all(&root, path.as_bytes()).map(done)
            }
            // Nobody makes one through a union.
            Op::Fifo(_) => Ok(Outcome::Done),
            Op::Keep(at, path, write) => {
                let how = Open { read: true, write: *write, follow: true, ..Open::default() };
                match union.open(&self.dir(*at), path.as_bytes(), how)? {
                    Node::File(file) => self.files.push(file),
                    Node::Dir(dir) => self.dirs.push(dir),
                }
                Ok(Outcome::Done)
            }
            Op::WriteKept(n, byte) => match self.files.get(*n) {
                Some(file) if file.is_writable() => {
                    file.write_at(&bytes(*byte), 10 * u64::from(*byte)).map(|_| Outcome::Done)
                }
                _ => Ok(Outcome::Done),
            },
            Op::CutKept(n, size) => match self.files.get(*n) {
                Some(file) if file.is_writable() => file.set_size((*size).into()).map(done),
                _ => Ok(Outcome::Done),
            },
        }
    }

    fn kept(&mut self) -> Vec<Vec<u8>> {
        let bytes = |file: &File| match read(file).expect("read") {
            Outcome::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        self.files.iter().map(bytes).collect()
    }
}

/// Sizes of directories and times of this run are nobody's business.
pub(crate) fn outcome(kind: Kind, size: u64, mtime: i64) -> Outcome {
    let size = if kind == Kind::Directory { 0 } else { size };
    Outcome::Stat(kind, size, (mtime < 1_700_000_000).then_some(mtime))
}
