//! `esf top` and `esf cancel`: the queue and the gauges as they are now, and the end of what of a group waits.
//! Both work without a worker, on the graph alone: then nothing lives. The JSON of `top` is described in
//! `docs/scheduler.md`.

use std::io::IsTerminal;
use std::time::Duration;

use esf_core::Problem;
use esf_core::ops::cancel::{Cancel, CancelReason};
use esf_core::units::show_size;
use esf_store::Store;
use esf_worker::{CancelRequest, Cancelled, Client, GroupQueue, Top};
use serde_json::{Value, json};

use super::find;
use crate::args::{self, CancelReasonArg, Format};
use crate::context::{Context, now};
use crate::output::{self, Reply, Table};

/// Groups that are shown in a terminal.
const SHOWN: usize = 15;

pub(super) fn cancel(context: &Context, arguments: &args::Cancel) -> Result<Reply, Problem> {
    let store = context.open()?;
    let group = find::group(&store, &arguments.group)?.group_id;
    let reason = match arguments.reason {
        CancelReasonArg::Stale => CancelReason::Stale,
        CancelReasonArg::Overload => CancelReason::Overload,
        CancelReasonArg::User => CancelReason::User,
    };
    let cancelled = match Client::connect(context.dir())? {
        Some(mut client) => {
            let meta = context.request_meta("");
            client.cancel(CancelRequest { meta, group, reason, live: arguments.live })?
        }
        // Without a worker nothing lives.
        None => {
            let queued = store.graph().cancel(&context.meta("")?, Cancel { group, reason });
            Cancelled { queued: queued.map_err(|error| error.problem())?, live: 0 }
        }
    };
    let line = format!("{} that waited, {} that lived", cancelled.queued, cancelled.live);
    Ok(Reply {
        value: json!({ "cancelled": cancelled }),
        table: Table::lines([line]),
        ids: vec![cancelled.queued.to_string()],
    })
}

pub(super) fn top(context: &Context, arguments: &args::Top) -> Result<u8, Problem> {
    let store = context.open()?;
    let mut client = Client::connect(context.dir())?;
    let is_screen = context.format == Format::Table && std::io::stdout().is_terminal();
    // What processors do is known from the second look on.
    let mut gauges = look(&mut client)?;
    let interval = Duration::from_millis(if arguments.once { 200 } else { arguments.interval.0 });
    loop {
        if client.is_some() {
            std::thread::sleep(interval);
            gauges = look(&mut client)?;
        }
        let reply = reply(&store, gauges.as_ref())?;
        if is_screen && !arguments.once {
            // Home, then clear what is below.
            super::written(output::write_out(b"\x1b[H\x1b[J"))?;
        }
        super::print(context, &reply)?;
        if arguments.once {
            return Ok(0);
        }
        if client.is_none() {
            std::thread::sleep(interval);
            client = Client::connect(context.dir())?;
        }
    }
}

/// The worker's gauges; nothing when it has gone.
fn look(client: &mut Option<Client>) -> Result<Option<Top>, Problem> {
    let Some(connected) = client else { return Ok(None) };
    match connected.top() {
        Ok(top) => Ok(Some(top)),
        // It ends when it has nothing to do.
        Err(problem) if problem.code == "infra_lost" => {
            *client = None;
            Ok(None)
        }
        Err(problem) => Err(problem),
    }
}

fn reply(store: &Store, gauges: Option<&Top>) -> Result<Reply, Problem> {
    let queued = match gauges {
        Some(top) => top.groups.clone(),
        None => waiting_for_a_worker(store)?,
    };
    let mut groups = Vec::new();
    for queue in queued {
        let name = store.graph().group(queue.group_id).map_err(|error| error.problem())?.name;
        groups.push((name, queue));
    }
    let shown: Vec<Value> = groups.iter().map(|(name, queue)| group_json(name, queue)).collect();
    let worker = gauges.map(|top| {
        let mut worker = serde_json::to_value(top).unwrap_or_default();
        if let Some(fields) = worker.as_object_mut() {
            fields.remove("groups");
        }
        worker
    });
    let waiting: u64 = groups.iter().map(|(_, queue)| queue.waiting).sum();
    Ok(Reply {
        value: json!({ "top": {
            "at": now(), "live": gauges.map_or(0, |top| top.live), "queued": waiting, "groups": shown, "worker": worker,
        }}),
        table: table(gauges, &groups, waiting),
        ids: groups.iter().map(|(_, queue)| queue.group_id.to_string()).collect(),
    })
}

fn waiting_for_a_worker(store: &Store) -> Result<Vec<GroupQueue>, Problem> {
    let counts = store.graph().queue_by_group().map_err(|error| error.problem())?;
    let queue = |count: esf_graph::QueuedCount| GroupQueue {
        group_id: count.group_id,
        waiting: count.waiting,
        live: 0,
        reason: "no_worker".to_owned(),
        oldest: count.oldest,
    };
    Ok(counts.into_iter().map(queue).collect())
}

fn waited_ms(queue: &GroupQueue) -> i64 {
    (now().0 - queue.oldest.0).max(0)
}

fn group_json(name: &str, queue: &GroupQueue) -> Value {
    json!({
        "group_id": queue.group_id, "name": name, "waiting": queue.waiting, "live": queue.live,
        "reason": queue.reason, "oldest_ms": waited_ms(queue),
    })
}

fn table(gauges: Option<&Top>, groups: &[(String, GroupQueue)], waiting: u64) -> Table {
    let mut lines = Vec::new();
    match gauges {
        None => lines.push(format!("no worker runs; {waiting} waiting")),
        Some(top) => {
            lines.push(format!(
                "live {} of {} ({} starting), {waiting} waiting, {} creates in the last second",
                top.live, top.max_live, top.starting, top.creates_per_second
            ));
            lines.push(format!(
                "commands {} of {}, {} waiting; processors {} used, {} of {} promised",
                top.execs,
                top.max_execs,
                top.execs_waiting,
                cores(top.cpu_milli.used),
                cores(top.cpu_milli.promised),
                cores(top.cpu_milli.most)
            ));
            lines.push(format!(
                "memory {} used, {} of {} promised; disk {} free of {}{}",
                show_size(top.memory.used),
                show_size(top.memory.promised),
                show_size(top.memory.most),
                show_size(top.disk_free),
                show_size(top.disk_total),
                if top.storage_pressure { ", NEARLY FULL: nothing new is admitted" } else { "" }
            ));
            let errors: Vec<String> =
                top.errors.iter().map(|(class, count)| format!("{class} {count}")).collect();
            lines.push(format!(
                "errors {}",
                if errors.is_empty() { "none".to_owned() } else { errors.join(", ") }
            ));
            lines.extend(top.hot_roots.iter().map(|hot| format!("hot {} {}", hot.root_id, hot.live)));
        }
    }
    lines.extend(groups.iter().take(SHOWN).map(|(name, queue)| {
        let seconds = waited_ms(queue) / 1000;
        format!(
            "{name}: {} waiting, {} live, oldest {seconds} s: {}",
            queue.waiting, queue.live, queue.reason
        )
    }));
    if groups.len() > SHOWN {
        lines.push(format!("and {} groups more", groups.len() - SHOWN));
    }
    Table::lines(lines)
}

fn cores(milli: u64) -> String {
    format!("{}.{:02}", milli / 1000, milli % 1000 / 10)
}
