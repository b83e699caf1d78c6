//! Rows of live sandboxes: exec against a plain spawn, whole cycles against `crun`.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use esf_core::digest::RequestDigest;
use esf_core::environment::Environment;
use esf_core::manifest::RootPin;
use esf_core::ops::Meta;
use esf_core::ops::begin_quiesce::BeginQuiesce;
use esf_core::ops::commit_seal::CommitSeal;
use esf_core::ops::enqueue::Enqueue;
use esf_core::ops::start::Start;
use esf_core::policy::Durability;
use esf_core::record::{Changed, Purpose};
use esf_core::{AttemptId, Digest, NodeId, Problem, WorkerId};
use esf_layerstack::SealRequest;
use esf_oci::OciExecutor;
use esf_worker::executor::{Activation, ExecSpec, Executor, Exit, Extra, Sandbox, Stdio};

use serde_json::json;

use super::floor::{self, Crun};
use super::{Lab, Measured, Row, control, failed, timed};

const TRUE: &str = "/usr/bin/true";

/// A place to start sandboxes in, below the graph.
struct Yard<'a, 'b> {
    lab: &'a Lab<'b>,
    executor: OciExecutor,
    base: RootPin,
    node: NodeId,
    count: u64,
}

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let names = ["exec", "exec_crun", "one_shot", "activate", "cycle", "idle_sandbox", "native_io"];
    if !names.iter().any(|name| lab.wants(name)) {
        return Ok(());
    }
    let missing: Vec<_> = esf_oci::requirements().into_iter().filter(|requirement| !requirement.ok).collect();
    if !missing.is_empty() {
        eprintln!("  (no sandboxes here, their rows are left out; `esf doctor` says why)");
        return Ok(());
    }
    let node = control::group(lab, "sandbox-base", 100, 1000)?;
    let base = lab.store.graph().node(node).map_err(|error| error.problem())?.root();
    let base = base.ok_or_else(|| failed("sandbox", "the canonical node has a root"))?;
    let mut crun = Crun::start(&lab.place)?;
    let mut rows = Vec::new();
    {
        let executor = OciExecutor::new(lab.store.directory()).map_err(|error| error.problem())?;
        let mut yard = Yard { lab, executor, base, node, count: 0 };
        yard.live_rows(&mut crun, &mut rows)?;
        if let Some(crun) = &mut crun {
            yard.cycle_rows(crun, &mut rows)?;
        }
    }
    rows.into_iter().for_each(|row| lab.add(row));
    Ok(())
}

pub(super) fn devnull() -> Result<OwnedFd, Problem> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    file.map(OwnedFd::from).map_err(|error| failed("/dev/null", error))
}

fn stdio() -> Result<Stdio, Problem> {
    Ok(Stdio { stdin: devnull()?, stdout: devnull()?, stderr: devnull()? })
}

fn run_in(sandbox: &dyn Sandbox, argv: &[&str]) -> Result<(), Problem> {
    let spec = ExecSpec { argv: argv.iter().map(Into::into).collect(), ..ExecSpec::default() };
    let running = sandbox.exec(&spec, stdio()?).map_err(|error| error.problem())?;
    match running.wait().map_err(|error| error.problem())? {
        Exit::Code(0) => Ok(()),
        other => Err(failed("a command in a sandbox", format!("{other:?}"))),
    }
}

impl Yard<'_, '_> {
    fn next(&mut self) -> AttemptId {
        self.count += 1;
        let mut bytes = [0x5b; 16];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        AttemptId::from_bytes(bytes)
    }

    fn activate(&mut self) -> Result<(AttemptId, Box<dyn Sandbox>), Problem> {
        let attempt = self.next();
        Ok((attempt, self.start(attempt)?))
    }

