//! What is done with roots: import and its refusals, export, chains of many generations, squash,
//! merges, verification, collection, artifacts.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use esf_core::manifest::RootPin;
use esf_core::merge::merge3;
use esf_layerstack::{ExportOptions, ImportOptions, LayerStack, SOFT_DEPTH, SealedRoot};
use support::{Store, du, dump, import, privileged, request, shell};

const TREE: &str = "mkdir -p d/b 'sp ace'; echo a > d/a; : > empty; ln -s nowhere dangling; echo s > secret; [ $(id -u) != 0 ] || chmod 0 secret; \
                    mkdir setgid; chmod 2775 setgid; echo x > \"$(printf 'new\\nline')\"; echo y > \"$(printf '\\377bytes')\"; \
                    mkfifo pipe; echo l > l1; ln l1 d/l2; touch -d '1969-07-20 20:17:40.000000001' d/a l1 d dangling -h; \
                    truncate -s 3M sparse; printf data | dd of=sparse bs=1 seek=1M conv=notrunc status=none";

fn relaxed() -> ImportOptions {
    ImportOptions { preserve_owners: true, ..ImportOptions::default() }
}

#[test]
fn an_export_is_what_was_imported() {
    let store = Store::new();
    let source = store.path("source");
    fs::create_dir(&source).expect("mkdir");
    shell(&source, TREE);
    rustix::fs::setxattr(source.join("empty"), "user.k", b"v", rustix::fs::XattrFlags::empty())
        .expect("xattr");
    let pin = store.import(&source);
    let to = store.path("out");
    let options = ExportOptions { preserve_privilege: true, preserve_owners: true };
    store.stack.export_directory(&pin, &to, &options, &()).expect("export");
    assert_eq!(store.import(&to), pin);
    assert!(fs::metadata(to.join("sparse")).expect("inspect").blocks() < 100);
    // It never overwrites.
    let again = store.stack.export_directory(&pin, &to, &options, &()).expect_err("taken").problem();
    assert_eq!(again.code, "destination_exists");
}

#[test]
fn privilege_leaves_only_when_asked_for() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let pin = store.import_script("echo x > s; chown 33:44 s; chmod 6755 s; mkdir g; chmod 2755 g");
    let to = store.path("out");
    store.stack.export_directory(&pin, &to, &ExportOptions::default(), &()).expect("export");
    let mode = |name: &str| fs::metadata(to.join(name)).expect("inspect").mode() & 0o7777;
    assert_eq!((mode("s"), mode("g")), (0o755, 0o2755));
    assert_eq!(fs::metadata(to.join("s")).expect("inspect").uid(), 0);
    let kept = store.path("kept");
    let options = ExportOptions { preserve_privilege: true, preserve_owners: true };
    store.stack.export_directory(&pin, &kept, &options, &()).expect("export");
    let meta = fs::metadata(kept.join("s")).expect("inspect");
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o6755, 33, 44));
}

#[test]
fn owners_are_mapped_unless_kept() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let source = store.path("source");
    fs::create_dir(&source).expect("mkdir");
    shell(&source, "echo x > f; chown 33:44 f; ln -s x l; chown -h 5:6 l");
    let mapped = store.stack.import_directory(&source, &ImportOptions::default(), &()).expect("import");
    assert!(dump(&store.stack, mapped.sealed.pin()).iter().all(|line| line.contains(" 0 0 ")));
    let kept = store.import(&source);
    assert!(store.dump(&kept).iter().any(|line| line.contains(" 33 44 ")));
    for pin in [mapped.sealed.pin(), &kept] {
        assert_eq!(store.stack.verify(pin, &()).expect("verify").damaged, [""; 0]);
    }
}

