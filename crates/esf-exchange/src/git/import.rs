//! A commit's tree into an empty directory: listed by `ls-tree`, read by `cat-file`, an object at a time, and
//! laid out as archives are (see `untar::place`): no checkout, no conversion, nothing outside touched.
//! Invariant: what lies there is exactly the commit's tree; submodules are empty directories, as in a clone
//! that was not told to follow them.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{SyncSender, sync_channel};

use esf_core::manifest::{MAX_PATH, MAX_TARGET, Mode};
use esf_core::time::FileTime;
use esf_layerstack::{Form, Records};

use super::command::{LONG, Running};
use super::private::Private;
use super::{Bench, Commit, Error as GitError, ObjectFormat};
use crate::patch::refused_by_git;
use crate::untar::Limits;
use crate::untar::place::{Attrs, Place, clean};
use crate::{Error, readable};

/// Entries that are listed ahead of their contents.
const AHEAD: usize = 256;
/// Most submodules, and most pointers that are named.
const NAMED_MAX: usize = 4096;
/// Largest file in bytes that is looked at for a pointer.
const POINTER_MAX: u64 = 1024;
/// How a pointer of git-lfs begins.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// How a commit is laid out.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Upper bounds.
    pub limits: Limits,
    /// Makes a private `.git` that holds this one commit.
    pub private: bool,
    /// The branch its `HEAD` stands on, as `refs/heads/NAME`; detached when absent.
    pub branch: Option<Vec<u8>>,
}

/// A submodule of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submodule {
    /// Where.
    pub path: Vec<u8>,
    /// The commit of the other repository.
    pub commit: String,
}

/// What was laid out.
#[derive(Debug, Default)]
pub struct Imported {
    /// What symlinks could not carry in portable form.
    pub records: Records,
    /// Entries of the tree.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Submodules: empty directories.
    pub submodules: Vec<Submodule>,
    /// Pointers of git-lfs, imported as they are; the first few thousand.
    pub pointers: Vec<Vec<u8>>,
}

/// One line of `ls-tree`.
struct Listed {
    kind: Kind,
    id: Vec<u8>,
    path: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tree,
    File { executable: bool },
    Symlink,
    Submodule,
}

impl Kind {
    fn of_mode(mode: &[u8]) -> Option<Self> {
        match mode {
            b"040000" => Some(Self::Tree),
            b"100644" | b"100664" => Some(Self::File { executable: false }),
            b"100755" => Some(Self::File { executable: true }),
            b"120000" => Some(Self::Symlink),
            b"160000" => Some(Self::Submodule),
            _ => None,
        }
    }

    /// The mode in an index.
    const fn mode(self) -> u32 {
        match self {
            Self::Tree => 0o040_000,
            Self::File { executable: false } => 0o100_644,
            Self::File { executable: true } => 0o100_755,
            Self::Symlink => 0o120_000,
            Self::Submodule => 0o160_000,
        }
    }
}

/// Lays out the tree of `commit` in the empty directory `top`. On an error what was laid out so far stays: the
/// caller discards it.
///
/// # Errors
/// `Git` with the path and what is wrong with it; `Io` for this machine's own failures.
pub fn import(
    bench: &Bench,
    commit: &Commit,
    top: &OwnedFd,
    form: Form,
    options: &Options,
) -> Result<Imported, Error> {
    let private = options.private.then(|| Private::begin(bench, commit)).transpose()?;
    let listing = ["ls-tree", "-r", "-t", "-z", "--full-tree", &commit.id];
    let mut lister = Running::start(bench.command(listing), "list the commit", LONG)?;
    let mut reader = Running::start(bench.command(["cat-file", "--batch"]), "read the commit's files", LONG)?;
    let (lines, wanted, contents) = (lister.stdout(), reader.stdin(), reader.stdout());
    let (sender, receiver) = sync_channel::<Listed>(AHEAD);
    let format = bench.format();
    let mut layout = Layout {
        place: Place::new(top, form),
        time: file_time(commit),
        private,
        contents: BufReader::with_capacity(1 << 16, contents),
        format,
        limits: options.limits,
        last: Vec::new(),
        found: Imported::default(),
    };
    let done = std::thread::scope(|scope| {
        let feeder = scope.spawn(move || feed(lines, wanted, &sender, format));
        let laid = layout.top().and_then(|()| receiver.iter().try_for_each(|listed| layout.take(listed)));
        // A layout that failed must not leave the feeder waiting.
        drop(receiver);
        if let Err(error) = laid {
            drop((lister, reader, layout));
            feeder.join().expect("the feeder does not panic").unwrap_or_default();
            return Err(error);
        }
        let fed = feeder.join().expect("the feeder does not panic");
        fed?;
        lister.succeed()?;
        Ok((layout, reader))
    });
    let (layout, reader) = done?;
    let Layout { mut place, time, private, mut found, contents, .. } = layout;
    drop(contents);
    reader.succeed()?;
    if let Some(private) = private {
        private.finish(bench, commit, options.branch.as_deref(), &mut place, time)?;
    }
    found.records = place.finish()?;
    Ok(found)
}

