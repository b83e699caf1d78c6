//! What is to be deleted moves to `trash/` first and is removed in the background, in batches.
//! Invariant: removal is iterative and relative to descriptors, so no depth, length or name of a
//! tenant's tree can stop or divert it; one failed unlink stops nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};

use esf_core::Name;
use rustix::fs::{AtFlags, FileType, FlockOperation};

use crate::Error;
use crate::disk::{self, Boundary};
use crate::error::Context;
use crate::handle;
use crate::local::TxnId;

/// Deeper directories are hoisted to the top of the trash, so few descriptors are ever open.
const MAX_OPEN: usize = 100;

/// The trash directory and the thread that empties it.
pub(crate) struct Trash {
    directory: Arc<OwnedFd>,
    waker: Mutex<Option<mpsc::Sender<()>>>,
}

impl Trash {
    pub(crate) fn new(directory: OwnedFd) -> Self {
        Self { directory: Arc::new(directory), waker: Mutex::new(None) }
    }

    /// Moves `name` out of `parent` into the trash; true if it was there.
    pub(crate) fn take(&self, parent: impl AsFd, name: &str) -> Result<bool, Error> {
        let unique = TxnId::draw().to_string();
        match disk::rename_new(parent, name, &*self.directory, &unique, Boundary::TrashRename) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).at("move to the trash", name.as_bytes()),
        }
    }

    /// Whether anything waits to be removed.
    pub(crate) fn is_filled(&self) -> bool {
        handle::list(&*self.directory).is_ok_and(|names| !names.is_empty())
    }

    /// Has the background thread look at the trash; starts it when there is none.
    pub(crate) fn wake(&self) {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if waker.as_ref().is_some_and(|waker| waker.send(()).is_ok()) {
            return;
        }
        let (sender, receiver) = mpsc::channel::<()>();
        let directory = Arc::clone(&self.directory);
        let thread = std::thread::Builder::new().name("esf-trash".to_owned());
        let spawned = thread.spawn(move || {
            while receiver.recv().is_ok() {
                while receiver.try_recv().is_ok() {}
                empty(&directory, &|| matches!(receiver.try_recv(), Err(mpsc::TryRecvError::Disconnected)));
            }
        });
        match spawned {
            // The receiver lives as long as the thread, which was just made.
            Ok(_) => *waker = sender.send(()).ok().map(|()| sender),
            Err(error) => tracing::warn!(%error, "no thread to empty the trash; the next command will"),
        }
    }

    /// Empties the trash now; how many entries could not be removed.
    pub(crate) fn empty_now(&self) -> usize {
        empty(&self.directory, &|| false)
    }
}

/// Removes everything in `trash` until `stop` says so; counts what resisted.
///
/// One remover at a time, of all processes: two would take each other's work for resistance.
fn empty(trash: &OwnedFd, stop: &dyn Fn() -> bool) -> usize {
    let alone = handle::open_child(trash, b".").and_then(|lock| {
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    });
    let _alone = match alone {
        Ok(lock) => lock,
        Err(error) => {
            tracing::warn!(%error, "cannot lock the trash");
            return 1;
        }
    };
    loop {
        let names = match handle::list(trash) {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(%error, "cannot list the trash");
                return 1;
            }
        };
        let mut resisted = 0;
        for name in &names {
            if stop() {
                return resisted;
            }
            resisted += usize::from(!remove(trash, name));
        }
        // Hoisted directories show up in the next pass; one that removes nothing is the last.
        if resisted == names.len() {
            return resisted;
        }
    }
}

/// Removes what is at `path` with everything in it, whatever its modes, following no link in it.
///
/// # Errors
/// `Io` when there is nothing, or something resisted.
pub fn remove_tree(path: &Path) -> Result<(), Error> {
    let name = path.file_name().and_then(|name| Name::new(name.as_encoded_bytes()).ok());
    let name = name.ok_or(io::ErrorKind::InvalidInput).map_err(io::Error::from).on("remove", path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = handle::open_directory(parent).on("open", parent)?;
    handle::stat_entry(&parent, name.as_bytes()).on("remove", path)?;
    if remove(&parent, &name) {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty)).on("remove", path)
    }
}

