//! One root, two executors: what is seen is equal to the byte, what is written seals alike, and a tree goes
//! from one to the other and back (S08, FR-07, security 68; P06, P18-P20).

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::generated::{Scripts, Trees};
use crate::guests::*;
use crate::needs_guests;
use crate::support::*;

/// In the named executor: what is walked equals the dump, before and after a script; and the sealed node.
#[track_caller]
fn round(lab: &Lab, guests: &Guests, on: On, node: &str, script: &str) -> (String, String) {
    let attempt = guests.activate(lab, on, node);
    let walk = |what: &str, node: &str, seen: &str| {
        same(&format!("{what} {on:?}"), &walked(seen), &as_walked(&lab.dump(node), on));
    };
    walk("opened by", node, &guests.run(lab, on, &attempt, "walk", &[]));
    let answers = guests.run(lab, on, &attempt, "fsop", &[script]);
    let left = guests.run(lab, on, &attempt, "walk", &[]);
    let sealed = lab.suspend(&attempt);
    walk("left by", &sealed, &left);
    (answers, sealed)
}

/// Roots for the generated trees: five unless `ESF_ROOTS` asks for more.
fn roots() -> u64 {
    std::env::var("ESF_ROOTS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// Each root holds 200 generated trees and lives through four seals, by one executor and the other in turn.
#[test]
fn s08_generated_trees_are_equal_however_they_were_sealed() {
    let guests = needs_guests!();
    for seed in 0..roots() {
        let lab = Lab::new();
        let source = lab.path("source");
        Trees::new(seed).make(&source, 200);
        let mut node = lab.group("g", &source);
        let mut scripts = Scripts::new(seed, 200, 40);
        for on in [On::Wasi, On::Oci, On::Wasi, On::Oci] {
            (_, node) = round(&lab, &guests, on, &node, &scripts.mixed(400));
        }
        let last = lab.dump(&node);
        for on in [On::Wasi, On::Oci] {
            let attempt = guests.activate(&lab, on, &node);
            let seen = guests.run(&lab, on, &attempt, "walk", &[]);
            same(&format!("seed {seed}, the last by {on:?}"), &walked(&seen), &as_walked(&last, on));
            lab.release(&attempt);
        }
    }
}

/// The same operations on the same node: equal answers, equal trees (but for the times of the clock).
#[test]
fn s08_one_script_on_both_executors_gives_equal_answers_and_trees() {
    let guests = needs_guests!();
    let lab = Lab::new();
    for seed in 1000..1000 + roots() {
        let source = lab.path(&format!("source{seed}"));
        Trees::new(seed).make(&source, 20);
        let mut node = lab.group(&format!("g{seed}"), &source);
        let mut scripts = Scripts::new(seed, 20, 4);
        for round in 0..3 {
            let script = scripts.without_moved_directories(200);
            let [oci, wasi] = [On::Oci, On::Wasi].map(|on| guests.step(&lab, on, &node, &script));
            let what = format!("seed {seed} round {round}");
            same(&format!("{what}: answers of WASI"), &lines(&wasi.0), &lines(&oci.0));
            let [found, expected] = [&wasi.1, &oci.1].map(|node| timeless(&lab.dump(node)));
            same(&format!("{what}: sealed by WASI"), &found, &expected);
            node = if round % 2 == 0 { wasi.1 } else { oci.1 };
        }
    }
}

/// The same operations on a plain directory: directories are moved, too, and there are no hard links.
#[test]
fn s08_a_script_on_wasi_equals_the_same_on_a_plain_directory() {
    let guests = needs_guests!();
    let lab = Lab::new();
    for seed in 2000..2000 + roots() {
        let source = lab.path(&format!("source{seed}"));
        Trees::new(seed).without_hard_links().make(&source, 20);
        let mut node = lab.group(&format!("g{seed}"), &source);
        let mut scripts = Scripts::new(seed, 20, 4);
        for round in 0..3 {
            let script = scripts.without_hard_links(200);
            let (answers, sealed) = guests.step(&lab, On::Wasi, &node, &script);
            let what = format!("seed {seed} round {round}");
            same(&what, &lines(&answers), &lines(&guests.plain(&source, &script)));
            let expected = lab.group(&format!("expected{seed}.{round}"), &source);
            same(&what, &timeless(&lab.dump(&sealed)), &timeless(&lab.dump(&expected)));
            node = sealed;
        }
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Walks a real tree by both executors, changes it by both, and walks again.
#[track_caller]
fn real_tree(lab: &Lab, guests: &Guests, node: &str, at_least: usize) {
    assert!(lab.dump(node).lines().count() >= at_least, "{} entries", lab.dump(node).lines().count());
    let first =
        "write from-wasi one\nmkdir wasi-made\nwrite wasi-made/f two\nsymlink ../from-wasi wasi-made/l";
    let (answers, node) = round(lab, guests, On::Wasi, node, first);
    assert_eq!(failed(&answers), Vec::<&str>::new());
    let second =
        "append from-wasi three\nunlink wasi-made/l\nmkdir wasi-made/l\nrename wasi-made/f oci-moved";
    let (answers, node) = round(lab, guests, On::Oci, &node, second);
    assert_eq!(failed(&answers), Vec::<&str>::new());
    let (answers, _) =
        round(lab, guests, On::Wasi, &node, "cat from-wasi\nlist wasi-made\nrmdir wasi-made/l");
    assert!(answers.contains("onethree") && answers.contains("l:directory"), "{answers}");
}

#[test]
fn s08_this_repository_is_equal() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let copy = lab.tree("copy", "");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Its tracked directories by name: neither the build nor its history.
    sh_in(
        &repository,
        &format!("cp -a .ci .config crates docs examples scripts xtask *.md *.toml '{}'", copy.display()),
    );
    real_tree(&lab, &guests, &lab.group("g", &copy), 200);
}

#[test]
fn s08_a_site_packages_is_equal() {
    let guests = needs_guests!();
    let lab = Lab::new();
    real_tree(&lab, &guests, &lab.group("g", &guests.file("site-packages")), 300);
}

#[test]
fn s08_a_debian_root_is_equal() {
    let guests = needs_guests!();
    let lab = Lab::new();
    real_tree(&lab, &guests, &lab.group("g", &guests.file("minbase.tar")), 5000);
}

/// BLAKE3 as the walker computes it, at the sizes where its tree changes shape.
#[test]
fn s08_contents_of_every_shape_have_equal_digests() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let source = lab.tree("t", "");
    for size in
        [0, 1, 63, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 8192, 31744, 100_000, 1 << 20]
    {
        let bytes: Vec<u8> = (0..size).map(|at: u32| (at % 251) as u8).collect();
        fs::write(source.join(size.to_string()), bytes).unwrap();
    }
    let node = lab.group("g", &source);
    for on in [On::Wasi, On::Oci] {
        round(&lab, &guests, on, &node, "list .");
    }
}

#[test]
fn p06_a_root_is_restored_exactly() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let source = lab.tree(
        "t",
        "mkdir d setgid 'with space' deep; : > empty; ln -s nowhere dangling; ln -s 'with space/é' link
         echo secret > none; chmod 0000 none; chmod 2775 setgid; echo x > 'with space/é'
         printf 'new\\nline' | xargs -0 touch; echo n > d/f; chmod 0640 d/f; chmod 4755 d/f; mkfifo fifo
         ln d/f deep/hard; touch -h -d '1999-12-31 23:59:59.123456789' dangling
         touch -d '1970-01-02 03:04:05.000000001' empty d; mkdir empty-directory; chmod 0711 empty-directory",
    );
    let attribute = std::process::Command::new("python3")
        .args(["-c", "import os,sys; os.setxattr(sys.argv[1], 'user.note', b'\\0\\xff=,kept')"])
        .arg(source.join("d/f"))
        .status();
    assert!(attribute.unwrap().success());
    let node = lab.group("g", &source);
    let before = lab.dump(&node);
    assert!(before.contains("user.note"), "{before}");
    let (_, untouched) = round(&lab, &guests, On::Wasi, &node, "list .\ncat none\nlstat dangling");
    assert_eq!(lab.dump(&untouched), before, "a look changes nothing");
    let script = "open 1 rw d/f\nput 1 N\nclose 1\ntimes d/f 7.000000001 7.000000002\nappend none more\nwrite setgid/new x";
    let (answers, changed) = round(&lab, &guests, On::Wasi, &node, script);
    assert_eq!(failed(&answers), Vec::<&str>::new());
    let after = lab.dump(&changed);
    let line = |dump: &str, path: &str| {
        dump.lines().find(|line| line.split(' ').next() == Some(path)).unwrap().to_owned()
    };
    let file = line(&after, "/d/f");
    assert!(file.contains(" file 4755 ") || file.contains(" file 0755 "), "a write may clear set-id: {file}");
    assert!(file.contains("user.note") && file.contains(" 7.000000002 "), "{file}");
    assert!(line(&after, "/none").contains(" file 0000 "), "{after}");
    for path in ["/empty", "/dangling", "/link", "/fifo", "/deep/hard", "/new\\x0aline", "/empty-directory"] {
        let [one, two] =
            [&before, &after].map(|dump| line(dump, path).rsplit_once(' ').unwrap().0.to_owned());
        assert_eq!(one, two, "what no one touched");
    }
    let (_, back) = round(&lab, &guests, On::Oci, &changed, "list .");
    assert_eq!(lab.dump(&back), after);
}

/// A name that is not UTF-8 cannot be said by WASI: the rest of its directory works, and it is kept.
#[test]
fn p06_a_name_that_wasi_cannot_say_is_kept() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let source = lab.tree("t", "mkdir d; echo a > d/a; echo b > d/b");
    fs::write(source.join("d").join(std::ffi::OsStr::from_bytes(b"odd\xff")), "kept").unwrap();
    let node = lab.group("g", &source);
    let (answers, sealed) =
        guests.step(&lab, On::Wasi, &node, "cat d/a\nwrite d/c new\nunlink d/b\nlist d\nlist .");
    for good in ["cat d/a: 2 a\\x0a ok", "write d/c new: ok", "unlink d/b: ok", "list .: d:directory ok"] {
        assert!(answers.lines().any(|line| line == good), "{good} is not in\n{answers}");
    }
    let dump = lab.dump(&sealed);
    let names: Vec<&str> = dump.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["/", "/d", "/d/a", "/d/c", "/d/odd\\xff"]);
}

