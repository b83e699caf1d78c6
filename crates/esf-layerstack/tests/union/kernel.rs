//! The kernel's side: the same operations on a directory of this machine, resolved so that no link
//! leaves the directory they start from.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use esf_layerstack::union::{Errno, Kind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps};

use super::ops::{Answer, At, How, Op, Outcome, Target, Then, bytes, outcome, time};

pub(crate) struct Kernel {
    top: PathBuf,
    dirs: Vec<OwnedFd>,
    files: Vec<(std::fs::File, bool)>,
    /// Directories of lowers cannot be renamed: they are copied instead.
    overlay: bool,
}

pub(crate) fn kind(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => Kind::Device,
    }
}

fn resolve(at: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC;
    let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
    rustix::fs::openat2(at, path, flags, mode, resolve).map_err(|error| match error {
        Errno::XDEV => Errno::PERM,
        error => error,
    })
}

fn follow(follow: bool) -> OFlags {
    if follow { OFlags::empty() } else { OFlags::NOFOLLOW }
}

/// The directory that has a path's last component, and that with the slashes after it.
fn parent(at: impl AsFd, path: &str) -> Result<(OwnedFd, &str), Errno> {
    let end = path.trim_end_matches('/').len();
    let start = path[..end].rfind('/').map_or(0, |slash| slash + 1);
    let above = if start == 0 { "." } else { &path[..start] };
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    Ok((resolve(at, above, OFlags::PATH | OFlags::DIRECTORY)?, &path[start..]))
}

/// `..` at the top leads out.
fn refuse_dots<'a>((above, last): (OwnedFd, &'a str), at: &OwnedFd) -> Result<(OwnedFd, &'a str), Errno> {
    if last.trim_end_matches('/') == ".." {
        let (above, top) = (rustix::fs::fstat(&above)?, rustix::fs::fstat(at)?);
        if (above.st_dev, above.st_ino) == (top.st_dev, top.st_ino) {
            return Err(Errno::PERM);
        }
    }
    Ok((above, last))
}

fn nothing(done: Result<(), Errno>) -> Answer {
    done.map(|()| Outcome::Done)
}

fn read(file: &std::fs::File) -> Vec<u8> {
    let mut buffer = vec![0; 100_000];
    let length = file.read_at(&mut buffer, 0).expect("read");
    buffer.truncate(length);
    buffer
}

impl Kernel {
    pub(crate) fn new(top: &Path, overlay: bool) -> Self {
        let fd = std::fs::File::open(top).expect("open the top").into();
        Self { top: top.to_owned(), dirs: vec![fd], files: Vec::new(), overlay }
    }

    fn dir(&self, at: At) -> &OwnedFd {
        &self.dirs[at % self.dirs.len()]
    }

    fn named<'a>(&self, at: At, path: &'a str) -> Result<(OwnedFd, &'a str), Errno> {
        refuse_dots(parent(self.dir(at), path)?, self.dir(at))
    }

    fn open(&self, at: At, path: &str, how: How) -> Answer {
        let open = how.open();
        let mut flags = match (open.read, open.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            (_, false) => OFlags::RDONLY,
        };
        flags.set(OFlags::CREATE, open.create);
        flags.set(OFlags::EXCL, open.exclusive);
        flags.set(OFlags::TRUNC, open.truncate);
        flags.set(OFlags::DIRECTORY, open.directory);
        flags.set(OFlags::NOFOLLOW, !open.follow);
        let fd = resolve(self.dir(at), path, flags | OFlags::NONBLOCK)?;
        let stat = rustix::fs::fstat(&fd)?;
        match kind(&stat) {
            Kind::Directory => return Ok(Outcome::Done),
            Kind::File => {}
            _ => return Err(Errno::NXIO),
        }
        let file = std::fs::File::from(fd);
        match how.then {
            _ if !open.write => {}
            Then::Nothing => {}
            Then::Write(at, n) => file.write_all_at(&bytes(n), at.into()).expect("write"),
            Then::Append(n) => {
                file.write_all_at(&bytes(n), file.metadata().expect("stat").len()).expect("append")
            }
            Then::Cut(size) => file.set_len(size.into()).expect("cut"),
        }
        Ok(if open.read { Outcome::Bytes(read(&file)) } else { Outcome::Done })
    }

    fn list(&self, at: At, path: &str) -> Answer {
        let fd = resolve(self.dir(at), path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                let stat = rustix::fs::statat(&fd, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
                names.push((name, kind(&stat)));
            }
        }
        names.sort();
        Ok(Outcome::Names(names))
    }

    fn rename(&self, at: At, path: &str, to: At, new: &str) -> Answer {
        let (from, name) = self.named(at, path)?;
        let (above, new) = self.named(to, new)?;
        match rustix::fs::renameat(&from, name, &above, new) {
            Err(Errno::XDEV) if self.overlay => {}
            renamed => return nothing(renamed),
        }
        let (name, new) = (name.trim_end_matches('/'), new.trim_end_matches('/'));
        if rustix::fs::statat(&above, new, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            rustix::fs::unlinkat(&above, new, AtFlags::REMOVEDIR)?;
        }
        let path = |fd: &OwnedFd, name: &str| {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd)));
            path.expect("a directory has a path").join(name)
        };
        let (source, target) = (path(&from, name), path(&above, new));
        let copied = std::process::Command::new("cp").arg("-a").args([&source, &target]).status();
        assert!(copied.expect("run cp").success());
        std::fs::remove_dir_all(source).expect("remove");
        Ok(Outcome::Done)
    }
}

