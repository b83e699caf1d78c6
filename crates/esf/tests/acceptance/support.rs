//! A store of its own for each test, driven through the binary, and the guard that stops its worker
//! and asserts that nothing of it stays: process, mount or file.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long the machine may take for what is done in the background.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Ends the test early, and says why, where sandboxes cannot run.
#[macro_export]
macro_rules! needs_root {
    () => {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: sandboxes need root");
            return;
        }
    };
}

/// A store in a short temporary directory.
pub(crate) struct Lab {
    directory: tempfile::TempDir,
    store: PathBuf,
    variables: Vec<(String, String)>,
}

/// What a failed command said: its exit code and the `error` object.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) exit: i32,
    pub(crate) error: Value,
}

impl Refusal {
    pub(crate) fn code(&self) -> &str {
        self.error["code"].as_str().unwrap_or_default()
    }

    /// Everything that was said, for searching.
    pub(crate) fn text(&self) -> String {
        self.error.to_string()
    }
}

impl Lab {
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("a").tempdir().unwrap();
        let store = directory.path().join("s");
        Self { directory, store, variables: Vec::new() }
    }

    /// A lab whose store lies elsewhere, on a small filesystem say.
    pub(crate) fn with_store(store: PathBuf) -> Self {
        let mut lab = Self::new();
        lab.store = store;
        lab
    }

    /// Adds a variable to the environment of every later command.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn unset(&mut self, name: &str) {
        self.variables.retain(|(known, _)| known != name);
    }

    /// A path beside the store.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// A new directory beside the store, filled by a shell script that runs in it.
    pub(crate) fn tree(&self, name: &str, script: &str) -> PathBuf {
        let tree = self.path(name);
        fs::create_dir(&tree).unwrap();
        sh_in(&tree, script);
        tree
    }

    /// `esf --store STORE ARGS`, not yet run.
    pub(crate) fn esf<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_esf"));
        command.arg("--store").arg(&self.store).args(args).stdin(Stdio::null());
        command.env_remove("ESF_STORE").env_remove("ESF_API_URL");
        command.envs(self.variables.iter().cloned());
        command
    }

    pub(crate) fn output<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Output {
        self.esf(args).output().unwrap()
    }

    /// Runs with `-o json`, asserts success, gives what was printed.
    #[track_caller]
    pub(crate) fn json<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Value {
        let args: Vec<_> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let output = self.esf(["-o", "json"]).args(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
        parsed(&output)
    }

    /// Runs with `-o json`, asserts that it is refused, gives the error.
    #[track_caller]
    pub(crate) fn refused<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Refusal {
        let args: Vec<_> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let output = self.esf(["-o", "json"]).args(&args).output().unwrap();
        refusal(&output).unwrap_or_else(|why| panic!("{args:?}: {why}: {}", said(&output)))
    }

    /// Runs, asserts success, gives standard output.
    #[track_caller]
    pub(crate) fn text<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Imports `source` as group `name`; gives the canonical node.
    #[track_caller]
    pub(crate) fn group(&self, name: &str, source: &Path) -> String {
        let made = self.json([
            OsStr::new("group"),
            "create".as_ref(),
            name.as_ref(),
            "--from".as_ref(),
            source.as_ref(),
        ]);
        id(&made["group"], "canonical_node_id")
    }

    #[track_caller]
    pub(crate) fn fork(&self, node: &str) -> String {
        id(&self.json(["fork", node])["nodes"][0], "node_id")
    }

    #[track_caller]
    pub(crate) fn activate(&self, node: &str) -> String {
        self.activate_with(node, &[])
    }

    #[track_caller]
    pub(crate) fn activate_with(&self, node: &str, options: &[&str]) -> String {
        id(&self.json(["activate", node].iter().chain(options))["attempt"], "attempt_id")
    }

    /// `sh -c SCRIPT` in the attempt; asserts exit 0 and gives what it printed.
    #[track_caller]
    pub(crate) fn sh(&self, attempt: &str, script: &str) -> String {
        self.text(["exec", attempt, "--", "sh", "-c", script])
    }

    /// Sends ten megabytes to a command that copies its input, and asserts that all of them come back.
    #[track_caller]
    pub(crate) fn ten_megabytes_come_back(&self, attempt: &str, copy: &[&str]) {
        let sent: Vec<u8> = (0..10u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut command = self.esf(["exec", attempt, "-i", "--"].iter().chain(copy));
        command.stdin(Stdio::piped());
        let mut cat = Running::start(command);
        let mut stdin = cat.stdin();
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                stdin.write_all(&sent).unwrap();
                drop(stdin);
            });
            cat.wait()
        });
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == sent, "{} bytes came back", output.stdout.len());
    }

    #[track_caller]
    pub(crate) fn suspend(&self, attempt: &str) -> String {
        id(&self.json(["suspend", attempt])["node"], "node_id")
    }

    /// Fork, activate, `sh -c SCRIPT`, suspend; gives the sealed node.
    #[track_caller]
    pub(crate) fn step(&self, node: &str, script: &str) -> String {
        let attempt = self.activate(node);
        self.sh(&attempt, script);
        self.suspend(&attempt)
    }

    #[track_caller]
    pub(crate) fn release(&self, attempt: &str) {
        self.json(["release", attempt, "--discard"]);
    }

    /// The record of anything by its id.
    #[track_caller]
    pub(crate) fn inspect(&self, id: &str) -> Value {
        self.json(["inspect", id])
    }

    /// The root id of a node.
    #[track_caller]
    pub(crate) fn root_of(&self, node: &str) -> String {
        id(&self.inspect(node)["node"], "root_id")
    }

    pub(crate) fn dump(&self, node: &str) -> String {
        self.text(["dump", node])
    }

    /// A file of a sealed node.
    #[track_caller]
    pub(crate) fn cat(&self, node: &str, path: &str) -> Vec<u8> {
        let output = self.output(["cat", &format!("{node}:{path}")]);
        assert_eq!(output.status.code(), Some(0), "{path}: {}", said(&output));
        output.stdout
    }

    /// Events so far; none before there is a store.
    #[track_caller]
    pub(crate) fn events(&self) -> usize {
        if !self.store.exists() {
            return 0;
        }
        self.text(["-o", "jsonl", "events"]).lines().count()
    }

    /// Every process that carries the store's path: worker, zygote and its sandboxes.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let store = self.store.to_string_lossy().into_owned();
        processes().into_iter().filter(|process| process.arguments.contains(&store)).collect()
    }

    /// The resident worker, if one runs.
    pub(crate) fn worker(&self) -> Option<u32> {
        let is_worker = |process: &Process| {
            let words: Vec<&str> = process.arguments.split('\0').collect();
            words.contains(&"worker") && !words[0].contains("zygote")
        };
        self.processes().into_iter().find(is_worker).map(|process| process.pid)
    }

    /// Kills the worker as a crash would, and waits until all that it held is gone.
    #[track_caller]
    pub(crate) fn kill_worker(&self) {
        let worker = self.worker().expect("a worker runs");
        kill(worker);
        wait_until("the worker and its sandboxes are gone", || self.processes().is_empty());
    }

    /// Stops the worker in good order.
    pub(crate) fn stop_worker(&self) {
        if self.worker().is_some() {
            self.output(["worker", "stop", "--force"]);
            wait_until("the worker is gone", || self.processes().is_empty());
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.worker().is_some() {
            self.output(["worker", "stop", "--force"]);
        }
        let gone = holds_within(PATIENCE, || self.processes().is_empty());
        for process in self.processes() {
            kill(process.pid);
        }
        if std::thread::panicking() {
            return;
        }
        assert!(gone, "processes were left: {:?}", self.processes());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = self.directory.path().to_string_lossy().into_owned();
        // A test's own small filesystem is unmounted by its own guard, which is dropped later.
        let left = mounts.lines().filter(|line| line.contains(&ours) && line.contains(" - overlay "));
        assert_eq!(left.count(), 0, "mounts were left");
    }
}

