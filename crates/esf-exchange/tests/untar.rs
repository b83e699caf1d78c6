//! Hostile archives against a canary outside the target (security notes 2D, rows 52, 53, 56, 57), and
//! honest ones of GNU tar and of our own.

use std::fs;
use std::io::{Cursor, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use esf_exchange::untar::{Limits, Summary, unpack};
use esf_exchange::{Error, identity};
use esf_layerstack::Form;
use tar::{EntryType, Header};

/// One raw entry, written without any of the checks that an honest writer makes.
fn entry(kind: EntryType, path: &[u8], link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o6777);
    header.set_mtime(7);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(data.len() as u64);
    let fields = header.as_old_mut();
    fields.name[..path.len()].copy_from_slice(path);
    fields.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(path: &[u8]) -> Vec<u8> {
    entry(EntryType::Regular, path, b"", b"data")
}

fn directory(path: &[u8]) -> Vec<u8> {
    entry(EntryType::Directory, path, b"", b"")
}

fn link(path: &[u8], target: &[u8]) -> Vec<u8> {
    entry(EntryType::Symlink, path, target, b"")
}

fn hard(path: &[u8], target: &[u8]) -> Vec<u8> {
    entry(EntryType::Link, path, target, b"")
}

fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (keyword, value) in records {
        let rest = keyword.len() + value.len() + 3;
        let length = (rest + 1..).find(|length| *length == rest + length.to_string().len()).unwrap();
        body.extend_from_slice(format!("{length} {keyword}=").as_bytes());
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    entry(EntryType::XHeader, b"PaxHeader", b"", &body)
}

fn open(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

fn unpack_into(bytes: &[u8], to: &Path, limits: Limits) -> Result<Summary, Error> {
    fs::create_dir(to).unwrap();
    let input = &mut Cursor::new([bytes, &[0; 1024]].concat());
    unpack(input, &open(to), Form::Native, limits, false).map(|unpacked| unpacked.summary)
}

#[test]
fn hostile_entries_are_refused_and_nothing_outside_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("canary"), b"alive").unwrap();
    fs::set_permissions(outside.join("canary"), fs::Permissions::from_mode(0o640)).unwrap();
    let place = |text: &str| text.replace("OUT", outside.to_str().unwrap()).into_bytes();
    let sockets = |kind| entry(kind, b"special", b"", b"");
    let overlay = |name: &str| [pax(&[(name, b"y")]), directory(b"d")].concat();
    let deep = [b"d/".repeat(300), b"f".to_vec()].concat();
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("dot dot", file(b"../x")),
        ("absolute", file(&place("OUT/x"))),
        ("dot dot within", file(b"a/../../x")),
        ("empty", file(b"")),
        ("nul", [pax(&[("path", b"a\0b")]), file(b"a")].concat()),
        ("top as a symlink", link(b".", &place("OUT"))),
        ("top as a file", file(b".")),
        ("a directory with contents", file(b"d/")),
        ("top twice", [directory(b"./"), directory(b"./")].concat()),
        ("through a symlink", [link(b"l", &place("OUT")), file(b"l/canary")].concat()),
        ("through a relative symlink", [link(b"l", b"../outside"), file(b"l/new")].concat()),
        ("a directory over a symlink", [link(b"l", &place("OUT")), directory(b"l")].concat()),
        ("a file over a symlink", [link(b"l", &place("OUT/canary")), file(b"l")].concat()),
        ("a file over a file", [file(b"f"), file(b"f")].concat()),
        ("a directory over a file", [file(b"f"), directory(b"f")].concat()),
        ("a file over a directory", [directory(b"d"), file(b"d")].concat()),
        ("hard link through a symlink", [link(b"l", &place("OUT")), hard(b"h", b"l/canary")].concat()),
        ("hard link to a symlink", [link(b"l", &place("OUT/canary")), hard(b"h", b"l")].concat()),
        ("hard link outside", hard(b"h", b"../outside/canary")),
        ("hard link to nothing", hard(b"h", b"absent")),
        ("hard link to itself", hard(b"h", b"h")),
        ("device", sockets(EntryType::Char)),
        ("block device", sockets(EntryType::Block)),
        ("unknown type", sockets(EntryType::new(b'Z'))),
        ("redirect", overlay("SCHILY.xattr.trusted.overlay.redirect")),
        ("user overlay", overlay("SCHILY.xattr.user.overlay.opaque")),
        ("portable mark", overlay("SCHILY.xattr.user.esf.opaque")),
        ("portable record", overlay("SCHILY.xattr.user.esf.attrs")),
        ("empty symlink", link(b"l", b"")),
        ("deep", [pax(&[("path", &deep)]), file(b"f")].concat()),
        ("long name", [pax(&[("path", &[b'n'; 256])]), file(b"f")].concat()),
        ("two sizes", [pax(&[("size", b"5")]), file(b"f")].concat()),
        ("huge size", [pax(&[("size", b"9223372036854775808")]), file(b"f")].concat()),
        ("huge record", entry(EntryType::XHeader, b"x", b"", &vec![b'1'; (1 << 20) + 1])),
        ("huge name", entry(EntryType::GNULongName, b"x", b"", &vec![b'n'; (1 << 20) + 1])),
        ("bad record", [entry(EntryType::XHeader, b"x", b"", b"9 a=b\n"), file(b"f")].concat()),
        ("no header", vec![0x55; 512]),
        ("cut short", file(b"f")[..514].to_vec()),
    ];
    let before = fs::metadata(outside.join("canary")).unwrap();
    for (index, (name, bytes)) in table.into_iter().enumerate() {
        let to = dir.path().join(index.to_string());
        if name == "cut short" {
            fs::create_dir(&to).unwrap();
            let found = unpack(&mut Cursor::new(bytes), &open(&to), Form::Native, Limits::default(), false);
            assert!(found.is_err(), "{name}");
            continue;
        }
        let found = unpack_into(&bytes, &to, Limits::default());
        assert_eq!(found.map_err(|error| error.problem().code), Err("archive_refused".to_owned()), "{name}");
    }
    let after = fs::metadata(outside.join("canary")).unwrap();
    let key =
        |meta: &fs::Metadata| (meta.mode(), meta.mtime(), meta.ctime(), meta.ctime_nsec(), meta.nlink());
    assert_eq!(key(&before), key(&after));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read(outside.join("canary")).unwrap(), b"alive");
}

