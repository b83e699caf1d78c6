//! The proposer's process: started on this machine, spoken to in lines, ended with its whole process group.
//! What is said and when it is started again is decided by `esf_control::proposer_talk`; here it is done.
//! Invariant: no more than one process lives at a time, and none after this is dropped or killed; nothing that it
//! writes is held beyond one line, and nothing that it does holds up anything but the questions to it.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esf_control::proposer::{BadAnswer, Lines, Offer, Question};
use esf_control::proposer_talk::{Act, Conversation, Fault, Limits};
use esf_core::{Class, Problem};
use rustix::process::{Pid, Signal, kill_process_group};

use super::inbox::{Came, Inbox};
use super::progress::Tell;

/// Bytes of a line of its standard error that are passed on.
const MAX_TOLD: usize = 4096;
/// Warnings within a `WINDOW`; what is beyond is counted.
const MOST_WARNINGS: u32 = 8;
const WINDOW: Duration = Duration::from_secs(10);
/// How long a process whose output has ended may take to end itself, in steps of 10 ms.
const ENDING_STEPS: u32 = 20;

/// A program of this machine and where it runs.
pub(super) struct Program {
    /// This program, through which it is started.
    pub(super) esf: PathBuf,
    pub(super) argv: Vec<String>,
    pub(super) directory: PathBuf,
    pub(super) environment: Vec<(String, PathBuf)>,
}

/// Looks for the program before anything is made for it: one with a slash from `directory`, another on PATH.
///
/// # Errors
/// `proposer_not_found`.
pub(super) fn find(argv: &[String], directory: &Path) -> Result<(), Problem> {
    let name = argv.first().map_or("", String::as_str);
    let runs = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let found = if name.contains('/') {
        runs(&directory.join(name))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|place| runs(&directory.join(place).join(name)))
    };
    if found {
        return Ok(());
    }
    let message = format!("the proposer {name:?} is no program that can be run");
    Err(Problem::new(Class::Usage, "proposer_not_found", message)
        .expected(format!(
            "proposer = [program, arguments…]: a file with execute permission from {}, or a name on PATH",
            directory.display()
        ))
        .found(name)
        .remedy(
            "a script needs `chmod +x` and a first line #!…, or name its interpreter: [\"sh\", \"p.sh\"]",
        ))
}

type Ask = (Box<Question>, SyncSender<Result<Offer, Fault>>);

/// What the process of a generation did.
enum Event {
    Heard(u64, Result<Vec<u8>, BadAnswer>),
    Ended(u64),
}

type Events = Inbox<Ask, Event>;

/// A running conversation; may be asked from many threads at once.
pub(super) struct Proposer {
    events: Arc<Events>,
    argv: String,
    manager: Option<JoinHandle<()>>,
}

