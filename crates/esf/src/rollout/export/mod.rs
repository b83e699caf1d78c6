//! `esf rollout export`: the trajectories of a run in the formats of others. Invariants: the target is there whole,
//! with its statement beside it, or not at all, and replaces nothing; one trajectory at a time is in memory, or one
//! prompt of a tree; only revisions that ended are written, each once.

mod atif;
mod lines;
mod messages;
mod parquet;
mod trajectory;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use esf_core::rollout::{PolicyVersion, Prompt, Run, SiblingStatus};
use esf_core::{Class, Problem, RootId};
use esf_store::{RecordsTarget, Store};
use serde_json::{Value, json};

use self::trajectory::Trajectory;
use super::{refused, run};
use crate::args::{self, OnlyArg, TrajectoryFormat};
use crate::context::{Context, io_problem};
use crate::output::{Reply, Table};

/// Prompts that are read at one time.
const PAGE: u64 = 100;
/// Most roots that a statement names; what is beyond is counted.
const ROOTS: usize = 1000;

/// What was written.
#[derive(Default)]
struct Tally {
    prompts: u64,
    trajectories: u64,
    usable: u64,
    /// Ended without anything that the format has a form for.
    left_out: u64,
    roots: BTreeSet<RootId>,
    roots_beyond: bool,
    versions: Option<(u64, u64)>,
}

impl Tally {
    fn count(&mut self, trajectory: &Trajectory<'_>) {
        self.trajectories += 1;
        self.usable += u64::from(trajectory.usable());
        if self.roots.len() < ROOTS {
            self.roots.insert(trajectory.prompt.root_id);
        } else {
            self.roots_beyond |= !self.roots.contains(&trajectory.prompt.root_id);
        }
        if let (Some(start), Some(end)) = trajectory.span() {
            let (least, greatest) = self.versions.unwrap_or((start, end));
            self.versions = Some((least.min(start), greatest.max(end)));
        }
    }
}

/// Where rows go.
enum Out {
    Lines(BufWriter<File>),
    Parquet(Box<parquet::Writer<BufWriter<File>>>),
    Directory(PathBuf),
}

pub(super) fn export(context: &Context, arguments: &args::RolloutExport) -> Result<Reply, Problem> {
    if arguments.split_prompt && arguments.format != TrajectoryFormat::Messages {
        return Err(super::bad_option("--split-prompt", "--format messages with it", name(arguments.format)));
    }
    let store = context.open()?;
    let run = run(&store, &arguments.run)?;
    let versions = store.graph().policy_versions(run.run_id).map_err(refused)?;
    let target = RecordsTarget::claim(&arguments.to).map_err(|error| error.problem())?;
    // What steps name stays while it is read.
    let _held = store.stack().lock_shared().map_err(|error| error.problem())?;
    let mut export = Exporter {
        store: &store,
        run: &run,
        versions: &versions,
        arguments,
        out: open(&target, &run, arguments.format)?,
        tally: Tally::default(),
    };
    export.all()?;
    let Exporter { out, tally, .. } = export;
    match out {
        Out::Lines(out) => {
            out.into_inner().map(drop).map_err(|error| io_problem("write", &arguments.to, error.error()))?
        }
        Out::Parquet(writer) => writer.finish()?,
        Out::Directory(_) => {}
    }
    let predicate = predicate(context, &store, &run, arguments, &tally)?;
    let written = target.publish(&predicate).map_err(|error| error.problem())?;
    let value = json!({ "export": {
        "format": name(arguments.format), "path": written.path, "provenance": written.provenance,
        "digest": written.digest, "run_id": run.run_id, "prompts": tally.prompts,
        "trajectories": tally.trajectories, "usable": tally.usable, "left_out": tally.left_out,
    } });
    let mut table = Table::new(&["FORMAT", "PROMPTS", "ROLLOUTS", "USABLE", "PATH"]);
    table.row([
        name(arguments.format).to_owned(),
        tally.prompts.to_string(),
        tally.trajectories.to_string(),
        tally.usable.to_string(),
        written.path.display().to_string(),
    ]);
    Ok(Reply { value, table, ids: vec![written.path.display().to_string()] })
}

fn name(format: TrajectoryFormat) -> &'static str {
    match format {
        TrajectoryFormat::Jsonl => "jsonl",
        TrajectoryFormat::Messages => "messages",
        TrajectoryFormat::Parquet => "parquet",
        TrajectoryFormat::Atif => "atif",
        TrajectoryFormat::Tree => "tree",
    }
}

fn open(target: &RecordsTarget, run: &Run, format: TrajectoryFormat) -> Result<Out, Problem> {
    if format == TrajectoryFormat::Atif {
        let directory = target.partial().to_owned();
        fs::create_dir(&directory).map_err(|error| io_problem("create", &directory, &error))?;
        return Ok(Out::Directory(directory));
    }
    let file = BufWriter::new(target.create_file().map_err(|error| error.problem())?);
    match format {
        TrajectoryFormat::Parquet => Ok(Out::Parquet(Box::new(parquet::Writer::new(file, &json!(run))?))),
        _ => Ok(Out::Lines(file)),
    }
}

struct Exporter<'a> {
    store: &'a Store,
    run: &'a Run,
    versions: &'a [PolicyVersion],
    arguments: &'a args::RolloutExport,
    out: Out,
    tally: Tally,
}