/// An endless archive: the same entries over and over, under new names.
struct Endless {
    next: u64,
    rest: Cursor<Vec<u8>>,
    size: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.rest.read(buffer)?;
        if read > 0 {
            return Ok(read);
        }
        self.next += 1;
        let name = format!("f{}", self.next);
        self.rest = Cursor::new(entry(EntryType::Regular, name.as_bytes(), b"", &vec![0; self.size]));
        self.rest.read(buffer)
    }
}

#[test]
fn bombs_end_at_their_limits() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { entries: 50, bytes: 1 << 20 };
    for (name, size) in [("entries", 0), ("bytes", 100_000)] {
        let to = dir.path().join(name);
        fs::create_dir(&to).unwrap();
        let mut endless = Endless { next: 0, rest: Cursor::new(Vec::new()), size };
        let error = unpack(&mut endless, &open(&to), Form::Native, limits, false).unwrap_err();
        assert_eq!(error.problem().code, "archive_refused");
        assert!(endless.next < 55, "{name}");
    }
    // A promise of 2^40 bytes without any is seen as soon as the data ends, and costs no memory.
    let mut promise = entry(EntryType::Regular, b"f", b"", b"");
    let mut header = Header::from_byte_slice(&promise[..512]).clone();
    header.set_size(1 << 39);
    header.set_cksum();
    promise[..512].copy_from_slice(header.as_bytes());
    let error = unpack_into(&promise, &dir.path().join("promise"), Limits::default()).unwrap_err();
    assert_eq!(error.problem().code, "archive_refused");
}

#[test]
fn devices_may_be_skipped_by_name_and_foreign_attributes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = [
        entry(EntryType::Char, b"null", b"", b""),
        pax(&[("SCHILY.xattr.security.selinux", b"label"), ("SCHILY.xattr.user.kept", b"1")]),
        file(b"f"),
        vec![0; 1024],
    ]
    .concat();
    let summary = unpack(&mut Cursor::new(bytes), &open(dir.path()), Form::Native, Limits::default(), true)
        .unwrap()
        .summary;
    let named: Vec<_> =
        summary.left_out.iter().map(|item| (item.path.as_str(), item.reason.as_str())).collect();
    assert_eq!(named, [("null", "a device"), ("f", "the attribute security.selinux")]);
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(dir.path().join("f"), "user.kept", &mut value).unwrap(), 1);
    assert_eq!(fs::metadata(dir.path().join("f")).unwrap().mode() & 0o7777, 0o6777);
}

fn sample(at: &Path) {
    fs::create_dir_all(at.join("d/e")).unwrap();
    fs::write(at.join("d/e/file"), vec![3; 70_000]).unwrap();
    fs::hard_link(at.join("d/e/file"), at.join("d/linked")).unwrap();
    fs::write(at.join("n".repeat(180)), b"long").unwrap();
    fs::write(at.join("caf\u{e9}"), b"").unwrap();
    symlink("d/e", at.join("link")).unwrap();
    symlink("x".repeat(300), at.join("long link")).unwrap();
    let fifo = at.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::set_permissions(at.join("d"), fs::Permissions::from_mode(0o2751)).unwrap();
    fs::set_permissions(at.join("d/e/file"), fs::Permissions::from_mode(0o4711)).unwrap();
}

#[test]
fn archives_of_gnu_tar_come_back_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    sample(&from);
    let want = identity::of_directory(&from).unwrap();
    for format in ["gnu", "pax", "v7-less-ustar"] {
        let mut command = Command::new("tar");
        let archive = dir.path().join(format!("{format}.tar"));
        command.args(["-C", from.to_str().unwrap(), "-cf", archive.to_str().unwrap()]);
        match format {
            "v7-less-ustar" => command.args(["--format=ustar", "d", "link", "fifo"]),
            format => command.args([&format!("--format={format}"), "."]),
        };
        let Ok(status) = command.status() else {
            eprintln!("skipped: tar cannot be run");
            return;
        };
        assert!(status.success());
        let to = dir.path().join(format!("{format}.out"));
        fs::create_dir(&to).unwrap();
        let summary = unpack(
            &mut fs::File::open(&archive).unwrap(),
            &open(&to),
            Form::Native,
            Limits::default(),
            false,
        )
        .unwrap()
        .summary;
        assert!(summary.left_out.is_empty());
        if format == "v7-less-ustar" {
            assert_eq!(
                identity::of_directory(&to.join("d")).unwrap(),
                identity::of_directory(&from.join("d")).unwrap()
            );
        } else {
            assert_eq!(identity::of_directory(&to).unwrap(), want, "{format}");
        }
        let meta = |at: &Path, path: &str| fs::symlink_metadata(at.join(path)).unwrap();
        assert_eq!(meta(&to, "d/e/file").ino(), meta(&to, "d/linked").ino());
        for path in ["d", "d/e", "d/e/file", "link", "fifo"] {
            assert_eq!(meta(&to, path).mtime(), meta(&from, path).mtime(), "{format} {path}");
        }
    }
}
