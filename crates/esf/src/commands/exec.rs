//! `exec` and `run`: the inner command's bytes and code pass through; a Ctrl-C reaches the inner
//! command first, so that nothing is lost.

use std::io::{self, Write};
use std::path::PathBuf;

use esf_core::Problem;
use esf_core::record::{Attempt, Node};
use esf_worker::{
    ActivatePurpose, Client, DEFAULT_REPLY_WINDOW, ExecRequest, ExecResult, Stdin, SuspendReply,
    SuspendRequest,
};
use serde_json::{Value, json};

use super::{find, live};
use crate::args::{self, Format};
use crate::context::Context;
use crate::interrupt;
use crate::output::{self, not_supported};

/// How long `run` waits for a sandbox's worker to seal what an overdue command left, in milliseconds.
const RUN_LIFETIME_MS: u64 = 24 * 3_600_000;

pub(super) fn exec(context: &Context, arguments: args::Exec) -> Result<u8, Problem> {
    if arguments.tty {
        return Err(not_supported(
            "a terminal (-t)",
            "run the command without -t; -i passes standard input on",
        ));
    }
    let attempt = find::attempt(&context.open()?, &arguments.attempt)?;
    let request = ExecRequest {
        actor: context.actor(),
        attempt: attempt.attempt_id,
        argv: arguments.command,
        env: arguments.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: arguments.workdir,
        user: arguments.user,
        timeout_ms: arguments.timeout.map(|timeout| timeout.0),
        detach: arguments.detach,
        max_output: window(context, arguments.max_output.map(|size| size.0)),
        key: context.key_was_given.then(|| context.key("")),
        stdin: arguments.interactive,
        trace_id: context.trace_id().to_owned(),
    };
    let mut client = context.worker()?;
    let (result, captured) = pass_through(context, &mut client, request)?;
    if context.format != Format::Table || context.quiet || arguments.detach {
        let reply = captured.merge(&result);
        let text = match (context.format, context.quiet) {
            (Format::Table, _) | (_, true) => format!("{}\n", result.exec_id),
            (Format::Json | Format::Jsonl, false) => format!("{reply}\n"),
        };
        super::written(output::write_out(text.as_bytes()))?;
    } else {
        explain(&result);
    }
    Ok(code(&result))
}

pub(super) fn run(context: &Context, arguments: args::Run) -> Result<u8, Problem> {
    let store = context.open()?;
    let node = find::node(&store, &arguments.node)?;
    let mut client = context.worker()?;
    let lifetime = arguments.options.lifetime.map_or(RUN_LIFETIME_MS, |lifetime| lifetime.0);
    let attempt = live::bring_up(
        context,
        &store,
        &mut client,
        &node,
        &arguments.options,
        Some(lifetime),
        ActivatePurpose::Work,
    )?;
    drop(store);
    let request = ExecRequest {
        actor: context.actor(),
        attempt: attempt.attempt_id,
        argv: arguments.command,
        env: Vec::new(),
        cwd: None,
        user: None,
        timeout_ms: arguments.timeout.map(|timeout| timeout.0),
        detach: false,
        max_output: window(context, None),
        // A repeated `run` with the same key must not run the command again.
        key: Some(context.key("exec")),
        stdin: arguments.interactive,
        trace_id: context.trace_id().to_owned(),
    };
    let (result, captured) = match pass_through(context, &mut client, request) {
        Ok(done) => done,
        Err(problem) => {
            give_up(context, &mut client, &attempt, arguments.discard);
            return Err(problem);
        }
    };
    if arguments.discard {
        let attempt = client.release(context.request_meta("release"), attempt.attempt_id, true)?;
        finish(context, &result, json!({ "attempt": attempt, "exec": captured.merge(&result) }), None)?;
    } else {
        let SuspendReply { node, changed, .. } = seal(context, &mut client, &attempt)?;
        let value = json!({ "node": node, "changed": changed, "attempt_id": attempt.attempt_id, "exec": captured.merge(&result) });
        finish(context, &result, value, Some(&node))?;
    }
    Ok(code(&result))
}

/// Ends the attempt of a `run` whose command could not be run, so that it takes nobody's place: what
/// is there all the same is sealed, never lost.
fn give_up(context: &Context, client: &mut Client, attempt: &Attempt, discard: bool) {
    let released = client.release(context.request_meta("release"), attempt.attempt_id, discard);
    match released {
        Ok(_) => {}
        Err(problem) if problem.code == "unsealed_changes" => match seal(context, client, attempt) {
            Ok(SuspendReply { node, .. }) => eprintln!("esf: sealed {}", node.node_id),
            Err(problem) => {
                tracing::warn!(attempt = %attempt.attempt_id, %problem, "it stays until its lifetime ends")
            }
        },
        // Its worker is gone, or it has ended already.
        Err(problem) => tracing::info!(attempt = %attempt.attempt_id, %problem, "nothing to release"),
    }
}

