//! The contract of executors, as a suite that is run against every implementation: the fake of this
//! crate's tests and the Linux executor. It speaks to `Executor` alone, below any worker.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use esf_core::AttemptId;
use esf_core::environment::{Environment, Limits, Network};
use esf_layerstack::{ImportOptions, LayerStack, Workspace};
use esf_worker::executor::{
    Activation, ExecSpec, Executor, ExecutorError, Exit, Extra, Running, Sandbox, SpawnError, Stdio,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A case by name.
pub(crate) type Case = (&'static str, fn(&dyn Executor, &Ground));

/// Every case.
pub(crate) const CASES: &[Case] = &[
    ("commands_end_as_they_end", commands_end_as_they_end),
    ("what_cannot_start_is_typed", what_cannot_start_is_typed),
    ("killing_one_leaves_the_other", killing_one_leaves_the_other),
    ("writes_are_in_the_upper_after_quiesce", writes_are_in_the_upper_after_quiesce),
    ("a_held_file_makes_it_busy", a_held_file_makes_it_busy),
    ("release_ends_all_and_is_no_death_before", release_ends_all),
    ("unsupported_work_is_refused_before_it_starts", unsupported_work_is_refused),
    ("recovery_with_nothing_to_do_does_nothing", recovery_does_nothing),
];

/// A stack with one tree: a file `a` that says `one`.
pub(crate) struct Ground {
    stack: LayerStack,
    base: esf_core::manifest::RootPin,
    _directory: tempfile::TempDir,
}

impl Ground {
    /// Makes it.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("tempdir");
        let source = directory.path().join("source");
        std::fs::create_dir(&source).expect("mkdir");
        std::fs::write(source.join("a"), "one\n").expect("writes");
        let stack = LayerStack::create(&directory.path().join("store")).expect("a store");
        let imported = stack.import_directory(&source, &ImportOptions::default(), &()).expect("imports");
        Self { base: *imported.sealed.pin(), stack, _directory: directory }
    }

    /// The store's directory, for executors that need to know it.
    #[allow(dead_code)]
    pub(crate) fn store(&self) -> &Path {
        self.stack.directory()
    }

    fn live(&self, executor: &dyn Executor, number: u8) -> (Workspace, Box<dyn Sandbox>) {
        let attempt = AttemptId::from_bytes([number; 16]);
        let workspace = self.stack.open_workspace(&self.base, attempt).expect("a workspace");
        let activation = Activation {
            attempt,
            workspace: &workspace,
            environment: &Environment::default(),
            extra: &Extra::default(),
        };
        let sandbox = executor.activate(activation).unwrap_or_else(|error| panic!("{error}"));
        (workspace, sandbox)
    }
}

struct Started {
    running: Box<dyn Running>,
    out: File,
}

fn start(sandbox: &dyn Sandbox, argv: &[&str]) -> Result<Started, SpawnError> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
    let ((out, stdout), (_err, stderr)) = (pipe(), pipe());
    let stdin: OwnedFd = File::open("/dev/null").expect("opens").into();
    let spec = ExecSpec { argv: argv.iter().map(OsString::from).collect(), ..ExecSpec::default() };
    let running = sandbox.exec(&spec, Stdio { stdin, stdout, stderr })?;
    Ok(Started { running, out: out.into() })
}

fn ready(fd: impl AsFd, patience: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).expect("polls") > 0
}

fn run(sandbox: &dyn Sandbox, script: &str) -> (Exit, String) {
    let mut started = start(sandbox, &["sh", "-c", script]).unwrap_or_else(|error| panic!("{error}"));
    let mut text = String::new();
    started.out.read_to_string(&mut text).expect("reads");
    assert!(ready(started.running.exited(), Duration::from_secs(10)));
    (started.running.wait().expect("a status"), text)
}

fn commands_end_as_they_end(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor, 1);
    assert_eq!(run(&*sandbox, "echo hello; exit 7"), (Exit::Code(7), "hello\n".to_owned()));
    assert_eq!(run(&*sandbox, "kill -KILL $$"), (Exit::Signal(9), String::new()));
    let slow = start(&*sandbox, &["sleep", "60"]).unwrap_or_else(|error| panic!("{error}"));
    assert!(!ready(slow.running.exited(), Duration::from_millis(50)), "it runs");
    slow.running.signal(15).expect("signals");
    assert!(ready(slow.running.exited(), Duration::from_secs(10)));
    assert_eq!(slow.running.wait().expect("a status"), Exit::Signal(15));
    assert_eq!(slow.running.wait().expect("the same again"), Exit::Signal(15));
    assert!(sandbox.stats().is_ok());
    sandbox.release().expect("releases");
}

