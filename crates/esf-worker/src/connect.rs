//! Finding a store's worker, and starting one when there is none.
//! Invariant: two commands that find none at the same time start two, of which the lock lets one
//! live; both commands end up with that one.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use esf_core::{Class, Problem};

use crate::client::Client;
use crate::logs::failure;
use crate::message::Hello;
use crate::place;
use crate::wire::{Connection, Kind, VERSION};

/// How long a worker may take to answer after it was started.
const PATIENCE: Duration = Duration::from_secs(20);

impl Client {
    /// Connects to the store's worker, if there is one.
    ///
    /// # Errors
    /// `worker_version` when it is of another version, `not_ours` when it belongs to another user.
    pub fn connect(store: &Path) -> Result<Option<Self>, Problem> {
        let store = place::canonical(store)?;
        let stream = match UnixStream::connect(place::socket(&store)) {
            Ok(stream) => stream,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(failure(&error, "cannot reach the worker")),
        };
        check_peer(&stream)?;
        let mut connection = Connection::new(stream);
        let greeting = Hello { version: VERSION, pid: std::process::id() };
        let answer = connection.send_json(Kind::Hello, &greeting).and_then(|()| connection.read());
        // A worker that is just leaving closes without an answer.
        let Ok(Some(frame)) = answer else { return Ok(None) };
        let hello: Hello = frame.json()?;
        if hello.version != VERSION {
            let message = "the store's worker is of another version of esf".to_owned();
            return Err(Problem::new(Class::Conflict, "worker_version", message)
                .expected(VERSION.to_string())
                .found(hello.version.to_string())
                .remedy(format!("end it with the esf that started it, or kill process {}", hello.pid)));
        }
        Ok(Some(Self::over(connection, store, hello.pid)))
    }

    /// Connects to the store's worker; starts `exe worker --store STORE` when there is none.
    ///
    /// # Errors
    /// As `connect`; `worker_failed` with the end of its log when it does not come up.
    pub fn connect_or_start(store: &Path, exe: &Path) -> Result<Self, Problem> {
        let store = place::canonical(store)?;
        let start = Instant::now();
        let mut children = Vec::<Child>::new();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(client) = Self::connect(&store)? {
                return Ok(client);
            }
            if let Some(status) = exit_of(&mut children)?
                && !status.success()
            {
                return Err(not_up(&store, &format!("it ended with {status}")));
            }
            if start.elapsed() > PATIENCE {
                return Err(not_up(&store, &format!("no answer within {} s", PATIENCE.as_secs())));
            }
            // One that lost the race for the lock has ended well; the winner may be leaving, so try anew.
            if children.is_empty() {
                children.push(spawn(&store, exe)?);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Takes the child that has ended, if it has.
fn exit_of(children: &mut Vec<Child>) -> Result<Option<std::process::ExitStatus>, Problem> {
    let Some(child) = children.first_mut() else { return Ok(None) };
    let status = child.try_wait().map_err(|error| failure(&error, "cannot wait for the worker"))?;
    if status.is_some() {
        children.clear();
    }
    Ok(status)
}

fn spawn(store: &Path, exe: &Path) -> Result<Child, Problem> {
    let failed = |error: io::Error| failure(&error, "cannot start the worker");
    std::fs::create_dir_all(store.join("logs")).map_err(failed)?;
    let log =
        std::fs::File::options().append(true).create(true).open(place::worker_log(store)).map_err(failed)?;
    let mut command = Command::new(exe);
    command.arg("worker").arg("--store").arg(store).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    // A group of its own: Ctrl-C at the terminal is for the command, not for the worker.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().map_err(failed)
}

fn not_up(store: &Path, what: &str) -> Problem {
    let log = std::fs::read(place::worker_log(store)).unwrap_or_default();
    let end = String::from_utf8_lossy(&log[log.len().saturating_sub(600)..]).trim().to_owned();
    Problem::new(Class::Failure, "worker_failed", format!("the store's worker did not come up: {what}"))
        .found(end)
        .remedy(format!("read {}, and run `esf doctor`", place::worker_log(store).display()))
}

/// The other end must run as the same user, or as root.
pub(crate) fn check_peer(stream: &UnixStream) -> Result<(), Problem> {
    let peer = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|error| failure(&error.into(), "cannot tell who is at the other end"))?;
    let own = rustix::process::geteuid();
    if peer.uid == own || peer.uid.is_root() {
        return Ok(());
    }
    let message = "the other end of the worker's socket belongs to another user";
    Err(Problem::new(Class::Refused, "not_ours", message)
        .expected(format!("uid {}", own.as_raw()))
        .found(format!("uid {}", peer.uid.as_raw())))
}
