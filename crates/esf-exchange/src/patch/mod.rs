//! Patches that `git apply` accepts with its default `-p1`: text hunks, binary literals, modes,
//! symlinks, additions and deletions; renames off, type changes as a deletion and an addition.
//! Invariant: applied to the tree of the *before* side as git holds it, a patch gives the *after*
//! side as git holds it; everything git cannot hold is named in the summary. Contents larger than
//! `TEXT_MAX` are streamed as binary, so memory does not grow with them. Object names are SHA-1:
//! binary sections apply in repositories of that format, text sections anywhere.

mod between;
mod binary;
mod name;
mod text;

pub use between::{Source, between, changes};
pub(crate) use between::{empty_tree, lacks, lacks_entry};
pub(crate) use name::{quoted, refused_by_git};

use std::io::{Read, Write};

use serde::{Deserialize, Serialize};

use crate::{Error, Files, LeftOut, readable};

/// Largest content, in bytes, that is compared line by line; larger ones are written as binary.
pub const TEXT_MAX: u64 = 4 << 20;

const NO_BLOB: &str = "0000000000000000000000000000000000000000";

/// An entry as git can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version<'a> {
    /// A regular file.
    File {
        /// Whether its owner may execute it.
        executable: bool,
        /// Its size in bytes.
        size: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Where it points to.
        target: &'a [u8],
    },
}

impl Version<'_> {
    fn mode(&self) -> &'static str {
        match self {
            Self::File { executable: false, .. } => "100644",
            Self::File { executable: true, .. } => "100755",
            Self::Symlink { .. } => "120000",
        }
    }

    fn is_symlink(&self) -> bool {
        matches!(self, Self::Symlink { .. })
    }
}

/// What a written patch holds and what it could not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Paths that the patch adds, changes or deletes.
    pub paths: u64,
    /// Sections written as binary literals.
    pub binary: u64,
    /// Paths that differ in times, owners or extended attributes alone: no patch holds those.
    pub attributes_only: u64,
    /// What git cannot hold, in path order.
    pub left_out: Vec<LeftOut>,
}

/// Writes one patch, a changed path at a time.
pub struct Writer<'a> {
    out: &'a mut dyn Write,
    before: &'a dyn Files,
    after: &'a dyn Files,
    mail: bool,
    summary: Summary,
}

/// The content of one side, held when it is small enough to be compared by lines.
enum Loaded {
    Absent,
    Held { bytes: Vec<u8>, name: String },
    Large { size: u64, name: String },
}

impl Loaded {
    fn name(&self) -> &str {
        match self {
            Self::Absent => NO_BLOB,
            Self::Held { name, .. } | Self::Large { name, .. } => name,
        }
    }

    fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Absent => Some(b""),
            Self::Held { bytes, .. } => (!bytes.contains(&0)).then_some(bytes),
            Self::Large { .. } => None,
        }
    }
}

impl<'a> Writer<'a> {
    /// Begins an empty patch into `out`, with the files of both sides at hand.
    pub fn new(out: &'a mut dyn Write, before: &'a dyn Files, after: &'a dyn Files) -> Self {
        Self { out, before, after, mail: false, summary: Summary::default() }
    }

    /// For a patch that goes into a mail: contents with carriage returns are written as binary, since
    /// `git am` takes returns before line ends away.
    #[must_use]
    pub fn in_mail(self) -> Self {
        Self { mail: true, ..self }
    }

    /// Writes the change of `path` from `before` to `after`; nothing when git sees none.
    ///
    /// # Errors
    /// When a content cannot be read or is not as long as promised, or the output cannot be written.
    pub fn change(
        &mut self,
        path: &[u8],
        before: Option<Version<'_>>,
        after: Option<Version<'_>>,
    ) -> Result<(), Error> {
        let symlink = [before, after].iter().flatten().any(Version::is_symlink);
        if let Some(refused) = name::refused_by_git(path, symlink) {
            self.leave_out(refused, "git does not hold this name");
            return Ok(());
        }
        let sections = self.summary.paths;
        match (before, after) {
            (Some(old), Some(new)) if old.is_symlink() != new.is_symlink() => {
                self.section(path, Some(old), None)?;
                self.section(path, None, Some(new))?;
            }
            (None, None) => {}
            _ => self.section(path, before, after)?,
        }
        self.summary.paths = self.summary.paths.min(sections + 1);
        Ok(())
    }

    /// Names something that git cannot hold; repeating the last name adds nothing.
    pub fn leave_out(&mut self, path: &[u8], reason: &str) {
        let item = LeftOut::new(path, reason);
        if self.summary.left_out.last() != Some(&item) {
            self.summary.left_out.push(item);
        }
    }

    /// Ends the patch.
    ///
    /// # Errors
    /// When the output cannot be flushed.
    pub fn finish(self) -> Result<Summary, Error> {
        self.out.flush().map_err(Error::io("the patch"))?;
        Ok(self.summary)
    }

