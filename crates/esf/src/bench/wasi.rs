//! Rows of the WASI executor: one C source built natively and for WASI. What a guest does is timed by its
//! own clock, so that starting it is measured apart. Left out where there is no compiler for it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use esf_core::environment::{Base, Environment, ExecutorKind, PinnedModule, Wasi};
use esf_core::manifest::RootPin;
use esf_core::{AttemptId, Problem};
use esf_wasi::WasiExecutor;
use esf_worker::executor::{Activation, ExecSpec, Executor, Exit, Extra, Sandbox, Stdio};

use super::sandbox::devnull;
use super::{Lab, Measured, Row, control, failed, floor, storage, timed};

const SOURCE: &str = include_str!("guest.c");
const MODULE: &str = "guest.wasm";
/// Files of the tree that is walked.
const TREE: usize = 10_000;
/// Operations of one sample of `wasi_open` and `wasi_stat`.
const TIMES: &str = "20000";
/// The file that they are about, in the lower of two layers.
const FILE: &str = "d00042/f0004242";

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let names = ["wasi_hello", "wasi_open", "wasi_stat", "wasi_walk", "wasi_activate", "wasi_idle"];
    if !names.iter().any(|name| lab.wants(name)) {
        return Ok(());
    }
    let Some(native) = build(&lab.place)? else { return Ok(()) };
    let node = control::group(lab, "wasi-base", TREE, 100)?;
    let root = lab.store.graph().node(node).map_err(|error| error.problem())?.root();
    let root = root.ok_or_else(|| failed("wasi", "the canonical node has a root"))?;
    let mut module = Vec::new();
    File::open(lab.place.join(MODULE))
        .and_then(|mut file| file.read_to_end(&mut module))
        .map_err(|error| failed("read the guest", error))?;
    let digest = lab.store.stack().put_artifact(&module).map_err(|error| error.problem())?;
    let rows = {
        let executor = WasiExecutor::new(lab.store.directory()).map_err(|error| error.problem())?;
        executor.prepare().map_err(|error| error.problem())?;
        let environment = environment(PinnedModule { name: MODULE.to_owned(), digest: *digest.digest() });
        let tree = lab.place.join("wasi-base");
        let rows = Yard { lab, executor: &executor, environment, native, tree }.measure(&root);
        executor.shut_down();
        rows?
    };
    rows.into_iter().for_each(|row| lab.add(row));
    Ok(())
}

fn environment(module: PinnedModule) -> Environment {
    let wasi =
        Wasi { engine: esf_wasi::engine_identity(), modules: vec![module], preopens: Vec::new(), fuel: None };
    let (executor, base) = (ExecutorKind::Wasi, Base::Root);
    Environment { executor, base, wasi: Some(wasi), ..Environment::default() }
}

/// Builds the guest both ways; none where there is no compiler.
fn build(place: &Path) -> Result<Option<PathBuf>, Problem> {
    if !floor::installed("clang") || !floor::installed("wasm-ld") {
        eprintln!("  (clang and lld are not installed: the rows of WASI are left out)");
        return Ok(None);
    }
    let (source, native) = (place.join("guest.c"), place.join("guest"));
    fs::write(&source, SOURCE).map_err(|error| failed("write the guest", error))?;
    let compile = |to: &Path, target: &[&str]| {
        let mut clang = Command::new("clang");
        let output = clang.arg("-O2").args(target).arg("-o").arg(to).arg(&source).output();
        output.map_err(|error| failed("clang", error))
    };
    let wasm = compile(&place.join(MODULE), &["--target=wasm32-wasi"])?;
    if !wasm.status.success() {
        eprintln!("  (clang has no wasi-libc, the rows of WASI are left out: {})", first_line(&wasm.stderr));
        return Ok(None);
    }
    let plain = compile(&native, &[])?;
    if plain.status.success() { Ok(Some(native)) } else { Err(failed("clang", first_line(&plain.stderr))) }
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned()
}

struct Yard<'a, 'b> {
    lab: &'a Lab<'b>,
    executor: &'a WasiExecutor,
    environment: Environment,
    native: PathBuf,
    /// The tree as it is on the host.
    tree: PathBuf,
}

impl Yard<'_, '_> {
    fn measure(&self, root: &RootPin) -> Result<Vec<Row>, Problem> {
        // A second layer, so that a guest's view is a union of two carriers and its upper.
        let first = attempt(1);
        let workspace =
            self.lab.store.stack().open_workspace(root, first).map_err(|error| error.problem())?;
        fs::write(workspace.upper.join("above"), "x").map_err(|error| failed("write", error))?;
        let base = storage::seal_one(self.lab, root, first, "wasi-second")?;
        let mut rows = Vec::new();
        self.activate(&base, &mut rows)?;
        let live = attempt(2);
        let sandbox = self.start(&base, live)?;
        let measured = self.live(sandbox.as_ref(), &mut rows);
        self.end(live, sandbox)?;
        measured.map(|()| rows)
    }

    fn start(&self, base: &RootPin, attempt: AttemptId) -> Result<Box<dyn Sandbox>, Problem> {
        let workspace =
            self.lab.store.stack().open_workspace(base, attempt).map_err(|error| error.problem())?;
        let (environment, extra) = (&self.environment, &Extra::default());
        let activation = Activation { attempt, workspace: &workspace, environment, extra };
        self.executor.activate(activation).map_err(|error| error.problem())
    }

