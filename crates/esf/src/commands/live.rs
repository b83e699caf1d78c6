//! Attempts and their files: everything here goes through the store's resident worker, which is
//! started when it is needed. Listing and logs work without one.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use esf_core::record::{Attempt, Node};
use esf_core::state::AttemptStatus;
use esf_core::{Class, Problem};
use esf_store::Store;
use esf_worker::executor::Extra;
use esf_worker::{ActivatePurpose, ActivateRequest, Client, QueueNews, RetryRequest, SuspendRequest};
use serde_json::{Value, json};

use super::{environment, find, show};
use crate::args;
use crate::context::{Context, io_problem};
use crate::output::{Reply, Table, show_bytes};

/// Brings a node to life as the options say, telling on stderr while it waits for its turn.
pub(super) fn bring_up(
    context: &Context,
    store: &Store,
    client: &mut Client,
    node: &Node,
    options: &args::ActivateOptions,
    lifetime_ms: Option<u64>,
    purpose: ActivatePurpose,
) -> Result<Attempt, Problem> {
    let group = store.graph().group(node.group_id).map_err(|error| error.problem())?;
    // What is refused is refused before anything is stored.
    environment::environment(&group.default_environment, options, Vec::new())?;
    // Held until the attempt's record names them.
    let modules = environment::modules(store, node, options)?;
    let pinned = modules.iter().map(environment::Module::pinned).collect();
    let request = ActivateRequest {
        meta: context.request_meta("activate"),
        node: node.node_id,
        environment: environment::environment(&group.default_environment, options, pinned)?,
        lifetime_ms,
        on_expiry: environment::on_expiry(options),
        no_wait: options.no_wait,
        priority: options.priority,
        purpose,
        extra: Extra::default(),
    };
    client.set_cancel(crate::interrupt::watch()?);
    let told = (!modules.is_empty()).then(tell_of_compiling);
    let activated = client.activate(request, &mut waiting);
    drop((told, modules));
    activated
}

/// Says what is being done unless what is returned is dropped within a second.
fn tell_of_compiling() -> std::sync::mpsc::Sender<()> {
    let (done, over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if over.recv_timeout(std::time::Duration::from_secs(1))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            eprintln!("esf: compiling for the first use; what is compiled is kept");
        }
    });
    done
}

/// Tells that an evaluation's attempt waits.
pub(super) fn waits(before: u64) {
    eprintln!("esf: waiting for a free place, {before} before this one");
}

/// Tells that an attempt waits, and why.
pub(super) fn waiting(news: &QueueNews) {
    eprintln!("esf: waiting for a free place ({}), {} before this one", news.reason, news.before);
}

pub(super) fn activate(context: &Context, arguments: &args::Activate) -> Result<Reply, Problem> {
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let mut client = context.worker()?;
    let lifetime = arguments.options.lifetime.map(|lifetime| lifetime.0);
    let attempt =
        bring_up(context, &store, &mut client, &node, &arguments.options, lifetime, ActivatePurpose::Work)?;
    Ok(show::attempt(&attempt))
}

pub(super) fn suspend(context: &Context, arguments: &args::Suspend) -> Result<Reply, Problem> {
    let attempt = find::attempt(&context.open()?, &arguments.attempt)?;
    let state = arguments.state.as_deref().map(read_state).transpose()?;
    let request = SuspendRequest {
        meta: context.request_meta(""),
        attempt: attempt.attempt_id,
        terminal: arguments.terminal,
        state,
        message: arguments.message.clone(),
        keep: arguments.keep,
        if_changed: arguments.if_changed,
    };
    let reply = context.worker()?.suspend(request)?;
    for path in &reply.changed.skipped {
        eprintln!("esf: not kept: {}", crate::output::printable(path));
    }
    let shown = show::nodes(std::slice::from_ref(&reply.node));
    let mut value = json!({ "node": reply.node, "changed": reply.changed });
    let Some(next) = &reply.attempt else { return Ok(Reply { value, ..shown }) };
    value["attempt"] = json!(next);
    if let Some(failure) = &next.failure {
        super::print(context, &Reply { value, ..shown })?;
        let message = format!("sealed, but the next attempt failed: {}", failure.detail);
        return Err(Problem::new(Class::Failure, failure.class.as_str(), message)
            .remedy(format!("`esf activate {}` goes on", reply.node.node_id)));
    }
    eprintln!("esf: goes on in {}; what ran has ended", show::short(&next.attempt_id));
    // What is typed next is the attempt.
    Ok(Reply { value, ids: vec![next.attempt_id.to_string()], ..shown })
}