    fn start(&self, attempt: AttemptId) -> Result<Box<dyn Sandbox>, Problem> {
        let workspace =
            self.lab.store.stack().open_workspace(&self.base, attempt).map_err(|error| error.problem())?;
        let (environment, extra) = (Environment::default(), Extra::default());
        let activation =
            Activation { attempt, workspace: &workspace, environment: &environment, extra: &extra };
        self.executor.activate(activation).map_err(|error| error.problem())
    }

    fn release(&self, attempt: AttemptId, sandbox: Box<dyn Sandbox>) -> Result<(), Problem> {
        sandbox.release().map_err(|error| error.problem())?;
        self.lab.store.stack().discard_workspace(attempt).map_err(|error| error.problem())
    }

    fn live_rows(&mut self, crun: &mut Option<Crun>, rows: &mut Vec<Row>) -> Result<(), Problem> {
        let (attempt, sandbox) = self.activate()?;
        let measured = self.measure_live(sandbox.as_ref(), crun, rows);
        self.release(attempt, sandbox)?;
        measured
    }

    fn measure_live(
        &self,
        sandbox: &dyn Sandbox,
        crun: &mut Option<Crun>,
        rows: &mut Vec<Row>,
    ) -> Result<(), Problem> {
        let (lab, samples) = (self.lab, self.lab.samples * 5);
        if lab.wants("exec") {
            let (value, plain) =
                lab.pair(samples, || timed(|| run_in(sandbox, &[TRUE])), || floor::spawn(Path::new(TRUE)))?;
            let what = Some((plain, "posix_spawn of the same binary"));
            rows.push(Row {
                name: "exec",
                value,
                unit: "us",
                floor: what,
                must: Some(1.5),
                aim: Some(1.15),
                samples,
            });
        }
        if let (true, Some(crun)) = (lab.wants("exec_crun"), crun.as_mut()) {
            let samples = lab.samples;
            let (value, peer) = lab.pair(samples, || timed(|| run_in(sandbox, &[TRUE])), || crun.exec())?;
            let what = Some((peer, "crun exec"));
            rows.push(Row {
                name: "exec_crun",
                value,
                unit: "us",
                floor: what,
                must: Some(0.05),
                aim: Some(0.025),
                samples,
            });
        }
        if lab.wants("idle_sandbox") {
            let stats = sandbox.stats().map_err(|error| error.problem())?;
            let value = stats.memory_bytes as f64 / 1024.0;
            rows.push(Row {
                name: "idle_sandbox",
                value,
                unit: "KiB",
                floor: None,
                must: Some(2048.0),
                aim: Some(1024.0),
                samples: 1,
            });
        }
        if lab.wants("native_io") {
            rows.push(self.native_io(sandbox)?);
        }
        Ok(())
    }

    /// The same `dd` inside and on the host; its own start-up is in both.
    fn native_io(&self, sandbox: &dyn Sandbox) -> Result<Row, Problem> {
        let host = self.lab.place.join("native-io");
        let samples = self.lab.samples.min(15);
        let words = |to: &str| -> Vec<String> {
            ["/usr/bin/dd", "if=/dev/zero", "bs=65536", "count=2048", "status=none", &format!("of={to}")]
                .map(str::to_owned)
                .into()
        };
        let (inside, outside) = (words("/workspace/native-io"), words(&host.to_string_lossy()));
        let inside: Vec<&str> = inside.iter().map(String::as_str).collect();
        let outside: Vec<&std::ffi::OsStr> = outside.iter().skip(1).map(AsRef::as_ref).collect();
        let (value, plain) = self.lab.pair(
            samples,
            || timed(|| run_in(sandbox, &inside)),
            || timed(|| floor::command("/usr/bin/dd", &outside)),
        )?;
        let what = Some((plain, "the same 128 MiB written on the host"));
        // 0.97 of the host's throughput is 1/0.97 of its time.
        Ok(Row {
            name: "native_io",
            value,
            unit: "us",
            floor: what,
            must: Some(1.031),
            aim: Some(1.01),
            samples,
        })
    }