#[test]
fn special_files_are_refused_or_skipped_by_name() {
    let store = Store::new();
    let source = store.path("source");
    fs::create_dir_all(source.join("in")).expect("mkdir");
    drop(std::os::unix::net::UnixListener::bind(source.join("in/socket")).expect("bind"));
    let refused = store.stack.import_directory(&source, &relaxed(), &()).expect_err("a socket").problem();
    assert_eq!(refused.code, "special_file");
    assert!(refused.message.starts_with("in/socket"), "{refused}");
    store.check_accounts();
    assert_eq!(fs::read_dir(store.stack.directory().join("staging")).expect("list").count(), 0);
    let options = ImportOptions { skip_special: true, ..relaxed() };
    let imported = store.stack.import_directory(&source, &options, &()).expect("import");
    assert_eq!(imported.skipped, [(b"in/socket".to_vec(), "socket".to_owned())]);
    // The store itself is not imported into itself.
    let imported = store.stack.import_directory(store.dir.path(), &options, &()).expect("import");
    assert!(imported.skipped.contains(&(b"store".to_vec(), "this store itself".to_owned())));
    let excluded = ImportOptions { exclude: vec![b"in".to_vec()], ..relaxed() };
    let imported = store.stack.import_directory(&source, &excluded, &()).expect("import");
    assert_eq!((imported.files, imported.skipped.len()), (0, 1));
}

#[test]
fn sources_that_cannot_be_read_are_named() {
    let store = Store::new();
    fs::write(store.path("file"), "x").expect("write");
    for source in ["absent", "file"] {
        let refused = store.stack.import_directory(&store.path(source), &relaxed(), &()).expect_err(source);
        assert_eq!(refused.problem().code, "source_not_found", "{refused}");
    }
}

#[test]
fn a_racer_cannot_make_a_root_lie() {
    let store = Store::new();
    let source = store.path("source");
    fs::create_dir(&source).expect("mkdir");
    shell(&source, "for i in $(seq 200); do echo $i > f$i; done");
    let outside = store.path("outside");
    fs::write(&outside, "secret").expect("write");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                n += 1;
                let file = source.join(format!("f{}", n % 200 + 1));
                match n % 4 {
                    0 => drop(fs::write(&file, vec![b'x'; (n % 5000) as usize])),
                    1 => drop(fs::remove_file(&file)),
                    2 => drop(std::os::unix::fs::symlink(&outside, &file)),
                    _ => drop(fs::File::options().append(true).create(true).open(source.join("grows"))),
                }
            }
        });
        for _ in 0..20 {
            match store.stack.import_directory(&source, &relaxed(), &()) {
                Ok(imported) => {
                    let report = store.stack.verify(imported.sealed.pin(), &()).expect("verify");
                    assert_eq!(report.damaged, [""; 0]);
                    let text = dump(&store.stack, imported.sealed.pin()).join("\n");
                    assert!(!text.contains(&esf_core::BlobId::of(b"secret").to_string()), "followed a link");
                }
                Err(error) => assert_eq!(error.problem().code, "changed_while_reading", "{error}"),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    store.check_accounts();
}

#[test]
fn the_same_tree_twice_is_one_carrier() {
    let store = Store::new();
    let source = store.path("source");
    fs::create_dir(&source).expect("mkdir");
    shell(&source, TREE);
    assert_eq!(store.import(&source), store.import(&source));
    assert_eq!(fs::read_dir(store.stack.carriers_directory()).expect("list").count(), 1);
    store.check_accounts();
}

#[test]
fn twenty_generations_keep_every_state() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let mut pins = vec![store.import_script(": > log.txt")];
    for n in 1..=20 {
        let script = format!(
            "echo line {n} >> log.txt; mkdir d{n}; echo {n} > d{n}/f; chmod 0640 d{n}/f; rm -f d{}/f",
            n - 1
        );
        pins.push(store.run(&pins[n - 1], &script).0);
    }
    for (n, pin) in pins.iter().enumerate() {
        let log = store.stack.read_blob(pin, b"log.txt", 1 << 20).expect("read");
        let expected: String = (1..=n).map(|line| format!("line {line}\n")).collect();
        assert_eq!(String::from_utf8(log).expect("text"), expected);
        for d in 1..=20 {
            let found = store.stack.lookup(pin, format!("d{d}/f").as_bytes()).expect("lookup");
            assert_eq!(found.is_some(), d == n, "node {n}, d{d}/f");
            assert_eq!(
                store.stack.lookup(pin, format!("d{d}").as_bytes()).expect("lookup").is_some(),
                d <= n
            );
        }
    }
    let last = pins[20];
    let missing = store.stack.open_file(&last, b"d19/f").expect_err("removed").problem();
    assert_eq!(missing.code, "path_not_found");
}

