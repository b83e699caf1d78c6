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