    fn section(
        &mut self,
        path: &[u8],
        before: Option<Version<'_>>,
        after: Option<Version<'_>>,
    ) -> Result<(), Error> {
        let old = load(self.before, path, before)?;
        let new = load(self.after, path, after)?;
        let same_content = old.name() == new.name();
        if same_content && before.map(|v| v.mode()) == after.map(|v| v.mode()) {
            return Ok(());
        }
        self.summary.paths += 1;
        let wrote = Error::io("the patch");
        self.header(path, before, after, (!same_content).then_some((old.name(), new.name())))
            .map_err(wrote)?;
        if same_content {
            return Ok(());
        }
        let text = |content: &Loaded| !self.mail || !content.text().is_some_and(|text| text.contains(&b'\r'));
        let lines = text(&old) && text(&new);
        match (old.text().filter(|_| lines), new.text().filter(|_| lines)) {
            (Some(b""), Some(b"")) => Ok(()),
            (Some(old_text), Some(new_text)) => self
                .text(path, before.is_some(), after.is_some(), old_text, new_text)
                .map_err(Error::io("the patch")),
            _ => {
                self.summary.binary += 1;
                writeln!(self.out, "GIT binary patch").map_err(Error::io("the patch"))?;
                write_literal(self.out, self.after, path, &new)?;
                write_literal(self.out, self.before, path, &old)
            }
        }
    }

    fn header(
        &mut self,
        path: &[u8],
        before: Option<Version<'_>>,
        after: Option<Version<'_>>,
        names: Option<(&str, &str)>,
    ) -> std::io::Result<()> {
        self.out.write_all(b"diff --git ")?;
        self.out.write_all(&name::quoted("a/", path))?;
        self.out.write_all(b" ")?;
        self.out.write_all(&name::quoted("b/", path))?;
        self.out.write_all(b"\n")?;
        let mut kept_mode = None;
        match (before.map(|v| v.mode()), after.map(|v| v.mode())) {
            (Some(old), None) => writeln!(self.out, "deleted file mode {old}")?,
            (None, Some(new)) => writeln!(self.out, "new file mode {new}")?,
            (Some(old), Some(new)) if old != new => writeln!(self.out, "old mode {old}\nnew mode {new}")?,
            (kept, _) => kept_mode = kept,
        }
        match (names, kept_mode) {
            (Some((old, new)), Some(mode)) => writeln!(self.out, "index {old}..{new} {mode}"),
            (Some((old, new)), None) => writeln!(self.out, "index {old}..{new}"),
            (None, _) => Ok(()),
        }
    }

    fn text(&mut self, path: &[u8], had: bool, has: bool, old: &[u8], new: &[u8]) -> std::io::Result<()> {
        for (sign, exists, prefix) in [("--- ", had, "a/"), ("+++ ", has, "b/")] {
            self.out.write_all(sign.as_bytes())?;
            let name = if exists { name::quoted(prefix, path) } else { b"/dev/null".to_vec() };
            self.out.write_all(&name)?;
            // git ends a name with blanks by a tab, so that a reader sees where it ends.
            let blank = exists && path.contains(&b' ');
            self.out.write_all(if blank { b"\t\n" } else { b"\n" })?;
        }
        text::write_hunks(self.out, old, new)
    }
}

fn load(files: &dyn Files, path: &[u8], version: Option<Version<'_>>) -> Result<Loaded, Error> {
    match version {
        None => Ok(Loaded::Absent),
        Some(Version::Symlink { target }) => held(path, target.to_vec()),
        Some(Version::File { size, .. }) if size <= TEXT_MAX => {
            let mut bytes = Vec::with_capacity(size as usize);
            let content = files.open(path)?;
            content.take(size + 1).read_to_end(&mut bytes).map_err(Error::io(readable(path)))?;
            check_size(path, size, bytes.len() as u64)?;
            held(path, bytes)
        }
        Some(Version::File { size, .. }) => {
            let mut content = files.open(path)?.take(size + 1);
            let (name, found) = binary::blob_name(size, &mut content).map_err(Error::io(readable(path)))?;
            check_size(path, size, found)?;
            Ok(Loaded::Large { size, name })
        }
    }
}

fn write_literal(out: &mut dyn Write, files: &dyn Files, path: &[u8], loaded: &Loaded) -> Result<(), Error> {
    let (size, mut content): (u64, Box<dyn Read + '_>) = match loaded {
        Loaded::Absent => (0, Box::new(std::io::empty())),
        Loaded::Held { bytes, .. } => (bytes.len() as u64, Box::new(bytes.as_slice())),
        Loaded::Large { size, .. } => (*size, Box::new(files.open(path)?.take(size + 1))),
    };
    let found = binary::write_literal(out, size, &mut content).map_err(Error::io(readable(path)))?;
    check_size(path, size, found)
}

fn held(path: &[u8], bytes: Vec<u8>) -> Result<Loaded, Error> {
    let (name, _) =
        binary::blob_name(bytes.len() as u64, &mut bytes.as_slice()).map_err(Error::io(readable(path)))?;
    Ok(Loaded::Held { bytes, name })
}

fn check_size(path: &[u8], expected: u64, found: u64) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::WrongSize { path: readable(path), expected, found }) }
}