#[test]
fn a_deep_chain_is_made_shallow_before_it_is_mounted() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let mut pin = store.import_script("for i in $(seq 200); do echo $i > base$i; done");
    let payload = store.stack.usage().expect("usage").hot;
    for n in 0..SOFT_DEPTH + 4 {
        let attempt = store.attempt();
        let workspace = store.stack.open_workspace(&pin, attempt).expect("open");
        assert!(workspace.lowers.len() <= SOFT_DEPTH, "{} layers", workspace.lowers.len());
        fs::write(workspace.upper.join(format!("n{n}")), format!("{n}")).expect("write");
        let sealed = store.seal(attempt, &pin);
        pin = *sealed.sealed().pin();
        store.stack.settle_seal(sealed, true).expect("settle");
    }
    assert!(store.stack.depth(&pin).expect("depth") < 10);
    assert_eq!(store.view(&pin), pin);
    store.check_accounts();
    // The base was not linked into anything: it is still one carrier beneath.
    let usage = store.stack.usage().expect("usage");
    assert!(usage.hot < payload + (SOFT_DEPTH as u64 + 10) * 4 * 4096, "{usage:?}");
}

#[test]
fn squash_writes_no_payload_and_old_roots_stay() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let base =
        store.import_script("mkdir big; head -c 3000000 /dev/zero > big/f; echo k > keep; ln keep keep2");
    let (one, _) = store.run(&base, "echo 1 > one; rm keep");
    let (two, _) = store.run(&one, "rm -r big; mkdir big; echo 2 > big/two");
    let before = store.stack.usage().expect("usage");
    let report = store.stack.squash(&two).expect("squash");
    assert_eq!((report.layers_before, report.layers_after), (3, 1));
    store.check_accounts();
    let after = store.stack.usage().expect("usage");
    assert!(after.hot - before.hot <= 2 * 4096, "{before:?} {after:?}");
    for pin in [&base, &one, &two] {
        assert_eq!(store.view(pin), *pin);
    }
    // The squashed root outlives the carriers it was made of.
    collect(&store.stack, &[two]);
    store.check_accounts();
    assert_eq!(store.view(&two), two);
    assert_eq!(fs::read_dir(store.stack.carriers_directory()).expect("list").count(), 1);
    // Writes on top leave the shared inodes alone.
    let (three, _) = store.run(&two, "echo more >> keep2; echo more >> big/two");
    assert_eq!((store.view(&two), store.view(&three)), (two, three));
}

fn collect(stack: &LayerStack, live: &[RootPin]) -> u64 {
    let lock = stack.lock_exclusive().expect("lock");
    let plan = stack.plan_gc(&lock, live, &[], &[]).expect("plan");
    let bytes = plan.bytes();
    stack.run_gc(&lock, plan).expect("collect");
    bytes
}