fn read_state(path: &Path) -> Result<Value, Problem> {
    let text = std::fs::read(path).map_err(|error| io_problem("read", path, &error))?;
    serde_json::from_slice(&text).map_err(|error| {
        Problem::new(Class::Usage, "bad_state", format!("{} is not JSON: {error}", path.display()))
            .expected("one JSON value of at most 64 KiB")
    })
}

pub(super) fn retry(context: &Context, arguments: &args::Retry) -> Result<Reply, Problem> {
    let attempt = find::attempt(&context.open()?, &arguments.attempt)?;
    let request = RetryRequest {
        meta: context.request_meta(""),
        attempt: attempt.attempt_id,
        no_wait: arguments.no_wait,
    };
    Ok(show::attempt(&context.worker()?.retry(request, &mut waiting)?))
}

pub(super) fn ps(context: &Context, arguments: &args::Ps) -> Result<Reply, Problem> {
    let store = context.open()?;
    let attempts = store.graph().attempts(None).map_err(|error| error.problem())?;
    let live = |attempt: &Attempt| {
        matches!(attempt.status, AttemptStatus::Queued | AttemptStatus::Active | AttemptStatus::Quiescing)
    };
    let shown: Vec<Attempt> = attempts.into_iter().filter(|attempt| arguments.all || live(attempt)).collect();
    Ok(show::attempts(&shown))
}

pub(super) fn release(context: &Context, arguments: &args::Release) -> Result<Reply, Problem> {
    let attempt = find::attempt(&context.open()?, &arguments.attempt)?;
    let released =
        context.worker()?.release(context.request_meta(""), attempt.attempt_id, arguments.discard)?;
    Ok(show::attempt(&released))
}

pub(super) fn kill(context: &Context, arguments: &args::Kill) -> Result<Reply, Problem> {
    let store = context.open()?;
    let attempt = find::attempt(&store, &arguments.attempt)?;
    let exec =
        arguments.exec.as_deref().map(|text| find::exec(&store, attempt.attempt_id, text)).transpose()?;
    let signal = signal_number(&arguments.signal)?;
    let reached = context.worker()?.kill(attempt.attempt_id, exec, signal)?;
    let ids: Vec<String> = reached.iter().map(ToString::to_string).collect();
    Ok(Reply { value: json!({ "signalled": ids }), table: Table::lines(ids.clone()), ids })
}

fn signal_number(text: &str) -> Result<i32, Problem> {
    const NAMES: [(&str, i32); 10] = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("KILL", 9),
        ("USR1", 10),
        ("USR2", 12),
        ("TERM", 15),
        ("CONT", 18),
        ("STOP", 19),
        ("WINCH", 28),
    ];
    let bare = text.to_ascii_uppercase();
    let bare = bare.strip_prefix("SIG").unwrap_or(&bare);
    let named = NAMES.iter().find(|(name, _)| *name == bare).map(|(_, number)| *number);
    named.or_else(|| bare.parse().ok().filter(|number| (1..=64).contains(number))).ok_or_else(|| {
        Problem::new(Class::Usage, "bad_signal", "not a signal")
            .expected("a name such as TERM, or 1 to 64")
            .found(text)
    })
}

pub(super) fn logs(context: &Context, arguments: &args::Logs) -> Result<u8, Problem> {
    let store = context.open()?;
    let attempt = find::attempt(&store, &arguments.attempt)?;
    let stream =
        if arguments.stderr { esf_worker::logs::Stream::Stderr } else { esf_worker::logs::Stream::Stdout };
    let execs = match &arguments.exec {
        Some(text) => vec![find::exec(&store, attempt.attempt_id, text)?],
        None => find::execs(&store, context.dir(), attempt.attempt_id)?,
    };
    let mut from = arguments.from;
    for exec in execs {
        let cursor = esf_worker::logs::Cursor { attempt: attempt.attempt_id, exec, stream, from };
        let end = esf_worker::logs::copy(
            context.dir(),
            cursor,
            arguments.follow,
            &|| esf_worker::lock::held(context.dir()),
            &mut io::stdout(),
        )?;
        from = from.saturating_sub(end);
    }
    Ok(0)
}

