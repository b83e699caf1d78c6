//! What the union costs beside the kernel, in one run with interleaved samples: `cargo bench -p esf-layerstack
//! --bench union`. `esf bench wasi` has the same through a guest.

#[path = "../tests/support/mod.rs"]
mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use esf_layerstack::Form;
use esf_layerstack::union::{Dir, Kind, Layers, Node, Open, Union};
use rustix::fs::{AtFlags, Mode, OFlags};

const READ: Open = Open {
    read: true,
    write: false,
    create: false,
    exclusive: false,
    truncate: false,
    directory: false,
    follow: true,
};

/// Two lowers, an upper and `work`; `files` small files in 100 directories, half of them in each lower.
fn layers(dir: &std::path::Path, files: usize) -> Union {
    for layer in ["0", "1", "upper", "work"] {
        std::fs::create_dir(dir.join(layer)).expect("mkdir");
    }
    for n in 0..files {
        let parent = dir.join((n % 2).to_string()).join(format!("d{}", n / 2 % 100));
        std::fs::create_dir_all(&parent).expect("mkdir");
        std::fs::write(parent.join(format!("f{n}")), vec![b'x'; 1000]).expect("write");
    }
    let open = |name: &str| OwnedFd::from(std::fs::File::open(dir.join(name)).expect("open"));
    let lowers = vec![open("0"), open("1")];
    let (upper, work) = (open("upper"), open("work"));
    Union::new(Layers { lowers, upper, work, form: Form::of_this_process() }, None).expect("a union")
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

/// The medians of two things done in turn.
fn compare(times: usize, mut native: impl FnMut(usize), mut ours: impl FnMut(usize)) -> (Duration, Duration) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for n in 0..times {
        let begin = Instant::now();
        native(n);
        let middle = Instant::now();
        ours(n);
        a.push(middle - begin);
        b.push(middle.elapsed());
    }
    (median(a), median(b))
}

fn report(what: &str, per: u32, (native, ours): (Duration, Duration)) {
    let ratio = ours.as_secs_f64() / native.as_secs_f64();
    eprintln!("{what}: native {:?}, union {:?}, {ratio:.2}x", native / per, ours / per);
}

fn native_read(top: impl AsFd, path: &str) {
    let fd = rustix::fs::openat(top, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("open");
    let mut buffer = [0; 4096];
    rustix::io::pread(&fd, &mut buffer, 0).expect("read");
}

fn read(union: &Union, root: &Dir, path: &str) {
    let Ok(Node::File(file)) = union.open(root, path.as_bytes(), READ) else { panic!("{path} opens") };
    let mut buffer = [0; 4096];
    file.read_at(&mut buffer, 0).expect("read");
}

fn native_walk(dir: &OwnedFd) -> usize {
    let mut seen = 0;
    for entry in rustix::fs::Dir::read_from(dir).expect("list") {
        let entry = entry.expect("entry");
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        seen += 1;
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).expect("stat");
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            seen += native_walk(&rustix::fs::openat(dir, name, flags, Mode::empty()).expect("open"));
        }
    }
    seen
}

fn walk(union: &Union, dir: &Dir) -> usize {
    let mut seen = 0;
    for (name, _) in union.list(dir).expect("list").iter() {
        seen += 1;
        if union.stat_at(dir, name, false).expect("stat").kind == Kind::Directory {
            let Ok(Node::Dir(inside)) = union.open(dir, name, READ) else { panic!("a directory opens") };
            seen += walk(union, &inside);
        }
    }
    seen
}

fn main() {
    const FILES: usize = 10_000;
    let dir = tempfile::tempdir().expect("temporary directory");
    let union = layers(dir.path(), FILES);
    let root = union.root();
    let plain = tempfile::tempdir().expect("temporary directory");
    let script = format!("cp -a {0}/0/. . && cp -a {0}/1/. .", dir.path().display());
    support::shell(plain.path(), &script);
    let top = OwnedFd::from(std::fs::File::open(plain.path()).expect("open"));
    let path = |n: usize| format!("d{}/f{n}", n / 2 % 100);
    let paths: Vec<_> = (0..FILES).map(|n| path(n * 7919 % FILES)).collect();
    let all = || paths.chunks(100).cycle();
    let (mut theirs, mut ours) = (all(), all());
    let pass = compare(
        2000,
        |_| theirs.next().expect("endless").iter().for_each(|path| native_read(&top, path)),
        |_| ours.next().expect("endless").iter().for_each(|path| read(&union, &root, path)),
    );
    report("open+read+close of lower files", 100, pass);
    for path in paths.iter().step_by(2) {
        let how = Open { write: true, ..READ };
        assert!(union.open(&root, path.as_bytes(), how).is_ok());
    }
    let raised: Vec<_> = paths.iter().step_by(2).collect();
    let pass = compare(
        2000,
        |i| raised.iter().skip(i % 40 * 100).take(100).for_each(|path| native_read(&top, path)),
        |i| raised.iter().skip(i % 40 * 100).take(100).for_each(|path| read(&union, &root, path)),
    );
    report("open+read+close of upper files", 100, pass);
    let pass = compare(
        2000,
        |_| (0..100).for_each(|_| assert!(rustix::fs::statat(&top, "d1/none", AtFlags::empty()).is_err())),
        |_| (0..100).for_each(|_| assert!(union.stat_at(&root, b"d1/none", true).is_err())),
    );
    report("stat of what is not there", 100, pass);
    let pass = compare(
        2000,
        |i| {
            (0..100).for_each(|j| {
                assert!(rustix::fs::statat(&top, &*paths[(i + j) % FILES], AtFlags::empty()).is_ok())
            })
        },
        |i| {
            (0..100)
                .for_each(|j| assert!(union.stat_at(&root, paths[(i + j) % FILES].as_bytes(), true).is_ok()))
        },
    );
    report("stat", 100, pass);
    let pass = compare(
        300,
        |i| {
            let name = format!("new{i}");
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&top, &*name, flags, Mode::from_raw_mode(0o644)).expect("create");
            rustix::io::pwrite(&fd, &[0; 1000], 0).expect("write");
        },
        |i| {
            let how = Open { write: true, create: true, exclusive: true, ..Open::default() };
            let Ok(Node::File(file)) = union.open(&root, format!("new{i}").as_bytes(), how) else {
                panic!("it is new")
            };
            file.write_at(&[0; 1000], 0).expect("write");
        },
    );
    report("create+write+close", 1, pass);
    let pass =
        compare(20, |_| assert!(native_walk(&top) >= FILES), |_| assert!(walk(&union, &root) >= FILES));
    report("walk of 10k files, listings cached", 1, pass);
    let fresh = |_| {
        let open = |name: &str| OwnedFd::from(std::fs::File::open(dir.path().join(name)).expect("open"));
        let lowers = vec![open("0"), open("1")];
        let (upper, work) = (open("upper"), open("work"));
        let layers = Layers { lowers, upper, work, form: Form::of_this_process() };
        let union = Union::new(layers, None).expect("a union");
        assert!(walk(&union, &union.root()) >= FILES);
    };
    report(
        "walk of 10k files, a new union each time",
        1,
        compare(20, |_| assert!(native_walk(&top) >= FILES), fresh),
    );
}