    fn end(&self, attempt: AttemptId, sandbox: Box<dyn Sandbox>) -> Result<(), Problem> {
        sandbox.release().map_err(|error| error.problem())?;
        self.lab.store.stack().discard_workspace(attempt).map_err(|error| error.problem())
    }

    fn activate(&self, base: &RootPin, rows: &mut Vec<Row>) -> Result<(), Problem> {
        if !self.lab.wants("wasi_activate") {
            return Ok(());
        }
        let (mut number, samples) = (1000, self.lab.samples);
        let (value, plain) = self.lab.pair(
            samples,
            || {
                number += 1;
                let mut sandbox = None;
                let elapsed = timed(|| {
                    sandbox = Some(self.start(base, attempt(number))?);
                    Ok(())
                })?;
                sandbox.map_or(Ok(()), |sandbox| self.end(attempt(number), sandbox))?;
                Ok(elapsed)
            },
            || floor::spawn(&self.native),
        )?;
        let floor = Some((plain, "posix_spawn of the native program"));
        rows.push(Row { name: "wasi_activate", value, unit: "us", floor, must: None, aim: None, samples });
        Ok(())
    }

    fn live(&self, sandbox: &dyn Sandbox, rows: &mut Vec<Row>) -> Result<(), Problem> {
        let lab = self.lab;
        if lab.wants("wasi_hello") {
            let samples = lab.samples * 5;
            let (value, plain) =
                lab.pair(samples, || timed(|| run(sandbox, &[MODULE])), || floor::spawn(&self.native))?;
            let floor = Some((plain, "posix_spawn of the native program"));
            let (must, aim) = (Some(1.5), Some(0.5));
            rows.push(Row { name: "wasi_hello", value, unit: "us", floor, must, aim, samples });
        }
        let file = self.tree.join(FILE);
        let within = |path: &str| format!("/workspace/{path}");
        let timed_rows = [
            ("wasi_open", ["open", &within(FILE), TIMES], ["open", path(&file)?, TIMES], Some((8.0, 6.0))),
            ("wasi_stat", ["stat", &within(FILE), TIMES], ["stat", path(&file)?, TIMES], None),
            ("wasi_walk", ["walk", &within(""), "1"], ["walk", path(&self.tree)?, "1"], Some((5.0, 3.0))),
        ];
        for (name, inside, outside, budget) in timed_rows {
            if lab.wants(name) {
                let samples = lab.samples.min(20);
                let (value, native) =
                    lab.pair(samples, || told(sandbox, &inside), || self.told_natively(&outside))?;
                let floor = Some((native, "the native program on the same tree"));
                let (must, aim) = (budget.map(|(must, _)| must), budget.map(|(_, aim)| aim));
                rows.push(Row { name, value, unit: "us", floor, must, aim, samples });
            }
        }
        if lab.wants("wasi_idle") {
            let stats = sandbox.stats().map_err(|error| error.problem())?;
            let value = stats.memory_bytes as f64 / 1024.0;
            let (must, aim) = (Some(16384.0), Some(8192.0));
            rows.push(Row { name: "wasi_idle", value, unit: "KiB", floor: None, must, aim, samples: 1 });
        }
        Ok(())
    }

    fn told_natively(&self, arguments: &[&str]) -> Measured {
        let output = Command::new(&self.native).args(arguments).output();
        parse(&output.map_err(|error| failed("the native program", error))?.stdout)
    }
}

fn attempt(number: u64) -> AttemptId {
    let mut bytes = [0x3a; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    AttemptId::from_bytes(bytes)
}

fn path(path: &Path) -> Result<&str, Problem> {
    path.to_str().ok_or_else(|| failed("wasi", "the store's path is not UTF-8"))
}

fn start(sandbox: &dyn Sandbox, argv: &[&str], stdio: Stdio) -> Result<(), Problem> {
    let spec = ExecSpec { argv: argv.iter().map(Into::into).collect(), ..ExecSpec::default() };
    let running = sandbox.exec(&spec, stdio).map_err(|error| error.problem())?;
    match running.wait().map_err(|error| error.problem())? {
        Exit::Code(0) => Ok(()),
        other => Err(failed("a guest", format!("{argv:?}: {other:?}"))),
    }
}

fn run(sandbox: &dyn Sandbox, argv: &[&str]) -> Result<(), Problem> {
    start(sandbox, argv, Stdio { stdin: devnull()?, stdout: devnull()?, stderr: devnull()? })
}

/// How long a guest says that its work took.
fn told(sandbox: &dyn Sandbox, work: &[&str]) -> Measured {
    let (mut answer, stdout) = std::io::pipe().map_err(|error| failed("pipe", error))?;
    let argv: Vec<&str> = std::iter::once(MODULE).chain(work.iter().copied()).collect();
    start(sandbox, &argv, Stdio { stdin: devnull()?, stdout: stdout.into(), stderr: devnull()? })?;
    let mut said = Vec::new();
    answer.read_to_end(&mut said).map_err(|error| failed("read a guest's output", error))?;
    parse(&said)
}

/// `NANOSECONDS TIMES`, as the time of one.
fn parse(said: &[u8]) -> Measured {
    let said = String::from_utf8_lossy(said);
    let mut words = said.split_whitespace().map(str::parse::<u64>);
    match (words.next(), words.next()) {
        (Some(Ok(nanos)), Some(Ok(times))) if times > 0 => {
            Ok(Duration::from_nanos(nanos) / u32::try_from(times).unwrap_or(u32::MAX))
        }
        _ => Err(failed("the guest's answer", said)),
    }
}
