//! Accounting, collection, recovery, and the resident worker itself.

use std::sync::Arc;
use std::time::Duration;

use esf_core::units::{parse_duration_ms, parse_size, show_size};
use esf_core::{Class, Problem};
use esf_worker::{Client, WorkerConfig};
use serde_json::json;

use super::{find, show};
use crate::args::{self, WorkerCommand};
use crate::context::Context;
use crate::output::{Reply, Table};
use crate::progress::Bar;

pub(super) fn df(context: &Context) -> Result<Reply, Problem> {
    let usage = context.open()?.stack().usage().map_err(|error| error.problem())?;
    let terms = [
        ("hot", usage.hot),
        ("cold", usage.cold),
        ("uppers", usage.uppers),
        ("staging", usage.staging),
        ("metadata", usage.metadata),
        ("total", usage.total),
    ];
    let mut table = Table::new(&["TERM", "BYTES", "SIZE"]);
    let mut value = json!({});
    for (name, bytes) in terms {
        table.row([name.to_owned(), bytes.to_string(), show_size(bytes)]);
        value[name] = bytes.into();
    }
    Ok(Reply { value, table, ids: Vec::new() })
}

pub(super) fn du(context: &Context, arguments: &args::Du) -> Result<Reply, Problem> {
    let store = context.open()?;
    let pins = match &arguments.node {
        Some(text) => vec![find::root(&store, text)?],
        None => store.graph().live_roots().map_err(|error| error.problem())?,
    };
    let mut table = Table::new(&["ROOT", "LAYERS", "BYTES", "SIZE"]);
    let mut values = Vec::new();
    for pin in pins {
        let usage = store.stack().root_usage(&pin).map_err(|error| error.problem())?;
        table.row([
            show::short(&pin.root),
            usage.layers.to_string(),
            usage.bytes.to_string(),
            show_size(usage.bytes),
        ]);
        values.push(json!({ "root_id": pin.root, "layers": usage.layers, "bytes": usage.bytes }));
    }
    Ok(Reply { value: json!({ "roots": values }), table, ids: Vec::new() })
}

pub(super) fn why(context: &Context, arguments: &args::Why) -> Result<Reply, Problem> {
    let store = context.open()?;
    let reasons = store.why(&arguments.id).map_err(|error| error.problem())?;
    let mut table = Table::new(&["KEPT BY"]);
    reasons.iter().for_each(|reason| table.row([reason.as_str()]));
    if reasons.is_empty() {
        table.row(["nothing: `esf gc` may remove it"]);
    }
    Ok(Reply { value: json!({ "reasons": reasons }), table, ids: Vec::new() })
}

pub(super) fn gc(context: &Context, arguments: &args::Gc) -> Result<Reply, Problem> {
    let report =
        context.open()?.gc(&context.meta("")?, arguments.dry_run).map_err(|error| error.problem())?;
    let mut table = Table::new(&["", "CARRIERS", "PACKS", "WORKSPACES", "LOGS", "BYTES", "SIZE"]);
    let label = if arguments.dry_run { "would free" } else { "freed" };
    let size = show_size(report.bytes);
    let counts = [report.carriers, report.packs, report.workspaces, report.logs, report.bytes];
    let mut row = vec![label.to_owned()];
    row.extend(counts.map(|count| count.to_string()));
    row.push(size);
    table.row(row);
    let value = json!({ "gc": report });
    Ok(Reply { value, table, ids: Vec::new() })
}

pub(super) fn squash(context: &Context, arguments: &args::Squash) -> Result<Reply, Problem> {
    let store = context.open()?;
    let pin = find::root(&store, &arguments.node)?;
    let report = store.stack().squash(&pin).map_err(|error| error.problem())?;
    let mut table = Table::new(&["ROOT", "LAYERS BEFORE", "AFTER"]);
    table.row([show::short(&pin.root), report.layers_before.to_string(), report.layers_after.to_string()]);
    let value = json!({ "squash": { "root_id": pin.root, "layers_before": report.layers_before, "layers_after": report.layers_after, "linked": report.linked, "copied": report.copied } });
    Ok(Reply { value, table, ids: vec![pin.root.to_string()] })
}

pub(super) fn recover(context: &Context) -> Result<Reply, Problem> {
    let store = context.open()?;
    let report = esf_worker::recover(&store, &executors(context)?)?;
    let lines = match &report {
        None => vec!["a worker lives, it recovers by itself".to_owned()],
        Some(report) if report.is_empty() => vec!["nothing to do".to_owned()],
        Some(report) => report.lines().map(str::to_owned).collect(),
    };
    Ok(Reply { value: json!({ "recovered": report }), table: Table::lines(lines), ids: Vec::new() })
}

