//! The private `.git` of a workspace: one commit, one pack, an index that needs no look at the files.
//! Invariant: it refers to nothing outside, so every attempt has its own; nothing of the user's configuration,
//! hooks or remotes is in it. `core.checkStat` is minimal, because carriers have inodes and owners of their own.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::PathBuf;

use esf_core::time::FileTime;

use super::bench::config;
use super::command::{LONG, Running};
use super::import::attrs;
use super::index::{self, Trailer};
use super::{Bench, Commit, Error as GitError};
use crate::Error;
use crate::untar::place::Place;

const CORE: &str = "\tbare = false\n\tlogallrefupdates = true\n\ttrustctime = false\n\tcheckStat = minimal\n";

/// One that is being made: names of objects and entries of the index are spooled, not held.
pub(super) struct Private {
    names: BufWriter<File>,
    index: BufWriter<File>,
    entries: u32,
}

fn spool(bench: &Bench, name: &str) -> Result<BufWriter<File>, Error> {
    let path = bench.directory().join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    Ok(BufWriter::new(file.map_err(Error::io(path.display().to_string()))?))
}

fn rewound(spool: BufWriter<File>) -> io::Result<File> {
    let mut file = spool.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

impl Private {
    pub(super) fn begin(bench: &Bench, commit: &Commit) -> Result<Self, Error> {
        let mut names = spool(bench, "names")?;
        writeln!(names, "{}\n{}", commit.id, commit.tree).map_err(Error::io("a list of objects"))?;
        Ok(Self { names, index: spool(bench, "entries")?, entries: 0 })
    }

    /// Remembers one entry of the commit's tree; trees and files come in the order of the index.
    pub(super) fn note(
        &mut self,
        mode: u32,
        id: &[u8],
        path: &[u8],
        size: u64,
        seconds: u32,
    ) -> Result<(), Error> {
        let (tree, submodule) = (mode == 0o040_000, mode == 0o160_000);
        let noted = || -> io::Result<()> {
            if !submodule {
                self.names.write_all(id)?;
                self.names.write_all(b"\n")?;
            }
            if !tree {
                self.entries += 1;
                index::append(&mut self.index, &index::Entry { path, mode, id, size, seconds })?;
            }
            Ok(())
        };
        let mut noted = noted;
        noted().map_err(Error::io("a list of objects"))
    }

    /// Writes the repository to `.git` in `place`; `time` is that of the files.
    pub(super) fn finish(
        self,
        bench: &Bench,
        commit: &Commit,
        branch: Option<&[u8]>,
        place: &mut Place<'_>,
        time: FileTime,
    ) -> Result<(), Error> {
        let later = FileTime { seconds: time.seconds + 1, nanos: 0 };
        let failed = || Error::io("a private repository");
        let names = rewound(self.names).map_err(failed())?;
        let entries = rewound(self.index).map_err(failed())?;
        for directory in
            ["", "/objects", "/objects/info", "/objects/pack", "/refs", "/refs/heads", "/refs/tags", "/info"]
        {
            place.directory(format!(".git{directory}").as_bytes(), attrs(0o755, later))?;
        }
        let head = match branch {
            Some(branch) => [b"ref: ", branch, b"\n"].concat(),
            None => format!("{}\n", commit.id).into_bytes(),
        };
        let mut texts = vec![
            (".git/HEAD", head),
            (".git/config", config(bench.format(), CORE).into_bytes()),
            (".git/info/exclude", Vec::new()),
        ];
        if let Some(branch) = branch {
            let packed = [commit.id.as_bytes(), b" ", branch, b"\n"].concat();
            texts.push((".git/packed-refs", packed));
        }
        if commit.has_parents {
            texts.push((".git/shallow", format!("{}\n", commit.id).into_bytes()));
        }
        for (path, text) in texts {
            place.file(path.as_bytes(), attrs(0o644, later), text.len() as u64, &mut text.as_slice())?;
        }
        write_index(bench, entries, self.entries, place, later)?;
        write_pack(bench, names, place, later)
    }
}

/// The index: its header, the spooled entries, its checksum.
fn write_index(
    bench: &Bench,
    entries: File,
    count: u32,
    place: &Place<'_>,
    time: FileTime,
) -> Result<(), Error> {
    let failed = || Error::io("a private repository");
    let length = entries.metadata().map_err(failed())?.len();
    let header = index::header(count);
    let mut trailer = Trailer::new(bench.format());
    let mut hashed = Hashed { from: header.as_slice().chain(entries), trailer: &mut trailer };
    let whole = bench.directory().join("index");
    let mut file = File::options().read(true).write(true).create_new(true).open(&whole).map_err(failed())?;
    io::copy(&mut hashed, &mut file).map_err(failed())?;
    let end = trailer.finish();
    file.write_all(&end).and_then(|()| file.rewind()).map_err(failed())?;
    let size = header.len() as u64 + length + end.len() as u64;
    place.file(b".git/index", attrs(0o644, time), size, &mut file)
}

/// The pack of the named objects; deltas of the repository are taken over, none are sought.
fn write_pack(bench: &Bench, names: File, place: &Place<'_>, time: FileTime) -> Result<(), Error> {
    let prefix: PathBuf = bench.directory().join("objects/pack/pack");
    let parent = prefix.parent().expect("it was joined");
    fs::create_dir_all(parent).map_err(Error::io(parent.display().to_string()))?;
    let mut command = bench.command(["pack-objects", "--quiet", "--window=0", "--delta-base-offset"]);
    command.arg(&prefix);
    let mut packing = Running::start_on(command, names, "pack the commit", LONG)?;
    let mut hash = String::new();
    packing.stdout().take(128).read_to_string(&mut hash).map_err(Error::io("the answers of git"))?;
    packing.succeed()?;
    let hash = hash.trim();
    if !bench.format().is_id(hash.as_bytes()) {
        return Err(GitError::Failed { what: "pack the commit", said: format!("it named {hash:?}") }.into());
    }
    for end in ["idx", "pack"] {
        let from = parent.join(format!("pack-{hash}.{end}"));
        let mut file = File::open(&from).map_err(Error::io(from.display().to_string()))?;
        let size = file.metadata().map_err(Error::io(from.display().to_string()))?.len();
        let to = format!(".git/objects/pack/pack-{hash}.{end}");
        place.file(to.as_bytes(), attrs(0o444, time), size, &mut file)?;
        fs::remove_file(&from).map_err(Error::io(from.display().to_string()))?;
    }
    Ok(())
}

/// Hashes what is read.
struct Hashed<'a, R> {
    from: R,
    trailer: &'a mut Trailer,
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.trailer.update(&buffer[..count]);
        Ok(count)
    }
}
