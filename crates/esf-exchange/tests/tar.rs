//! Archives are read back by GNU tar, which knows nothing of us, and compared with the manifest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use esf_core::manifest::{
    Attrs, Entry, EntryKind, MemoryObjects, Mode, Root, RootPin, hard_link_group, store_directory, store_top,
};
use esf_core::time::FileTime;
use esf_core::{BlobId, Name};
use esf_exchange::{Error, Files, tar};

struct InMemory(BTreeMap<Vec<u8>, Vec<u8>>);

impl Files for InMemory {
    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>, Error> {
        Ok(Box::new(self.0[path].as_slice()))
    }
}

fn entry(name: &[u8], mode: u32, kind: EntryKind, attrs: Attrs) -> (Entry, Attrs) {
    (Entry { name: Name::new(name).unwrap(), mode: Mode::new(mode).unwrap(), kind }, attrs)
}

fn file(bytes: &[u8]) -> EntryKind {
    EntryKind::File { size: bytes.len() as u64, blob: BlobId::of(bytes) }
}

fn long() -> Vec<u8> {
    [b"long-".as_slice(), &[b'n'; 200]].concat()
}

fn time(seconds: i64, nanos: u32) -> Attrs {
    Attrs { mtime: Some(FileTime { seconds, nanos }), ..Attrs::default() }
}

/// A root with one of everything, and the bytes of its files.
fn sample() -> (MemoryObjects, RootPin, InMemory) {
    let mut objects = MemoryObjects::default();
    let linked = Attrs { hard_link: Some(hard_link_group(b"d/one")), ..time(5, 0) };
    let xattrs = vec![(b"user.a=b%".as_slice().into(), b"\0\xff\n".as_slice().into())];
    let inner = vec![
        entry(b"fifo", 0o600, EntryKind::Fifo, time(7, 0)),
        entry(b"one", 0o644, file(b"shared"), linked.clone()),
        entry(b"two", 0o644, file(b"shared"), linked),
        entry(&long(), 0o4755, file(b"suid"), time(-2, 250_000_000)),
    ];
    let (tree, children) = store_directory(&mut objects, inner).unwrap();
    let top = vec![
        entry(
            b"\xff\xfe raw",
            0o640,
            file(b"raw"),
            Attrs { uid: 12, gid: 34, xattrs, ..time(1_700_000_000, 5) },
        ),
        entry(b"d", 0o2750, EntryKind::Directory { tree }, Attrs { children, ..time(9, 0) }),
        entry(b"link", 0o777, EntryKind::Symlink { target: b"d/one".as_slice().into() }, time(11, 0)),
    ];
    let (tree, children) = store_directory(&mut objects, top).unwrap();
    let attrs = Attrs { children, ..time(3, 0) };
    let pin = store_top(&mut objects, Root { mode: Mode::new(0o711).unwrap(), tree }, &attrs).unwrap();
    let mut files = BTreeMap::new();
    for (path, bytes) in [
        (b"\xff\xfe raw".to_vec(), "raw"),
        (b"d/one".to_vec(), "shared"),
        (b"d/two".to_vec(), "shared"),
        ([b"d/".to_vec(), long()].concat(), "suid"),
    ] {
        files.insert(path, bytes.as_bytes().to_vec());
    }
    (objects, pin, InMemory(files))
}

fn archive(preserve_privilege: bool) -> (Vec<u8>, tar::Summary) {
    let (objects, pin, files) = sample();
    let mut out = Vec::new();
    let summary = tar::write(&objects, &pin, &files, tar::Options { preserve_privilege }, &mut out).unwrap();
    (out, summary)
}

fn unpack(bytes: &[u8], to: &Path) -> bool {
    let packed = to.with_extension("tar");
    fs::write(&packed, bytes).unwrap();
    fs::create_dir(to).unwrap();
    let status = Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf"])
        .arg(&packed)
        .arg("-C")
        .arg(to)
        .status();
    match status {
        Ok(status) => assert!(status.success()),
        Err(error) => eprintln!("skipped: tar cannot be run: {error}"),
    }
    to.read_dir().unwrap().next().is_some()
}

#[test]
fn gnu_tar_restores_every_entry() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("out");
    let (bytes, summary) = archive(true);
    assert_eq!(summary, tar::Summary { entries: 8, bytes: 13, privilege_dropped: 0 });
    if !unpack(&bytes, &to) {
        return;
    }
    let root = rustix::process::geteuid().is_root();
    let stat = |path: &[u8]| fs::symlink_metadata(to.join(OsStr::from_bytes(path))).unwrap();
    let long = [b"d/".to_vec(), long()].concat();
    let raw = stat(b"\xff\xfe raw");
    assert_eq!((raw.mtime(), raw.mtime_nsec(), raw.mode() & 0o7777), (1_700_000_000, 5, 0o640));
    assert_eq!(if root { (raw.uid(), raw.gid()) } else { (12, 34) }, (12, 34));
    let mut value = [0; 8];
    let found =
        rustix::fs::getxattr(to.join(OsStr::from_bytes(b"\xff\xfe raw")), "user.a=b%", &mut value).unwrap();
    assert_eq!(&value[..found], b"\0\xff\n");
    assert_eq!((stat(b"").mtime(), stat(b"").mode() & 0o7777), (3, 0o711));
    assert_eq!((stat(b"d").mtime(), stat(b"d").mode() & 0o7777), (9, 0o2750));
    assert_eq!(stat(b"d/one").ino(), stat(b"d/two").ino());
    assert!(stat(b"d/fifo").file_type().is_fifo());
    assert_eq!((stat(&long).mtime(), stat(&long).mtime_nsec()), (-2, 250_000_000));
    assert_eq!(stat(&long).mode() & 0o7777, 0o4755);
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("d/one"));
    assert_eq!(fs::read(to.join("d/two")).unwrap(), b"shared");
}

#[test]
fn equal_roots_give_equal_bytes_and_privilege_stays_behind() {
    let (bytes, summary) = archive(false);
    assert_eq!(bytes, archive(false).0);
    assert_eq!(summary.privilege_dropped, 1);
    assert_eq!(bytes.len() % 512, 0);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("out");
    if unpack(&bytes, &to) {
        let stat = fs::metadata(to.join("d").join(OsStr::from_bytes(&long()))).unwrap();
        assert_eq!(stat.mode() & 0o7777, 0o755);
    }
}

#[test]
fn a_content_of_another_size_is_refused() {
    let (objects, pin, mut files) = sample();
    for wrong in ["", "shared and more"] {
        files.0.insert(b"d/one".to_vec(), wrong.as_bytes().to_vec());
        let error =
            tar::write(&objects, &pin, &files, tar::Options::default(), &mut std::io::sink()).unwrap_err();
        assert_eq!(error.problem().code, "damaged");
    }
}
