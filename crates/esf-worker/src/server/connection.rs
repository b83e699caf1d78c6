//! One client's connection: its greeting, then one request after another.
//! Invariant: every request is answered by exactly one reply or problem, unless the client is gone.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use esf_core::record::Failure;
use esf_core::{AttemptId, Class, ExecId, FailureClass, Problem};
use serde::Serialize;

use crate::connect::check_peer;
use crate::executor::ExecutorError;
use crate::logs::failure;
use crate::message::{Hello, LiveAttempt, Request, RunningExec, WorkerStatus};
use crate::server::Worker;
use crate::server::running::locked;
use crate::wire::{Connection, Kind, VERSION};

/// How a request ended, for its connection.
pub(crate) enum Served {
    /// This is the answer.
    Reply(serde_json::Value),
    /// The client is gone.
    Gone,
}

/// A reply.
pub(crate) fn reply<T: Serialize>(value: &T) -> Result<Served, Problem> {
    serde_json::to_value(value)
        .map(Served::Reply)
        .map_err(|error| failure(&error.into(), "cannot write the reply"))
}

/// Serves a client until it is gone.
pub(crate) fn serve(worker: &Arc<Worker>, stream: UnixStream) {
    if let Err(problem) = check_peer(&stream) {
        tracing::warn!(%problem, "a connection was refused");
        return;
    }
    // Accepted sockets inherit nothing from the listener, but say what is meant.
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    let mut connection = Connection::new(stream);
    if let Err(error) = converse(worker, &mut connection) {
        tracing::debug!(%error, "a client is gone");
    }
}

fn converse(worker: &Arc<Worker>, connection: &mut Connection) -> io::Result<()> {
    let Some(frame) = connection.read()? else { return Ok(()) };
    if frame.kind != Kind::Hello {
        return Ok(());
    }
    connection.send_json(Kind::Hello, &Hello { version: VERSION, pid: std::process::id() })?;
    while let Some(frame) = connection.read()? {
        // Input and cancellation of a request that was answered before they came mean nothing.
        if frame.kind != Kind::Request {
            continue;
        }
        let served = frame.json().and_then(|request| worker.answer(connection, request));
        match served {
            Ok(Served::Reply(value)) => connection.send_json(Kind::Reply, &value)?,
            Ok(Served::Gone) => return Ok(()),
            Err(problem) => connection.send_json(Kind::Problem, &problem)?,
        }
    }
    Ok(())
}

impl Worker {
    fn answer(self: &Arc<Self>, connection: &mut Connection, request: Request) -> Result<Served, Problem> {
        match request {
            Request::Activate(request) => self.activate(connection, &request),
            Request::Retry(request) => self.retry(connection, &request),
            Request::Exec(request) => self.exec(connection, *request),
            Request::Suspend(request) => reply(&self.suspend(&request)?),
            Request::Release { meta, attempt, discard } => reply(&self.release(&meta, attempt, discard)?),
            Request::Kill { attempt, exec, signal } => reply(&self.kill(attempt, exec, signal)?),
            Request::Get { attempt, path } => self.get_file(connection, attempt, &path),
            Request::Put { attempt, path, mode } => self.put_file(connection, attempt, &path, mode),
            Request::List { attempt, path } => self.list_files(connection, attempt, &path),
            Request::ClearResult { attempt } => reply(&self.clear_result(attempt)?),
            Request::Status => reply(&self.status()),
            Request::Top => reply(&self.top()),
            Request::Cancel(request) => reply(&self.cancel(&request)?),
            Request::Stop { force } => reply(&self.stop(force)?),
        }
    }

    /// Signals one command, or all; returns which were reached.
    fn kill(&self, attempt: AttemptId, exec: Option<ExecId>, signal: i32) -> Result<Vec<ExecId>, Problem> {
        let live = self.live_or_problem(attempt)?;
        let commands = match exec {
            None => live.commands(),
            Some(exec) => vec![live.command(exec).ok_or_else(|| {
                Problem::new(Class::NotFound, "not_found", format!("no command {exec} runs in {attempt}"))
                    .remedy("`esf logs ATTEMPT` lists its commands")
            })?],
        };
        let mut reached = Vec::new();
        for command in commands {
            let sent = match signal {
                9 => command.kill(Failure::new(FailureClass::Cancelled, "exec", "killed on request")),
                _ => command.signal(signal),
            };
            match sent {
                Ok(()) => reached.push(command.exec_id),
                Err(error @ ExecutorError::Unsupported { .. }) => return Err(error.problem()),
                // It ended meanwhile: there is nothing left to reach.
                Err(error) => tracing::debug!(exec = %command.exec_id, %error, "cannot signal"),
            }
        }
        Ok(reached)
    }

    fn status(&self) -> WorkerStatus {
        let (live, queued) = {
            let state = locked(&self.state);
            (state.live.values().cloned().collect::<Vec<_>>(), state.queue.len() as u64)
        };
        let running = |command: &Arc<crate::server::running::Command>| RunningExec {
            exec_id: command.exec_id,
            argv: command.argv.clone(),
        };
        let live = live.iter().map(|live| LiveAttempt {
            attempt_id: live.id(),
            execs: live.commands().iter().map(running).collect(),
            stats: live.stats(),
        });
        WorkerStatus {
            pid: std::process::id(),
            max_live: self.config.max_live,
            queued,
            live: live.collect(),
            executors: self.executors.iter().map(|e| (e.name().to_owned(), e.capabilities())).collect(),
        }
    }
}
