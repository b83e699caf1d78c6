//! Commits written by `fast-import` from our own repository into another's objects: references, index and
//! working tree of the other stay as they are. Invariant: the same nodes on the same parent give the same
//! commits, since nothing of this moment goes in; what git cannot hold is named.

use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::process::ChildStdin;

use esf_core::TreeId;
use esf_core::diff::{Change, Side};
use esf_core::manifest::{EntryKind, Objects, RootPin, walk};

use super::command::{LONG, Running};
use super::{Bench, Error as GitError, Ignored, Submodule};
use crate::patch::{lacks, lacks_entry, quoted, refused_by_git};
use crate::{Error, Files, LeftOut, readable};

/// Most bytes of the list of new commits.
const MARKS_MAX: u64 = 64 << 20;
const EXPORTING: &str = "write the commits";

/// A name and an address, as git can hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person(String);

impl Person {
    /// `NAME <ADDRESS>`, without what would end either.
    pub fn new(name: &str, address: &str) -> Self {
        let plain = |text: &str| -> String {
            let kept = |c: &char| !c.is_control() && !matches!(c, '<' | '>');
            text.chars().filter(kept).take(200).collect::<String>().trim().to_owned()
        };
        let name = plain(name);
        let name = if name.is_empty() { "unknown".to_owned() } else { name };
        Self(format!("{name} <{}>", plain(address).replace(char::is_whitespace, "-")))
    }

    /// As in a commit.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who made a commit, when, and what is said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// Who.
    pub person: Person,
    /// When, in seconds since 1970.
    pub seconds: i64,
    /// The message with its trailers.
    pub message: String,
}

/// Commits that are being written, one after the other.
pub struct Commits {
    running: Running,
    out: BufWriter<ChildStdin>,
    marks: std::path::PathBuf,
    count: u64,
    left_out: Vec<LeftOut>,
}

impl Commits {
    /// Begins to write commits with `bench`.
    ///
    /// # Errors
    /// When git cannot be run.
    pub fn begin(bench: &Bench) -> Result<Self, Error> {
        let marks = bench.directory().join("marks");
        let mut command = bench.command(["fast-import", "--quiet", "--done", "--date-format=raw"]);
        command.arg(format!("--export-marks={}", marks.display()));
        let mut running = Running::start(command, EXPORTING, LONG)?;
        let out = BufWriter::with_capacity(1 << 16, running.stdin());
        Ok(Self { running, out, marks, count: 0, left_out: Vec::new() })
    }

    fn commit(&mut self, author: &Author, parent: Option<&str>) -> io::Result<()> {
        self.count += 1;
        let (out, count) = (&mut self.out, self.count);
        let Author { person, seconds, message } = author;
        writeln!(out, "commit refs/heads/main\nmark :{count}")?;
        for role in ["author", "committer"] {
            writeln!(out, "{role} {} {} +0000", person.as_str(), seconds.max(&0))?;
        }
        writeln!(out, "data {}", message.len())?;
        out.write_all(message.as_bytes())?;
        out.write_all(b"\n")?;
        if let Some(parent) = parent {
            writeln!(out, "from {parent}")?;
        }
        Ok(())
    }