#[test]
fn a_collection_frees_what_it_said_and_nothing_live() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let base = store.import_script("head -c 200000 /dev/urandom > f; mkdir d; echo x > d/x");
    let (kept, _) = store.run(&base, "echo kept > k");
    let (lost, _) = store.run(&base, "head -c 400000 /dev/urandom > g");
    let attempt = store.attempt();
    store.stack.open_workspace(&lost, attempt).expect("open");
    let artifact = store.stack.put_artifact(b"evidence").expect("put");
    let forgotten = store.stack.put_artifact(b"nobody names this").expect("put");
    let stray = store.stack.carriers_directory().join("00000000000000000000000000000000");
    fs::create_dir(&stray).expect("mkdir");
    let before = store.stack.usage().expect("usage");
    // A live attempt pins its base although no root is named.
    let lock = store.stack.lock_exclusive().expect("lock");
    let plan = store.stack.plan_gc(&lock, &[kept], &[attempt], &[artifact]).expect("plan");
    // The base itself is no root any more, but its carrier lies beneath both others.
    assert_eq!((plan.roots(), plan.carriers()), (&[base][..], 0));
    store.stack.run_gc(&lock, plan).expect("collect");
    assert!(!stray.exists());
    let plan = store.stack.plan_gc(&lock, &[kept], &[], &[artifact]).expect("plan");
    assert_eq!((plan.roots(), plan.carriers(), plan.workspaces()), (&[lost][..], 1, 1));
    assert!((400_000..450_000).contains(&plan.bytes()), "{}", plan.bytes());
    store.stack.run_gc(&lock, plan).expect("collect");
    drop(lock);
    store.check_accounts();
    let after = store.stack.usage().expect("usage");
    assert!(before.hot - after.hot >= 400_000, "{before:?} {after:?}");
    assert_eq!(store.view(&kept), kept);
    assert_eq!(store.stack.get_artifact(artifact).expect("kept"), b"evidence");
    assert_eq!(store.stack.get_artifact(forgotten).expect_err("gone").problem().code, "path_not_found");
    assert_eq!(store.stack.fsck(&()).expect("fsck").damage, [""; 0]);
}

#[test]
fn a_root_that_is_only_a_value_keeps_collections_out() {
    let store = Store::new();
    fs::create_dir(store.path("source")).expect("mkdir");
    let imported: SealedRoot = import(&store.stack, &store.path("source")).sealed;
    let lock = store.stack.lock_shared().expect("shared locks go together");
    assert_eq!(store.stack.plan_gc(&lock, &[], &[], &[]).expect_err("shared").problem().code, "store_busy");
    drop(lock);
    drop(imported);
    let _ = store.stack.lock_exclusive().expect("free now");
}

#[test]
fn damage_anywhere_is_named_and_the_rest_works() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let base = store.import_script("mkdir d; echo good > d/good; echo bad > d/bad; ln -s t link; mkfifo p");
    let other = store.import_script("echo other > other");
    assert_eq!(store.stack.verify(&base, &()).expect("verify").entries, 5);
    let carriers: Vec<_> = fs::read_dir(store.stack.carriers_directory())
        .expect("list")
        .map(|entry| entry.expect("list").path())
        .filter(|path| path.join("d").exists())
        .collect();
    let top = &carriers[0];
    let damages: [(&str, &str); 6] = [
        ("printf 'bAd\n' > d/bad", "d/bad: "),
        ("chmod 600 d/good", "d/good: expected mode 0644"),
        ("touch d/good", "d/good: attributes differ"),
        ("ln -sfn u link", "link: the target differs"),
        ("rm p", "p: no carrier shows it"),
        ("echo new > d/new", "d/new: the carriers show it"),
    ];
    for (script, expected) in damages {
        shell(top, script);
        let report = store.stack.verify(&base, &()).expect("verify");
        assert!(
            report.damaged.iter().any(|line| line.starts_with(expected)),
            "{expected}: {:?}",
            report.damaged
        );
    }
    let error = store.stack.open_file(&base, b"d/bad").expect_err("damaged").problem();
    assert_eq!(error.code, "damaged");
    let refused = store.stack.open_workspace(&base, store.attempt()).expect_err("damaged").problem();
    assert_eq!(refused.code, "damaged", "{refused}");
    let to = store.path("out");
    store.stack.export_directory(&base, &to, &ExportOptions::default(), &()).expect_err("damaged");
    assert!(!to.exists(), "a failed export leaves nothing");
    assert_eq!(store.view(&other), other);
    shell(store.stack.directory(), "rm -rf carriers/*");
    assert!(!store.stack.fsck(&()).expect("fsck").damage.is_empty());
}

