//! The quota, sparse files, deep trees, and what is kept in memory.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::union::quota::BLOCK;

const WRITE: Open = Open {
    read: true,
    write: true,
    create: true,
    exclusive: false,
    truncate: false,
    directory: false,
    follow: true,
};

#[test]
fn the_quota_is_exact() {
    let limit = 100 * BLOCK + NAME;
    let bench = Bench::new(&["head -c 10000 /dev/zero > low; mkdir d; echo x > d/x"], Some(limit));
    let file = bench.file("f", WRITE).expect("create");
    assert_eq!(bench.union.delta(), NAME);
    let mut written = 0;
    let end = loop {
        match file.append(&[1; 3000]) {
            Ok(length) => written += length as u64,
            Err(error) => break error,
        }
    };
    assert_eq!((end, written, bench.union.delta()), (Errno::NOSPC, 100 * BLOCK, limit));
    // What is there can be written again, and nothing else made.
    assert_eq!(file.write_at(&[2; 5000], 0), Ok(5000));
    assert_eq!(file.write_at(&[2; 1], written), Err(Errno::NOSPC));
    assert_eq!(file.write_at(&[2; 1], 1 << 40), Err(Errno::NOSPC));
    let root = bench.union.root();
    for made in [
        bench.union.create_directory(&root, b"new"),
        bench.union.symlink(b"x", &root, b"new"),
        bench.union.link(&root, b"f", true, &root, b"new"),
        bench.file("new", WRITE).map(drop),
        bench.file("low", WRITE).map(drop),
        bench.rename("d", "e"),
    ] {
        assert_eq!(made, Err(Errno::NOSPC));
    }
    assert_eq!(bench.union.delta(), limit);
    bench.check();
    // Removing works on a full delta, and gives the room back when nobody has the file open.
    bench.union.unlink(&root, b"low").expect("unlink");
    bench.union.unlink(&root, b"f").expect("unlink");
    assert_eq!(bench.union.delta(), limit);
    assert_eq!(file.append(b"x"), Err(Errno::NOSPC));
    file.set_size(BLOCK).expect("cut");
    assert_eq!(bench.union.delta(), NAME + BLOCK);
    drop(file);
    assert_eq!(bench.union.delta(), NAME);
    bench.rename("d", "e").expect("rename");
    bench.check();
}

#[test]
fn holes_cost_what_the_disk_gives_them() {
    let bench = Bench::new(&[""], Some(1 << 20));
    let file = bench.file("f", WRITE).expect("create");
    file.set_size(1 << 40).expect("a hole");
    assert_eq!(bench.union.delta(), NAME);
    for n in 0..20u64 {
        assert_eq!(file.write_at(&[7; 100], n << 30), Ok(100));
    }
    let blocks = std::fs::metadata(bench.path("upper/f")).expect("stat").blocks() * 512;
    assert_eq!(bench.union.delta(), NAME + blocks);
    let full = (20..10_000u64).find(|n| file.write_at(&[7; 4096], n << 20) == Err(Errno::NOSPC));
    assert!(full.is_some());
    assert!(bench.union.delta() <= 1 << 20);
    file.sync(false).expect("sync");
    file.set_size(0).expect("cut");
    assert_eq!(bench.union.delta(), NAME);
    file.write_at(&[1; 10], 0).expect("write");
    assert_eq!(bench.union.delta(), NAME + BLOCK);
    drop(file);
    bench.check();
    // What was charged for holes is known until the file is gone, whoever opens it in between.
    let sparse = bench.file("g", WRITE).expect("create");
    for n in 0..30u64 {
        sparse.write_at(&[7; 100], n << 20).expect("write");
    }
    sparse.sync(false).expect("sync");
    drop(sparse);
    drop(bench.file("g", WRITE).expect("open"));
    let root = bench.union.root();
    bench.union.unlink(&root, b"g").expect("unlink");
    bench.union.unlink(&root, b"f").expect("unlink");
    assert_eq!(bench.union.delta(), 0);
}

#[test]
fn a_sparse_file_of_a_lower_stays_sparse() {
    let script = "truncate -s 1T f; for at in 0 1000000 200000000; do
        head -c 350000 /dev/urandom | dd of=f bs=4096 seek=$at conv=notrunc status=none; done";
    let bench = Bench::new(&[script], Some(4 << 20));
    let file = bench.file("f", WRITE).expect("copied up");
    assert_eq!(file.write_at(b"x", 5), Ok(1));
    let (lower, upper) = (bench.path("0/f"), bench.path("upper/f"));
    let meta = std::fs::metadata(&upper).expect("stat");
    assert_eq!(meta.len(), 1 << 40);
    assert!(meta.blocks() * 512 < 2 << 20, "{} blocks", meta.blocks());
    for at in [4096, 1_000_000 * 4096, 200_000_000 * 4096 + 349_000] {
        let read = |path: &Path| {
            let mut bytes = [0; 1000];
            let file = std::fs::File::open(path).expect("open");
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, at).expect("read");
            bytes
        };
        assert_eq!(read(&lower), read(&upper));
    }
    assert!(bench.union.delta() < 2 << 20);
}

