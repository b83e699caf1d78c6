//! What a process without root makes: the same roots, in carriers of portable form, whole and exact;
//! and what root makes of such a store when it is handed over. An ordinary user runs as a child of its
//! own; if this is one, all of that runs here, and what takes root is skipped.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use esf_core::AttemptId;
use esf_core::manifest::RootPin;
use esf_core::merge::merge3;
use esf_layerstack::union::{Layers, Node, Open, Union};
use esf_layerstack::{ExportOptions, Form, ImportOptions, LayerStack, Workspace};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use support::{Store, as_nobody, child_role, dump, nobodys_dir, privileged, request, shell};

/// What an ordinary user may have and import: modes that the disk of another user cannot say among it.
const TREE: &str = "mkdir -p d/b keep/deep setgid closed; echo a > d/a; echo c > d/b/c; : > empty; \
    ln -s nowhere dangling; echo l > h1; ln h1 h2; ln h1 d/h3; echo k > keep/deep/k; echo s > suid; \
    echo r > readonly; echo t > 'new\nline'; mkfifo pipe; chmod 640 pipe; truncate -s 2M sparse; \
    chmod 2775 setgid; chmod 6755 suid; chmod 0444 readonly; chmod 1777 keep; : > closed/in; chmod 0555 closed; \
    touch -d '1969-07-20 20:17:40.000000001' d/a h1 d dangling pipe -h; chmod 2755 .";

/// What only root can give: owners, capabilities, foreign access lists.
const OWNERS: &str =
    "chown 33:44 d/a d/b; chown -h 5:6 dangling; chown 7:8 pipe; chmod 6755 suid; chown 1:2 .; chmod 2755 .";
const CAPABILITY: &[u8] = b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
/// rw for the owner and for uid 12, r for all others.
const ACL: &[u8] =
    b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\x0c\0\0\0\x04\0\x04\0\xff\xff\xff\xff\
    \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";