fn what_cannot_start_is_typed(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor, 1);
    let code = |argv: &[&str]| start(&*sandbox, argv).map(drop).expect_err("does not start").exit_code();
    assert_eq!(code(&["no-such-program"]), Some(127));
    let spec = ExecSpec { argv: vec!["true".into()], cwd: Some("/nowhere".into()), ..ExecSpec::default() };
    let null = || OwnedFd::from(File::open("/dev/null").expect("opens"));
    let (_out, stdout) = rustix::pipe::pipe().expect("pipe");
    let (_err, stderr) = rustix::pipe::pipe().expect("pipe");
    let refused = sandbox.exec(&spec, Stdio { stdin: null(), stdout, stderr });
    assert!(matches!(refused.map(drop), Err(SpawnError::BadCwd(_))));
    sandbox.release().expect("releases");
}

fn killing_one_leaves_the_other(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor, 1);
    let [one, two] =
        [(); 2].map(|()| start(&*sandbox, &["sleep", "60"]).unwrap_or_else(|error| panic!("{error}")));
    one.running.kill_tree().expect("kills");
    assert!(ready(one.running.exited(), Duration::from_secs(10)));
    assert!(!ready(two.running.exited(), Duration::from_millis(100)), "untouched");
    sandbox.release().expect("releases");
    assert!(ready(two.running.exited(), Duration::from_secs(10)), "dead with its sandbox");
}

fn writes_are_in_the_upper_after_quiesce(executor: &dyn Executor, ground: &Ground) {
    let (workspace, sandbox) = ground.live(executor, 1);
    let script =
        "echo new > b; (while :; do echo x >> busy; done) >/dev/null 2>&1 & until [ -s busy ]; do :; done";
    run(&*sandbox, script);
    sandbox.quiesce().expect("comes to rest");
    assert!(!executor.in_use(&workspace).expect("probes"));
    assert_eq!(std::fs::read_to_string(workspace.upper.join("b")).expect("reads"), "new\n");
    let size = || std::fs::metadata(workspace.upper.join("busy")).expect("there").len();
    let before = size();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(size(), before, "nobody writes any more");
}

fn a_held_file_makes_it_busy(executor: &dyn Executor, ground: &Ground) {
    let (workspace, sandbox) = ground.live(executor, 1);
    run(&*sandbox, "echo new > b");
    let held = sandbox.files().open(Path::new("/workspace/b")).expect("opens");
    assert!(sandbox.quiesce().is_err(), "somebody still holds it");
    drop(held);
    let start = Instant::now();
    while executor.in_use(&workspace).expect("probes") {
        assert!(start.elapsed() < Duration::from_secs(10), "it stays in use");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn release_ends_all(executor: &dyn Executor, ground: &Ground) {
    let (workspace, sandbox) = ground.live(executor, 1);
    let slow = start(&*sandbox, &["sleep", "60"]).unwrap_or_else(|error| panic!("{error}"));
    assert!(!ready(sandbox.died(), Duration::from_millis(20)), "it lives");
    sandbox.release().expect("releases");
    assert!(ready(slow.running.exited(), Duration::from_secs(10)));
    assert!(workspace.upper.is_dir(), "the upper is the caller's");
}

fn unsupported_work_is_refused(executor: &dyn Executor, _: &Ground) {
    let plain = Environment::default;
    assert!(executor.check(&plain(), &Extra::default()).is_ok());
    let refused = [
        Environment { network: Network::Host, ..plain() },
        Environment { limits: Limits { disk: Some(1), ..Limits::default() }, ..plain() },
        Environment { secrets_policy: "all".to_owned(), ..plain() },
    ];
    for environment in refused {
        let found = executor.check(&environment, &Extra::default());
        assert!(matches!(found, Err(ExecutorError::Unsupported { .. })), "{environment:?}");
    }
}

fn recovery_does_nothing(executor: &dyn Executor, _: &Ground) {
    executor.recover().expect("recovers");
    assert_eq!(executor.recover().expect("recovers"), Vec::<String>::new());
}
