//! Paths stay inside of the directory they start from, whatever links, dots and slashes say.

use super::*;

const TREE: &str = "mkdir -p in/deep; echo inside > in/f; echo canary > out; ln -s ../out in/up; ln -s /etc in/abs;
    ln -s deep in/link; ln -s f in/file; ln -s loop2 in/loop1; ln -s loop1 in/loop2; ln -s nowhere in/dangling;
    ln -s ../../../../etc in/deep/far; ln -s ../f in/deep/back; ln -s deep/ in/slashed; ln -s . in/self";

fn outcome(bench: &Bench, at: &Dir, path: &[u8], follow: bool) -> std::result::Result<Kind, Errno> {
    let stat = bench.union.stat_at(at, path, follow).map(|stat| stat.kind);
    let how = Open { read: true, follow, ..Open::default() };
    let opened = bench.union.open(at, path, how).map(|node| match node {
        Node::Dir(_) => Kind::Directory,
        Node::File(_) => Kind::File,
    });
    match (stat, opened) {
        (Ok(Kind::Symlink), Err(Errno::LOOP)) => {}
        (stat, opened) => assert_eq!(stat, opened, "{}", path.escape_ascii()),
    }
    stat
}

#[test]
fn nothing_leads_out() {
    let bench = Bench::new(&[TREE], None);
    let inside = bench.dir("in").expect("open");
    let (dir, file, link) = (Ok(Kind::Directory), Ok(Kind::File), Ok(Kind::Symlink));
    let (perm, noent, notdir) = (Err(Errno::PERM), Err(Errno::NOENT), Err(Errno::NOTDIR));
    for (path, followed, kept) in [
        ("f", file, file),
        ("", noent, noent),
        (".", dir, dir),
        ("./", dir, dir),
        ("..", perm, perm),
        ("../in", perm, perm),
        ("deep/../..", perm, perm),
        ("deep/..", dir, dir),
        ("deep/../../in/f", perm, perm),
        ("/", perm, perm),
        ("/in/f", perm, perm),
        ("//", perm, perm),
        ("f/", notdir, notdir),
        ("f/.", notdir, notdir),
        ("f/..", notdir, notdir),
        ("deep/", dir, dir),
        ("deep//", dir, dir),
        ("deep/.", dir, dir),
        ("link", dir, link),
        ("link/", dir, dir),
        ("link//", dir, dir),
        ("link/.", dir, dir),
        ("link//back", file, link),
        ("link/..", dir, dir),
        ("link/back", file, link),
        ("file", file, link),
        ("file/", notdir, notdir),
        ("slashed", dir, link),
        ("slashed/back", file, link),
        ("up", perm, link),
        ("up/", perm, perm),
        ("up/.", perm, perm),
        ("up//x", perm, perm),
        ("abs", perm, link),
        ("abs/", perm, perm),
        ("abs/passwd", perm, perm),
        ("deep/far", perm, link),
        ("self/self/self/f", file, file),
        ("self/..", perm, perm),
        ("dangling", noent, link),
        ("dangling/", noent, noent),
        ("loop1", Err(Errno::LOOP), link),
        ("loop1/", Err(Errno::LOOP), Err(Errno::LOOP)),
        ("none/..", noent, noent),
        ("a\0b", Err(Errno::INVAL), Err(Errno::INVAL)),
    ] {
        assert_eq!(outcome(&bench, &inside, path.as_bytes(), true), followed, "{path:?}, followed");
        assert_eq!(outcome(&bench, &inside, path.as_bytes(), false), kept, "{path:?}, kept");
    }
}

#[test]
fn names_and_paths_are_bounded() {
    let bench = Bench::new(&[""], None);
    let root = bench.union.root();
    let long = Err(Errno::NAMETOOLONG);
    assert!(bench.union.create_directory(&root, &[b'n'; 255]).is_ok());
    assert_eq!(bench.union.create_directory(&root, &[b'n'; 256]), long);
    assert_eq!(
        bench.union.stat_at(&root, &[b"./".repeat(2048), b"x".to_vec()].concat(), true).map(drop),
        long
    );
    assert_eq!(bench.union.symlink(&[b'x'; 4096], &root, b"l"), long);
    assert_eq!(bench.union.symlink(b"", &root, b"l"), Err(Errno::NOENT));
    assert!(bench.union.symlink(&[b'x'; 4095], &root, b"l").is_ok());
    bench.check();
}

#[test]
fn changes_stay_inside_as_well() {
    let bench = Bench::new(&[TREE], None);
    let (inside, union) = (bench.dir("in").expect("open"), &bench.union);
    let perm = Err(Errno::PERM);
    let create = Open { write: true, create: true, follow: true, ..Open::default() };
    for path in ["up", "../new", "abs/new", "deep/far/new", "self/../new", "/new"] {
        assert_eq!(union.open(&inside, path.as_bytes(), create).map(drop), perm, "{path}");
    }
    for path in ["../new", "abs/new", "deep/far/new", "up/../new", "/new"] {
        let path = path.as_bytes();
        assert_eq!(union.create_directory(&inside, path), perm);
        assert_eq!(union.unlink(&inside, path), perm);
        assert_eq!(union.remove_directory(&inside, path), perm);
        assert_eq!(union.symlink(b"x", &inside, path), perm);
        assert_eq!(union.rename(&inside, b"f", &inside, path), perm);
        assert_eq!(union.rename(&inside, path, &inside, b"g"), perm);
        assert_eq!(union.link(&inside, b"f", true, &inside, path), perm);
        assert_eq!(union.link(&inside, path, true, &inside, b"g"), perm);
        assert_eq!(union.set_times_at(&inside, path, true, SetTime::Now, SetTime::Now), perm);
    }
    assert_eq!(bench.read("out").expect("read"), b"canary\n");
    assert_eq!(bench.names("."), ["in", "out"]);
    // A link that leads nowhere, inside: a file is made where it leads.
    assert!(union.open(&inside, b"dangling", create).is_ok());
    assert!(bench.read("in/nowhere").is_ok());
    bench.check();
}

#[test]
fn handles_are_of_one_union() {
    let (one, other) = (Bench::new(&[""], None), Bench::new(&[""], None));
    assert_eq!(one.union.create_directory(&other.union.root(), b"d"), Err(Errno::XDEV));
}

#[test]
fn fifos_and_sockets_are_seen_and_never_opened() {
    let bench = Bench::new(
        &[
            "mkfifo fifo; perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un(\"socket\"))'",
        ],
        None,
    );
    for (name, kind) in [("fifo", Kind::Fifo), ("socket", Kind::Socket)] {
        let root = bench.union.root();
        assert_eq!(bench.union.stat_at(&root, name.as_bytes(), true).expect("stat").kind, kind);
        for write in [false, true] {
            let how = Open { read: true, write, follow: true, ..Open::default() };
            assert_eq!(bench.open_how(name, how).map(drop), Err(Errno::NXIO));
        }
    }
    assert!(bench.rename("fifo", "moved").is_ok());
    assert_eq!(bench.names("."), ["moved", "socket"]);
    bench.check();
}
