//! What a seal keeps: type replacements, minimal images, isolation of siblings (P18, P23, S05).

use std::collections::BTreeSet;
use std::path::Path;

use crate::needs_root;
use crate::support::*;

const LOWER: &str =
    "mkdir -p d/b && echo a > d/a && echo c > d/b/c && echo f > f && echo l > l1 && ln l1 l2 && mkfifo p";

#[test]
fn p18_a_seal_equals_the_same_script_on_a_plain_directory() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("base", LOWER));
    for (at, script) in [
        "rm -r d; mkdir d; touch d/new",
        "mv d e",
        "rm f; mkdir f",
        "rm -r d; ln -s x d",
        "rm l1; echo other > l1",
        "mv p q; mkfifo p",
        "rm f; mkfifo f; rm p; echo file > p",
        "mv d/b b; rmdir d 2>/dev/null || rm -r d; mkdir -p d/b/c",
        "chmod 700 d; chmod 4755 f; ln f d/f",
        "mkdir -p new/deep/er; mv d new/deep/er/; echo again > d",
    ]
    .into_iter()
    .enumerate()
    {
        let sealed = lab.step(&base, script);
        let plain = lab.tree(&format!("plain{at}"), &format!("{LOWER}; {script}"));
        let expected = lab.group(&format!("plain{at}"), &plain);
        assert_eq!(
            lab.root_of(&sealed),
            lab.root_of(&expected),
            "{script}:\n{}\nexpected\n{}",
            lab.dump(&sealed),
            lab.dump(&expected)
        );
    }
}

#[test]
fn p18_a_grandchild_sees_nothing_old() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("base", LOWER));
    for (remove, again) in [
        ("rm -r d", "mkdir -p d/b && test -z \"$(ls -A d/b)\" && test \"$(ls -A d)\" = b"),
        ("rm -r d/b", "mkdir d/b && test -z \"$(ls -A d/b)\" && test \"$(cat d/a)\" = a"),
        ("rm -r d; touch d", "test -f d && rm d && mkdir d && test -z \"$(ls -A d)\""),
        ("rm f", "! test -e f && mkdir f && test -z \"$(ls -A f)\""),
    ] {
        let child = lab.step(&base, remove);
        let grandchild = lab.step(&child, again);
        lab.step(&grandchild, again.rsplit("&&").next().expect("one at least"));
    }
}

#[test]
fn p23_one_static_binary_is_a_whole_root() {
    needs_root!();
    let Some(binary) = static_binary() else {
        eprintln!("skipped: no static busybox on this machine (apt-get install busybox-static)");
        return;
    };
    let lab = Lab::new();
    let tree = lab.tree("t", &format!("cp '{}' busybox && chmod 755 busybox", binary.display()));
    let base = lab.group("g", &tree);
    let attempt = lab.activate_with(&base, &["--base", "root"]);
    let sh = |script: &str| lab.text(["exec", &attempt, "--", "/busybox", "sh", "-c", script]);
    assert_eq!(sh("echo hello > /file; /busybox cat /file; /busybox pwd"), "hello\n/\n");
    sh(
        "/busybox mkdir /etc && echo x > /etc/x; : > /dev/null; /busybox head -c 3 /dev/urandom > /dev/null; test -r /proc/self/status",
    );
    let local = lab.path("local");
    std::fs::write(&local, "put").unwrap();
    lab.text(["cp".as_ref(), local.as_os_str(), std::ffi::OsStr::new(&format!("{attempt}:/put"))]);
    let sealed = lab.suspend(&attempt);
    let names = names(&lab.dump(&sealed));
    assert_eq!(
        names,
        ["busybox", "etc", "etc/x", "file", "put"].map(str::to_owned).into(),
        "nothing of ours is in it"
    );
    assert_eq!(lab.cat(&sealed, "put"), b"put");
    let diff = lab.text(["diff", &base, &sealed, "--name-status"]);
    let mut changed: Vec<&str> = diff.lines().collect();
    changed.sort_unstable();
    assert_eq!(changed, ["A  etc", "A  etc/x", "A  file", "A  put"]);
    let exported = lab.path("exported");
    lab.json([
        "export".as_ref(),
        sealed.as_ref(),
        "--format".as_ref(),
        "dir".as_ref(),
        "--to".as_ref(),
        exported.as_os_str(),
    ]);
    assert_eq!(std::fs::read(exported.join("etc/x")).unwrap(), b"x\n");
    assert!(!exported.join("dev").exists() && !exported.join("proc").exists());
}

#[test]
fn s05_siblings_see_nothing_of_each_other() {
    needs_root!();
    let lab = Lab::new();
    let base = lab.group("g", &lab.tree("t", "echo base > same"));
    let [one, two] = [(); 2].map(|()| lab.activate(&base));
    lab.sh(&one, "echo one > same; echo 1 > only-one; echo s > /tmp/secret; echo s > /dev/shm/secret; mkdir -p ~ && echo s > ~/secret; ipcmk -M 4096 -p 0666; ipcmk -Q -p 0666");
    lab.sh(&two, "echo two > same; echo 2 > only-two");
    assert_eq!(lab.sh(&one, "cat same; ls"), "one\nonly-one\nsame\n");
    assert_eq!(lab.sh(&two, "cat same; ls"), "two\nonly-two\nsame\n");
    assert_eq!(lab.sh(&two, "ls -A /tmp /dev/shm ~ | grep secret || true"), "");
    assert_eq!(
        lab.sh(&one, "awk 'FNR > 1' /proc/sysvipc/shm /proc/sysvipc/msg | wc -l").trim(),
        "2",
        "the probe works"
    );
    assert_eq!(lab.sh(&two, "awk 'FNR > 1' /proc/sysvipc/shm /proc/sysvipc/msg | wc -l").trim(), "0");
    let others = lab.sh(&two, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'");
    assert!(!others.contains("one"), "{others}");
    let [one, two] = [one, two].map(|attempt| lab.suspend(&attempt));
    assert_eq!((lab.cat(&one, "same"), lab.cat(&two, "same")), (b"one\n".to_vec(), b"two\n".to_vec()));
    assert_eq!(lab.cat(&base, "same"), b"base\n");
    assert!(!names(&lab.dump(&two)).contains("only-one"));
}

/// The paths of a dump, the top aside.
fn names(dump: &str) -> BTreeSet<String> {
    let first = |line: &str| {
        line.split_whitespace().next().unwrap_or_default().trim_start_matches(['.', '/']).to_owned()
    };
    dump.lines().map(first).filter(|name| !name.is_empty()).collect()
}

/// Debian's busybox-static, if this busybox is it.
fn static_binary() -> Option<&'static Path> {
    let path = Path::new("/bin/busybox");
    let bytes = std::fs::read(path).ok()?;
    // A dynamic program names its loader.
    let loader = b"/lib64/ld-linux";
    (!bytes.windows(loader.len()).any(|window| window == loader)).then_some(path)
}