#[test]
fn a_merge_is_linked_from_both_sides() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let base = store.import_script(
        "mkdir -p d/e gone; echo 1 > d/one; echo f > f; echo g > gone/g; echo t > t; echo m > m; ln -s a l; mkdir turn; echo x > turn/x",
    );
    let (ours, _) = store.run(&base, "echo ours > d/ours; echo 2 > d/one; chmod 700 m");
    let (theirs, _) = store.run(
        &base,
        "mkdir -p new/deep; echo n > new/deep/n; ln new/deep/n new/n2; rm -r gone; rm t; mkdir t; echo in > t/in; \
         ln -sfn b l; mkfifo d/pipe; echo theirs > d/e/theirs; rm -r turn; echo file > turn; echo mm >> m",
    );
    let mut writer = store.stack.objects().writer();
    let merge = merge3(store.stack.objects(), &mut writer, &base, &ours, &theirs).expect("merge");
    writer.finish().expect("store the objects");
    let before = store.stack.usage().expect("usage");
    let sealed = store.stack.derive_root(&ours, &merge, &theirs, &BTreeMap::new()).expect("derive");
    assert_eq!(*sealed.pin(), merge.root);
    drop(sealed);
    store.check_accounts();
    assert_eq!(store.view(&merge.root), merge.root);
    assert_eq!(store.stack.verify(&merge.root, &()).expect("verify").damaged, [""; 0]);
    let grown = store.stack.usage().expect("usage").hot - before.hot;
    assert!(grown <= 8 * 4096, "only directories: {grown}");
    // The merged root outlives both sides.
    collect(&store.stack, &[merge.root]);
    store.check_accounts();
    assert_eq!(store.view(&merge.root), merge.root);
}

#[test]
fn deleted_files_are_in_no_later_root() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let base = store.import_script("mkdir d; echo SECRET > d/secret; echo x > x");
    let (child, changes) = store.run(&base, "rm d/secret");
    assert_eq!(changes.deleted, 1);
    let blob = esf_core::BlobId::of(b"SECRET\n").to_string();
    assert!(!dump(&store.stack, &child).join("\n").contains(&blob));
    let (grandchild, _) = store.run(&child, "rmdir d; mkdir d; ls d");
    assert_eq!(store.view(&grandchild), grandchild);
    collect(&store.stack, &[grandchild]);
    store.stack.squash(&grandchild).expect("squash");
    collect(&store.stack, &[grandchild]);
    let left =
        std::process::Command::new("grep").args(["-r", "SECRET"]).arg(store.stack.directory()).output();
    assert_eq!(left.expect("grep").stdout, b"", "the store has the file no more");
    assert!(du(store.stack.directory()) > 0);
}

#[test]
fn stores_are_private_and_whole_or_not_there() {
    let store = Store::new();
    let open = |dir: &Path| LayerStack::open(dir).map(|_| ()).expect_err("refused").problem().code;
    assert_eq!(open(&store.path("absent")), "store_not_found");
    fs::create_dir(store.path("empty")).expect("mkdir");
    assert_eq!(open(&store.path("empty")), "store_not_found");
    let dir = store.stack.directory().to_owned();
    assert_eq!(LayerStack::create(&dir).map(|_| ()).expect_err("taken").problem().code, "store_exists");
    assert_eq!(
        LayerStack::create(store.dir.path()).map(|_| ()).expect_err("taken").problem().code,
        "store_exists"
    );
    LayerStack::create(&store.path("empty")).expect("an empty directory will do");
    shell(&dir, "chmod 0750 .");
    assert_eq!(open(&dir), "store_insecure");
    shell(&dir, "chmod 0700 .; printf X | dd of=esf.store bs=1 seek=30 conv=notrunc status=none");
    assert_eq!(open(&dir), "store_damaged");
}

