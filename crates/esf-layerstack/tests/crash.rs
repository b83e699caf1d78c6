//! A crash at every boundary, by SIGKILL and by panic, and a failure of each (S10). The list of
//! boundaries is generated from the code, and each must be reached by the scenario, at its first
//! occurrences. Afterwards recovery gives no trace or one complete result, every root that was
//! acknowledged verifies, the ledger agrees with the disk, and the same work can be done to its end.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use esf_core::AttemptId;
use esf_core::manifest::RootPin;
use esf_core::merge::merge3;
use esf_layerstack::disk::{self, BOUNDARIES};
use esf_layerstack::{Error, Form, ImportOptions, LayerStack, SealState};
use support::{NOBODY, SmallDisk, as_nobody, child_role, dump, privileged, request};

/// What has been acknowledged: stands for the graph. A line is written durably or not at all.
struct Graph<'a>(&'a Path);

impl Graph<'_> {
    fn roots(&self) -> BTreeMap<String, RootPin> {
        let text = fs::read_to_string(self.0.join("graph")).unwrap_or_default();
        let line = |line: &str| {
            let (name, pin) = line.split_once(' ').expect("name and pin");
            (name.to_owned(), serde_json::from_str(pin).expect("a pin"))
        };
        text.lines().map(line).collect()
    }

    fn commit(&self, name: &str, pin: &RootPin) {
        let mut file = File::options().append(true).create(true).open(self.0.join("graph")).expect("open");
        let line = format!("{name} {}\n", serde_json::to_string(pin).expect("JSON"));
        file.write_all(line.as_bytes()).expect("write");
        file.sync_all().expect("sync");
    }
}

fn attempt(n: u8) -> AttemptId {
    AttemptId::from_bytes([n; 16])
}

/// How many occurrences of each boundary are tried: each kind of carrier and of seal comes by then.
const MOST: u32 = 6;

type Step = (&'static str, fn(&LayerStack, &Graph<'_>) -> Result<(), Error>);

/// The whole life of a store, in steps that each may be repeated.
const STEPS: [Step; 9] = [
    ("import", |stack, graph| {
        let imported = stack.import_directory(&graph.0.join("source"), &ImportOptions::default(), &())?;
        graph.commit("import", imported.sealed.pin());
        Ok(())
    }),
    ("garbage", |stack, graph| {
        stack.import_directory(&graph.0.join("garbage"), &ImportOptions::default(), &())?;
        graph.commit("garbage-was-made", &graph.roots()["import"]);
        Ok(())
    }),
    ("few", |stack, graph| seal(stack, graph, "few", 1, "import", 3)),
    ("many", |stack, graph| seal(stack, graph, "many", 2, "few", 40)),
    ("unchanged", |stack, graph| seal(stack, graph, "unchanged", 3, "many", 0)),
    ("merge", |stack, graph| {
        seal(stack, graph, "side", 4, "import", 5)?;
        let roots = graph.roots();
        let (base, ours, theirs) = (&roots["import"], &roots["few"], &roots["side"]);
        let mut writer = stack.objects().writer();
        let merge = merge3(stack.objects(), &mut writer, base, ours, theirs)?;
        writer.finish()?;
        let sealed = stack.derive_root(ours, &merge, theirs, &BTreeMap::new())?;
        graph.commit("merge", sealed.pin());
        Ok(())
    }),
    ("squash", |stack, graph| {
        let pin = graph.roots()["many"];
        stack.squash(&pin)?;
        graph.commit("squash", &pin);
        Ok(())
    }),
    ("convert", |_, graph| {
        // What a user made of portable carriers, and was then given to root.
        let stack = LayerStack::open(&handed(graph.0))?;
        for (n, pin) in (20..).zip(handed_pins(graph.0)) {
            let workspace = stack.open_workspace(&pin, attempt(n))?;
            assert_eq!(workspace.form, Form::Native);
            stack.discard_workspace(attempt(n))?;
        }
        graph.commit("convert", &graph.roots()["import"]);
        Ok(())
    }),
    ("collect", |stack, graph| {
        let workspace = stack.open_workspace(&graph.roots()["many"], attempt(9))?;
        fs::write(workspace.upper.join("unwanted"), "x").expect("write");
        stack.discard_workspace(attempt(9))?;
        let live: Vec<RootPin> = graph.roots().into_values().collect();
        let lock = stack.lock_exclusive()?;
        let plan = stack.plan_gc(&lock, &live, &[], &[])?;
        stack.run_gc(&lock, plan)?;
        graph.commit("collect", &graph.roots()["many"]);
        Ok(())
    }),
];

