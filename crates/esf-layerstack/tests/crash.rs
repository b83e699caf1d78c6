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
use esf_layerstack::{Error, ImportOptions, LayerStack, SealState};
use support::{SmallDisk, privileged, request};

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
const MOST: u32 = 4;

type Step = (&'static str, fn(&LayerStack, &Graph<'_>) -> Result<(), Error>);

/// The whole life of a store, in steps that each may be repeated.
const STEPS: [Step; 8] = [
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
        let sealed = stack.derive_root(ours, &merge, theirs)?;
        graph.commit("merge", sealed.pin());
        Ok(())
    }),
    ("squash", |stack, graph| {
        let pin = graph.roots()["many"];
        stack.squash(&pin)?;
        graph.commit("squash", &pin);
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
    if !LayerStack::exists(&store) {
        assert!(graph.roots().is_empty(), "{at}: acknowledged without a store");
        return;
    }
    let stack = LayerStack::open(&store).unwrap_or_else(|error| panic!("{at}: {error}"));
    settle_all(&stack, &graph).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert!(stack.unsettled_seals().expect("list").is_empty(), "{at}");
    assert_eq!(fs::read_dir(store.join("staging")).expect("list").count(), 0, "{at}: staging is left");
    for (name, pin) in graph.roots() {
        let report = stack.verify(&pin, &()).unwrap_or_else(|error| panic!("{at}: {name}: {error}"));
        assert_eq!(report.damaged, [""; 0], "{at}: {name}");
    }
    assert_eq!(stack.fsck(&()).expect("fsck").damage, [""; 0], "{at}");
    assert_eq!(stack.empty_trash(), 0, "{at}");
    assert_eq!(stack.usage().expect("usage"), stack.recount().expect("recount"), "{at}");
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
            assert_eq!(Graph(dir.path()).roots().len(), 9, "{at}");
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
        for (nth, errno) in [(1, 28), (2, 5), (3, 28)] {
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
        let disk = SmallDisk::new(&[]);
        let dir = disk.beside("");
        make_sources(&dir);
        assert!(!run_child(&dir, at).success(), "{at}");
        disk.cut_power();
        let checked = std::panic::catch_unwind(|| {
            forget_uppers(&dir);
            recover_and_check(&dir, at);
        });
        assert!(checked.is_err(), "{at}: nobody noticed");
    }
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