/// Removes one entry of `parent` with everything in it; false if something resisted.
pub(crate) fn remove(parent: &OwnedFd, name: &Name) -> bool {
    struct Frame {
        directory: OwnedFd,
        name: Name,
        rest: Vec<Name>,
    }
    // Modes stop everybody but root.
    let own = !rustix::process::geteuid().is_root();
    let unlink = |directory: &OwnedFd, name: &Name, flags: AtFlags| {
        let done = rustix::fs::unlinkat(directory, name.as_bytes(), flags);
        matches!(done, Ok(()) | Err(rustix::io::Errno::NOENT))
    };
    let open = |directory: &OwnedFd, name: &Name| -> io::Result<Frame> {
        let directory = open_to_remove(directory, name, own)?;
        let rest = handle::list(&directory)?;
        Ok(Frame { directory, name: name.clone(), rest })
    };
    let is_directory = |directory: &OwnedFd, name: &Name| {
        handle::stat_entry(directory, name.as_bytes())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    };
    if !is_directory(parent, name) {
        return unlink(parent, name, AtFlags::empty());
    }
    let Ok(top) = open(parent, name) else { return false };
    let mut frames = vec![top];
    let mut clean = true;
    loop {
        let depth = frames.len();
        let Some(frame) = frames.last_mut() else { return clean };
        if let Some(child) = frame.rest.pop() {
            if !is_directory(&frame.directory, &child) {
                clean &= unlink(&frame.directory, &child, AtFlags::empty());
            } else if depth < MAX_OPEN {
                match open(&frame.directory, &child) {
                    Ok(inside) => frames.push(inside),
                    Err(_) => clean = false,
                }
            } else {
                let unique = TxnId::draw().to_string();
                // To move a directory elsewhere is to write to it.
                let ready = !own || open_to_remove(&frame.directory, &child, own).is_ok();
                let hoisted = rustix::fs::renameat(&frame.directory, child.as_bytes(), parent, &*unique);
                clean &= ready && hoisted.is_ok();
            }
            continue;
        }
        let done = frames.pop().expect("was just looked at");
        let above = frames.last().map_or(parent, |frame| &frame.directory);
        clean &= unlink(above, &done.name, AtFlags::REMOVEDIR);
    }
}

/// Opens a directory that is to be removed; `own` makes its user able to change what is in it first, if
/// its mode forbids that. Directories are never shared by links.
fn open_to_remove(parent: &OwnedFd, name: &Name, own: bool) -> io::Result<OwnedFd> {
    let opened = match handle::open_child(parent, name.as_bytes()) {
        Err(error) if own && error.kind() == io::ErrorKind::PermissionDenied => {
            let found = handle::open_handle(parent, name.as_bytes())?;
            if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::Directory {
                return Err(error);
            }
            // The very inode that was looked at, whatever the name leads to by now.
            rustix::fs::chmod(handle::magic_path(&found), rustix::fs::Mode::RWXU)?;
            handle::open_child(parent, name.as_bytes())?
        }
        opened => opened?,
    };
    let all = rustix::fs::Mode::RWXU;
    if own && !rustix::fs::Mode::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).contains(all) {
        rustix::fs::fchmod(&opened, all)?;
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_removers_do_not_resist_each_other() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for n in 0..20 {
            for m in 0..20 {
                std::fs::create_dir_all(dir.path().join(format!("{n}/{m}/x"))).expect("create");
            }
        }
        let handles: Vec<_> =
            (0..4).map(|_| Trash::new(handle::open_directory(dir.path()).expect("open"))).collect();
        std::thread::scope(|scope| {
            for trash in &handles {
                trash.wake();
                scope.spawn(|| assert_eq!(trash.empty_now(), 0));
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn removes_trees_deeper_than_any_path() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let trash = Trash::new(handle::open_directory(dir.path()).expect("open"));
        let mut at = handle::create_directory(&*trash.directory, b"deep").expect("create");
        for _ in 0..3000 {
            drop(handle::create_file(&at, b"file").expect("create"));
            at = handle::create_directory(&at, &[b'x'; 200]).expect("create");
        }
        assert_eq!(trash.empty_now(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }
}
