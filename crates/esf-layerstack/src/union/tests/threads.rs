//! Guests that share a union, and a host process that is killed.

use std::io::BufRead;
use std::process::{Command, Stdio};

use super::*;

const TREE: &str =
    "for d in 1 2 3 4; do mkdir -p d$d/e; for f in 1 2 3 4 5 6 7 8; do echo $d $f > d$d/e/$f; done; done";

#[test]
fn guests_share_a_union() {
    let bench = Bench::new(&[TREE], None);
    std::thread::scope(|scope| {
        for guest in 1..=4u64 {
            let bench = &bench;
            scope.spawn(move || {
                let root = bench.union.root();
                for round in 0..60u64 {
                    let (here, there) = (format!("d{guest}"), format!("moved{guest}"));
                    let (from, to) = if round % 2 == 0 { (here, there) } else { (there, here) };
                    bench.rename(&from, &to).expect("rename");
                    let file = format!("{to}/e/{}", round % 8 + 1);
                    bench.write(&file, &vec![guest as u8; 5000]).expect("write");
                    assert_eq!(bench.read(&file).expect("read"), vec![guest as u8; 5000]);
                    // All of them: each name is made and removed by somebody, and never half.
                    let shared = format!("shared{}", round % 3);
                    match bench.union.create_directory(&root, shared.as_bytes()) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => panic!("{error}"),
                    }
                    match bench.union.remove_directory(&root, shared.as_bytes()) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(error) => panic!("{error}"),
                    }
                    let how = Open { write: true, create: true, ..Open::default() };
                    let log = bench.file("log", how).expect("open");
                    assert_eq!(log.append(&[guest as u8; 100]), Ok(100));
                }
            });
        }
    });
    let log = bench.read("log").expect("read");
    assert_eq!(log.len(), 4 * 60 * 100);
    assert!(log.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
    bench.check();
}

#[test]
fn writers_and_cutters_of_one_file_keep_the_count() {
    let bench = Bench::new(&[""], Some(1 << 20));
    let how = Open { write: true, create: true, ..Open::default() };
    std::thread::scope(|scope| {
        for guest in 0..4u64 {
            let bench = &bench;
            scope.spawn(move || {
                for round in 0..400u64 {
                    let file = bench.file("f", how).expect("open");
                    let at = (guest * 7919 + round * 104_729) % 300_000;
                    let done = match round % 4 {
                        0 => file.set_size(at),
                        1 => file.append(&[1; 3000]).map(drop),
                        _ => file.write_at(&[2; 2000], at).map(drop),
                    };
                    assert!(matches!(done, Ok(()) | Err(Errno::NOSPC)), "{done:?}");
                    if round % 50 == 7 {
                        let root = bench.union.root();
                        let _gone_already = bench.union.unlink(&root, b"f");
                    }
                }
            });
        }
    });
    let root = bench.union.root();
    assert!(bench.union.delta() <= 1 << 20);
    let _gone_already = bench.union.unlink(&root, b"f");
    assert_eq!(bench.union.delta(), 0);
}

