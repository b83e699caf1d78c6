//! A whole store of a user without root: groups from directories and archives, work, merges, exports,
//! checks and collection; and that such imports make the roots that root's make.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use esf_core::manifest::RootPin;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::record::Node;
use esf_exchange::identity;
use esf_store::{
    Export, Format, ImportOptions, Merge, MergeOutcome, Source, Store, WorkerLock, verify_export,
};
use support::{Lab, meta, privileged, seal_request, shell};

const NOBODY: u32 = 65534;

/// An archive with what only root may have on disk: modes that shut everybody out, owners, privilege.
fn make_archive(dir: &Path) {
    let script = "mkdir -p source/etc source/shut/in; cd source; echo root > etc/passwd; echo s > etc/shadow; \
        echo x > su; ln -s etc/passwd link; mkfifo pipe; echo in > shut/in/f; ln su hard; : > sticky; \
        touch -d @1234567 link pipe etc -h; cd ..; \
        add() { tar --format=posix -C source -rf image.tar --no-recursion --numeric-owner \"$@\"; }; \
        add --mode=755 --owner=:0 --group=:0 . etc; add --mode=644 --owner=:0 --group=:0 etc/passwd; \
        add --mode=0 --owner=:0 --group=:42 etc/shadow; add --mode=4711 --owner=:0 --group=:0 su hard; \
        add --owner=:5 --group=:6 link; add --mode=620 --owner=:7 --group=:8 pipe; \
        add --mode=500 --owner=:33 --group=:33 shut; add --mode=0 --owner=:33 --group=:33 shut/in; \
        add --mode=644 --owner=:0 --group=:0 shut/in/f; add --mode=1000 --owner=:0 --group=:0 sticky; \
        chmod 644 image.tar";
    shell(dir, script);
}

fn import(lab: &Lab) -> RootPin {
    let source = Source::Tar(lab.path("image.tar"));
    lab.store.import_root(&lab.meta(), &source, &ImportOptions::default(), &()).unwrap().pin
}

/// Does `change` to the upper of a new attempt and seals it.
fn work(lab: &Lab, parent: &Node, change: impl FnOnce(&Path)) -> Node {
    let started = lab.start(parent.node_id);
    let attempt = started.attempt.attempt_id;
    let base = lab.base_of(&started);
    change(&lab.store.stack().open_workspace(&base, attempt).unwrap().upper);
    let command = BeginQuiesce { attempt, epoch: started.attempt.lease_epoch };
    lab.store.graph().begin_quiesce(&lab.meta(), command).unwrap();
    let prepared = lab.store.stack().seal(&seal_request(attempt, base), &()).unwrap();
    let node = lab.commit(&started, &prepared);
    lab.store.stack().settle_seal(prepared, true).unwrap();
    node
}