fn seal(
    stack: &LayerStack,
    graph: &Graph<'_>,
    name: &str,
    n: u8,
    base: &str,
    files: usize,
) -> Result<(), Error> {
    settle_all(stack, graph)?;
    let roots = graph.roots();
    if roots.contains_key(name) {
        return Ok(());
    }
    let base = roots[base];
    let workspace = stack.open_workspace(&base, attempt(n))?;
    for file in 0..files {
        let path = workspace.upper.join(format!("{name}-{file}"));
        fs::write(path, format!("{name} {file}")).expect("write");
    }
    if files > 0 {
        let socket = workspace.upper.join("socket");
        let _absent = fs::remove_file(&socket);
        drop(std::os::unix::net::UnixListener::bind(socket).expect("bind"));
    }
    let prepared = stack.seal(&request(attempt(n), &base), &())?;
    assert_eq!(prepared.changes().skipped.len(), usize::from(files > 0), "{name}");
    graph.commit(name, prepared.sealed().pin());
    stack.settle_seal(prepared, true)
}

/// What a worker's recovery does: the graph's word decides.
fn settle_all(stack: &LayerStack, graph: &Graph<'_>) -> Result<(), Error> {
    for unsettled in stack.unsettled_seals()? {
        let pin = unsettled.sealed.as_ref().map(|sealed| *sealed.pin());
        if let Some(pin) = pin {
            assert_eq!(unsettled.state, SealState::Prepared);
            let report = stack.verify(&pin, &())?;
            assert_eq!(report.damaged, [""; 0], "a prepared root is whole");
        }
        let committed = graph.roots().values().any(|root| Some(*root) == pin);
        stack.settle_unsettled(unsettled.txn, committed)?;
    }
    Ok(())
}

/// Where the store is: on a disk of its own for power cuts.
fn store(dir: &Path) -> PathBuf {
    let disk = dir.join("mnt");
    if disk.exists() { disk.join("store") } else { dir.join("store") }
}

/// The store that a user made and root was given.
fn handed(dir: &Path) -> PathBuf {
    store(dir).with_file_name("handed")
}

fn handed_pins(dir: &Path) -> Vec<RootPin> {
    serde_json::from_str(&fs::read_to_string(dir.join("user/pins")).expect("read")).expect("pins")
}

fn handed_dumps(stack: &LayerStack, pins: &[RootPin]) -> Vec<Vec<String>> {
    pins.iter().map(|pin| dump(stack, pin)).collect()
}