/// What the killed process does: renames a directory to and fro, in one case from the lower each time.
#[test]
#[ignore = "a process of its own, started by the test below"]
fn victim() {
    let dir = PathBuf::from(std::env::var_os("ESF_UNION_VICTIM").expect("the directory"));
    let union = Bench::open(&dir, 1, None);
    let root = union.root();
    println!("begun");
    for n in 0u32.. {
        let names: Vec<String> = ["a", "b"].map(str::to_owned).to_vec();
        let (from, to) = (&names[n as usize % 2], &names[1 - n as usize % 2]);
        // As the one that was killed before left it.
        let (from, to) =
            if union.stat_at(&root, from.as_bytes(), false).is_ok() { (from, to) } else { (to, from) };
        union.rename(&root, from.as_bytes(), &root, to.as_bytes()).expect("rename");
        for file in ["1", "2"] {
            let path = format!("{to}/{file}");
            let how = Open { write: true, ..Open::default() };
            assert!(union.open(&root, path.as_bytes(), how).is_ok());
        }
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

#[test]
fn whoever_kills_the_process_finds_one_state_or_the_other() {
    let script =
        "mkdir -p a/e; for f in 1 2 3 4 5 6; do head -c 20000 /dev/zero > a/$f; echo $f > a/e/$f; done";
    for round in 0..30u64 {
        let bench = Bench::new(&[script], None);
        let program = std::env::current_exe().expect("this program");
        let mut victim = Command::new(program)
            .args(["--exact", "union::tests::threads::victim", "--ignored", "--nocapture"])
            .env("ESF_UNION_VICTIM", bench.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the victim");
        let mut lines = std::io::BufReader::new(victim.stdout.take().expect("piped")).lines();
        assert!(lines.any(|line| line.expect("text").contains("begun")));
        std::thread::sleep(std::time::Duration::from_micros(100 + round * 137 % 4000));
        victim.kill().expect("kill");
        victim.wait().expect("reap");
        let union = Bench::open(bench.dir.path(), 1, None);
        let bench = Bench { dir: bench.dir, union };
        let names = bench.names(".");
        assert!(names == ["a"] || names == ["b"], "{names:?}");
        assert_eq!(bench.names(&names[0]), ["1", "2", "3", "4", "5", "6", "e"]);
        for file in ["1", "2", "3", "4", "5", "6"] {
            assert_eq!(bench.read(&format!("{}/{file}", names[0])).expect("read"), vec![0; 20_000]);
            assert_eq!(
                bench.read(&format!("{}/e/{file}", names[0])).expect("read"),
                format!("{file}\n").as_bytes()
            );
        }
        bench.check();
    }
}

#[test]
fn large_files_are_copied_once_whoever_races() {
    for round in 0..8 {
        let bench = Bench::new(
            &[
                "head -c 5000000 /dev/urandom > big; mkdir d; truncate -s 50M d/sparse; head -c 3000000 /dev/urandom >> d/sparse",
            ],
            None,
        );
        let bytes = std::fs::read(bench.path("0/big")).expect("read");
        let how = Open { read: true, write: true, ..Open::default() };
        std::thread::scope(|scope| {
            for guest in 0..4 {
                let bench = &bench;
                scope.spawn(move || match (guest, round % 2) {
                    (0 | 1, _) => {
                        let opened = bench.file("big", how).or_else(|_| bench.file("d/moved", how));
                        assert_eq!(opened.expect("one of them").write_at(b"x", guest), Ok(1));
                    }
                    (2, 0) => bench.rename("big", "d/moved").expect("rename"),
                    (2, _) => drop(bench.file("big", how).expect("open")),
                    (_, 0) => drop(bench.file("d/sparse", how).expect("open")),
                    _ => bench.rename("d", "e").expect("rename"),
                });
            }
        });
        let name = if round % 2 == 0 { "d/moved" } else { "big" };
        let file = bench.file(name, how).expect("open");
        let mut found = vec![0; bytes.len()];
        assert_eq!(file.read_at(&mut found, 0), Ok(bytes.len()));
        assert_eq!((&found[..2], &found[2..]), (&b"xx"[..], &bytes[2..]));
        bench.check();
    }
}

#[test]
fn a_large_copy_beyond_the_quota_leaves_nothing() {
    let bench = Bench::new(&["head -c 5000000 /dev/zero > big"], Some(4_000_000));
    let how = Open { write: true, ..Open::default() };
    for _ in 0..2 {
        assert_eq!(bench.file("big", how).map(drop), Err(Errno::NOSPC));
        assert_eq!(bench.rename("big", "b"), Err(Errno::NOSPC));
        assert_eq!(bench.union.delta(), 0);
        bench.check();
    }
    // Nothing of it is copied where it is emptied.
    assert!(bench.file("big", Open { truncate: true, ..how }).is_ok());
    bench.check();
}