#[test]
fn deep_trees_work_and_deeper_ones_are_refused() {
    let bench =
        Bench::new(&["d=.; for i in $(seq 200); do d=$d/x; done; mkdir -p $d; echo deep > $d/f"], None);
    let path = vec!["x"; 200].join("/");
    assert_eq!(bench.read(&format!("{path}/f")).expect("read"), b"deep\n");
    bench.write(&format!("{path}/g"), b"new").expect("write");
    bench.rename("x", "y").expect("a deep rename");
    let moved = format!("y/{}/g", vec!["x"; 199].join("/"));
    assert_eq!(bench.read(&moved).expect("read"), b"new");
    let (union, mut at) = (&bench.union, bench.union.root());
    let mut depth = 0;
    let refused = loop {
        if let Err(error) = union.create_directory(&at, b"d") {
            break error;
        }
        depth += 1;
        let Ok(Node::Dir(inside)) = union.open(&at, b"d", Open::default()) else { panic!("it was made") };
        at = inside;
        assert!(depth < 5000);
    };
    assert_eq!((refused, depth), (Errno::NAMETOOLONG, esf_core::manifest::MAX_DEPTH));
    bench.check();
}

#[test]
fn a_rename_that_fails_half_way_leaves_no_trace() {
    let script = "mkdir -p d/e; for i in $(seq 50); do head -c 9000 /dev/zero > d/e/$i; done; echo x > d/z";
    for quota in [NAME, 10 * NAME, 40 * BLOCK, 100 * BLOCK, 140 * BLOCK] {
        let bench = Bench::new(&[script], Some(quota));
        assert_eq!(bench.rename("d", "moved"), Err(Errno::NOSPC));
        assert_eq!(bench.names("."), ["d"]);
        assert_eq!(bench.names("d/e").len(), 50);
        assert_eq!(bench.union.delta(), 0);
        bench.check();
    }
}

#[test]
fn many_directories_keep_memory_and_descriptors_flat() {
    const MANY: usize = 9_000;
    let script = format!("seq {MANY} | xargs -n 500 mkdir; for i in $(seq 1 40 {MANY}); do : > $i/f; done");
    let bench = Bench::new(&[&script], None);
    let held: Vec<Dir> = (1..=20).map(|n| bench.dir(&n.to_string()).expect("open")).collect();
    for n in 1..=MANY {
        let names = bench.names(&n.to_string());
        assert_eq!(names.len(), usize::from(n % 40 == 1));
    }
    let tree = bench.union.tree().expect("the table");
    let (nodes, listings, open) = tree.kept();
    assert!(nodes <= 8193 && listings <= 6 << 20 && open <= 256, "{nodes} {listings} {open}");
    drop(tree);
    for (n, dir) in held.iter().enumerate() {
        bench.union.create_directory(dir, b"new").expect("handles stay");
        assert!(bench.names(&(n + 1).to_string()).contains(&"new".to_owned()));
    }
    bench.check();
}

#[test]
fn a_directory_that_is_too_large_to_keep_works_all_the_same() {
    let script = "seq -f 'a-rather-long-name-of-a-file-%.0f' 70000 | xargs -n 2000 touch";
    let bench = Bench::new(&["mkdir d; : > d/above", &format!("mkdir d; cd d; {script}")], None);
    let root = bench.union.root();
    let dir = bench.dir("d").expect("open");
    assert_eq!(bench.union.list(&dir).expect("list").len(), 70_001);
    assert!(bench.union.tree().expect("the table").kept().1 < 1 << 20);
    let name = b"d/a-rather-long-name-of-a-file-77";
    bench.union.unlink(&root, name).expect("unlink");
    assert_eq!(bench.union.stat_at(&root, name, true).map(drop), Err(Errno::NOENT));
    bench.write("d/a-rather-long-name-of-a-file-77", b"x").expect("write");
    bench.write("d/new", b"x").expect("write");
    bench.union.unlink(&root, b"d/new").expect("unlink");
    bench.union.unlink(&root, b"d/above").expect("unlink");
    assert_eq!(bench.union.remove_directory(&root, b"d"), Err(Errno::NOTEMPTY));
    assert_eq!(bench.union.list(&dir).expect("list").len(), 70_000);
    bench.check();
}