/// A build that compares times does its work once, whoever runs it after a seal.
#[test]
fn p06_a_build_run_twice_across_a_seal_rebuilds_nothing() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let build = "import os
for name in sorted(os.listdir('src')):
    source, made = 'src/' + name, 'out/' + name
    if not os.path.exists(made) or os.stat(made).st_mtime_ns < os.stat(source).st_mtime_ns:
        open(made, 'w').write(open(source).read().upper())
        print('made', name)
";
    let source = lab.tree("t", "mkdir src out; for i in 1 2 3; do echo text $i > src/$i; done");
    fs::write(source.join("build.py"), build).unwrap();
    let mut node = lab.group("g", &source);
    for expected in ["made 1\nmade 2\nmade 3\n", "", ""] {
        let attempt = guests.wasi(&lab, &node, &["python"], &[]);
        assert_eq!(lab.text(["exec", &attempt, "--", "python.wasm", "build.py"]), expected);
        node = lab.suspend(&attempt);
    }
    assert_eq!(lab.cat(&node, "out/2"), b"TEXT 2\n");
    let attempt = lab.activate_with(&node, &["--base", "host"]);
    let newer = "for i in 1 2 3; do test src/$i -nt out/$i && echo made $i; done; true";
    assert_eq!(lab.sh(&attempt, newer), "", "as make would see it on the other executor");
}