fn whiteout(path: &Path) {
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

/// What the user does; the archive's root is left in `pin`.
fn live(dir: &Path) {
    let lab = Lab::at(dir);
    let pin = import(&lab);
    fs::write(dir.join("pin"), serde_json::to_string(&pin).unwrap()).unwrap();
    fs::write(dir.join("dump"), lab.dump(&pin).join("\n")).unwrap();
    let request = esf_store::CreateGroup {
        name: "image".to_owned(),
        source: Source::Tar(lab.path("image.tar")),
        import: ImportOptions::default(),
        policy: Default::default(),
    };
    let start = lab.store.create_group(&lab.meta(), request, &()).unwrap().node;
    assert_eq!(start.root(), Some(pin));
    let ours = work(&lab, &start, |upper| fs::write(upper.join("ours"), "o").unwrap());
    let theirs = work(&lab, &start, |upper| {
        fs::write(upper.join("theirs"), "t").unwrap();
        whiteout(&upper.join("shut"));
    });
    let nodes = vec![ours.node_id, theirs.node_id];
    let merge = Merge { nodes, expect: 0, ..Merge::default() };
    let MergeOutcome::Merged { node: Some(merged), .. } = lab.store.merge(&lab.meta(), &merge).unwrap()
    else {
        panic!("it merges cleanly");
    };
    for (format, name) in [(Format::Tar, "out.tar"), (Format::Patch, "out.patch"), (Format::Dir, "out")] {
        let node = if format == Format::Dir { start.node_id } else { merged.node_id };
        let request = |to: &str| Export::new(node, format, &dir.join(to));
        lab.store.export(&lab.meta(), &request(name), &()).unwrap();
        // What a crash has left goes, whatever its modes.
        let left = dir.join(format!(".again-{name}.esf-partial/deep"));
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("f"), "x").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o000)).unwrap();
        lab.store.export(&lab.meta(), &request(&format!("again-{name}")), &()).unwrap();
    }
    verify_export(&dir.join("out.tar")).unwrap();
    let mode = |name: &str| fs::symlink_metadata(dir.join("out").join(name)).unwrap().mode() & 0o7777;
    assert_eq!(["su", "shut", "pipe", "sticky", "etc/shadow"].map(mode), [0o711, 0o500, 0o620, 0o1000, 0]);
    // The archive that leaves is what was sealed, with owners.
    let source = Source::Tar(dir.join("out.tar"));
    let back = lab.store.import_root(&lab.meta(), &source, &ImportOptions::default(), &()).unwrap().pin;
    let expected = identity::without_privilege(lab.store.stack().objects(), merged.root_id.unwrap()).unwrap();
    assert_eq!(back.root, expected);
    assert_eq!(lab.store.fsck(&()).unwrap().damage, [""; 0]);
    lab.store.prune(&lab.meta(), theirs.node_id, false).unwrap();
    lab.store.gc(&lab.meta(), false).unwrap();
    let lock = WorkerLock::try_acquire(lab.store.directory()).unwrap().unwrap();
    assert!(lab.store.recover(&lock, &lab.meta()).unwrap().is_empty());
    assert_eq!(lab.store.fsck(&()).unwrap().damage, [""; 0]);
    lab.store.stack().empty_trash();
    support::check_ledger(lab.store.stack(), "at the end");
}

/// Not a test by itself: an ordinary user's process.
#[test]
fn child() {
    if let Some(dir) = std::env::var_os("ESF_CHILD_DIR") {
        live(Path::new(&dir));
    }
}

fn lived() -> tempfile::TempDir {
    use std::os::unix::process::CommandExt;
    let dir = tempfile::Builder::new().prefix("esf-user-").tempdir().unwrap();
    make_archive(dir.path());
    // By this link no directory on the way to the binary must be open to that user.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "child", "--nocapture"]).env("ESF_CHILD_DIR", dir.path());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    assert!(command.stdout(std::process::Stdio::null()).status().unwrap().success());
    // So that the temporary directory can go.
    for name in ["out", "again-out"] {
        esf_layerstack::remove_tree(&dir.path().join(name)).unwrap();
    }
    dir
}

#[test]
fn a_user_without_root_has_a_whole_store() {
    drop(lived());
}

#[test]
fn an_archive_has_one_root_whoever_imports_it() {
    if !privileged() {
        return;
    }
    let dir = lived();
    let lab = Lab::new();
    fs::copy(dir.path().join("image.tar"), lab.path("image.tar")).unwrap();
    let pin = import(&lab);
    assert_eq!(lab.dump(&pin).join("\n"), fs::read_to_string(dir.path().join("dump")).unwrap());
    let theirs: RootPin = serde_json::from_str(&fs::read_to_string(dir.path().join("pin")).unwrap()).unwrap();
    assert_eq!(pin, theirs);
    assert!(lab.dump(&pin).iter().any(|line| line.starts_with("/etc/shadow file 0000 0 42 ")));
    // Handed over, it collects, checks and goes on as root's own.
    shell(dir.path(), "chown -R root:root store");
    let store = Store::open(&dir.path().join("store")).unwrap();
    assert_eq!(store.fsck(&()).unwrap().damage, [""; 0]);
    store.gc(&meta("collect"), false).unwrap();
    let workspace = store.stack().open_workspace(&pin, esf_core::AttemptId::from_bytes([9; 16])).unwrap();
    assert_eq!(workspace.form, esf_layerstack::Form::Native);
    let mounted = support::mount(&workspace, &dir.path().join("merged"));
    let shadow = fs::metadata(mounted.path.join("etc/shadow")).unwrap();
    assert_eq!((shadow.mode() & 0o7777, shadow.uid(), shadow.gid()), (0, 0, 42));
    let link = fs::symlink_metadata(mounted.path.join("link")).unwrap();
    assert_eq!((link.uid(), link.gid(), link.mtime()), (5, 6, 1_234_567));
    assert_eq!(fs::metadata(mounted.path.join("su")).unwrap().mode() & 0o7777, 0o4711);
}