#[test]
fn an_upper_of_an_earlier_boot_is_never_sealed() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let base = store.import_script("echo x > x");
    let attempt = store.attempt();
    store.stack.open_workspace(&base, attempt).expect("open");
    let db = rusqlite::Connection::open(store.stack.directory().join("local.db")).expect("open");
    db.execute("UPDATE workspaces SET boot_id = 'another'", []).expect("update");
    assert_eq!(store.stack.existing_workspace(attempt).expect_err("lost").problem().code, "workspace_lost");
    assert_eq!(
        store.stack.seal(&request(attempt, &base), &()).expect_err("lost").problem().code,
        "workspace_lost"
    );
}

#[test]
fn a_scratch_directory_leaves_nothing() {
    let store = Store::new();
    let scratch = store.stack.scratch().expect("scratch");
    shell(scratch.path(), "mkdir -p a/b; echo x > a/b/c");
    let pin = store.import(scratch.path());
    // Another process that opens the store leaves it alone while its maker lives.
    drop(LayerStack::open(store.stack.directory()).expect("open"));
    assert!(scratch.path().join("a/b/c").exists());
    drop(scratch);
    store.check_accounts();
    assert_eq!(fs::read_dir(store.stack.directory().join("staging")).expect("list").count(), 0);
    assert_eq!(store.stack.verify(&pin, &()).expect("verify").damaged, [""; 0]);
}

#[test]
fn an_inode_without_room_for_links_is_copied() {
    if !privileged() {
        return;
    }
    let store = Store::new();
    let base = store.import_script("echo popular > popular; echo x > x");
    let (top, _) = store.run(&base, "echo y > y");
    let carrier = fs::read_dir(store.stack.carriers_directory())
        .expect("list")
        .map(|entry| entry.expect("list").path())
        .find(|path| path.join("popular").exists())
        .expect("the base's carrier");
    let links = store.path("links");
    fs::create_dir(&links).expect("mkdir");
    let full =
        (0..70_000).find(|n| fs::hard_link(carrier.join("popular"), links.join(n.to_string())).is_err());
    assert!(full.is_some(), "this filesystem has no limit of links");
    let report = store.stack.squash(&top).expect("squash");
    assert_eq!((report.linked, report.copied), (2, 1));
    assert_eq!(store.view(&top), top);
    fs::remove_dir_all(&links).expect("remove");
    store.check_accounts();
}

#[test]
fn many_handles_open_import_and_recover_at_once() {
    let store = Store::new();
    let sources: Vec<_> = (0..4).map(|n| store.path(&format!("source{n}"))).collect();
    for (n, source) in sources.iter().enumerate() {
        fs::create_dir(source).expect("mkdir");
        // Two of them are the same tree: one carrier is enough for both.
        shell(source, &format!("echo {} > f; touch -d @0 f .", n / 2));
    }
    let dir = store.stack.directory();
    std::thread::scope(|scope| {
        // Every open recovers: what another is making must not be taken for a dead one's.
        for source in &sources {
            scope.spawn(move || {
                for _ in 0..15 {
                    let stack = LayerStack::open(dir).expect("open");
                    let imported = import(&stack, source);
                    let report = stack.verify(imported.sealed.pin(), &()).expect("verify");
                    assert_eq!(report.damaged, [""; 0]);
                    drop(stack.scratch().expect("scratch"));
                }
            });
        }
    });
    store.check_accounts();
    assert_eq!(fs::read_dir(store.stack.carriers_directory()).expect("list").count(), 2);
    assert_eq!(fs::read_dir(dir.join("staging")).expect("list").count(), 0);
}