const LOWER: &str =
    "mkdir -p d/b && echo a > d/a && echo c > d/b/c && echo f > f && echo l > l1 && ln l1 l2 && mkfifo p";
const REMOVE_D: &str = "unlink d/a\nunlink d/b/c\nrmdir d/b\nrmdir d";

#[test]
fn p18_a_seal_equals_the_same_script_on_a_plain_directory() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("base", LOWER));
    let scripts = [
        "REMOVE\nmkdir d\nwrite d/new \x20",
        "rename d e",
        "unlink f\nmkdir f",
        "REMOVE\nsymlink x d",
        "unlink l1\nwrite l1 other",
        "rename p q\nwrite p file",
        "rename d/b b\nunlink d/a\nrmdir d\nmkdir d\nmkdir d/b\nmkdir d/b/c",
        "mkdir new\nmkdir new/deep\nrename d new/deep/d\nwrite d again",
        "rename d e\nrename e d\nwrite d/b/c changed",
        "rename d/b f2\nrename f d/b\nrename f2 f",
        "open 1 r d/b/c\nunlink d/b/c\nread 1 10\nmkdir d/b/c\nclose 1",
        "truncate f 0\nappend f new\ntruncate d/a 1",
    ];
    for (at, script) in scripts.into_iter().enumerate() {
        let script = script.replace("REMOVE", REMOVE_D);
        let (answers, sealed) = guests.step(&lab, On::Wasi, &base, &script);
        let plain = lab.tree(&format!("plain{at}"), LOWER);
        assert_eq!(answers, guests.plain(&plain, &script));
        assert_eq!(failed(&answers), Vec::<&str>::new());
        let expected = lab.group(&format!("plain{at}"), &plain);
        same(&script, &timeless(&lab.dump(&sealed)), &timeless(&lab.dump(&expected)));
    }
}