/// The time that files get: one second before the commit, so that an index of the commit's time is
/// newer than all of them, and none can be changed unnoticed within its second.
fn file_time(commit: &Commit) -> FileTime {
    FileTime { seconds: commit.seconds.clamp(2, i64::from(u32::MAX)) - 1, nanos: 0 }
}

/// Sends each line of the list on, and asks for the contents of files and symlinks.
fn feed(
    lines: ChildStdout,
    wanted: ChildStdin,
    sender: &SyncSender<Listed>,
    format: ObjectFormat,
) -> Result<(), GitError> {
    let (mut lines, mut wanted) = (BufReader::with_capacity(1 << 16, lines), BufWriter::new(wanted));
    let failed = |said: String| GitError::Failed { what: "list the commit", said };
    let most = (MAX_PATH + 256) as u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.by_ref().take(most).read_until(0, &mut line).map_err(|e| failed(e.to_string()))?;
        if read == 0 {
            return Ok(());
        }
        let listed = parse(&line, format)?;
        if matches!(listed.kind, Kind::File { .. } | Kind::Symlink) {
            let asked = wanted
                .write_all(&listed.id)
                .and_then(|()| wanted.write_all(b"\n"))
                .and_then(|()| wanted.flush());
            asked.map_err(|e| failed(e.to_string()))?;
        }
        if sender.send(listed).is_err() {
            return Ok(());
        }
    }
}

/// Reads `MODE TYPE ID\tPATH\0`.
fn parse(line: &[u8], format: ObjectFormat) -> Result<Listed, GitError> {
    let refused = |what: &str| {
        let path = line.splitn(2, |&byte| byte == b'\t').nth(1).unwrap_or(line);
        GitError::Refused { path: readable(path), what: what.to_owned() }
    };
    let whole = line.strip_suffix(b"\0").ok_or_else(|| refused("a path that is too long"))?;
    let tab = whole.iter().position(|&byte| byte == b'\t').ok_or_else(|| refused("a malformed entry"))?;
    let mut fields = whole[..tab].split(|&byte| byte == b' ');
    let (mode, _, id) = (fields.next(), fields.next(), fields.next());
    let kind = mode.and_then(Kind::of_mode).ok_or_else(|| refused("of a mode that git does not know"))?;
    let id = id.filter(|id| format.is_id(id)).ok_or_else(|| refused("a malformed entry"))?;
    Ok(Listed { kind, id: id.to_vec(), path: whole[tab + 1..].to_vec() })
}

struct Layout<'a> {
    place: Place<'a>,
    time: FileTime,
    private: Option<Private>,
    contents: BufReader<ChildStdout>,
    format: ObjectFormat,
    limits: Limits,
    /// The last path that was no tree.
    last: Vec<u8>,
    found: Imported,
}

fn refused(path: &[u8], what: impl Into<String>) -> Error {
    GitError::Refused { path: readable(path), what: what.into() }.into()
}