/// Makes that store, by a process of an ordinary user.
fn hand_over(dir: &Path) {
    let (user, handed) = (dir.join("user"), handed(dir));
    support::shell(dir, "chmod 711 .");
    for made in [&user, &handed] {
        fs::create_dir(made).expect("mkdir");
        std::os::unix::fs::chown(made, Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    assert!(as_nobody(dir, "hand over").success());
    support::shell(dir, &format!("chown -R root:root '{0}'; sync -f '{0}'", handed.display()));
}

/// The user's part: a base with what the disk cannot say, and a node on top.
fn live_as_user(dir: &Path) {
    let stack = LayerStack::create(&handed(dir)).expect("create");
    let options = ImportOptions { preserve_owners: true, ..ImportOptions::default() };
    let base = stack.import_directory(&dir.join("source"), &options, &()).expect("import");
    let base = *base.sealed.pin();
    let workspace = stack.open_workspace(&base, attempt(1)).expect("open");
    assert_eq!(workspace.form, Form::Portable);
    fs::write(workspace.upper.join("suid"), "x").expect("write");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(workspace.upper.join("suid"), "user.esf.attrs", b"\xed\x09ESFQ\x01\0", flags)
        .expect("record");
    fs::create_dir(workspace.upper.join("a")).expect("mkdir");
    rustix::fs::setxattr(workspace.upper.join("a"), "user.esf.opaque", b"y", flags).expect("mark");
    let prepared = stack.seal(&request(attempt(1), &base), &()).expect("seal");
    let pins = [base, *prepared.sealed().pin()];
    stack.settle_seal(prepared, true).expect("settle");
    let dumps = serde_json::to_string(&handed_dumps(&stack, &pins)).expect("JSON");
    fs::write(dir.join("user/pins"), serde_json::to_string(&pins).expect("JSON")).expect("write");
    fs::write(dir.join("user/dumps"), dumps).expect("write");
}

/// A store that was handed over shows the same whatever happened; no root of it stands on both forms.
fn check_handed(dir: &Path, at: &str) {
    let stack = LayerStack::open(&handed(dir)).unwrap_or_else(|error| panic!("{at}: {error}"));
    let pins = handed_pins(dir);
    let dumps: Vec<Vec<String>> =
        serde_json::from_str(&fs::read_to_string(dir.join("user/dumps")).expect("read")).expect("dumps");
    assert_eq!(handed_dumps(&stack, &pins), dumps, "{at}");
    let database = rusqlite::Connection::open(handed(dir).join("local.db")).expect("open");
    let mixed = "SELECT count(*) FROM (SELECT 1 FROM projections JOIN carriers USING (carrier)
                 GROUP BY root_id, attrs_id HAVING count(DISTINCT form) > 1)";
    let mixed: i64 = database.query_row(mixed, [], |row| row.get(0)).expect("count");
    assert_eq!(mixed, 0, "{at}: a root stands on carriers of both forms");
    check_whole(&stack, &handed(dir), &pins, at);
}

/// Runs what is left of the scenario; a step that fails is repeated once, as a user would.
fn run(dir: &Path) {
    let graph = Graph(dir);
    let store = store(dir);
    let open = || {
        if LayerStack::exists(&store) { LayerStack::open(&store) } else { LayerStack::create(&store) }
    };
    let stack = open().or_else(|_| open()).expect("open at the second try");
    for (name, step) in STEPS {
        if let Err(first) = step(&stack, &graph) {
            eprintln!("{name} failed, again: {first}");
            step(&stack, &graph).unwrap_or_else(|error| panic!("{name} failed twice: {error}"));
        }
    }
}

/// Not a test by itself: the process that is to crash.
#[test]
fn child() {
    if let Some((dir, _)) = child_role() {
        return live_as_user(&dir);
    }
    let Ok(dir) = std::env::var("ESF_CRASH_DIR") else { return };
    disk::arm(&std::env::var("ESF_CRASH_AT").expect("set together")).expect("arm");
    run(Path::new(&dir));
}

fn run_child(dir: &Path, at: &str) -> ExitStatus {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child", "--nocapture"])
        .env("ESF_CRASH_DIR", dir)
        .env("ESF_CRASH_AT", at)
        .stdout(std::process::Stdio::null())
        .stderr(File::create(dir.join("stderr")).expect("create"))
        .status()
        .expect("run the child")
}

fn prepare() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("esf-crash-").tempdir().expect("temporary directory");
    make_sources(dir.path());
    hand_over(dir.path());
    dir
}

fn make_sources(dir: &Path) {
    support::shell(
        dir,
        "mkdir source garbage; cd source; mkdir -p a/b; echo 1 > a/1; ln a/1 a/2; echo 3 > a/b/3; ln -s x l; \
         cd ../garbage; echo unwanted > unwanted",
    );
}

/// Opens the store as the next command would, and looks at everything.
fn recover_and_check(dir: &Path, at: &str) {
    let store = store(dir);
    let graph = Graph(dir);
    check_handed(dir, at);
    if !LayerStack::exists(&store) {
        assert!(graph.roots().is_empty(), "{at}: acknowledged without a store");
        return;
    }
    let stack = LayerStack::open(&store).unwrap_or_else(|error| panic!("{at}: {error}"));
    settle_all(&stack, &graph).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert!(stack.unsettled_seals().expect("list").is_empty(), "{at}");
    let pins: Vec<RootPin> = graph.roots().into_values().collect();
    check_whole(&stack, &store, &pins, at);
}

fn check_whole(stack: &LayerStack, store: &Path, pins: &[RootPin], at: &str) {
    assert_eq!(fs::read_dir(store.join("staging")).expect("list").count(), 0, "{at}: staging is left");
    for pin in pins {
        let report = stack.verify(pin, &()).unwrap_or_else(|error| panic!("{at}: {}: {error}", pin.root));
        assert_eq!(report.damaged, [""; 0], "{at}: {}", pin.root);
    }
    assert_eq!(stack.fsck(&()).expect("fsck").damage, [""; 0], "{at}");
    assert_eq!(stack.empty_trash(), 0, "{at}");
    support::check_ledger(stack, at);
}

