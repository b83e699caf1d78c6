//! The operations one by one.

use super::*;

const TWO: [&str; 2] = [
    "mkdir d; echo top > d/f; echo one > one",
    "mkdir d e; echo low > d/f; echo g > d/g; echo h > e/h; ln -s d/g link",
];

#[test]
fn layers_show_as_one() {
    let bench = Bench::new(&TWO, None);
    assert_eq!(bench.names("."), ["d", "e", "link", "one"]);
    assert_eq!(bench.names("d"), ["f", "g"]);
    assert_eq!(bench.read("d/f").expect("read"), b"top\n");
    assert_eq!(bench.read("link").expect("read"), b"g\n");
    assert_eq!(bench.read("e/../d/g").expect("read"), b"g\n");
    assert_eq!(bench.read("nothing"), Err(Errno::NOENT));
    bench.check();
}

#[test]
fn writes_go_up_and_removals_stay() {
    let bench = Bench::new(&TWO, None);
    let root = bench.union.root();
    bench.write("d/g", b"new").expect("write");
    assert_eq!(bench.read("d/g").expect("read"), b"new");
    bench.union.unlink(&root, b"d/f").expect("unlink");
    assert_eq!(bench.read("d/f"), Err(Errno::NOENT));
    bench.write("d/f", b"again").expect("write");
    assert_eq!(bench.read("d/f").expect("read"), b"again");
    bench.union.unlink(&root, b"d/f").expect("unlink");
    bench.union.unlink(&root, b"d/g").expect("unlink");
    bench.union.remove_directory(&root, b"d").expect("rmdir");
    assert_eq!(bench.dir("d").map(drop), Err(Errno::NOENT));
    bench.union.create_directory(&root, b"d").expect("mkdir");
    assert_eq!(bench.names("d"), [""; 0]);
    bench.check();
}

#[test]
fn a_merged_directory_is_renamed_with_everything() {
    let bench = Bench::new(&TWO, None);
    bench.write("d/new", b"n").expect("write");
    let inside = bench.dir("d").expect("open");
    bench.rename("d", "e/d").expect("rename");
    assert_eq!(bench.names("e/d"), ["f", "g", "new"]);
    assert_eq!(bench.names("."), ["e", "link", "one"]);
    let how = Open { read: true, ..Open::default() };
    assert!(bench.union.open(&inside, b"new", how).is_ok());
    bench.check();
}

#[test]
fn whoever_writes_takes_privilege_off() {
    use std::os::unix::fs::PermissionsExt;
    let script = "for m in 4755 2755 6711 2644 1755; do echo x > $m; chmod $m $m; done";
    let bench = Bench::new(&[script], None);
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: in the portable form the disk does not say these modes");
        return;
    }
    let mode = |name: &str| {
        let meta = std::fs::metadata(bench.path("upper").join(name)).expect("stat");
        meta.permissions().mode() & 0o7777
    };
    for (name, after) in
        [("4755", 0o755), ("2755", 0o755), ("6711", 0o711), ("2644", 0o2644), ("1755", 0o1755)]
    {
        let how = Open { write: true, ..Open::default() };
        let file = bench.file(name, how).expect("open");
        assert_eq!(mode(name), u32::from_str_radix(name, 8).expect("octal"), "opening changes nothing");
        file.write_at(b"", 0).expect("write nothing");
        assert_eq!(mode(name), u32::from_str_radix(name, 8).expect("octal"));
        file.append(b"y").expect("write");
        assert_eq!(mode(name), after, "{name}");
        bench.union.set_mode(&file, 0o4711).expect("chmod");
        file.set_size(0).expect("cut");
        assert_eq!(mode(name), 0o711);
    }
    bench.check();
}

#[test]
fn what_is_copied_up_is_as_it_was() {
    use std::os::unix::fs::MetadataExt;
    let script =
        "mkdir d; echo f > d/f; ln -s f d/l; mkfifo d/p; chmod 0451 d/f; chmod 0700 d; chmod 0600 d/p;
        touch -h -d '2001-02-03 04:05:06.123456789' d/f d/l d/p d";
    let bench = Bench::new(&[script], None);
    let root = bench.union.root();
    let status = |layer: &str, name: &str| {
        let meta = std::fs::symlink_metadata(bench.path(layer).join(name)).expect("stat");
        (meta.mode(), meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec(), meta.len())
    };
    let lower: Vec<_> = ["d/f", "d/l", "d/p", "d"].iter().map(|name| status("0", name)).collect();
    let identity = bench.union.stat_at(&root, b"d/f", true).expect("stat").identity;
    for name in ["d/f", "d/l", "d/p"] {
        let time = SetTime::At(Timespec { tv_sec: 7, tv_nsec: 9 });
        bench.union.set_times_at(&root, name.as_bytes(), false, time, SetTime::Keep).expect("utimes");
        let stat = bench.union.stat_at(&root, name.as_bytes(), false).expect("stat");
        assert_eq!((stat.atime.tv_sec, stat.atime.tv_nsec), (7, 9));
    }
    let keep = |name: &&str| {
        let (mode, uid, gid, time, nanos, size) = status("upper", name);
        let size = if mode & 0o170_000 == 0o040_000 { status("0", name).5 } else { size };
        (mode, uid, gid, time, nanos, size)
    };
    let upper: Vec<_> = ["d/f", "d/l", "d/p", "d"].iter().map(keep).collect();
    assert_eq!(lower[..1], upper[..1]);
    if rustix::process::geteuid().is_root() {
        assert_eq!(lower, upper);
    }
    assert_eq!(bench.union.stat_at(&root, b"d/f", true).expect("stat").identity, identity);
    bench.rename("d/f", "g").expect("rename");
    assert_eq!(bench.union.stat_at(&root, b"g", true).expect("stat").identity, identity);
    bench.check();
}
