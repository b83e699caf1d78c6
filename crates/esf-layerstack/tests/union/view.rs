//! What a whole tree shows: through the kernel, and through a union.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use esf_core::manifest::RootPin;
use esf_layerstack::union::{Dir, Kind, Node, Open, Union};

use super::support::{self, Store};

/// An entry: kind, mode, size, bytes or target, old mtime, number of the inode in order of appearance.
type Entry = (Kind, u32, u64, Vec<u8>, Option<i64>);
pub(crate) type View = BTreeMap<Vec<u8>, Entry>;

fn old(seconds: i64) -> Option<i64> {
    (seconds < 1_700_000_000).then_some(seconds)
}

pub(crate) fn of_kernel(top: &Path) -> View {
    let mut view = View::new();
    walk_kernel(top, b"", &mut view);
    view
}

fn walk_kernel(dir: &Path, prefix: &[u8], view: &mut View) {
    for entry in std::fs::read_dir(dir).expect("list") {
        let entry = entry.expect("entry");
        let path = [prefix, entry.file_name().as_bytes()].concat();
        let meta = std::fs::symlink_metadata(entry.path()).expect("stat");
        let stat = rustix::fs::lstat(entry.path()).expect("stat");
        let kind = super::kernel::kind(&stat);
        let (size, bytes) = match kind {
            Kind::File => (meta.len(), std::fs::read(entry.path()).expect("read")),
            Kind::Symlink => {
                (meta.len(), std::fs::read_link(entry.path()).expect("link").as_os_str().as_bytes().to_vec())
            }
            _ => (0, Vec::new()),
        };
        view.insert(path.clone(), (kind, meta.mode() & 0o7777, size, bytes, old(meta.mtime())));
        if kind == Kind::Directory {
            walk_kernel(&entry.path(), &[&path[..], b"/"].concat(), view);
        }
    }
}

pub(crate) fn of_union(union: &Union) -> View {
    let mut view = View::new();
    walk_union(union, &union.root(), b"", &mut view);
    view
}

fn walk_union(union: &Union, dir: &Dir, prefix: &[u8], view: &mut View) {
    for (name, listed) in union.list(dir).expect("list").iter() {
        let path = [prefix, name].concat();
        let stat = union.stat_at(dir, name, false).expect("stat");
        assert_eq!(stat.kind, listed);
        let how = Open { read: true, ..Open::default() };
        let (size, bytes) = match stat.kind {
            Kind::File => {
                let Ok(Node::File(file)) = union.open(dir, name, how) else { panic!("a file opens") };
                let mut bytes = vec![0; stat.size as usize];
                assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
                (stat.size, bytes)
            }
            Kind::Symlink => (stat.size, union.read_link(dir, name).expect("link")),
            _ => (0, Vec::new()),
        };
        view.insert(path.clone(), (stat.kind, stat.mode, size, bytes, old(stat.mtime.tv_sec)));
        if stat.kind == Kind::Directory {
            let Ok(Node::Dir(inside)) = union.open(dir, name, how) else { panic!("a directory opens") };
            walk_union(union, &inside, &[&path[..], b"/"].concat(), view);
        }
    }
}

/// Copies a root into a plain directory.
pub(crate) fn copy(store: &Store, pin: &RootPin, to: &Path) {
    let workspace = store.stack.open_workspace(pin, store.attempt()).expect("open a workspace");
    let mounted = support::mount(&workspace, &store.path("copied"));
    support::shell(&mounted.path, &format!("cp -a . {}", to.display()));
    drop(mounted);
    store.stack.discard_workspace(workspace.attempt).expect("discard");
}