/// Crashes at the first `most` occurrences of every boundary; `action` writes the failpoint's action
/// for the n-th.
fn crash_everywhere(most: u32, action: impl Fn(u32) -> String, crashed: impl Fn(ExitStatus) -> bool) {
    if !privileged() {
        return;
    }
    let mut points = 0;
    for boundary in BOUNDARIES {
        for nth in 1..=most {
            let dir = prepare();
            let at = format!("{boundary}={}", action(nth));
            let status = run_child(dir.path(), &at);
            if status.success() {
                assert!(nth > 1, "{boundary} is never reached");
                break;
            }
            let stderr = fs::read_to_string(dir.path().join("stderr")).expect("read");
            assert!(crashed(status), "{at}: {status}\n{stderr}");
            points += 1;
            recover_and_check(dir.path(), &at);
            run(dir.path());
            recover_and_check(dir.path(), &at);
            assert_eq!(Graph(dir.path()).roots().len(), 10, "{at}");
        }
    }
    eprintln!("{points} crashes at {} boundaries", BOUNDARIES.len());
}

#[test]
fn kill_at_every_boundary() {
    crash_everywhere(MOST, |nth| format!("kill@{nth}"), |status| status.signal() == Some(9));
}

#[test]
fn panic_at_every_boundary() {
    let panicked = |status: ExitStatus| status.code() == Some(101);
    crash_everywhere(1, |nth| format!("{}*off->1*panic->off", nth - 1), panicked);
}

/// A full or a failing disk at every boundary: the step fails or does without, and works when it is
/// repeated.
#[test]
fn a_failure_at_every_boundary_is_survived() {
    if !privileged() {
        return;
    }
    for boundary in BOUNDARIES {
        for (nth, errno) in [(1, 28), (2, 5), (3, 28), (5, 28)] {
            let dir = prepare();
            let at = format!("{boundary}={}*off->1*return({errno})->off", nth - 1);
            let status = run_child(dir.path(), &at);
            let stderr = fs::read_to_string(dir.path().join("stderr")).expect("read");
            assert!(status.success(), "{at}: {status}\n{stderr}");
            recover_and_check(dir.path(), &at);
        }
    }
}

/// The power goes at every boundary: what was acknowledged is there, whole.
#[test]
fn power_cut_at_every_boundary() {
    if !privileged() {
        return;
    }
    for boundary in BOUNDARIES {
        for nth in 1..=MOST {
            let disk = SmallDisk::new(&[]);
            let dir = disk.beside("");
            make_sources(&dir);
            hand_over(&dir);
            let at = format!("{boundary}=kill@{nth}");
            let status = run_child(&dir, &at);
            if status.success() {
                break;
            }
            disk.cut_power();
            // Uppers are volatile: after a restart no worker trusts them.
            forget_uppers(&dir);
            recover_and_check(&dir, &at);
            run(&dir);
            recover_and_check(&dir, &at);
        }
    }
}

/// Shows that a power cut is noticed: without any one of these syncs, something acknowledged is lost.
#[test]
fn power_cut_finds_a_boundary_without_its_sync() {
    if !privileged() {
        return;
    }
    let cases = [
        "carrier-sync=skip;seal-intent=kill",
        "seal-sync=skip;seal-cleanup=kill@1",
        "seal-sync=skip;seal-cleanup=kill@2",
        "pack-sync=skip;seal-cleanup=kill@1",
    ];
    for at in cases {
        // Somebody else's sync(2) reaches this disk as well, and the kernel writes by itself after some
        // seconds: what was saved by that luck is tried again.
        assert!((0..5).any(|_| is_noticed(at)), "{at}: nobody noticed");
    }
}

fn is_noticed(at: &str) -> bool {
    let disk = SmallDisk::new(&[]);
    let dir = disk.beside("");
    make_sources(&dir);
    hand_over(&dir);
    assert!(!run_child(&dir, at).success(), "{at}");
    disk.cut_power();
    let checked = std::panic::catch_unwind(|| {
        forget_uppers(&dir);
        recover_and_check(&dir, at);
    });
    checked.is_err()
}

fn forget_uppers(dir: &Path) {
    if !LayerStack::exists(&store(dir)) {
        return;
    }
    let stack = LayerStack::open(&store(dir)).expect("open");
    settle_all(&stack, &Graph(dir)).expect("settle");
    for attempt in stack.workspaces().expect("list") {
        stack.discard_workspace(attempt).expect("discard");
    }
}
