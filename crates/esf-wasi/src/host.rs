//! The process in which the guests of one attempt run. Invariants: it gave up every right that it does not
//! need before it answers that it is ready; it lives no longer than the worker's end of its socket; a guest
//! that makes it panic ends this attempt and nothing else; every write into the delta is made here.

mod files;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use esf_layerstack::Form;
use esf_layerstack::union::{Dir, Layers, Node, Open, Union};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::engine::{Cancel, Engines, GuestExit, GuestSpec, GuestStdio, Limits, Preopen};
use crate::jail::{self, Kept};
use crate::view::Cwd;
use crate::wire::{Answer, Begun, Channel, Ended, Exec, LARGEST, Order, Refusal, Request, Run, Start};

/// The name under which this program is a host.
pub(crate) const NAME: &str = "esf-wasi-host";

/// Stack of a guest's thread: what the engine lets guests use, and what host calls need; only what is
/// touched costs memory.
const STACK: usize = 8 << 20;
/// How this process ends when the program in it is wrong.
const PANICKED: i32 = 70;

/// Serves an attempt until the worker is gone.
pub(crate) fn serve() -> ! {
    let code = match catch_unwind(run) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            eprintln!("{NAME}: {error}");
            1
        }
        Err(_) => PANICKED,
    };
    std::process::exit(code);
}

fn run() -> io::Result<()> {
    let orders = Channel::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    // Held to the end of the process: the attempt's lock, and the pipe that tells of its death.
    let (start, _held) = orders.expect::<Start>(LARGEST, None)?;
    let host = match Host::begin(start) {
        Ok((host, lacks)) => {
            orders.send(&Begun::Ready { lacks }, &[])?;
            Arc::new(host)
        }
        Err(refused) => return orders.send(&refused, &[]),
    };
    while let Some(mut message) = orders.receive(LARGEST, None)? {
        let descriptor = message.descriptors.pop();
        match (message.json()?, descriptor) {
            (Order::Serve, Some(socket)) => host.serve(Channel::from(socket))?,
            (Order::Serve, None) => return Err(io::Error::other("a request without its socket")),
            (Order::Kill(number), _) => host.kill(number),
        }
    }
    Ok(())
}

/// The attempt.
struct Host {
    union: Arc<Union>,
    engines: Engines,
    limits: Arc<Limits>,
    /// In the order of the view's.
    preopens: Vec<Preopen>,
    start: Start,
    guests: Mutex<HashMap<u64, Cancel>>,
}

/// A guest's place among those that run; given back when it is dropped.
struct Place<'a> {
    host: &'a Host,
    number: u64,
    cancel: Cancel,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.host.guests().remove(&self.number);
    }
}