    fn cycle_rows(&mut self, crun: &mut Crun, rows: &mut Vec<Row>) -> Result<(), Problem> {
        let samples = self.lab.samples;
        let lab = self.lab;
        let mut take = |name: &'static str, must: f64, aim: f64, ours: &mut dyn FnMut() -> Measured| {
            if !lab.wants(name) {
                return Ok(());
            }
            let (value, peer) = lab.pair(samples, &mut *ours, || crun.run())?;
            let floor = Some((peer, "crun run of true"));
            rows.push(Row { name, value, unit: "us", floor, must: Some(must), aim: Some(aim), samples });
            Ok::<_, Problem>(())
        };
        take("one_shot", 0.6, 0.25, &mut || self.one_shot())?;
        take("activate", 0.15, 0.09, &mut || self.activate_only())?;
        take("cycle", 1.0, 0.45, &mut || self.cycle())?;
        Ok(())
    }

    fn one_shot(&mut self) -> Measured {
        timed(|| {
            let (attempt, sandbox) = self.activate()?;
            run_in(sandbox.as_ref(), &[TRUE])?;
            self.release(attempt, sandbox)
        })
    }

    fn activate_only(&mut self) -> Measured {
        let begun = Instant::now();
        let (attempt, sandbox) = self.activate()?;
        let elapsed = begun.elapsed();
        self.release(attempt, sandbox)?;
        Ok(elapsed)
    }

    /// Fork, activate, exec, seal: durable, with every commit that the worker makes.
    fn cycle(&mut self) -> Measured {
        self.count += 1;
        let key = format!("cycle-{}", self.count);
        timed(|| {
            let graph = self.lab.store.graph();
            let meta = |part: &str| self.lab.context.meta(&format!("{key}/{part}"));
            let told = |error: esf_graph::Error| error.problem();
            let enqueue = Enqueue {
                // A sealed node: its draft is forked in the same commit, as by `esf run`.
                node: self.node,
                environment: Environment::default(),
                lifetime_ms: None,
                on_expiry: None,
                priority: 0,
                purpose: Purpose::Work,
            };
            let attempt = graph.enqueue(&meta("enqueue")?, enqueue).map_err(told)?.attempt_id;
            let sandbox = self.start(attempt)?;
            let start = Start { attempt, worker: WorkerId::from_bytes([1; 16]), lease_ms: 30_000 };
            let started = graph.start(&meta("start")?, start).map_err(told)?;
            run_in(sandbox.as_ref(), &["/usr/bin/touch", "/workspace/new"])?;
            let quiesce = BeginQuiesce { attempt, epoch: started.lease.epoch };
            graph.begin_quiesce(&meta("quiesce")?, quiesce).map_err(told)?;
            sandbox.quiesce().map_err(|error| error.problem())?;
            self.seal(attempt, started.lease.epoch, &meta("seal")?)
        })
    }

    fn seal(&self, attempt: AttemptId, epoch: u64, meta: &Meta) -> Result<(), Problem> {
        let stack = self.lab.store.stack();
        let request = SealRequest {
            attempt,
            base: self.base,
            key: meta.key.clone(),
            request_digest: RequestDigest::new(Digest::of(meta.key.as_bytes())),
            durability: Durability::Full,
        };
        let prepared = stack.seal(&request, &()).map_err(|error| error.problem())?;
        let changes = prepared.changes();
        let commit = CommitSeal {
            attempt,
            epoch,
            terminal: false,
            state: None,
            message: None,
            result: json!({}),
            provenance: json!({}),
            changed: Changed {
                added: changes.added,
                modified: changes.modified,
                deleted: changes.deleted,
                bytes: changes.bytes,
            },
            reason: None,
            statement_digest: None,
            keep: None,
        };
        self.lab
            .store
            .graph()
            .commit_seal(meta, commit, prepared.sealed())
            .map_err(|error| error.problem())?;
        stack.settle_seal(prepared, true).map_err(|error| error.problem())
    }
}