impl Layout<'_> {
    fn attrs(&self, mode: u32) -> Attrs {
        attrs(mode, self.time)
    }

    fn top(&mut self) -> Result<(), Error> {
        let attrs = self.attrs(0o755);
        self.place.directory(b"", attrs)
    }

    fn take(&mut self, listed: Listed) -> Result<(), Error> {
        let path = &listed.path;
        self.found.entries += 1;
        if self.found.entries > self.limits.entries {
            return Err(refused(path, format!("entry number {}, which is too many", self.found.entries)));
        }
        if clean(path).ok().as_ref() != Some(path) {
            return Err(refused(path, "a path that no root holds"));
        }
        if refused_by_git(path, listed.kind == Kind::Symlink).is_some() {
            return Err(refused(path, "a name that git does not check out"));
        }
        let size = self.lay(&listed).map_err(of_git)?;
        if listed.kind != Kind::Tree {
            if *path <= self.last && !self.last.is_empty() {
                return Err(refused(path, "out of order in its tree"));
            }
            self.last.clone_from(path);
        }
        let seconds = u32::try_from(self.time.seconds).expect("clamped to 32 bits");
        match &mut self.private {
            Some(private) => private.note(listed.kind.mode(), &listed.id, path, size, seconds),
            None => Ok(()),
        }
    }

    /// Lays out one entry; answers the size of its content.
    fn lay(&mut self, listed: &Listed) -> Result<u64, Error> {
        let path = &listed.path;
        match listed.kind {
            Kind::Tree => {
                let attrs = self.attrs(0o755);
                self.place.directory(path, attrs)?;
                Ok(0)
            }
            Kind::Submodule => {
                if self.found.submodules.len() >= NAMED_MAX {
                    return Err(refused(path, format!("one submodule more than {NAMED_MAX}")));
                }
                if readable(path).as_bytes() != path {
                    return Err(refused(path, "a submodule whose path is not plain UTF-8"));
                }
                let attrs = self.attrs(0o755);
                self.place.directory(path, attrs)?;
                let commit = String::from_utf8_lossy(&listed.id).into_owned();
                self.found.submodules.push(Submodule { path: path.clone(), commit });
                Ok(0)
            }
            Kind::Symlink => {
                let size = self.size(listed)?;
                if size > MAX_TARGET as u64 {
                    return Err(refused(path, "a symlink whose target no root holds"));
                }
                let target = self.small(size)?;
                let attrs = self.attrs(0o777);
                self.place.symlink(path, attrs, &target)?;
                Ok(size)
            }
            Kind::File { executable } => {
                let size = self.size(listed)?;
                self.file(path, executable, size)?;
                Ok(size)
            }
        }
    }

    fn file(&mut self, path: &[u8], executable: bool, size: u64) -> Result<(), Error> {
        self.found.bytes = self.found.bytes.saturating_add(size);
        if self.found.bytes > self.limits.bytes {
            return Err(refused(
                path,
                format!("the file with which more than {} bytes come", self.limits.bytes),
            ));
        }
        let attrs = self.attrs(if executable { 0o755 } else { 0o644 });
        if size > POINTER_MAX {
            self.place.file(path, attrs, size, &mut self.contents)?;
            return self.end_of_content();
        }
        let content = self.small(size)?;
        if content.starts_with(POINTER) && self.found.pointers.len() < NAMED_MAX {
            self.found.pointers.push(path.to_vec());
        }
        self.place.file(path, attrs, size, &mut content.as_slice())
    }

    /// Reads `ID blob SIZE`.
    fn size(&mut self, listed: &Listed) -> Result<u64, Error> {
        let mut line = Vec::new();
        let read = self.contents.by_ref().take(256).read_until(b'\n', &mut line);
        read.map_err(Error::io("the answers of git"))?;
        let path = readable(&listed.path);
        let mut fields = line.strip_suffix(b"\n").unwrap_or(&line).split(|&byte| byte == b' ');
        let same = fields.next() == Some(&listed.id);
        match (fields.next(), fields.next()) {
            (Some(b"blob"), Some(size)) if same => {
                let size = std::str::from_utf8(size).ok().and_then(|size| size.parse().ok());
                size.ok_or_else(|| refused(&listed.path, "a content whose size git does not tell"))
            }
            _ => {
                let id = String::from_utf8_lossy(&listed.id).into_owned();
                Err(GitError::ObjectMissing { id, path }.into())
            }
        }
    }

    fn small(&mut self, size: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = self.contents.by_ref().take(size).read_to_end(&mut bytes);
        read.map_err(Error::io("the answers of git"))?;
        self.end_of_content()?;
        Ok(bytes)
    }

    fn end_of_content(&mut self) -> Result<(), Error> {
        let mut end = [0];
        let read = self.contents.read_exact(&mut end).map_err(Error::io("the answers of git"));
        match (read, end) {
            (Ok(()), [b'\n']) => Ok(()),
            _ => {
                let said = format!("the answers of `cat-file` broke off ({:?})", self.format);
                Err(GitError::Failed { what: "read the commit's files", said }.into())
            }
        }
    }
}

/// What an entry of a commit has.
pub(super) fn attrs(mode: u32, mtime: FileTime) -> Attrs {
    Attrs { mode: Mode::of_stat(mode), uid: 0, gid: 0, mtime, xattrs: Vec::new() }
}

/// What the layout refuses is the commit's fault, not an archive's.
fn of_git(error: Error) -> Error {
    match error {
        Error::Archive { entry, what } => GitError::Refused { path: entry, what }.into(),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_are_read_or_refused() {
        let id = "0123456789012345678901234567890123456789";
        let line = |mode: &str, id: &str, path: &str| format!("{mode} x {id}\t{path}\0").into_bytes();
        let listed = parse(&line("100755", id, "a\tb\n\"c"), ObjectFormat::Sha1).unwrap();
        assert_eq!((listed.path.as_slice(), listed.kind.mode()), (&b"a\tb\n\"c"[..], 0o100_755));
        for bad in [
            line("100600", id, "a"),
            line("100644", "12", "a"),
            line("100644", &id.to_uppercase().replace('0', "G"), "a"),
            b"100644 blob\0".to_vec(),
            line("100644", id, "a")[..51].to_vec(),
            Vec::new(),
        ] {
            assert!(parse(&bad, ObjectFormat::Sha1).is_err(), "{bad:?}");
        }
        assert!(parse(&line("100644", id, "a"), ObjectFormat::Sha256).is_err());
    }
}