impl Host {
    /// Opens the layers, gives up what is not needed, and makes the rest.
    fn begin(start: Start) -> Result<(Self, Vec<String>), Begun> {
        let failed =
            |what: &str, error: &dyn std::fmt::Display| Begun::Failed { what: format!("{what}: {error}") };
        let open = |path: &Vec<u8>| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, path.as_slice(), flags, Mode::empty())
                .map_err(|error| failed(&format!("cannot open {}", path.escape_ascii()), &error))
        };
        let lowers = start.lowers.iter().map(open).collect::<Result<Vec<OwnedFd>, Begun>>()?;
        let (upper, work) = (open(&start.upper)?, open(&start.work)?);
        let kept = Kept {
            read: lowers.iter().map(AsFd::as_fd).collect(),
            write: vec![upper.as_fd(), work.as_fd()],
            network: start.network,
        };
        let lacks = jail::enter(&kept).map_err(|error| failed("cannot enter the jail", &error))?;
        let form = if start.portable { Form::Portable } else { Form::Native };
        let union =
            Union::new(Layers { lowers, upper, work, form }, start.disk).map_err(|error| match error {
                Errno::NOSPC | Errno::DQUOT => {
                    Begun::Full { what: format!("cannot make the union: {error}") }
                }
                error => failed("cannot make the union", &error),
            })?;
        let union = Arc::new(union);
        for path in &start.hide {
            files::hide(&union, path).map_err(|error| match error {
                Errno::NOSPC | Errno::DQUOT => Begun::Full { what: format!("cannot hide paths: {error}") },
                error => failed(&format!("cannot hide {}", path.escape_ascii()), &error),
            })?;
        }
        let preopens = start.view.preopens.iter().map(|preopen| {
            let opened = directory(&union, &union.root(), preopen.path.as_bytes());
            let opened = opened.map_err(|error| Begun::Invalid {
                what: format!("preopen {:?}: {error}", preopen.path),
                expected: "a directory of the tree".to_owned(),
            });
            Ok(Preopen { directory: opened?, at: preopen.at.clone(), write: preopen.write })
        });
        let host = Self {
            preopens: preopens.collect::<Result<_, Begun>>()?,
            union,
            engines: Engines::new().map_err(|error| failed("cannot make the engine", &error))?,
            limits: Arc::new(Limits::new(start.memory)),
            start,
            guests: Mutex::default(),
        };
        Ok((host, lacks))
    }

    fn guests(&self) -> MutexGuard<'_, HashMap<u64, Cancel>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self, number: u64) {
        // One that is not there has ended.
        if let Some(guest) = self.guests().get(&number) {
            guest.cancel();
        }
    }

    /// Answers one request in a thread of its own.
    fn serve(self: &Arc<Self>, channel: Channel) -> io::Result<()> {
        let host = Arc::clone(self);
        let body = move || {
            let answered = catch_unwind(AssertUnwindSafe(|| host.answer(&channel)));
            match answered {
                // Who asked is gone, which is no concern of anybody else.
                Ok(Ok(()) | Err(_)) => {}
                // Nobody knows in what state it left what all threads share.
                Err(_) => std::process::exit(PANICKED),
            }
        };
        // Without a thread there is nobody to answer: the asker finds the end of its socket.
        if let Err(error) =
            std::thread::Builder::new().name("request".to_owned()).stack_size(STACK).spawn(body)
        {
            eprintln!("{NAME}: no thread for a request: {error}");
        }
        Ok(())
    }

    fn answer(&self, channel: &Channel) -> io::Result<()> {
        let (request, descriptors) = channel.expect::<Request>(LARGEST, None)?;
        match request {
            Request::Exec(exec) => self.exec(channel, exec, descriptors),
            Request::Stats => channel.send(&self.used(), &[]),
            Request::Open { path } => self.open_file(channel, &path),
            Request::Create { temporary, path } => self.create_file(channel, &temporary, &path),
            Request::List { path } => self.list(channel, &path),
            Request::Remove { path } => channel.send(&files::answer(self.remove(&path)), &[]),
        }
    }

    fn used(&self) -> Answer {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu_us = u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1000).unwrap_or(0);
        let guests = self.guests().len() as u64;
        Answer::Used { memory: self.limits.taken(), guests, refused: self.limits.refused(), cpu_us }
    }

    /// A place for one more guest, if there is one.
    fn place(&self, number: u64) -> Option<Place<'_>> {
        let mut guests = self.guests();
        if self.start.guests.is_some_and(|most| guests.len() as u64 >= most) {
            return None;
        }
        let cancel = Cancel::new();
        guests.insert(number, cancel.clone());
        Some(Place { host: self, number, cancel })
    }

    fn exec(&self, channel: &Channel, exec: Exec, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let stdio: [OwnedFd; 3] =
            descriptors.try_into().map_err(|_| io::Error::other("an exec without its streams"))?;
        let refuse = |refusal: Refusal| channel.send(&Answer::Refused(refusal), &[]);
        let Some(place) = self.place(exec.number) else { return refuse(Refusal::TooMany) };
        let preopens = match self.preopens(&exec.cwd) {
            Ok(preopens) => preopens,
            Err(refusal) => return refuse(refusal),
        };
        if let Some(path) = &exec.program {
            match self.module(path) {
                Ok(file) => channel.send(&Answer::Module, &[file.as_fd()])?,
                Err(refusal) => return refuse(refusal),
            }
        }
        // Nothing comes when the module cannot be compiled.
        let Some(mut message) = channel.receive(LARGEST, None)? else { return Ok(()) };
        let artefact =
            message.descriptors.pop().ok_or_else(|| io::Error::other("a run without its artefact"))?;
        let Run { key } = message.json()?;
        let spec = GuestSpec {
            artefact,
            key,
            argv: exec.argv,
            env: exec.env,
            preopens,
            union: Arc::clone(&self.union),
            limits: Arc::clone(&self.limits),
            fuel: self.start.fuel,
            network: self.start.network,
        };
        let [stdin, stdout, stderr] = stdio;
        channel.send(&Answer::Started, &[])?;
        let exit = self.engines.run(spec, GuestStdio { stdin, stdout, stderr }, &place.cancel);
        // Whoever hears of its end finds its place free.
        drop(place);
        let panicked = matches!(exit, GuestExit::Panicked(_));
        let told = channel.send(&Answer::Ended(ended(exit)), &[]);
        if panicked {
            // Nobody knows in what state it left what all guests share.
            std::process::exit(PANICKED);
        }
        told
    }

    /// What a guest is given: the view's preopens, and its working directory as `.`.
    fn preopens(&self, cwd: &Cwd) -> Result<Vec<Preopen>, Refusal> {
        let mut preopens = self.preopens.clone();
        if preopens.iter().any(|preopen| preopen.at == ".") {
            return Ok(preopens);
        }
        let bad = |why: String| Refusal::BadCwd(format!("{}: {why}", cwd.at));
        match self.start.view.covering(&cwd.path) {
            Some((index, rest)) => {
                let Preopen { directory: top, write, .. } = &self.preopens[index];
                let directory = directory(&self.union, top, &rest).map_err(|error| bad(error.to_string()))?;
                preopens.push(Preopen { directory, at: ".".to_owned(), write: *write });
            }
            None if cwd.asked => return Err(bad("it is in none of the preopens".to_owned())),
            None => {}
        }
        Ok(preopens)
    }

    /// A module of the tree, for the worker to read.
    fn module(&self, path: &[u8]) -> Result<OwnedFd, Refusal> {
        let how = Open { read: true, follow: true, ..Open::default() };
        let opened = match self.union.open(&self.union.root(), path, how) {
            Ok(Node::File(file)) => file.reader(),
            Ok(Node::Dir(_)) => Err(Errno::ISDIR),
            Err(error) => Err(error),
        };
        opened.map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => Refusal::NotFound,
            Errno::ISDIR => Refusal::NotExecutable("it is a directory".to_owned()),
            error => Refusal::NotExecutable(error.to_string()),
        })
    }
}

/// A directory of the union; the one it is looked for from, for an empty path.
fn directory(union: &Union, at: &Dir, path: &[u8]) -> Result<Dir, Errno> {
    if path.is_empty() {
        return Ok(at.clone());
    }
    match union.open(at, path, Open { read: true, directory: true, follow: true, ..Open::default() })? {
        Node::Dir(dir) => Ok(dir),
        Node::File(_) => Err(Errno::NOTDIR),
    }
}

fn ended(exit: GuestExit) -> Ended {
    match exit {
        GuestExit::Code(code) => Ended::Code(code),
        GuestExit::Killed | GuestExit::Memory => Ended::Killed,
        GuestExit::Trap(_) => Ended::Trapped,
        GuestExit::OutOfFuel => Ended::OutOfFuel,
        GuestExit::Panicked(what) => Ended::Lost(format!("the guest made its host panic: {what}")),
        GuestExit::Failed(what) => Ended::Lost(what),
    }
}
