//! Files in and out, on behalf of the worker: through the union, so that what guests see and what the quota
//! counts is all there is. Invariants: an uploaded file appears whole or not at all; nothing that is given
//! out can be written through.

use std::io;
use std::os::fd::AsFd;

use esf_layerstack::union::{Kind, Node, Open, Union};
use esf_worker::executor::FileEntry;
use rustix::io::Errno;

use super::Host;
use crate::wire::{Answer, Channel, Finish, LARGEST};

/// Entries of a directory in one message.
const BATCH: usize = 500;

/// What is answered to one who asked for something that gives nothing back.
pub(super) fn answer(result: Result<(), Errno>) -> Answer {
    match result {
        Ok(()) => Answer::Done,
        Err(errno) => failed(errno),
    }
}

fn failed(errno: Errno) -> Answer {
    let errno = match errno {
        // A path that would leave the tree, as the kernel says it of paths beneath a directory.
        Errno::PERM => Errno::XDEV,
        // A fifo, a socket, a device: told as no kind of file that can be read.
        Errno::NXIO => return Answer::Failed { errno: 0 },
        errno => errno,
    };
    Answer::Failed { errno: errno.raw_os_error() }
}

impl Host {
    pub(super) fn open_file(&self, channel: &Channel, path: &[u8]) -> io::Result<()> {
        let how = Open { read: true, follow: true, ..Open::default() };
        let opened = self.union.open(&self.union.root(), path, how).and_then(|node| match &node {
            Node::File(file) => Ok((file.reader()?, self.union.stat(&node)?.mode)),
            Node::Dir(_) => Err(Errno::ISDIR),
        });
        match opened {
            Ok((file, mode)) => channel.send(&Answer::Opened { mode }, &[file.as_fd()]),
            Err(errno) => channel.send(&failed(errno), &[]),
        }
    }

    pub(super) fn remove(&self, path: &[u8]) -> Result<(), Errno> {
        let root = self.union.root();
        match self.union.stat_at(&root, path, false)?.kind {
            Kind::Directory => self.union.remove_directory(&root, path),
            Kind::File | Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Device => {
                self.union.unlink(&root, path)
            }
        }
    }

    /// Takes a file's bytes until they are published; else they are gone.
    pub(super) fn create_file(&self, channel: &Channel, temporary: &[u8], path: &[u8]) -> io::Result<()> {
        let root = self.union.root();
        let how = Open { write: true, create: true, exclusive: true, ..Open::default() };
        let file = match self.union.open(&root, temporary, how) {
            Ok(Node::File(file)) => file,
            Ok(Node::Dir(_)) => return channel.send(&failed(Errno::ISDIR), &[]),
            Err(errno) => return channel.send(&failed(errno), &[]),
        };
        let mut partial = Partial { union: &self.union, temporary, published: false };
        channel.send(&Answer::Done, &[])?;
        let mut at = 0;
        while let Some(message) = channel.receive(LARGEST, None)? {
            let bytes = match message.read::<Finish>()? {
                Err(bytes) => bytes,
                Ok(Finish::Publish { mode }) => {
                    let published = self
                        .union
                        .set_mode(&file, mode)
                        .and_then(|()| self.union.rename(&root, temporary, &root, path));
                    partial.published = published.is_ok();
                    return channel.send(&answer(published), &[]);
                }
                Ok(Finish::Abandon) => {
                    drop(partial);
                    return channel.send(&Answer::Done, &[]);
                }
            };
            channel.send(&answer(write_all(&file, &bytes, &mut at)), &[])?;
        }
        Ok(())
    }

    pub(super) fn list(&self, channel: &Channel, path: &[u8]) -> io::Result<()> {
        let root = self.union.root();
        let opened = super::directory(&self.union, &root, path);
        let listed = opened.and_then(|dir| self.union.list(&dir).map(|names| (dir, names)));
        let (dir, names) = match listed {
            Ok(found) => found,
            Err(errno) => return channel.send(&failed(errno), &[]),
        };
        let mut batch = Vec::with_capacity(BATCH);
        for (name, kind) in names.iter() {
            // What is gone meanwhile is not listed.
            let Ok(stat) = self.union.stat_at(&dir, name, false) else { continue };
            batch.push(FileEntry::new(name, word(kind), stat.size, stat.mode, stat.mtime.tv_sec));
            if batch.len() == BATCH {
                channel.send(&Answer::Entries(std::mem::take(&mut batch)), &[])?;
            }
        }
        if !batch.is_empty() {
            channel.send(&Answer::Entries(batch), &[])?;
        }
        channel.send(&Answer::Done, &[])
    }
}

/// Takes a path of the tree, and all that is beneath it, out of the attempt's own view of it: into a delta that
/// nobody seals. What is not there is hidden already.
pub(super) fn hide(union: &Union, path: &[u8]) -> Result<(), Errno> {
    let root = union.root();
    // A directory comes by twice: first to find what is in it, then to go.
    let mut pending = vec![(path.to_vec(), false)];
    while let Some((path, is_empty)) = pending.pop() {
        if is_empty {
            union.remove_directory(&root, &path)?;
            continue;
        }
        match union.stat_at(&root, &path, false) {
            Ok(found) if found.kind == Kind::Directory => {
                let listed = union.list(&super::directory(union, &root, &path)?)?;
                pending.push((path.clone(), true));
                pending.extend(listed.iter().map(|(name, _)| ([&path, &b"/"[..], name].concat(), false)));
            }
            Ok(_) => union.unlink(&root, &path)?,
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Directory => "directory",
        Kind::File => "file",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::Device => "device",
    }
}

fn write_all(file: &esf_layerstack::union::File, bytes: &[u8], at: &mut u64) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match file.write_at(rest, *at)? {
            0 => return Err(Errno::IO),
            written => {
                rest = &rest[written..];
                *at += written as u64;
            }
        }
    }
    Ok(())
}

/// A file that is not yet published.
struct Partial<'a> {
    union: &'a Union,
    temporary: &'a [u8],
    published: bool,
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = self.union.unlink(&self.union.root(), self.temporary)
        {
            eprintln!("{}: cannot remove a half-written file: {error}", super::NAME);
        }
    }
}