#[test]
fn p18_a_grandchild_sees_nothing_old() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("base", LOWER));
    let remove_b = "unlink d/b/c\nrmdir d/b";
    for (remove, again, check, empty) in [
        (REMOVE_D, "mkdir d\nmkdir d/b", "list d\nlist d/b", "list d: b:directory ok\nlist d/b: ok\n"),
        (remove_b, "mkdir d/b", "list d\nlist d/b", "list d: a:file b:directory ok\nlist d/b: ok\n"),
        (&format!("{REMOVE_D}\nwrite d x"), "unlink d\nmkdir d", "list d", "list d: ok\n"),
        ("unlink f", "mkdir f", "list f", "list f: ok\n"),
    ] {
        for [one, two, three] in
            [[On::Wasi, On::Wasi, On::Wasi], [On::Wasi, On::Oci, On::Wasi], [On::Oci, On::Wasi, On::Oci]]
        {
            let (_, child) = guests.step(&lab, one, &base, remove);
            let (seen, grandchild) = guests.step(&lab, two, &child, &format!("{again}\n{check}"));
            assert!(seen.ends_with(empty), "{one:?} {two:?}: {seen}");
            let (seen, _) = guests.step(&lab, three, &grandchild, check);
            assert_eq!(seen, empty, "{one:?} {two:?} {three:?}");
        }
    }
}