impl Exporter<'_> {
    fn all(&mut self) -> Result<(), Problem> {
        let mut from = 0;
        loop {
            let page = self.store.graph().prompts(self.run.run_id, from, PAGE).map_err(refused)?;
            let Some(last) = page.last() else { return Ok(()) };
            from = last.index + 1;
            for prompt in &page {
                self.prompt(prompt)?;
            }
        }
    }

    fn prompt(&mut self, prompt: &Prompt) -> Result<(), Problem> {
        let tree = self.arguments.format == TrajectoryFormat::Tree;
        let before = self.tally.trajectories;
        let (mut members, mut bytes) = (Vec::new(), 0);
        for sibling in self.store.graph().siblings(prompt.prompt_id).map_err(refused)? {
            let usable = sibling.outcome.as_ref().is_some_and(|outcome| outcome.usable == Some(true));
            // A parent whose outcome is not wanted still owns the steps of its forks.
            let wanted = wanted(&self.arguments.only, sibling.status, usable);
            if !sibling.status.is_terminal() || !wanted {
                continue;
            }
            let trajectory = Trajectory::read(self.store, (self.run, self.versions), prompt, sibling, tree)?;
            if tree {
                self.tally.count(&trajectory);
                bytes += trajectory.bytes;
                if bytes > trajectory::MAX_BYTES {
                    return Err(too_large(prompt));
                }
                members.push(trajectory);
            } else {
                self.write(&trajectory)?;
            }
        }
        if let Some(value) = lines::tree(&members) {
            self.line(&value)?;
        }
        self.tally.prompts += u64::from(self.tally.trajectories > before);
        Ok(())
    }

    fn write(&mut self, trajectory: &Trajectory<'_>) -> Result<(), Problem> {
        match (self.arguments.format, &mut self.out) {
            (TrajectoryFormat::Parquet, Out::Parquet(writer)) => writer.row(trajectory)?,
            (TrajectoryFormat::Atif, Out::Directory(directory)) => {
                let Some(document) = atif::document(trajectory) else {
                    self.tally.left_out += 1;
                    return Ok(());
                };
                let path = directory.join(format!("{}.json", trajectory.sibling.sibling_id));
                let text = document.to_string();
                fs::write(&path, text).map_err(|error| io_problem("write", &path, &error))?;
            }
            (TrajectoryFormat::Messages, _) => {
                self.line(&messages::row(trajectory, self.arguments.split_prompt))?;
            }
            _ => self.line(&lines::rollout(trajectory))?,
        }
        self.tally.count(trajectory);
        Ok(())
    }

    fn line(&mut self, value: &Value) -> Result<(), Problem> {
        let Out::Lines(out) = &mut self.out else { unreachable!("rows of JSON go to a file of lines") };
        let written = serde_json::to_writer(&mut *out, value).map_err(std::io::Error::from);
        written
            .and_then(|()| out.write_all(b"\n"))
            .map_err(|error| io_problem("write", &self.arguments.to, &error))
    }
}

/// A tree is a line of its own, whose prompt is in memory whole.
fn too_large(prompt: &Prompt) -> Problem {
    let message = format!("{} is too large for a line of an export", prompt.prompt_id);
    Problem::new(Class::Refused, "too_large", message)
        .expected(format!("at most {} bytes of actions, observations and arrays", trajectory::MAX_BYTES))
        .remedy("use --format jsonl: it has a line for each rollout")
}

fn wanted(only: &[OnlyArg], status: SiblingStatus, usable: bool) -> bool {
    let matches = |only: &OnlyArg| match only {
        OnlyArg::Usable => status == SiblingStatus::Result && usable,
        OnlyArg::Result => status == SiblingStatus::Result,
        OnlyArg::Error => status == SiblingStatus::Error,
        OnlyArg::Cancelled => status == SiblingStatus::Cancelled,
    };
    only.is_empty() || only.iter().any(matches)
}

fn predicate(
    context: &Context,
    store: &Store,
    run: &Run,
    arguments: &args::RolloutExport,
    tally: &Tally,
) -> Result<Value, Problem> {
    let only: Vec<&str> = arguments
        .only
        .iter()
        .map(|only| match only {
            OnlyArg::Usable => "usable",
            OnlyArg::Result => "result",
            OnlyArg::Error => "error",
            OnlyArg::Cancelled => "cancelled",
        })
        .collect();
    let meta = context.meta("")?;
    Ok(json!({
        "format": name(arguments.format),
        "signed": false,
        "store_id": store.stack().store_id(),
        "run": run,
        "only": only,
        "prompts": tally.prompts,
        "trajectories": tally.trajectories,
        "usable": tally.usable,
        "left_out": tally.left_out,
        "root_ids": tally.roots,
        "more_root_ids": tally.roots_beyond,
        "policy": {
            "name": run.policy.name,
            "version_start": tally.versions.map(|(start, _)| start),
            "version_end": tally.versions.map(|(_, end)| end),
        },
        "environment_digest": run.environment_digest,
        "evaluators": run.evaluators,
        "exported_by": meta.actor,
        "exported_at": meta.now,
        "trace_id": meta.trace_id,
        "esf_version": env!("CARGO_PKG_VERSION"),
    }))
}