fn set(path: &Path, name: &str, value: &[u8]) {
    setxattr(path, name, value, XattrFlags::empty()).unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn make_source(source: &Path) {
    fs::create_dir(source).expect("mkdir");
    shell(source, TREE);
    set(&source.join("empty"), "user.k", b"v");
    set(&source.join("h1"), "system.posix_acl_access", ACL);
    if rustix::process::geteuid().is_root() {
        shell(source, OWNERS);
        set(&source.join("suid"), "security.capability", CAPABILITY);
    }
}

fn options(preserve_owners: bool) -> ImportOptions {
    ImportOptions { preserve_owners, ..ImportOptions::default() }
}

/// What a child tells.
fn write_pins(dir: &Path, pins: &[(&str, RootPin)]) {
    let pins: BTreeMap<_, _> = pins.iter().copied().collect();
    fs::write(dir.join("pins"), serde_json::to_string(&pins).expect("JSON")).expect("write");
}

fn read_pins(dir: &Path) -> BTreeMap<String, RootPin> {
    serde_json::from_str(&fs::read_to_string(dir.join("pins")).expect("read")).expect("pins")
}

fn check(stack: &LayerStack, pins: &[RootPin]) {
    for pin in pins {
        assert_eq!(stack.verify(pin, &()).expect("verify").damaged, [""; 0]);
    }
    assert_eq!(stack.fsck(&()).expect("fsck").damage, [""; 0]);
    assert_eq!(stack.empty_trash(), 0);
    support::check_ledger(stack, "at the end");
}

fn attempt(n: u8) -> AttemptId {
    AttemptId::from_bytes([n; 16])
}

/// Seals what `change` does to the upper of a new workspace over `base`.
fn seal(stack: &LayerStack, n: u8, base: &RootPin, change: impl FnOnce(&Workspace)) -> RootPin {
    let workspace = stack.open_workspace(base, attempt(n)).expect("open a workspace");
    assert_eq!(workspace.form, Form::of_this_process());
    change(&workspace);
    let prepared = stack.seal(&request(attempt(n), base), &()).expect("seal");
    let pin = *prepared.sealed().pin();
    stack.settle_seal(prepared, true).expect("settle");
    pin
}

/// Copies an entry of a lower up, with all that it carries there.
fn copy_up(workspace: &Workspace, path: &str) {
    let lower = workspace.lowers.iter().map(|lower| lower.join(path)).find(|lower| lower.exists());
    let (from, to) = (lower.expect("a lower has it"), workspace.upper.join(path));
    let found = fs::metadata(&from).expect("inspect");
    let made = if found.is_dir() { fs::create_dir(&to) } else { fs::copy(&from, &to).map(|_| ()) };
    made.expect("copy");
    fs::set_permissions(&to, fs::Permissions::from_mode(found.mode() & 0o777)).expect("chmod");
    let mut value = [0; 4096];
    for name in ["user.esf.attrs", "user.k"] {
        if let Ok(length) = rustix::fs::getxattr(&from, name, &mut value[..]) {
            set(&to, name, &value[..length]);
        }
    }
}

fn whiteout(workspace: &Workspace, path: &str) {
    mknodat(CWD, workspace.upper.join(path), FileType::CharacterDevice, Mode::empty(), 0).expect("whiteout");
}

/// What users do with a store of their own; leaves its roots behind.
fn life_of_a_user(dir: &Path) {
    let stack = LayerStack::create(&dir.join("store")).expect("create");
    let import = |preserve| {
        let imported = stack.import_directory(&dir.join("source"), &options(preserve), &()).expect("import");
        *imported.sealed.pin()
    };
    let (mapped, kept) = (import(false), import(true));
    assert_eq!(stack.usage().expect("usage").staging, stack.recount().expect("recount").staging);
    let first = seal(&stack, 1, &kept, |workspace| {
        for path in ["d", "d/a", "suid", "setgid"] {
            copy_up(workspace, path);
        }
        fs::write(workspace.upper.join("d/a"), "written").expect("write");
        fs::write(workspace.upper.join("setgid/new"), "n").expect("write");
        fs::set_permissions(workspace.upper.join("setgid/new"), fs::Permissions::from_mode(0o644))
            .expect("chmod");
        whiteout(workspace, "h2");
        // A directory anew where one was: nothing of the old one shows.
        fs::create_dir(workspace.upper.join("keep")).expect("mkdir");
        fs::set_permissions(workspace.upper.join("keep"), fs::Permissions::from_mode(0o755)).expect("chmod");
        set(&workspace.upper.join("keep"), "user.esf.opaque", b"y");
    });
    let second = seal(&stack, 2, &first, |workspace| {
        fs::create_dir(workspace.upper.join("more")).expect("mkdir");
        fs::set_permissions(workspace.upper.join("more"), fs::Permissions::from_mode(0o755)).expect("chmod");
        whiteout(workspace, "pipe");
        whiteout(workspace, "d");
    });
    let theirs = seal(&stack, 3, &first, |workspace| {
        fs::write(workspace.upper.join("theirs"), "theirs").expect("write");
        copy_up(workspace, "suid");
        fs::write(workspace.upper.join("suid"), "new").expect("write");
    });
    let mut writer = stack.objects().writer();
    let merge = merge3(stack.objects(), &mut writer, &first, &second, &theirs).expect("merge");
    writer.finish().expect("store");
    let merged = *stack.derive_root(&second, &merge, &theirs, &BTreeMap::new()).expect("derive").pin();
    check(&stack, &[mapped, kept, first, second, theirs, merged]);
    let before = dump(&stack, &merged);
    let usage = stack.usage().expect("usage");
    assert_eq!(stack.squash(&merged).expect("squash").layers_after, 1);
    assert!(stack.usage().expect("usage").hot - usage.hot < 20 * 4096, "a squash writes no payload");
    check(&stack, &[mapped, kept, first, second, theirs, merged]);
    assert_eq!(dump(&stack, &merged), before);
    let pins = [("mapped", mapped), ("kept", kept), ("first", first), ("second", second), ("merged", merged)];
    write_pins(dir, &pins);
    let lock = stack.lock_exclusive().expect("lock");
    let plan = stack.plan_gc(&lock, &pins.map(|(_, pin)| pin), &[], &[]).expect("plan");
    assert_eq!(plan.roots(), [theirs]);
    stack.run_gc(&lock, plan).expect("collect");
    drop(lock);
    check(&stack, &pins.map(|(_, pin)| pin));
}

/// Everything of a root comes back out as it was, as far as this user can have it.
fn export(dir: &Path) {
    let stack = LayerStack::open(&dir.join("store")).expect("open");
    let pins = read_pins(dir);
    let options = ExportOptions::default();
    stack.export_directory(&pins["mapped"], &dir.join("out"), &options, &()).expect("export");
    let mode =
        |path: &str| fs::symlink_metadata(dir.join("out").join(path)).expect("inspect").mode() & 0o7777;
    assert_eq!(
        ["suid", "readonly", "closed", "keep", "pipe"].map(mode),
        [0o755, 0o444, 0o555, 0o1777, 0o640],
        "privilege stays behind, all else is as it was"
    );
    assert_eq!(
        fs::metadata(dir.join("out/suid")).expect("inspect").uid(),
        rustix::process::geteuid().as_raw()
    );
    let file = stack.open_file(&pins["first"], b"d/a").expect("open");
    assert_eq!(std::io::read_to_string(file).expect("read"), "written");
    let gone = stack.open_file(&pins["first"], b"keep/deep/k").expect_err("hidden").problem();
    assert_eq!(gone.code, "path_not_found");
}

/// Marks that nobody of ours made are refused by name.
fn forge(dir: &Path) {
    let stack = LayerStack::create(&dir.join("forged")).expect("create");
    fs::create_dir_all(dir.join("plain/d")).expect("mkdir");
    for (path, name, value) in [("plain", "user.esf.attrs", b"x"), ("plain/d", "user.esf.opaque", b"y")] {
        set(&dir.join(path), name, value);
    }
    let imported = stack.import_directory(&dir.join("plain"), &options(false), &()).expect("import");
    assert_eq!(imported.skipped.len(), 2, "{:?}", imported.skipped);
    let base = *imported.sealed.pin();
    assert!(dump(&stack, &base).iter().all(|line| !line.contains("esf")));
    let marks: [(bool, &str, &[u8]); 5] = [
        (true, "user.esf.opaque", b"n"),
        (false, "user.esf.opaque", b"y"),
        (true, "user.esf.redirect", b"/secret"),
        (false, "user.esf.attrs", b"\xed\x01ESFQ\x01\x80"),
        (false, "user.esf.attrs", b"\xff\xff"),
    ];
    for (n, (directory, name, value)) in (10..).zip(marks) {
        let workspace = stack.open_workspace(&base, attempt(n)).expect("open");
        let path = workspace.upper.join("evil");
        if directory {
            fs::create_dir(&path).expect("mkdir")
        } else {
            fs::write(&path, "x").expect("write")
        }
        set(&path, name, value);
        let refused = stack.seal(&request(attempt(n), &base), &()).expect_err(name).problem();
        assert_eq!(refused.code, "forged_mark", "{name}");
        stack.discard_workspace(attempt(n)).expect("discard");
    }
    check(&stack, &[base]);
    // What its user may not read of somebody's directory is named; archives have no such file.
    fs::write(dir.join("plain/secret"), "x").expect("write");
    fs::set_permissions(dir.join("plain/secret"), fs::Permissions::from_mode(0o000)).expect("chmod");
    let refused = stack.import_directory(&dir.join("plain"), &options(false), &()).expect_err("unreadable");
    assert_eq!(refused.problem().code, "permission_denied");
    assert!(refused.to_string().contains("secret"), "{refused}");
}

/// What modes forbid to others, and to their own user, goes away all the same.
fn remove(dir: &Path) {
    let stack = LayerStack::create(&dir.join("modes")).expect("create");
    for (n, mode) in [0o000, 0o111, 0o222, 0o444, 0o555].into_iter().enumerate() {
        let scratch = stack.scratch().expect("scratch");
        // Deeper than directories are kept open.
        let nest = "for i in $(seq 120); do mkdir d; : > f; cd -P ./d; done";
        shell(scratch.path(), nest);
        let mut at = scratch.path().to_owned();
        let mut all = Vec::new();
        for _ in 0..120 {
            at.push("d");
            all.push(at.clone());
        }
        for path in all.iter().rev() {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        }
        drop(scratch);
        assert_eq!(stack.empty_trash(), 0, "mode {n}");
    }
    assert_eq!(fs::read_dir(dir.join("modes/trash")).expect("list").count(), 0);
}

/// A user is given root's store: its roots show the same, and work goes on.
fn take_over(dir: &Path) {
    let stack = LayerStack::open(&dir.join("store")).expect("open");
    for (n, pin) in (40..).zip(read_pins(dir).into_values()) {
        let before = dump(&stack, &pin);
        let next = seal(&stack, n, &pin, |workspace| {
            assert_eq!(workspace.lowers.len(), 1);
            whiteout(workspace, "h1");
            fs::write(workspace.upper.join("mine"), "m").expect("write");
        });
        assert_eq!(dump(&stack, &pin), before);
        check(&stack, &[pin, next]);
        let shows = |path: &str| dump(&stack, &next).iter().any(|line| line.starts_with(path));
        assert!(shows("/mine ") && !shows("/h1 ") && shows("/suid file 6755 "));
    }
}

/// The union over a workspace.
fn union(workspace: &Workspace) -> Union {
    let open = |path: &Path| fs::File::open(path).expect("open").into();
    let lowers = workspace.lowers.iter().map(|lower| open(lower)).collect();
    let (upper, work, form) = (open(&workspace.upper), open(&workspace.work), workspace.form);
    Union::new(Layers { lowers, upper, work, form }, None).expect("a union")
}

/// Work through the union instead of by hand, two generations of it.
fn union_of_a_user(dir: &Path) {
    let stack = LayerStack::open(&dir.join("store")).expect("open");
    let kept = read_pins(dir)["kept"];
    let write = |union: &Union, path: &[u8], bytes: &[u8]| {
        let how = Open { write: true, create: true, ..Open::default() };
        let Ok(Node::File(file)) = union.open(&union.root(), path, how) else { panic!("a file") };
        file.append(bytes).expect("write");
    };
    let one = seal(&stack, 60, &kept, |workspace| {
        let union = union(workspace);
        let top = union.root();
        write(&union, b"readonly", b"more");
        write(&union, b"setgid/new", b"n");
        union.rename(&top, b"d", &top, b"moved").expect("rename a directory");
        union.rename(&top, b"dangling", &top, b"moved/dangling").expect("rename a link");
        union.unlink(&top, b"h2").expect("unlink");
        union.unlink(&top, b"closed/in").expect("unlink");
        union.remove_directory(&top, b"closed").expect("rmdir");
        union.create_directory(&top, b"closed").expect("mkdir");
        union.symlink(b"moved", &top, b"link").expect("symlink");
        union.link(&top, b"empty", false, &top, b"moved/linked").expect("link");
    });
    let two = seal(&stack, 61, &one, |workspace| {
        let union = union(workspace);
        let top = union.root();
        union.rename(&top, b"moved", &top, b"closed").expect("rename over an empty directory");
        write(&union, b"closed/a", b"again");
    });
    check(&stack, &[one, two]);
    write_pins(dir, &[("kept", kept), ("one", one), ("two", two)]);
}

fn play(dir: &Path, role: &str) {
    match role {
        "live" => life_of_a_user(dir),
        "export" => export(dir),
        "forge" => forge(dir),
        "remove" => remove(dir),
        "take over" => take_over(dir),
        "union" => union_of_a_user(dir),
        "refused" => {
            let found = LayerStack::open(&dir.join("store")).expect_err("it is root's").problem();
            assert!(["store_insecure", "permission_denied"].contains(&found.code.as_str()), "{found}");
        }
        role => panic!("no such role: {role}"),
    }
}

/// Not a test by itself: an ordinary user's process.
#[test]
fn child() {
    if let Some((dir, role)) = child_role() {
        play(&dir, &role);
    }
}

/// A directory in which a user has lived.
fn lived() -> tempfile::TempDir {
    let dir = nobodys_dir();
    make_source(&dir.path().join("source"));
    assert!(as_nobody(dir.path(), "live").success());
    dir
}

#[test]
fn a_user_seals_squashes_merges_collects_and_exports() {
    let dir = lived();
    assert!(as_nobody(dir.path(), "export").success());
}

#[test]
fn marks_of_the_portable_form_cannot_be_forged() {
    let dir = nobodys_dir();
    assert!(as_nobody(dir.path(), "forge").success());
}

#[test]
fn restrictive_modes_do_not_keep_anything_in_the_trash() {
    let dir = nobodys_dir();
    assert!(as_nobody(dir.path(), "remove").success());
}

#[test]
fn root_and_anybody_make_the_same_roots() {
    if !privileged() {
        return;
    }
    let dir = lived();
    let store = Store::new();
    for (name, preserve) in [("mapped", false), ("kept", true)] {
        let imported = store.stack.import_directory(&dir.path().join("source"), &options(preserve), &());
        assert_eq!(*imported.expect("import").sealed.pin(), read_pins(dir.path())[name], "{name}");
    }
    // The same changes through an overlay.
    let (first, _) = store.run(
        &read_pins(dir.path())["kept"],
        "printf written > d/a; printf n > setgid/new; \
        chgrp 0 setgid/new; rm h2; rm -r keep; mkdir keep; chmod 00755 keep",
    );
    assert_eq!(first.root, read_pins(dir.path())["first"].root);
}

/// Hands the store of a user over to root.
fn hand_over(how: &str) -> (Store, BTreeMap<String, RootPin>, BTreeMap<String, Vec<String>>) {
    let dir = lived();
    shell(dir.path(), &format!("chown -R {how} store"));
    let pins = read_pins(dir.path());
    let store = Store::within(dir);
    let dumps = pins.iter().map(|(name, pin)| (name.clone(), store.dump(pin))).collect();
    (store, pins, dumps)
}

fn carriers(store: &Store) -> usize {
    fs::read_dir(store.stack.carriers_directory()).expect("list").count()
}

#[test]
fn a_store_that_is_handed_over_mounts_and_shows_the_same() {
    if !privileged() {
        return;
    }
    for how in ["root:root", "root"] {
        let (store, pins, dumps) = hand_over(how);
        assert!(as_nobody(store.dir.path(), "refused").success());
        for pin in pins.values() {
            assert_eq!(store.stack.verify(pin, &()).expect("verify").damaged, [""; 0], "before, as portable");
        }
        let before = store.stack.usage().expect("usage").hot;
        for (name, pin) in &pins {
            assert_eq!(store.view(pin), *pin, "{how}: {name} mounted");
            assert_eq!(store.dump(pin), dumps[name], "{how}: {name}");
            assert_eq!(store.stack.verify(pin, &()).expect("verify").damaged, [""; 0], "{how}: {name}");
        }
        store.check_accounts();
        if how == "root:root" {
            // What the disk can say as it is was linked.
            let grown = store.stack.usage().expect("usage").hot - before;
            assert!(grown < 60 * 4096, "{grown} bytes more");
        }
        assert_eq!(store.stack.fsck(&()).expect("fsck").damage, [""; 0]);
        // Nothing stands on the portable ones any more.
        let (all, live): (usize, Vec<RootPin>) = (carriers(&store), pins.values().copied().collect());
        let lock = store.stack.lock_exclusive().expect("lock");
        let plan = store.stack.plan_gc(&lock, &live, &[], &[]).expect("plan");
        assert_eq!(plan.carriers() as usize * 2, all, "{how}");
        store.stack.run_gc(&lock, plan).expect("collect");
        drop(lock);
        store.check_accounts();
        let (next, _) = store.run(&pins["merged"], "echo more >> suid; rm -rf setgid; mkdir setgid");
        assert_eq!(store.view(&next), next);
        assert_eq!(store.view(&pins["merged"]), pins["merged"]);
        store.stack.squash(&next).expect("squash");
        assert_eq!(store.view(&next), next);
        store.check_accounts();
    }
}

#[test]
fn what_a_union_makes_without_root_is_mounted_as_it_was() {
    let dir = lived();
    assert!(as_nobody(dir.path(), "union").success());
    if !privileged() {
        return;
    }
    let pins = read_pins(dir.path());
    shell(dir.path(), "chown -R root:root store");
    let store = Store::within(dir);
    let dumped = store.dump(&pins["two"]);
    let shows =
        |line: &str| assert!(dumped.iter().any(|found| found.starts_with(line)), "{line}: {dumped:#?}");
    shows("/closed directory 0755 ");
    shows("/closed/a file 0644 33 44 7 ");
    shows("/closed/b directory 0755 33 44 ");
    shows("/closed/linked file 0644 0 0 0 ");
    shows("/readonly file 0444 0 0 6 ");
    shows("/suid file 6755 ");
    // A link that moves has no place for its owner.
    shows("/closed/dangling symlink 0777 0 0 ");
    for (name, pin) in &pins {
        let before = store.dump(pin);
        assert_eq!(store.view(pin), *pin, "{name}");
        assert_eq!(store.dump(pin), before, "{name}");
    }
    let (next, _) = store.run(&pins["two"], "rm -r closed; mkdir closed; echo new > closed/new");
    assert_eq!(store.view(&next), next);
    store.check_accounts();
}

#[test]
fn a_user_who_is_given_roots_store_sees_the_same() {
    if !privileged() {
        return;
    }
    let dir = nobodys_dir();
    make_source(&dir.path().join("source"));
    let stack = LayerStack::create(&dir.path().join("store")).expect("create");
    let imported = stack.import_directory(&dir.path().join("source"), &options(true), &()).expect("import");
    let base = *imported.sealed.pin();
    drop((stack, imported));
    let store = Store::within(dir);
    // An opaque directory, whose mark only root can see, and a fifo with an access list.
    let (next, _) = store.run(&base, "rm -r keep; mkdir keep; echo new > keep/new; rm pipe; mkfifo pipe");
    let (last, _) = store.run_with(&next, |merged| {
        let pipe = merged.join("pipe");
        rustix::fs::setxattr(pipe, "system.posix_acl_access", ACL, XattrFlags::empty()).expect("list");
    });
    write_pins(store.dir.path(), &[("base", base), ("next", next), ("last", last)]);
    shell(store.dir.path(), &format!("chown -R {0}:{0} store pins", support::NOBODY));
    assert!(as_nobody(store.dir.path(), "take over").success());
}

#[test]
fn an_attempt_that_was_handed_over_keeps_its_form_and_can_be_sealed() {
    if !privileged() {
        return;
    }
    let dir = lived();
    let pins = read_pins(dir.path());
    shell(dir.path(), "chown -R root:root store");
    // As if a user's attempt had been under way: its row and its upper are portable.
    let database = rusqlite::Connection::open(dir.path().join("store/local.db")).expect("open");
    let id = attempt(77);
    let store = Store::within(dir);
    store.stack.open_workspace(&pins["kept"], id).expect("open");
    database.execute("UPDATE workspaces SET form = 'portable'", []).expect("update");
    let workspace = store.stack.open_workspace(&pins["kept"], id).expect("open again");
    assert_eq!(workspace.form, Form::Portable);
    let upper = workspace.upper.join("keep");
    fs::create_dir(&upper).expect("mkdir");
    fs::set_permissions(&upper, fs::Permissions::from_mode(0o755)).expect("chmod");
    set(&upper, "user.esf.opaque", b"y");
    let record = b"\xff\x0fESFQ\x01\x02\x03\x04";
    fs::write(workspace.upper.join("all"), "x").expect("write");
    set(&workspace.upper.join("all"), "user.esf.attrs", record);
    let prepared = store.seal(id, &pins["kept"]);
    let pin = *prepared.sealed().pin();
    store.stack.settle_seal(prepared, true).expect("settle");
    let dumped = store.dump(&pin);
    assert!(dumped.iter().any(|line| line.starts_with("/all file 7777 3 4 ")), "{dumped:#?}");
    assert!(!dumped.iter().any(|line| line.starts_with("/keep/deep")), "{dumped:#?}");
    assert_eq!(store.view(&pin), pin);
    assert_eq!(store.dump(&pin), dumped);
}