fn seal(context: &Context, client: &mut Client, attempt: &Attempt) -> Result<SuspendReply, Problem> {
    let request = SuspendRequest {
        meta: context.request_meta("suspend"),
        attempt: attempt.attempt_id,
        terminal: false,
        state: None,
        message: None,
        keep: false,
        if_changed: false,
    };
    client.suspend(request)
}

/// `run` prints the node: on stderr beside the command's own output, on stdout as JSON or with `-q`.
fn finish(context: &Context, result: &ExecResult, value: Value, node: Option<&Node>) -> Result<(), Problem> {
    let name = node.map_or_else(String::new, |node| node.node_id.to_string());
    match (context.format, context.quiet) {
        (Format::Json | Format::Jsonl, false) => {
            super::written(output::write_out(format!("{value}\n").as_bytes()))
        }
        (_, true) if node.is_some() => super::written(output::write_out(format!("{name}\n").as_bytes())),
        _ => {
            explain(result);
            match node {
                Some(node) => {
                    let changed =
                        node.changed.map(|c| format!(" (+{} ~{} -{})", c.added, c.modified, c.deleted));
                    eprintln!("esf: sealed {name}{}", changed.unwrap_or_default());
                }
                None => eprintln!("esf: discarded"),
            }
            Ok(())
        }
    }
}

fn explain(result: &ExecResult) {
    if let Some(failure) = &result.failure
        && result.exit_code.is_none_or(|code| matches!(code, 126 | 127))
    {
        eprintln!("esf: {} [{}]", output::printable(&failure.detail), failure.class.as_str());
    }
}

fn code(result: &ExecResult) -> u8 {
    u8::try_from(result.shell_code()).unwrap_or(125)
}

fn window(context: &Context, given: Option<u64>) -> Option<u64> {
    given.or((context.format != Format::Table).then_some(DEFAULT_REPLY_WINDOW))
}

/// What a command wrote, kept only when the reply is JSON.
pub(super) struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Captured {
    /// The contract's JSON of `exec`; output that is not UTF-8 comes as base64.
    pub(super) fn merge(&self, result: &ExecResult) -> Value {
        let mut value = json!({
            "exec_id": result.exec_id,
            "exit_code": result.exit_code.map_or(Value::from(result.shell_code()), Value::from),
            "timed_out": result.timed_out,
            "signal": result.signal,
            "stdout_bytes": result.stdout_bytes,
            "stderr_bytes": result.stderr_bytes,
            "truncated": result.truncated,
            "duration_ms": result.duration_ms,
            "failure": result.failure,
        });
        for (name, bytes) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            match std::str::from_utf8(bytes) {
                Ok(text) => value[name] = text.into(),
                Err(_) => value[format!("{name}_b64")] = base64(bytes).into(),
            }
        }
        value
    }
}

/// Runs the command with this program's own streams.
pub(super) fn pass_through(
    context: &Context,
    client: &mut Client,
    request: ExecRequest,
) -> Result<(ExecResult, Captured), Problem> {
    let mut captured = Captured { stdout: Vec::new(), stderr: Vec::new() };
    let stdin = request.stdin.then(open_stdin).transpose()?;
    client.set_cancel(interrupt::watch()?);
    let result = if context.format == Format::Table && !context.quiet {
        client.exec(request, stdin, &mut Patient(io::stdout()), &mut Patient(io::stderr()))
    } else if context.format == Format::Table {
        client.exec(request, stdin, &mut io::sink(), &mut Patient(io::stderr()))
    } else {
        client.exec(request, stdin, &mut captured.stdout, &mut captured.stderr)
    };
    result.map(|result| (result, captured))
}

fn open_stdin() -> Result<Stdin, Problem> {
    let fd = rustix::io::dup(rustix::stdio::stdin()).map_err(|error| {
        crate::context::io_problem("read", &PathBuf::from("standard input"), &error.into())
    })?;
    Ok(Stdin::Fd(fd))
}

/// A stream whose reader may go away (`esf exec … | head`): the rest is dropped, the command goes on.
struct Patient<W>(W);

impl<W: Write> Write for Patient<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write_all(bytes).and_then(|()| self.0.flush()) {
            Ok(()) => Ok(bytes.len()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            Err(error) => Err(error),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let symbol = ALPHABET[(group >> (18 - 6 * position)) as usize & 63];
            text.push(if position <= chunk.len() { symbol as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_the_standard_one() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (plain, encoded) in cases {
            assert_eq!(super::base64(plain.as_bytes()), encoded);
        }
    }
}
