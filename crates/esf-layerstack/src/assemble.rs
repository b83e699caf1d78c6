//! Puts the entries of directories together into `Tree` and `Attrs` objects, bottom up.
//! Invariant: a hard-link group is named by its smallest path within the root, and that is known
//! only at the end; so attributes of directories with linked files wait, everything else is stored
//! as soon as its directory is complete.

use std::collections::{BTreeSet, HashMap};

use esf_core::manifest::{
    Attrs, AttrsEntry, Entry, EntryKind, Mode, ObjectSink, Root, RootPin, hard_link_group, store_attrs,
    store_top, store_tree,
};
use esf_core::{AttrsId, Digest, Name, TreeId};

use crate::Error;

/// One inode of the tree that is being taken in: device and number.
pub(crate) type Inode = (u64, u64);

/// The paths of linked inodes.
#[derive(Debug, Default)]
pub(crate) struct Links(HashMap<Inode, BTreeSet<Vec<u8>>>);

impl Links {
    /// Notes that `path` leads to `inode`.
    pub(crate) fn note(&mut self, inode: Inode, path: &[u8]) {
        self.0.entry(inode).or_default().insert(path.to_vec());
    }

    fn group(&self, inode: Inode) -> Option<Digest> {
        let paths = self.0.get(&inode)?;
        (paths.len() > 1).then(|| hard_link_group(paths.first().expect("there are two")))
    }

    /// Whether `path` was noted.
    pub(crate) fn contains(&self, path: &[u8]) -> bool {
        self.0.values().any(|paths| paths.contains(path))
    }
}

/// What an entry's attributes still wait for.
#[derive(Debug)]
enum Late {
    Nothing,
    Group(Inode),
    Children(Box<Waiting>),
}

/// Attributes of a directory that cannot be stored yet.
#[derive(Debug, Default)]
struct Waiting(Vec<(AttrsEntry, Late)>);

#[derive(Debug)]
enum Children {
    Stored(Option<AttrsId>),
    Waiting(Waiting),
}

/// A directory whose `Tree` is stored.
#[derive(Debug)]
pub(crate) struct Assembled {
    tree: TreeId,
    children: Children,
}

impl Assembled {
    /// Stores the headers of a root whose top directory this is.
    pub(crate) fn into_root(
        self,
        sink: &mut dyn ObjectSink,
        mode: Mode,
        mut attrs: Attrs,
        links: &Links,
    ) -> Result<RootPin, Error> {
        attrs.children = match self.children {
            Children::Stored(children) => children,
            Children::Waiting(waiting) => waiting.store(sink, links)?,
        };
        Ok(store_top(sink, Root { mode, tree: self.tree }, &attrs)?)
    }
}

impl Waiting {
    /// Stores what waited; as deep as a root may be.
    fn store(self, sink: &mut dyn ObjectSink, links: &Links) -> Result<Option<AttrsId>, Error> {
        let mut entries = Vec::with_capacity(self.0.len());
        for (mut entry, late) in self.0 {
            match late {
                Late::Nothing => {}
                Late::Group(inode) => entry.attrs.hard_link = links.group(inode),
                Late::Children(waiting) => entry.attrs.children = waiting.store(sink, links)?,
            }
            entries.push(entry);
        }
        Ok(store_attrs(sink, entries)?)
    }
}

/// Gathers the entries of one directory, in any order.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    entries: Vec<Entry>,
    attrs: Vec<(AttrsEntry, Late)>,
    waits: bool,
}

impl Directory {
    /// Adds an entry that keeps what it had: its attributes are whole.
    pub(crate) fn keep(&mut self, entry: Entry, attrs: Attrs) {
        self.push(entry, attrs, Late::Nothing);
    }

    /// Adds an entry that is no directory; `inode` if other paths may lead to it.
    pub(crate) fn add(&mut self, entry: Entry, attrs: Attrs, inode: Option<Inode>) {
        self.push(entry, attrs, inode.map_or(Late::Nothing, Late::Group));
    }

    /// Adds a directory.
    pub(crate) fn add_directory(&mut self, name: Name, mode: Mode, mut attrs: Attrs, inside: Assembled) {
        let late = match inside.children {
            Children::Stored(children) => {
                attrs.children = children;
                Late::Nothing
            }
            Children::Waiting(waiting) => Late::Children(Box::new(waiting)),
        };
        let kind = EntryKind::Directory { tree: inside.tree };
        self.push(Entry { name, mode, kind }, attrs, late);
    }

    fn push(&mut self, entry: Entry, attrs: Attrs, late: Late) {
        self.waits |= !matches!(late, Late::Nothing);
        if !attrs.is_default() || !matches!(late, Late::Nothing) {
            self.attrs.push((AttrsEntry { name: entry.name.clone(), attrs }, late));
        }
        self.entries.push(entry);
    }

    /// Stores what can be stored.
    pub(crate) fn assemble(self, sink: &mut dyn ObjectSink) -> Result<Assembled, Error> {
        let tree = store_tree(sink, self.entries)?;
        let children = if self.waits {
            Children::Waiting(Waiting(self.attrs))
        } else {
            let attrs = self.attrs.into_iter().map(|(entry, _)| entry).collect();
            Children::Stored(store_attrs(sink, attrs)?)
        };
        Ok(Assembled { tree, children })
    }
}