#[test]
fn p19_what_is_odd_is_sealed_soon_and_kept_or_named() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let base =
        lab.group("g", &lab.tree("t", "mkfifo fifo; echo s > setuid; chmod 4755 setuid; echo w > .wh.lower"));
    let name = "n".repeat(255);
    let deep: String = (1..=200).map(|depth| format!("mkdir {}\n", vec!["d"; depth].join("/"))).collect();
    let bottom = vec!["d"; 200].join("/");
    let script = format!(
        "write {name} x\nwrite {name}n x\nwrite .wh.new x\nunlink .wh.lower\nopen 1 rwc sparse\nsize 1 268435456\n\
         {deep}write {bottom}/f bottom\ncat {bottom}/f\nopen 2 rw sparse\npwrite 2 data 200000000\n\
         pread 2 6 199999999\nrename fifo fifo2\nappend setuid more"
    );
    let attempt = guests.activate(&lab, On::Wasi, &base);
    let answers = guests.run(&lab, On::Wasi, &attempt, "fsop", &[&script]);
    assert_eq!(failed(&answers), [format!("write {name}n x: ENAMETOOLONG")]);
    assert!(answers.contains("6 \\x00data\\x00 ok"), "{answers}");
    let before = lab.json(["df"]);
    let began = Instant::now();
    let sealed = lab.suspend(&attempt);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "took {took:?}");
    let total = |df: &serde_json::Value| df["total"].as_u64().unwrap();
    let grown = total(&lab.json(["df"])).saturating_sub(total(&before));
    assert!(grown < 32 << 20, "{grown} bytes for what is a few");
    let dump = lab.dump(&sealed);
    for expected in
        [" fifo 0644 ", "/sparse file 0644 0 0 268435456 ", "/.wh.new file ", "/fifo2 fifo ", "/setuid file "]
    {
        assert!(dump.lines().any(|line| line.contains(expected)), "{expected} is not in\n{dump}");
    }
    assert!(!dump.contains("/.wh.lower"), "{dump}");
    assert!(dump.contains(&format!("/{name} file")) && dump.contains(&format!("/{bottom}/f file")));
    // Beyond the limit of holes a file is refused by its name, and nothing is sealed.
    let attempt = guests.activate(&lab, On::Wasi, &base);
    guests.run(&lab, On::Wasi, &attempt, "fsop", &["open 1 rwc tebibyte\nsize 1 1099511627776"]);
    let refused = lab.refused(["suspend", &attempt]);
    assert_eq!((refused.exit, refused.code()), (5, "file_too_sparse"), "{refused:?}");
    assert!(refused.text().contains("tebibyte"), "{refused:?}");
    lab.release(&attempt);
    // Hashing so many zeroes is nobody's need: it is gone before the walk.
    let (_, rest) = guests.step(&lab, On::Wasi, &sealed, "unlink sparse");
    round(&lab, &guests, On::Oci, &rest, "list .");
    round(&lab, &guests, On::Wasi, &rest, "list .");
}

#[test]
fn p20_what_was_deleted_is_in_nothing_of_the_child() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let secret = "dont-find-me-0451";
    let script =
        format!("mkdir d; echo {secret} > d/secret; echo {secret}2 > name-{secret}; echo kept > kept");
    let base = lab.group("g", &lab.tree("t", &script));
    let remove = format!("unlink d/secret\nrmdir d\nunlink name-{secret}\nwrite kept more");
    let (answers, child) = guests.step(&lab, On::Wasi, &base, &remove);
    assert_eq!(failed(&answers), Vec::<&str>::new());
    assert!(!lab.dump(&child).contains("secret"), "{}", lab.dump(&child));
    for (format, what) in [("tar", &child), ("dir", &child)] {
        let to = lab.path(format);
        let to = to.to_str().unwrap();
        lab.json(["export", what, "--format", format, "--to", to]);
        let found = std::process::Command::new("grep").args(["-r", "-a", "-l", secret, to]).output().unwrap();
        assert_eq!(found.status.code(), Some(1), "{format}: {}", said(&found));
    }
    let grandchild = guests.step(&lab, On::Wasi, &child, "mkdir d\nlist d\nlist .").0;
    assert_eq!(grandchild, "mkdir d: ok\nlist d: ok\nlist .: d:directory kept:file ok\n");
}

/// Where permissions would stop a user, root's tree is whole: as in the other executor.
#[test]
fn modes_survive_what_wasi_does_around_them() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let source = lab.tree("t", "mkdir closed; echo x > closed/f; chmod 0400 closed/f; chmod 0500 closed");
    let base = lab.group("g", &source);
    fs::set_permissions(source.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let script = "append closed/f y\nwrite closed/g z\nrename closed open";
    let (answers, sealed) = guests.step(&lab, On::Wasi, &base, script);
    assert_eq!(failed(&answers), Vec::<&str>::new());
    let dump = lab.dump(&sealed);
    for expected in ["/open directory 0500 ", "/open/f file 0400 ", "/open/g file 0644 "] {
        assert!(dump.lines().any(|line| line.starts_with(expected)), "{expected} is not in\n{dump}");
    }
}