impl Target for Kernel {
    fn apply(&mut self, op: &Op) -> Answer {
        // The kernel finds `.` in a removed directory; a union finds nothing there.
        for (nth, at) in op.starts().into_iter().enumerate() {
            if rustix::fs::fstat(self.dir(at))?.st_nlink > 0 {
                continue;
            }
            // What is wrong with the first path is said first.
            match op {
                Op::Rename(at, path, ..) if nth > 0 => drop(self.named(*at, path)?),
                Op::Link(at, path, follows, ..) if nth > 0 => {
                    drop(resolve(self.dir(*at), path, OFlags::PATH | follow(*follows))?);
                }
                _ => {}
            }
            return Err(Errno::NOENT);
        }
        match op {
            Op::Fill(path, n) => {
                for (at, _) in path.match_indices('/') {
                    match self.apply(&Op::Mkdir(0, path[..at].to_owned())) {
                        Err(error) if error != Errno::EXIST => return Err(error),
                        _ => {}
                    }
                }
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let fd = resolve(self.dir(0), path, flags)?;
                std::fs::File::from(fd).write_all_at(&bytes(*n), 0).expect("write");
                Ok(Outcome::Done)
            }
            Op::Open(at, path, how) => self.open(*at, path, *how),
            Op::Mkdir(at, path) => {
                let (above, name) = self.named(*at, path)?;
                nothing(rustix::fs::mkdirat(above, name, Mode::from_raw_mode(0o755)))
            }
            Op::Rmdir(at, path) => {
                let (above, name) = self.named(*at, path)?;
                nothing(rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR))
            }
            Op::Unlink(at, path) => {
                let (above, name) = self.named(*at, path)?;
                nothing(rustix::fs::unlinkat(above, name, AtFlags::empty()))
            }
            Op::Symlink(target, at, path) => {
                let (above, name) = self.named(*at, path)?;
                nothing(rustix::fs::symlinkat(&**target, above, name))
            }
            Op::Link(at, path, follows, to, new) => {
                let source = resolve(self.dir(*at), path, OFlags::PATH | follow(*follows))?;
                let (above, name) = self.named(*to, new)?;
                nothing(rustix::fs::linkat(source, "", above, name, AtFlags::EMPTY_PATH))
            }
            Op::Rename(at, path, to, new) => self.rename(*at, path, *to, new),
            Op::Times(at, path, follows, n) => {
                let entry = resolve(self.dir(*at), path, OFlags::PATH | follow(*follows))?;
                let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
                let times = Timestamps { last_access: keep, last_modification: time(*n) };
                nothing(rustix::fs::utimensat(entry, "", &times, AtFlags::EMPTY_PATH))
            }
            Op::Stat(at, path, follows) => {
                let entry = resolve(self.dir(*at), path, OFlags::PATH | follow(*follows))?;
                let stat = rustix::fs::fstat(entry)?;
                Ok(outcome(kind(&stat), stat.st_size as u64, stat.st_mtime))
            }
            Op::ReadLink(at, path) => {
                let entry = resolve(self.dir(*at), path, OFlags::PATH | OFlags::NOFOLLOW)?;
                if kind(&rustix::fs::fstat(&entry)?) != Kind::Symlink {
                    return Err(Errno::INVAL);
                }
                Ok(Outcome::Bytes(rustix::fs::readlinkat(entry, "", Vec::new())?.into_bytes()))
            }
            Op::List(at, path) => self.list(*at, path),
            Op::RemoveAll(path) => {
                let (above, name) = self.named(0, path)?;
                rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let path = self.top.join(path);
                let done = match std::fs::symlink_metadata(&path) {
                    Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
                    Ok(_) => std::fs::remove_file(path),
                    Err(error) => Err(error),
                };
                nothing(done.map_err(|error| Errno::from_io_error(&error).expect("an errno")))
            }
            Op::Fifo(path) => {
                let (above, name) = self.named(0, path)?;
                nothing(rustix::fs::mknodat(above, name, FileType::Fifo, Mode::from_raw_mode(0o640), 0))
            }
            Op::Keep(at, path, write) => {
                let access = if *write { OFlags::RDWR } else { OFlags::RDONLY };
                let fd = resolve(self.dir(*at), path, access | OFlags::NONBLOCK)?;
                match kind(&rustix::fs::fstat(&fd)?) {
                    Kind::Directory => self.dirs.push(fd),
                    Kind::File => self.files.push((fd.into(), *write)),
                    _ => return Err(Errno::NXIO),
                }
                Ok(Outcome::Done)
            }
            Op::WriteKept(n, byte) => {
                if let Some((file, true)) = self.files.get(*n) {
                    file.write_all_at(&bytes(*byte), 10 * u64::from(*byte)).expect("write");
                }
                Ok(Outcome::Done)
            }
            Op::CutKept(n, size) => {
                if let Some((file, true)) = self.files.get(*n) {
                    file.set_len((*size).into()).expect("cut");
                }
                Ok(Outcome::Done)
            }
        }
    }

    fn kept(&mut self) -> Vec<Vec<u8>> {
        self.files.iter().map(|(file, _)| read(file)).collect()
    }
}