pub(super) fn fsck(context: &Context) -> Result<Reply, Problem> {
    let store = context.open()?;
    let report = store.fsck(&Bar::new("checking")).map_err(|error| error.problem())?;
    if report.damage.is_empty() {
        let table = Table::lines([format!(
            "{} roots, {} objects, {} bytes: all as recorded",
            report.roots, report.objects, report.bytes
        )]);
        let value = json!({ "fsck": { "damage": [], "roots": report.roots, "objects": report.objects, "bytes": report.bytes } });
        return Ok(Reply { value, table, ids: Vec::new() });
    }
    if context.format == args::Format::Table {
        let lines = Table::lines(report.damage.iter().cloned());
        super::print(context, &Reply { value: json!(null), table: lines, ids: Vec::new() })?;
    }
    Err(Problem::new(
        Class::Damaged,
        "damaged",
        format!("{} damaged things, the first: {}", report.damage.len(), report.damage[0]),
    )
    .remedy("nodes that do not need them go on working; restore the store, or prune what is damaged")
    .context(json!({ "damage": report.damage })))
}

/// The executors of this build.
pub(crate) fn executors(context: &Context) -> Result<Vec<Arc<dyn esf_worker::executor::Executor>>, Problem> {
    let oci = esf_oci::OciExecutor::new(context.dir()).map_err(|error| error.problem())?;
    let wasi = esf_wasi::WasiExecutor::new(context.dir()).map_err(|error| error.problem())?;
    Ok(vec![Arc::new(oci), Arc::new(wasi)])
}

pub(super) fn worker(context: &Context, arguments: &args::Worker) -> Result<u8, Problem> {
    match &arguments.command {
        None => serve(context, arguments).map(|()| 0),
        Some(WorkerCommand::Status) => {
            let status = Client::connect(context.dir())?.map(|mut client| client.status()).transpose()?;
            let table = match &status {
                None => Table::lines(["no worker runs; the first activate starts one".to_owned()]),
                Some(status) => Table::lines([format!(
                    "pid {}: {} of {} live, {} waiting",
                    status.pid,
                    status.live.len(),
                    status.max_live,
                    status.queued
                )]),
            };
            super::print(context, &Reply { value: json!({ "worker": status }), table, ids: Vec::new() })
        }
        Some(WorkerCommand::Stop { force }) => {
            if let Some(client) = Client::connect(context.dir())? {
                client.stop(*force)?;
            }
            Ok(0)
        }
    }
}

fn serve(context: &Context, arguments: &args::Worker) -> Result<(), Problem> {
    let defaults = WorkerConfig::default();
    let idle_exit = match arguments.idle_exit.as_deref().map(parse_duration_ms) {
        None => defaults.idle_exit,
        Some(Ok(millis)) => Duration::from_millis(millis),
        Some(Err(error)) => {
            return Err(Problem::new(Class::Usage, "bad_option", format!("--idle-exit: {error}")));
        }
    };
    let size = |name: &str, text: &Option<String>| -> Result<Option<u64>, Problem> {
        let parsed = text.as_deref().map(parse_size).transpose();
        parsed.map_err(|error| Problem::new(Class::Usage, "bad_option", format!("{name}: {error}")))
    };
    let number = |given: Option<u32>, default: u64| given.map_or(default, u64::from);
    let config = WorkerConfig {
        max_live: number(arguments.max_live, defaults.max_live),
        memory: size("--memory", &arguments.memory)?,
        cpu_milli: arguments.cpus.map(|cpus| u64::from(cpus) * 1_000),
        min_free: size("--min-free", &arguments.min_free)?,
        max_execs: number(arguments.max_execs, defaults.max_execs),
        creates_per_second: number(arguments.creates, defaults.creates_per_second),
        max_waiting: number(arguments.max_waiting, defaults.max_waiting),
        idle_exit,
        ..defaults
    };
    // The directory is opened by the worker itself, which holds the store's lock for its life.
    context.open()?;
    let ready =
        |socket: &std::path::Path| tracing::info!(socket = %socket.display(), "the worker can be reached");
    if !esf_worker::serve(context.dir(), executors(context)?, config, ready)? {
        tracing::info!("another worker of this store lives");
    }
    Ok(())
}