/// A process of the machine, as `/proc` shows it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Arguments separated by NUL.
    pub(crate) arguments: String,
}

pub(crate) fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        (!arguments.is_empty())
            .then(|| Process { pid, arguments: String::from_utf8_lossy(&arguments).into_owned() })
    })
    .collect()
}

/// Processes that run exactly `words`, wherever they are.
pub(crate) fn running(words: &[&str]) -> usize {
    let wanted = words.iter().map(|word| format!("{word}\0")).collect::<String>();
    processes().iter().filter(|process| process.arguments == wanted).count()
}

pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

pub(crate) fn holds_within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_within(PATIENCE, holds), "in vain waited until {what}");
}

/// A field that must be a text, an id mostly.
#[track_caller]
pub(crate) fn id(record: &Value, field: &str) -> String {
    record[field].as_str().unwrap_or_else(|| panic!("no text {field} in {record}")).to_owned()
}

#[track_caller]
pub(crate) fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

/// The error that a failed command printed on standard error.
pub(crate) fn refusal(output: &Output) -> Result<Refusal, String> {
    let exit = output.status.code().ok_or("ended by a signal")?;
    if exit == 0 {
        return Err("succeeded".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.starts_with("{\"error\"")).ok_or("no error object on stderr")?;
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    Ok(Refusal { exit, error: value["error"].clone() })
}

pub(crate) fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\nstdout: {out}\nstderr: {err}", output.status)
}

/// Runs a shell script on this machine in `directory`; asserts success.
#[track_caller]
pub(crate) fn sh_in(directory: &Path, script: &str) {
    let output =
        Command::new("sh").arg("-c").arg(format!("umask 022\n{script}")).current_dir(directory).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{script}: {}", said(&output));
}

/// A child process that is killed when the test goes on without it.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().expect("not waited for yet").id()
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.0.as_mut().expect("not waited for yet").try_wait().unwrap().is_some()
    }

    pub(crate) fn stdin(&mut self) -> std::process::ChildStdin {
        self.0.as_mut().and_then(|child| child.stdin.take()).expect("started with a pipe")
    }

    pub(crate) fn wait(mut self) -> Output {
        self.0.take().expect("waited for once").wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Over already is fine, too.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