/// `ATTEMPT:PATH`, told from a plain path by the attempt's prefix.
fn inside(text: &str) -> Option<(&str, &Path)> {
    let (attempt, path) = text.split_once(':')?;
    attempt.starts_with("att_").then(|| (attempt, Path::new(path)))
}

pub(super) fn cp(context: &Context, arguments: &args::Cp) -> Result<u8, Problem> {
    match (inside(&arguments.source), inside(&arguments.destination)) {
        (Some((attempt, path)), None) => copy_out(context, attempt, path, &arguments.destination),
        (None, Some((attempt, path))) => copy_in(context, attempt, path, &arguments.source),
        _ => Err(Problem::new(
            Class::Usage,
            "bad_copy",
            "one side of cp is ATTEMPT:PATH, the other a file here",
        )
        .found(format!("{} and {}", arguments.source, arguments.destination))),
    }
}

fn copy_out(context: &Context, attempt: &str, path: &Path, destination: &str) -> Result<u8, Problem> {
    let attempt = find::attempt(&context.open()?, attempt)?;
    let mut client = context.worker()?;
    if destination == "-" {
        client.get_file(attempt.attempt_id, path, &mut io::stdout())?;
        return Ok(0);
    }
    let mut target = PathBuf::from(destination);
    if target.is_dir() {
        target.push(path.file_name().unwrap_or(path.as_os_str()));
    }
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Half a copy never carries the name: it is written beside it and renamed.
    let mut partial = tempfile::NamedTempFile::new_in(directory)
        .map_err(|error| io_problem("write into", directory, &error))?;
    let mode = client.get_file(attempt.attempt_id, path, &mut partial)? & 0o777;
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    partial.as_file().set_permissions(permissions).map_err(|error| io_problem("write", &target, &error))?;
    partial.persist(&target).map_err(|error| io_problem("write", &target, &error.error))?;
    Ok(0)
}

fn copy_in(context: &Context, attempt: &str, path: &Path, source: &str) -> Result<u8, Problem> {
    let attempt = find::attempt(&context.open()?, attempt)?;
    let (mut from, mode): (Box<dyn Read>, u32) = if source == "-" {
        (Box::new(io::stdin()), 0o644)
    } else {
        let file =
            std::fs::File::open(source).map_err(|error| io_problem("open", Path::new(source), &error))?;
        let metadata = file.metadata().map_err(|error| io_problem("read", Path::new(source), &error))?;
        if !metadata.is_file() {
            return Err(Problem::new(Class::Usage, "not_a_file", format!("{source} is not a regular file"))
                .remedy("copy a tree with `tar -c … | esf exec -i ATTEMPT -- tar -x`"));
        }
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        (Box::new(file), mode)
    };
    context.worker()?.put_file(attempt.attempt_id, path, mode, &mut from)?;
    Ok(0)
}

pub(super) fn files_ls(context: &Context, arguments: &args::FilesLs) -> Result<Reply, Problem> {
    let (attempt, path) = inside(&arguments.path).ok_or_else(|| {
        Problem::new(Class::Usage, "bad_path", "expected ATTEMPT:PATH").found(arguments.path.clone())
    })?;
    let attempt = find::attempt(&context.open()?, attempt)?;
    let mut entries = Vec::new();
    context.worker()?.list_files(attempt.attempt_id, path, &mut |entry| entries.push(entry))?;
    let mut table = Table::new(&["MODE", "KIND", "SIZE", "NAME"]);
    for entry in &entries {
        let name = entry.name_bytes.as_deref().map_or_else(|| entry.name.clone(), show_bytes);
        table.row([format!("{:04o}", entry.mode & 0o7777), entry.kind.clone(), entry.size.to_string(), name]);
    }
    let ids = entries.iter().map(|entry| entry.name.clone()).collect();
    Ok(Reply { value: json!({ "entries": entries }), table, ids })
}