    /// Writes a commit that holds all of `pin`, on `parent` if there is one; `submodules` are kept where their
    /// directories are still empty.
    ///
    /// # Errors
    /// Objects or contents that cannot be read, a git that ended early.
    pub fn whole(
        &mut self,
        author: &Author,
        parent: Option<&str>,
        (objects, pin, files): (&dyn Objects, &RootPin, &dyn Files),
        submodules: &[Submodule],
        ignored: &Ignored,
    ) -> Result<(), Error> {
        let wrote = || Error::io("the commits");
        self.commit(author, parent).and_then(|()| self.out.write_all(b"deleteall\n")).map_err(wrote())?;
        let mut entries = walk(objects, pin);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let symlink = matches!(entry.kind, EntryKind::Symlink { .. });
            if let Some(refused) = refused_by_git(&entry.path, symlink) {
                self.leave_out(refused, "git does not hold this name");
                entries.skip_children();
                continue;
            }
            if ignored.contains(&entry.path) || entry.path.is_empty() {
                continue;
            }
            let side = Side { mode: entry.mode, kind: entry.kind, attrs: entry.attrs };
            let submodule = submodules.iter().find(|submodule| submodule.path == entry.path);
            match submodule {
                Some(submodule) if is_empty(&side) => {
                    self.gitlink(&submodule.path, &submodule.commit).map_err(wrote())?;
                }
                _ => {
                    if let Some(reason) = lacks_entry(&side) {
                        self.leave_out(&entry.path, reason);
                    }
                    self.put(&entry.path, &side, files)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a commit with `changes` on top of `parent`, or of the commit before when none is named.
    ///
    /// # Errors
    /// As `whole`.
    pub fn changed(
        &mut self,
        author: &Author,
        parent: Option<&str>,
        changes: &[Change],
        files: &dyn Files,
        submodules: &[Submodule],
        ignored: &Ignored,
    ) -> Result<(), Error> {
        let wrote = || Error::io("the commits");
        self.commit(author, parent).map_err(wrote())?;
        let kept: Vec<&Change> = changes.iter().filter(|change| !ignored.contains(&change.path)).collect();
        // What is gone goes first: a directory may come where a file was.
        for change in &kept {
            let was =
                change.before.as_ref().is_some_and(|before| held(before) || is_submodule(change, submodules));
            let is = change.after.as_ref().is_some_and(held);
            if was && !is && refused_by_git(&change.path, false).is_none() {
                let back = change.after.as_ref().is_some_and(is_empty) && is_submodule(change, submodules);
                if !back {
                    self.path_line(b"D ", &change.path).map_err(wrote())?;
                }
            }
        }
        for change in kept {
            self.put_changed(change, files, submodules)?;
        }
        Ok(())
    }

    fn put_changed(
        &mut self,
        change: &Change,
        files: &dyn Files,
        submodules: &[Submodule],
    ) -> Result<(), Error> {
        let symlink =
            change.after.as_ref().is_some_and(|side| matches!(side.kind, EntryKind::Symlink { .. }));
        if let Some(refused) = refused_by_git(&change.path, symlink) {
            self.leave_out(refused, "git does not hold this name");
            return Ok(());
        }
        let Some(after) = &change.after else { return Ok(()) };
        let submodule = submodules.iter().find(|submodule| submodule.path == change.path);
        if let (Some(submodule), true) = (submodule, is_empty(after)) {
            return self.gitlink(&submodule.path, &submodule.commit).map_err(Error::io("the commits"));
        }
        if !change.changes_identity() {
            return Ok(());
        }
        if let Some(reason) = lacks(change) {
            self.leave_out(&change.path, reason);
        }
        self.put(&change.path, after, files)
    }

    fn put(&mut self, path: &[u8], side: &Side, files: &dyn Files) -> Result<(), Error> {
        let wrote = || Error::io("the commits");
        match &side.kind {
            EntryKind::File { size, .. } => {
                let mode: &[u8] =
                    if side.mode.bits() & 0o100 == 0 { b"M 100644 inline " } else { b"M 100755 inline " };
                self.path_line(mode, path)
                    .and_then(|()| writeln!(self.out, "data {size}"))
                    .map_err(wrote())?;
                let mut content = files.open(path)?.take(size + 1);
                let found = io::copy(&mut content, &mut self.out).map_err(Error::io(readable(path)))?;
                if found != *size {
                    return Err(Error::WrongSize { path: readable(path), expected: *size, found });
                }
                self.out.write_all(b"\n").map_err(wrote())
            }
            EntryKind::Symlink { target } => self
                .path_line(b"M 120000 inline ", path)
                .and_then(|()| writeln!(self.out, "data {}", target.len()))
                .and_then(|()| self.out.write_all(target))
                .and_then(|()| self.out.write_all(b"\n"))
                .map_err(wrote()),
            EntryKind::Directory { .. } | EntryKind::Fifo => Ok(()),
        }
    }

    fn gitlink(&mut self, path: &[u8], commit: &str) -> io::Result<()> {
        self.path_line(format!("M 160000 {commit} ").as_bytes(), path)
    }

    fn path_line(&mut self, before: &[u8], path: &[u8]) -> io::Result<()> {
        self.out.write_all(before)?;
        self.out.write_all(&quoted("", path))?;
        self.out.write_all(b"\n")
    }

    fn leave_out(&mut self, path: &[u8], reason: &str) {
        let item = LeftOut::new(path, reason);
        if self.left_out.last() != Some(&item) {
            self.left_out.push(item);
        }
    }

    /// Ends; answers the names of the commits, in order, and what they could not hold.
    ///
    /// # Errors
    /// When git did not take them.
    pub fn finish(self) -> Result<(Vec<String>, Vec<LeftOut>), Error> {
        let Self { running, mut out, marks, count, left_out } = self;
        let written = out.write_all(b"done\n").and_then(|()| out.flush());
        drop(out);
        // Why git ended early says more than the broken pipe.
        running.succeed()?;
        written.map_err(Error::io("the commits"))?;
        let mut text = String::new();
        fs::File::open(&marks)
            .and_then(|file| file.take(MARKS_MAX).read_to_string(&mut text))
            .map_err(Error::io(marks.display().to_string()))?;
        let mut found = vec![String::new(); usize::try_from(count).expect("commits fit into memory")];
        for line in text.lines() {
            let entry = line.strip_prefix(':').and_then(|rest| rest.split_once(' '));
            let Some((mark, id)) = entry else { continue };
            let place = mark.parse::<usize>().ok().and_then(|mark| found.get_mut(mark.wrapping_sub(1)));
            if let Some(place) = place {
                id.clone_into(place);
            }
        }
        if found.iter().any(String::is_empty) {
            let said = "it did not name every commit".to_owned();
            return Err(GitError::Failed { what: EXPORTING, said }.into());
        }
        Ok((found, left_out))
    }
}

fn held(side: &Side) -> bool {
    matches!(side.kind, EntryKind::File { .. } | EntryKind::Symlink { .. })
}

fn is_empty(side: &Side) -> bool {
    side.kind == EntryKind::Directory { tree: empty() }
}

fn empty() -> TreeId {
    crate::patch::empty_tree()
}

fn is_submodule(change: &Change, submodules: &[Submodule]) -> bool {
    submodules.iter().any(|submodule| submodule.path == change.path)
}
