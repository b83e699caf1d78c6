//! Renaming. A directory that lies in a lower, in whole or in part, is first made whole in the upper,
//! where it is: a copy with everything in it takes its place, opaque, and shows the same. Then one
//! rename moves it, with a whiteout left behind where a lower still shows the name. Invariant: whoever
//! kills the process finds the old name or the new one; what fails half way leaves the old one and
//! nothing in `work`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use esf_core::manifest::MAX_DEPTH;
use rustix::fs::{AtFlags, Mode, RenameFlags};
use rustix::io::Errno;

use super::copy_up::{Held, errno, open_file};
use super::file::OpenFile;
use super::listing::{Entry, Listing, UPPER};
use super::quota::NAME;
use super::resolve::Last;
use super::tree::{Id, Tree, open_directory, stat};
use super::{Dir, Identity, Kind, Result};

/// A name that takes part in a rename.
struct End {
    id: Id,
    name: Box<[u8]>,
    entry: Option<Entry>,
    slash: bool,
    /// Keeps its place in the table.
    _held: Dir,
}

impl Tree {
    pub(super) fn rename(&mut self, from: Id, path: &[u8], to: Id, new: &[u8]) -> Result<()> {
        let from = self.end(from, path)?;
        let to = self.end(to, new)?;
        let (from, to) = (from.ok_or(Errno::BUSY)?, to.ok_or(Errno::BUSY)?);
        let entry = from.entry.clone().ok_or(Errno::NOENT)?;
        if entry.kind == Kind::Directory {
            return self.rename_directory(&from, &entry, &to);
        }
        if from.slash || to.slash {
            return Err(Errno::NOTDIR);
        }
        if to.entry.as_ref().is_some_and(|there| there.kind == Kind::Directory) {
            // The directory that the source is in is told apart.
            let inside = self.descend(to.id, &to.name)?.is_some_and(|id| self.is_within(from.id, id));
            return Err(if inside { Errno::NOTEMPTY } else { Errno::ISDIR });
        }
        if (from.id, &from.name) == (to.id, &to.name) || self.is_same(&from, &entry, &to)? {
            return Ok(());
        }
        self.check_room(to.id, &to.name)?;
        self.raise_entry(from.id, &from.name, &entry)?;
        self.raise(to.id)?;
        self.move_entry(&from, Entry::upper(entry.kind, entry.below), &to)
    }

    /// What a path names; none when it names nothing (`.`, `a/..`).
    fn end(&mut self, at: Id, path: &[u8]) -> Result<Option<End>> {
        let place = self.resolve(at, path, Last::Name)?;
        let _held = self.handle(place.directory);
        let (id, entry, slash) = (place.directory, place.entry, place.slash);
        Ok(place.name.map(|name| End { id, name, entry, slash, _held }))
    }