impl Proposer {
    /// Gets ready; the process is started with the first question.
    pub(super) fn new(program: Program, limits: Limits, tell: Arc<Tell>) -> Self {
        let events = Arc::new(Events::new());
        let argv = program.argv.join(" ");
        let manager = Manager {
            program,
            tell,
            events: Arc::clone(&events),
            talk: Conversation::new(limits),
            asked: HashMap::new(),
            process: None,
            generation: 0,
            began: Instant::now(),
            warned: (Instant::now(), 0),
        };
        let manager = std::thread::spawn(move || manager.run());
        Self { events, argv, manager: Some(manager) }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// `proposer_died`, `proposer_timeout`, `proposer_bad_answer`, `proposer_error` after its tries;
    /// `cancelled` when the conversation is over.
    pub(super) fn ask(&self, question: Question) -> Result<Offer, Problem> {
        let (reply, answer) = sync_channel(1);
        let over = || Problem::new(Class::Failure, "cancelled", "the run is ending");
        if !self.events.request((Box::new(question), reply)) {
            return Err(over());
        }
        answer.recv().map_err(|_| over())?.map_err(|fault| {
            Problem::new(Class::Failure, fault.kind.code(), fault.to_string())
                .expected("a line {\"id\":…,\"actions\":[…]} for each question, on its standard output")
                .found(self.argv.chars().take(200).collect::<String>())
                .remedy("its own messages belong on standard error; docs/search.md has the protocol")
                .retryable()
        })
    }

    /// Ends the conversation: questions that are open end as `cancelled`.
    pub(super) fn close(&self) {
        self.events.close();
    }
}

impl Drop for Proposer {
    fn drop(&mut self) {
        self.close();
        if let Some(manager) = self.manager.take()
            && manager.join().is_err()
        {
            tracing::error!("the proposer's conversation broke down");
        }
    }
}

struct Manager {
    program: Program,
    tell: Arc<Tell>,
    events: Arc<Events>,
    talk: Conversation,
    asked: HashMap<u64, SyncSender<Result<Offer, Fault>>>,
    process: Option<Process>,
    generation: u64,
    began: Instant,
    /// When this window of warnings began, and how many it has.
    warned: (Instant, u32),
}

impl Manager {
    fn run(mut self) {
        loop {
            let deadline = self.talk.deadline();
            let patience = deadline.map(|at| Duration::from_millis(at.saturating_sub(self.now())));
            let came = self.events.take(patience);
            let now = self.now();
            let acts = match came {
                Came::Closed => return,
                Came::Nothing => self.talk.tick(now),
                Came::Request((question, reply)) => {
                    let (id, acts) = self.talk.ask(now, *question);
                    self.asked.insert(id, reply);
                    acts
                }
                // What an earlier process said comes too late.
                Came::Said(Event::Heard(of, _) | Event::Ended(of)) if of != self.generation => Vec::new(),
                Came::Said(Event::Heard(_, line)) => {
                    self.talk.heard(now, line.as_deref().map_err(Clone::clone))
                }
                Came::Said(Event::Ended(_)) => {
                    let how = self.process.take().map_or_else(String::new, Process::end);
                    self.talk.ended(now, &how)
                }
            };
            self.perform(acts);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn perform(&mut self, acts: Vec<Act>) {
        let mut waiting = VecDeque::from(acts);
        while let Some(act) = waiting.pop_front() {
            match act {
                Act::Start => {
                    drop(self.process.take());
                    self.generation += 1;
                    match Process::start(&self.program, self.generation, &self.events, &self.tell) {
                        Ok(process) => self.process = Some(process),
                        Err(error) => {
                            // What was to be sent to it is sent to the next one.
                            waiting.retain(|act| !matches!(act, Act::Send(_)));
                            let how = format!("cannot start {:?}: {error}", self.program.argv[0]);
                            waiting.extend(self.talk.ended(self.now(), &how));
                        }
                    }
                }
                Act::Stop => drop(self.process.take()),
                Act::Send(line) => {
                    if let Some(process) = &self.process {
                        process.send(line);
                    }
                }
                Act::Offered(id, offer) => self.reply(id, Ok(offer)),
                Act::Failed(id, fault) => self.reply(id, Err(fault)),
                Act::Warn(text) => self.warn(&text),
            }
        }
    }

    fn warn(&mut self, text: &str) {
        if self.warned.0.elapsed() >= WINDOW {
            if self.warned.1 > MOST_WARNINGS {
                self.tell.line(&format!("proposer: {} more warnings", self.warned.1 - MOST_WARNINGS));
            }
            self.warned = (Instant::now(), 0);
        }
        self.warned.1 = self.warned.1.saturating_add(1);
        if self.warned.1 <= MOST_WARNINGS {
            self.tell.line(&format!("proposer: {text}"));
        }
    }

    fn reply(&mut self, id: u64, answer: Result<Offer, Fault>) {
        if let Some(asked) = self.asked.remove(&id) {
            // Whoever asked may have gone.
            let _ = asked.send(answer);
        }
    }
}

/// One process; killed with its group when it is dropped.
struct Process {
    child: Child,
    lines: Sender<Vec<u8>>,
}

impl Process {
    fn start(program: &Program, generation: u64, events: &Arc<Events>, tell: &Arc<Tell>) -> io::Result<Self> {
        let (name, arguments) = program.argv.split_first().expect("checked when the file was read");
        // As a shell would find it from the file's directory.
        let name = if name.contains('/') { program.directory.join(name) } else { PathBuf::from(name) };
        let mut child = Command::new(&program.esf)
            .args(["tethered", "--parent", &std::process::id().to_string(), "--"])
            .arg(name)
            .args(arguments)
            .current_dir(&program.directory)
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (lines, to_send) = channel::<Vec<u8>>();
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut stdin = stdin.expect("it was asked for");
        // A thread each, none of which is waited for: a grandchild may hold a pipe open for ever.
        std::thread::spawn(move || {
            for line in to_send {
                if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                    return;
                }
            }
        });
        let heard = Arc::clone(events);
        let mut stdout = stdout.expect("it was asked for");
        std::thread::spawn(move || {
            listen(&mut stdout, |line| heard.say(Event::Heard(generation, line)));
            // Nobody is left to be told when the conversation is over.
            let _ = heard.say(Event::Ended(generation));
        });
        let tell = Arc::clone(tell);
        let mut stderr = stderr.expect("it was asked for");
        std::thread::spawn(move || {
            listen(&mut stderr, |line| {
                let line = line.unwrap_or_else(|bad| bad.to_string().into_bytes());
                let text = String::from_utf8_lossy(&line[..line.len().min(MAX_TOLD)]);
                tell.line(&format!("proposer: {text}"));
                true
            });
        });
        Ok(Self { child, lines })
    }

    fn send(&self, line: Vec<u8>) {
        // One that does not read any more is noticed by its silence or its end.
        let _ = self.lines.send(line);
    }

    /// Kills what is left of it once its output has ended; says how it ended.
    fn end(mut self) -> String {
        for _ in 0..ENDING_STEPS {
            match self.child.try_wait() {
                Ok(Some(status)) => return format!("it ended with {status}"),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(_) => break,
            }
        }
        "it closed its standard output".to_owned()
    }

    fn kill(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // It, or all of it, may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "cannot wait for the proposer");
        }
    }
}

/// Gives every line of a stream to `each`, until its end or until that says false.
fn listen(stream: &mut impl Read, mut each: impl FnMut(Result<Vec<u8>, BadAnswer>) -> bool) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        for line in lines.push(&buffer[..length]) {
            if !each(line) {
                return;
            }
        }
    }
}
