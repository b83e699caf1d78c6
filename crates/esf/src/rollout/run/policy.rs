//! The policy's process: started on this machine, asked a line and answering a line, one question at a time.
//! Invariants: it dies with this program and is killed with its whole group when it is dropped; a line of it is
//! bounded; a question that is not answered in time is a fault, and the next question goes to a new process.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use esf_control::proposer::Lines;
use esf_core::{Class, Problem};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

/// Lines that it may be ahead of what is asked.
const AHEAD: usize = 16;

/// A program of this machine, and how long it may think.
#[derive(Clone)]
pub(super) struct Program {
    /// This program, through which it is started.
    pub(super) esf: PathBuf,
    pub(super) argv: Vec<String>,
    pub(super) patience: Duration,
}

/// A conversation with it.
pub(super) struct Policy {
    program: Program,
    process: Option<Process>,
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    heard: Receiver<Result<Vec<u8>, String>>,
}

impl Policy {
    pub(super) fn new(program: Program) -> Self {
        Self { program, process: None }
    }

    /// Asks, and waits for the answer: one JSON object.
    ///
    /// # Errors
    /// `policy_died`, `policy_timeout`, `policy_bad_answer`; the process is gone then.
    pub(super) fn ask(&mut self, question: &Value) -> Result<Value, Problem> {
        let answer = self.converse(question);
        if answer.is_err() {
            self.process = None;
        }
        answer
    }

    fn converse(&mut self, question: &Value) -> Result<Value, Problem> {
        let fault = |code: &'static str, message: String| {
            Problem::new(Class::Failure, code, message)
                .expected("a JSON object in a line for each question, on its standard output")
                .remedy("its own messages belong on standard error; docs/rollouts.md has the protocol")
                .retryable()
        };
        let process = match &mut self.process {
            Some(process) => process,
            none => none.insert(
                Process::start(&self.program)
                    .map_err(|error| fault("policy_died", format!("cannot start the policy: {error}")))?,
            ),
        };
        let mut line = question.to_string().into_bytes();
        line.push(b'\n');
        let sent = process.stdin.write_all(&line).and_then(|()| process.stdin.flush());
        if sent.is_err() {
            return Err(fault("policy_died", "the policy does not read any more".to_owned()));
        }
        let until = Instant::now() + self.program.patience;
        match process.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(line)) => {
                serde_json::from_slice::<Value>(&line).ok().filter(Value::is_object).ok_or_else(|| {
                    let said: String = String::from_utf8_lossy(&line).chars().take(200).collect();
                    fault("policy_bad_answer", "the policy's answer is no JSON object".to_owned()).found(said)
                })
            }
            Ok(Err(bad)) => Err(fault("policy_bad_answer", bad)),
            Err(RecvTimeoutError::Timeout) => {
                let millis = self.program.patience.as_millis();
                Err(fault("policy_timeout", format!("the policy did not answer within {millis} ms")))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(fault("policy_died", "the policy closed its standard output".to_owned()))
            }
        }
    }
}

impl Process {
    fn start(program: &Program) -> std::io::Result<Self> {
        let mut child = Command::new(&program.esf)
            .args(["tethered", "--parent", &std::process::id().to_string(), "--"])
            .args(&program.argv)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (say, heard) = sync_channel(AHEAD);
        let mut stdout = stdout.expect("it was asked for");
        // Not waited for: a grandchild may hold the pipe open for ever.
        std::thread::spawn(move || {
            let mut lines = Lines::default();
            let mut buffer = vec![0; 64 << 10];
            while let Ok(length) = stdout.read(&mut buffer) {
                if length == 0 {
                    return;
                }
                for line in lines.push(&buffer[..length]) {
                    if say.send(line.map_err(|bad| bad.to_string())).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self { child, stdin: stdin.expect("it was asked for"), heard })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It, or all of it, may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "cannot wait for the policy");
        }
    }
}
