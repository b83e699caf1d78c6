//! The directories of the union that are in use: which layers make each up, their listings and their
//! descriptors, each cached within a bound and made again when needed. Invariants: a directory's path
//! in every lower of its stack is its path in the union (a renamed directory is in the upper only);
//! descriptors are reached from the layer's top component by component, never through a symlink; a
//! directory that a handle points to keeps its place in the table.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use esf_core::manifest::{MAX_DEPTH, MAX_PATH};
use rustix::fs::{AtFlags, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use super::bytes::{Job, Prepared};
use super::copy_up::errno;
use super::file::{Home, Inode, OpenFile, Raised};
use super::listing::{Entry, Layer, Listing};
use super::quota::Quota;
use super::{Dir, Identity, Key, Kind, Result};
use crate::Form;

/// A larger listing is not kept: its directory is asked name by name.
const MAX_LISTING: usize = 2 << 20;
/// All listings that are kept, bytes.
const MAX_LISTINGS: usize = 6 << 20;
/// Descriptors of directories that are kept.
const MAX_OPEN: usize = 256;
/// Directories in the table, but for those in use.
const MAX_NODES: usize = 8192;
/// Copied-up files whose former identity is remembered.
const MAX_ORIGINS: usize = 16_384;

/// A directory's place in the table.
pub(super) type Id = u32;
pub(super) const ROOT: Id = 0;

/// What is known of a directory's names.
pub(super) enum Names {
    Unknown,
    Whole(Arc<Listing>),
    TooMany,
}

pub(super) struct Node {
    pub(super) parent: Id,
    pub(super) name: Box<[u8]>,
    /// The layers that make it up, topmost first.
    pub(super) stack: Vec<Layer>,
    descriptors: Vec<(Layer, Arc<OwnedFd>)>,
    pub(super) children: HashMap<Box<[u8]>, Id>,
    names: Names,
    /// Held by every handle.
    pub(super) key: Arc<Key>,
    used: u64,
    /// It has no name any more.
    pub(super) gone: bool,
    /// What is left of it then.
    pub(super) left: Option<Arc<OwnedFd>>,
    pub(super) identity: Option<Identity>,
    /// Files of lowers that were opened here; they go over to their copies.
    opened: Vec<Weak<OpenFile>>,
}

/// The table and what goes with it; one lock guards it all.
pub(super) struct Tree {
    id: u64,
    tops: Vec<Arc<OwnedFd>>,
    pub(super) work: OwnedFd,
    pub(super) form: Form,
    nodes: Vec<Option<Node>>,
    free: Vec<Id>,
    tick: u64,
    /// Bytes of all listings that are kept.
    listings: usize,
    /// Descriptors that are kept.
    open: usize,
    buffer: Vec<MaybeUninit<u8>>,
    pub(super) serial: u64,
    pub(super) inodes: HashMap<u64, Weak<Inode>>,
    pub(super) origins: HashMap<u64, Identity>,
    pub(super) quota: Arc<Quota>,
    /// Set by an operation that wants a large file copied before it begins again.
    pub(super) job: Option<Job>,
    /// What was copied for it.
    pub(super) prepared: Option<Prepared>,
    /// Whether the operation under way can begin again.
    pub(super) can_begin_again: bool,
    /// The process's umask takes away from the modes of new entries.
    pub(super) masked: bool,
}

impl Tree {
    pub(super) fn new(id: u64, tops: Vec<OwnedFd>, work: OwnedFd, form: Form, quota: Arc<Quota>) -> Self {
        let mut tree = Self {
            id,
            tops: tops.into_iter().map(Arc::new).collect(),
            work,
            form,
            nodes: Vec::new(),
            free: Vec::new(),
            tick: 0,
            listings: 0,
            open: 0,
            buffer: vec![MaybeUninit::uninit(); 1 << 15],
            serial: 0,
            inodes: HashMap::new(),
            origins: HashMap::new(),
            quota,
            job: None,
            prepared: None,
            can_begin_again: false,
            masked: false,
        };
        let stack = (0..tree.tops.len() as Layer).collect();
        tree.insert(ROOT, b"", stack);
        tree
    }

    fn insert(&mut self, parent: Id, name: &[u8], stack: Vec<Layer>) -> Id {
        let id = self.free.pop().unwrap_or(self.nodes.len() as Id);
        let node = Node {
            parent,
            name: name.into(),
            stack,
            descriptors: Vec::new(),
            children: HashMap::new(),
            names: Names::Unknown,
            key: Arc::new(Key { union: self.id, node: id }),
            used: self.tick,
            gone: false,
            left: None,
            identity: None,
            opened: Vec::new(),
        };
        match self.nodes.get_mut(id as usize) {
            Some(place) => *place = Some(node),
            None => self.nodes.push(Some(node)),
        }
        id
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes[id as usize].as_ref().expect("a directory in use keeps its place")
    }

    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes[id as usize].as_mut().expect("a directory in use keeps its place")
    }

    /// The directory that a handle points to, removed or not.
    pub(super) fn of(&self, dir: &Dir) -> Result<Id> {
        if dir.0.union == self.id { Ok(dir.0.node) } else { Err(Errno::XDEV) }
    }

    pub(super) fn handle(&self, id: Id) -> Dir {
        Dir(Arc::clone(&self.node(id).key))
    }

    /// A descriptor of a directory in one of the layers of its stack.
    pub(super) fn descriptor(&mut self, id: Id, layer: Layer) -> Result<Arc<OwnedFd>> {
        let (mut at, mut way) = (id, Vec::new());
        let mut fd = loop {
            if at == ROOT {
                break Arc::clone(&self.tops[usize::from(layer)]);
            }
            let node = self.node(at);
            if let Some((_, fd)) = node.descriptors.iter().find(|(of, _)| *of == layer) {
                break Arc::clone(fd);
            }
            way.push(at);
            at = node.parent;
        };
        while let Some(at) = way.pop() {
            fd = Arc::new(open_directory(&fd, &self.node(at).name)?);
            self.keep(at, layer, &fd);
        }
        Ok(fd)
    }

    fn keep(&mut self, id: Id, layer: Layer, fd: &Arc<OwnedFd>) {
        if self.open >= MAX_OPEN {
            self.drop_descriptors();
        }
        let node = self.node_mut(id);
        if !node.descriptors.iter().any(|(of, _)| *of == layer) {
            node.descriptors.push((layer, Arc::clone(fd)));
            self.open += 1;
        }
    }

    /// What a directory shows; none when it is too much to be kept.
    pub(super) fn listing(&mut self, id: Id) -> Result<Option<Arc<Listing>>> {
        match &self.node(id).names {
            Names::Whole(listing) => return Ok(Some(Arc::clone(listing))),
            Names::TooMany => return Ok(None),
            Names::Unknown => {}
        }
        let listing = self.load(id, MAX_LISTING)?;
        let names = match listing {
            Some(listing) => {
                self.listings += listing.memory();
                Names::Whole(Arc::new(listing))
            }
            None => Names::TooMany,
        };
        self.node_mut(id).names = names;
        self.touch(id);
        if self.listings > MAX_LISTINGS {
            self.drop_listings(id);
        }
        match &self.node(id).names {
            Names::Whole(listing) => Ok(Some(Arc::clone(listing))),
            Names::TooMany | Names::Unknown => Ok(None),
        }
    }

    /// What a directory shows, however much that is.
    pub(super) fn snapshot(&mut self, id: Id) -> Result<Arc<Listing>> {
        match self.listing(id)? {
            Some(listing) => Ok(listing),
            None => Ok(Arc::new(self.load(id, usize::MAX)?.expect("there is no bound"))),
        }
    }

    fn load(&mut self, id: Id, most: usize) -> Result<Option<Listing>> {
        let mut listing = Listing::default();
        for layer in self.node(id).stack.clone() {
            let fd = self.descriptor(id, layer)?;
            rustix::fs::seek(&*fd, SeekFrom::Start(0))?;
            let mut names = RawDir::new(&*fd, &mut self.buffer);
            while let Some(entry) = names.next() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." {
                    continue;
                }
                let kind = match Kind::of_type(entry.file_type()) {
                    Some(kind) => Some(kind),
                    None => Kind::of(&stat(&*fd, name)?),
                };
                listing.merge(layer, name, kind);
                if listing.memory() > most {
                    return Ok(None);
                }
            }
        }
        Ok(Some(listing))
    }

    /// What a live directory has of that name.
    pub(super) fn lookup(&mut self, id: Id, name: &[u8]) -> Result<Option<Entry>> {
        if let Names::Whole(listing) = &self.node(id).names {
            return Ok(listing.get(name));
        }
        match self.listing(id)? {
            Some(listing) => Ok(listing.get(name)),
            None => self.probe(id, name),
        }
    }

    /// Asks the layers for one name.
    fn probe(&mut self, id: Id, name: &[u8]) -> Result<Option<Entry>> {
        let mut listing = Listing::default();
        for layer in self.node(id).stack.clone() {
            let fd = self.descriptor(id, layer)?;
            match stat(&*fd, name) {
                Ok(stat) => listing.merge(layer, name, Kind::of(&stat)),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(listing.get(name))
    }

    /// Notes what a name is now; none when it is gone.
    pub(super) fn note(&mut self, id: Id, name: &[u8], entry: Option<Entry>) {
        let Names::Whole(listing) = &mut self.node_mut(id).names else { return };
        let before = listing.memory();
        let now = Arc::make_mut(listing);
        match entry {
            Some(entry) => now.put(name, entry),
            None => now.remove(name),
        }
        let after = now.memory();
        self.listings = self.listings + after - before;
        if after > MAX_LISTING {
            self.forget_names(id);
            self.node_mut(id).names = Names::TooMany;
        }
    }

    pub(super) fn forget_names(&mut self, id: Id) {
        if let Names::Whole(listing) = std::mem::replace(&mut self.node_mut(id).names, Names::Unknown) {
            self.listings -= listing.memory();
        }
    }

    pub(super) fn forget_descriptors(&mut self, id: Id) {
        self.open -= std::mem::take(&mut self.node_mut(id).descriptors).len();
    }

    /// A child that is known to be a directory, as `entry` says.
    pub(super) fn child(&mut self, id: Id, name: &[u8], entry: &Entry) -> Result<Id> {
        if let Some(child) = self.node(id).children.get(name) {
            return Ok(*child);
        }
        let mut stack = vec![entry.layer];
        let mut opened = Vec::new();
        if !entry.rest.is_empty() {
            for layer in std::iter::once(&entry.layer).chain(&entry.rest) {
                let above = self.descriptor(id, *layer)?;
                let fd = Arc::new(open_directory(&above, name)?);
                let opaque = self.form.is_opaque(&fd).map_err(errno)?;
                opened.push((*layer, fd));
                if opaque {
                    break;
                }
            }
            stack = opened.iter().map(|(layer, _)| *layer).collect();
        }
        let child = self.insert(id, name, stack);
        for (layer, fd) in &opened {
            self.keep(child, *layer, fd);
        }
        self.node_mut(id).children.insert(name.into(), child);
        Ok(child)
    }

    /// The child of that name, whatever the listing knows.
    pub(super) fn descend(&mut self, id: Id, name: &[u8]) -> Result<Option<Id>> {
        if let Some(child) = self.node(id).children.get(name) {
            return Ok(Some(*child));
        }
        match self.lookup(id, name)? {
            Some(entry) if entry.kind == Kind::Directory => self.child(id, name, &entry).map(Some),
            Some(_) | None => Ok(None),
        }
    }

    /// Refuses a name that a root could not hold: too deep, or its path too long.
    pub(super) fn check_room(&self, id: Id, name: &[u8]) -> Result<()> {
        let (mut depth, mut length, mut at) = (1, name.len(), id);
        while at != ROOT {
            let node = self.node(at);
            depth += 1;
            length += node.name.len() + 1;
            at = node.parent;
        }
        if depth > MAX_DEPTH || length > MAX_PATH { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    /// Whether `id` is `above` or somewhere beneath it.
    pub(super) fn is_within(&self, id: Id, above: Id) -> bool {
        let mut at = id;
        while at != above && at != ROOT {
            at = self.node(at).parent;
        }
        at == above
    }

    /// Takes a directory out of its parent: its handles see it removed.
    pub(super) fn detach(&mut self, parent: Id, name: &[u8]) {
        let Some(id) = self.node_mut(parent).children.remove(name) else { return };
        let left = self.node(id).stack.first().copied();
        let left =
            left.and_then(|layer| self.node(id).descriptors.iter().find(|(of, _)| *of == layer).cloned());
        self.forget_names(id);
        self.forget_descriptors(id);
        let node = self.node_mut(id);
        node.left = left.map(|(_, fd)| fd);
        node.parent = ROOT;
        node.gone = true;
    }

    /// Says that a directory is in use.
    pub(super) fn touch(&mut self, id: Id) {
        self.tick += 1;
        let tick = self.tick;
        self.node_mut(id).used = tick;
    }

    /// Forgets directories that nobody uses when there are many. Only between operations: no place in
    /// the table but those that handles hold outlives it.
    pub(super) fn trim(&mut self) {
        while self.nodes.len() - self.free.len() > MAX_NODES {
            let idle = |(id, node): (usize, &Option<Node>)| {
                let node = node.as_ref()?;
                let idle = id != 0 && node.children.is_empty() && Arc::strong_count(&node.key) == 1;
                idle.then_some((node.used, id as Id))
            };
            let mut idle: Vec<_> = self.nodes.iter().enumerate().filter_map(idle).collect();
            idle.sort_unstable();
            idle.truncate((self.nodes.len() - self.free.len()).saturating_sub(MAX_NODES / 2));
            if idle.is_empty() {
                return;
            }
            for (_, id) in idle {
                self.forget(id);
            }
        }
    }

    fn forget(&mut self, id: Id) {
        self.forget_names(id);
        self.forget_descriptors(id);
        let node = self.nodes[id as usize].take().expect("the caller saw it");
        if !node.gone {
            self.node_mut(node.parent).children.remove(&node.name);
        }
        self.free.push(id);
    }

    /// Lets the half of the kept descriptors go that was not used for longest.
    fn drop_descriptors(&mut self) {
        for id in self.oldest(|node| !node.descriptors.is_empty()) {
            if self.open <= MAX_OPEN / 2 {
                return;
            }
            self.forget_descriptors(id);
        }
    }

    /// The same of the kept listings, but for that of `except`.
    fn drop_listings(&mut self, except: Id) {
        for id in self.oldest(|node| matches!(node.names, Names::Whole(_))) {
            if self.listings <= MAX_LISTINGS / 2 {
                return;
            }
            if id != except {
                self.forget_names(id);
            }
        }
    }

    /// How many directories are in the table, bytes of listings and descriptors are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize, usize) {
        let open = self.nodes.iter().flatten().map(|node| node.descriptors.len()).sum::<usize>();
        assert_eq!(open, self.open);
        (self.nodes.len() - self.free.len(), self.listings, open)
    }

    fn oldest(&self, which: impl Fn(&Node) -> bool) -> Vec<Id> {
        let mut found: Vec<_> = (self.nodes.iter().enumerate())
            .filter_map(|(id, node)| {
                node.as_ref().filter(|node| which(node)).map(|node| (node.used, id as Id))
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// The shared state of an open file of the upper.
    pub(super) fn inode(&mut self, stat: &Stat) -> Arc<Inode> {
        if let Some(inode) = self.inodes.get(&stat.st_ino).and_then(Weak::upgrade) {
            return inode;
        }
        if self.inodes.len() == self.inodes.capacity() {
            self.inodes.retain(|_, inode| inode.strong_count() > 0);
        }
        let identity = self.origins.get(&stat.st_ino).copied();
        let inode = Arc::new(Inode::new(stat, self.form, &self.quota, identity));
        self.inodes.insert(stat.st_ino, Arc::downgrade(&inode));
        inode
    }

    /// Remembers that a file of a lower is open.
    pub(super) fn note_open(&mut self, id: Id, file: &Arc<OpenFile>) {
        let opened = &mut self.node_mut(id).opened;
        if opened.len() == opened.capacity() {
            opened.retain(|file| file.strong_count() > 0);
        }
        opened.push(Arc::downgrade(file));
    }

    /// The open files of lowers that have that name.
    pub(super) fn opened(&self, id: Id, name: &[u8]) -> Vec<Arc<OpenFile>> {
        let is_of = |file: &Arc<OpenFile>| match &file.home {
            Home::Lower { name: of, raised, .. } => **of == *name && raised.get().is_none(),
            Home::Upper(_) => false,
        };
        self.node(id).opened.iter().filter_map(Weak::upgrade).filter(is_of).collect()
    }

    /// Has open files go over to the copy, which is open as `fd`.
    pub(super) fn go_over(&mut self, files: &[Arc<OpenFile>], fd: OwnedFd) -> Result<()> {
        let inode = self.inode(&rustix::fs::fstat(&fd)?);
        let copy = Arc::new(Raised { inode, fd });
        for file in files {
            if let Home::Lower { raised, .. } = &file.home {
                raised.get_or_init(|| Arc::clone(&copy));
            }
        }
        Ok(())
    }

    /// A file of a lower lost its name: its handles are nobody's twin any more.
    pub(super) fn forget_open(&mut self, id: Id, name: &[u8]) {
        let is_other = |file: &Weak<OpenFile>| {
            file.upgrade().is_some_and(|file| match &file.home {
                Home::Lower { name: of, .. } => **of != *name,
                Home::Upper(_) => false,
            })
        };
        self.node_mut(id).opened.retain(is_other);
    }

    /// Remembers whose a copied-up file was.
    pub(super) fn remember(&mut self, inode: u64, origin: Identity) {
        if self.origins.len() < MAX_ORIGINS {
            self.origins.insert(inode, origin);
        }
    }
}

/// The status of an entry, not following it.
pub(super) fn stat(directory: impl AsFd, name: &[u8]) -> Result<Stat> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn open_directory(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, rustix::fs::Mode::empty())
}