    /// Whether both names are the same inode of the upper: then nothing happens.
    fn is_same(&mut self, from: &End, entry: &Entry, to: &End) -> Result<bool> {
        if entry.layer != UPPER || to.entry.as_ref().is_none_or(|there| there.layer != UPPER) {
            return Ok(false);
        }
        let here = stat(&*self.descriptor(from.id, UPPER)?, &from.name)?;
        let there = stat(&*self.descriptor(to.id, UPPER)?, &to.name)?;
        Ok((here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    }

    /// Moves an entry that is in the upper alone, both directories being there.
    fn move_entry(&mut self, from: &End, entry: Entry, to: &End) -> Result<()> {
        let (here, there) = (self.descriptor(from.id, UPPER)?, self.descriptor(to.id, UPPER)?);
        let before = match stat(&*there, &to.name) {
            Err(Errno::NOENT) => None,
            found => Some(found?),
        };
        let whiteout = before.as_ref().is_some_and(|before| Kind::of(before).is_none());
        let swap = whiteout && entry.kind == Kind::Directory;
        let flags = match (swap, entry.below) {
            (true, _) => RenameFlags::EXCHANGE,
            (false, true) => RenameFlags::WHITEOUT,
            (false, false) => RenameFlags::empty(),
        };
        rustix::fs::renameat_with(&*here, &*from.name, &*there, &*to.name, flags)?;
        if swap && !entry.below {
            rustix::fs::unlinkat(&*here, &*from.name, AtFlags::empty())?;
        }
        if entry.below {
            self.quota.force(NAME);
        }
        if let Some(before) = &before {
            self.quota.release(NAME);
            self.lost_name(before);
        }
        let below = whiteout || to.entry.as_ref().is_some_and(|there| there.below);
        self.note(from.id, &from.name, None);
        self.note(to.id, &to.name, Some(Entry { below, ..entry }));
        Ok(())
    }

    fn rename_directory(&mut self, from: &End, entry: &Entry, to: &End) -> Result<()> {
        let id = self.child(from.id, &from.name, entry)?;
        let _held = self.handle(id);
        if self.is_within(to.id, id) {
            return Err(Errno::INVAL);
        }
        if (from.id, &from.name) == (to.id, &to.name) {
            return Ok(());
        }
        let replaced = match &to.entry {
            Some(there) if there.kind != Kind::Directory => return Err(Errno::NOTDIR),
            Some(there) => {
                let child = self.child(to.id, &to.name, there)?;
                self.check_empty(child)?;
                Some((child, self.handle(child), there.layer == UPPER))
            }
            None => None,
        };
        self.check_room(to.id, &to.name)?;
        if self.node(id).stack != [UPPER] {
            self.make_whole(id)?;
        }
        self.raise(to.id)?;
        if self.node(to.id).stack.len() > 1 {
            let fd = self.descriptor(id, UPPER)?;
            self.set_opaque(&fd)?;
        }
        if let Some((child, _, upper)) = &replaced {
            self.keep_for_handles(*child)?;
            if *upper {
                self.clear(*child)?;
            }
        }
        self.move_entry(from, Entry::upper(Kind::Directory, entry.below), to)?;
        self.detach(to.id, &to.name);
        self.node_mut(from.id).children.remove(&from.name);
        self.node_mut(to.id).children.insert(to.name.clone(), id);
        let node = self.node_mut(id);
        (node.parent, node.name) = (to.id, to.name.clone());
        Ok(())
    }

    /// Has a directory with everything in it in the upper, opaque, in the place where it is.
    fn make_whole(&mut self, id: Id) -> Result<()> {
        let (parent, name) = (self.node(id).parent, self.node(id).name.clone());
        let above = self.raise(parent)?;
        let in_upper = self.node(id).stack[0] == UPPER;
        let held = Held::of(&above)?;
        let mut copy = Copy { root: id, open: Vec::new(), linked: HashMap::new(), opened: Vec::new() };
        let temp = self.work_name();
        self.quota.take(NAME)?;
        let made = copy.run(self, &temp).and_then(|()| {
            let flags = if in_upper { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
            rustix::fs::renameat_with(&self.work, &*temp, &*above, &*name, flags)
        });
        if made.is_ok() {
            self.is_whole(id);
            self.note(parent, &name, Some(Entry::upper(Kind::Directory, true)));
        }
        if made.is_err() || in_upper {
            // The half-made copy, or what lay in the upper before.
            let removed = self.remove_work(&temp);
            made.and(removed)?;
        }
        for (files, fd) in std::mem::take(&mut copy.opened) {
            self.go_over(&files, fd)?;
        }
        held.give_back(&above)
    }

    /// All that is known beneath a directory: it is in the upper alone now.
    fn is_whole(&mut self, id: Id) {
        let mut rest = vec![id];
        while let Some(id) = rest.pop() {
            self.forget_descriptors(id);
            self.forget_names(id);
            let node = self.node_mut(id);
            node.stack = vec![UPPER];
            rest.extend(node.children.values());
        }
    }

    /// Removes what was made in `work`, releasing what it weighs.
    fn remove_work(&mut self, temp: &str) -> Result<()> {
        let work = open_directory(&self.work, b".")?;
        let mut open: Vec<(OwnedFd, Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
        let mut next = (Some(work), temp.as_bytes().to_vec());
        loop {
            // Enters a directory; goes on with the innermost that is open.
            if let Some(above) = next.0.take() {
                match open_directory(&above, &next.1) {
                    Ok(inside) => {
                        let names = super::change::names(&inside)?;
                        open.push((inside, std::mem::take(&mut next.1), names));
                    }
                    Err(Errno::NOENT) if open.is_empty() => {
                        self.quota.release(NAME);
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            let Some((directory, _, names)) = open.last_mut() else { return Ok(()) };
            let Some(name) = names.pop() else {
                let (_, name, _) = open.pop().expect("it was just looked at");
                let above = open.last().map_or(&self.work, |(above, ..)| above);
                rustix::fs::unlinkat(above, &*name, AtFlags::REMOVEDIR)?;
                self.quota.release(NAME);
                continue;
            };
            let before = stat(&*directory, &name)?;
            if Kind::of(&before) == Some(Kind::Directory) {
                next = (Some(open_directory(&*directory, b".")?), name);
                continue;
            }
            rustix::fs::unlinkat(&*directory, &*name, AtFlags::empty())?;
            self.quota.release(NAME);
            self.lost_name(&before);
        }
    }
}

/// A directory under way to `work`.
struct Frame {
    id: Id,
    _held: Dir,
    target: OwnedFd,
    names: Arc<Listing>,
    cursor: usize,
}

/// The copy of a directory: files of the upper get another name, those of lowers are copied.
struct Copy {
    root: Id,
    open: Vec<Frame>,
    /// Files of lowers with several names, and where the first copy of each is: directories from the top
    /// of the copy, and its name.
    linked: HashMap<Identity, Vec<Box<[u8]>>>,
    /// Open files of lowers, and the copies that they go over to once the whole has its place.
    opened: Vec<(Vec<Arc<OpenFile>>, OwnedFd)>,
}

impl Copy {
    fn run(&mut self, tree: &mut Tree, temp: &str) -> Result<()> {
        rustix::fs::mkdirat(&tree.work, temp, Mode::from_raw_mode(0o700))?;
        let top = open_directory(&tree.work, temp.as_bytes())?;
        tree.set_opaque(&top)?;
        self.enter(tree, self.root, top)?;
        while let Some(frame) = self.open.last_mut() {
            let Some((name, kind, next)) = frame.names.next(frame.cursor) else {
                let done = self.open.pop().expect("it was just looked at");
                let layer = tree.node(done.id).stack[0];
                let from = tree.descriptor(done.id, layer)?;
                tree.form.copy_attributes(&*from, &done.target).map_err(errno)?;
                continue;
            };
            frame.cursor = next;
            let name: Box<[u8]> = name.into();
            let id = frame.id;
            let entry = tree.lookup(id, &name)?.ok_or(Errno::IO)?;
            tree.quota.take(NAME)?;
            if kind == Kind::Directory {
                let made = rustix::fs::mkdirat(&frame.target, &*name, Mode::from_raw_mode(0o700));
                charged(tree, made)?;
                let target = open_directory(&frame.target, &name)?;
                let child = tree.child(id, &name, &entry)?;
                self.enter(tree, child, target)?;
            } else {
                let taken = self.take(tree, &name, &entry);
                charged(tree, taken)?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, tree: &mut Tree, id: Id, target: OwnedFd) -> Result<()> {
        if self.open.len() >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let held = tree.handle(id);
        tree.trim();
        let names = tree.snapshot(id)?;
        self.open.push(Frame { id, _held: held, target, names, cursor: 0 });
        Ok(())
    }

    /// Takes an entry that is no directory; its name is charged.
    fn take(&mut self, tree: &mut Tree, name: &[u8], entry: &Entry) -> Result<()> {
        let frame = self.open.last().expect("an entry is in a directory");
        let from = tree.descriptor(frame.id, entry.layer)?;
        if entry.layer == UPPER {
            return rustix::fs::linkat(&*from, name, &frame.target, name, AtFlags::empty());
        }
        if entry.kind != Kind::File {
            return tree.made(0, |tree, temp| {
                tree.copy_other(&from, name, entry.kind, temp)?;
                rustix::fs::renameat(&tree.work, temp, &frame.target, name)
            });
        }
        let file = open_file(&*from, name, false, true)?;
        let before = rustix::fs::fstat(&file)?;
        let identity = (before.st_dev, before.st_ino);
        if before.st_nlink > 1 {
            if let Some(first) = self.linked.get(&identity) {
                let directory = self.open_copy(first)?;
                let first = first.last().expect("a path ends in a name");
                return rustix::fs::linkat(&directory, &**first, &frame.target, name, AtFlags::empty());
            }
            let above = self.open.iter().skip(1).map(|frame| tree.node(frame.id).name.clone());
            self.linked.insert(identity, above.chain([name.into()]).collect());
        }
        let frame = self.open.last().expect("an entry is in a directory");
        let opened = tree.opened(frame.id, name);
        let copied = tree.copy_file(&file, &before, true, |tree, temp| {
            if !opened.is_empty() {
                self.opened.push((opened, open_file(&tree.work, temp.as_bytes(), false, true)?));
            }
            rustix::fs::renameat(&tree.work, temp, &frame.target, name)
        });
        // `copy_file` charged the name once more.
        copied.map(|_| tree.quota.release(NAME))
    }

    /// The directory of the copy that has the last of these names.
    fn open_copy(&self, path: &[Box<[u8]>]) -> Result<OwnedFd> {
        let top = self.open.first().expect("the top is open until the end");
        let mut at = open_directory(&top.target, b".")?;
        for name in &path[..path.len() - 1] {
            at = open_directory(&at, name)?;
        }
        Ok(at)
    }
}

/// Releases the charge of a name that was not made.
fn charged<T>(tree: &Tree, made: Result<T>) -> Result<T> {
    if made.is_err() {
        tree.quota.release(NAME);
    }
    made
}
