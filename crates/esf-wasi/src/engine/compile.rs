//! The compiler's process: one module in, one artefact out, nothing else in reach.
//!
//! A compiler is a large program that reads hostile input, so it runs as a process of its own: this binary
//! under another name ([`COMPILER`]), with no right to any file, a cap on its memory and a limit to its time.
//! The process that starts it believes nothing but the frame of its answer. Both directions go over one
//! socket, descriptor 0.
//!
//! Request and answer are `magic (8) | tag (1) | length (8, little endian) | body`: the tag is whether guests
//! pay fuel, or whether the body is an artefact (0) or a [`ModuleError`] in JSON (1).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use wasmtime::Engine;
use wasmtime::component::Component;
use wasmtime_wasi::p2::bindings::CommandPre;

use super::config::{Role, engine};
use super::module::{self, ModuleError};
use super::state::linker;

/// The name under which this binary is a compiler.
pub(crate) const COMPILER: &str = "esf-wasi-compile";

const MAGIC: &[u8; 8] = b"ESFWASM1";
const HEADER: usize = 17;
const ARTEFACT: u8 = 0;
const REFUSAL: u8 = 1;

/// The largest artefact and the longest refusal that are believed.
const LARGEST_ARTEFACT: u64 = 1 << 30;
const LONGEST_REFUSAL: u64 = 64 << 10;

/// Bytes moved at once.
const CHUNK: usize = 256 << 10;

/// How long a compiler that has nothing more to say may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads that one compiler may use: each takes address space, which is what is capped.
const THREADS: usize = 4;

/// How a compiler's process is started and what it may take.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    /// The program that serves [`compile_child`] when it is called [`COMPILER`].
    pub(crate) program: PathBuf,
    /// What it is called with besides its name.
    pub(crate) arguments: Vec<String>,
    /// Address space in bytes.
    pub(crate) memory: u64,
    /// Wall time.
    pub(crate) time: Duration,
}

impl Default for Compiler {
    /// This very program, 2 GiB, two minutes.
    fn default() -> Self {
        Self {
            program: this_program(),
            arguments: Vec::new(),
            memory: 2 << 30,
            time: Duration::from_secs(120),
        }
    }
}

#[cfg(target_os = "linux")]
fn this_program() -> PathBuf {
    // The running image even if its file was replaced.
    PathBuf::from("/proc/self/exe")
}

#[cfg(not(target_os = "linux"))]
fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("esf"))
}

/// Why there is no artefact.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It is the module's fault.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// It is this machine's.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

impl Compiler {
    /// Compiles `length` bytes of `module` and writes the artefact to `out`.
    ///
    /// # Errors
    ///
    /// [`Error::Module`] when the module is refused, or too heavy to compile; [`Error::Io`] when no compiler
    /// can be run.
    pub(super) fn compile(
        &self,
        module: &mut dyn Read,
        length: u64,
        fuel: bool,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + self.time;
        let (socket, theirs) = UnixStream::pair().map_err(Error::io("make a socket for the compiler"))?;
        let mut child = Running::start(self, theirs).map_err(Error::io("start the compiler"))?;
        let mut socket = Timed { socket, deadline };
        let answer = exchange(&mut socket, module, length, fuel, out);
        match answer {
            Ok(Answer::Artefact) => Ok(()),
            Ok(Answer::Refusal(ModuleError::Memory { .. })) => Err(self.too_much_memory()),
            Ok(Answer::Refusal(refusal)) => Err(refusal.printable().into()),
            Err(Interrupted::Reading(source)) => Err(Error::Io { doing: "read the module", source }),
            Err(Interrupted::Writing(source)) => Err(Error::Io { doing: "write the artefact", source }),
            Err(Interrupted::Socket(_)) if Instant::now() >= deadline => Err(self.too_much_time()),
            Err(Interrupted::Socket(error)) => Err(self.died(child.end(), &error)),
        }
    }

    fn too_much_memory(&self) -> Error {
        ModuleError::Memory { limit: self.memory }.into()
    }

    fn too_much_time(&self) -> Error {
        let limit_ms = u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX);
        ModuleError::Time { limit_ms }.into()
    }

    /// There was no answer that can be believed. Memory that cannot be had ends a Rust program by SIGABRT; the kernel's
    /// own killer uses SIGKILL.
    fn died(&self, end: io::Result<Option<(ExitStatus, String)>>, error: &io::Error) -> Error {
        let (status, said) = match end {
            Ok(Some(end)) => end,
            Ok(None) => {
                return ModuleError::broken(format!("one that makes the compiler misspeak: {error}")).into();
            }
            Err(source) => return Error::Io { doing: "wait for the compiler", source },
        };
        let signal = status.signal().and_then(Signal::from_named_raw);
        match signal {
            Some(Signal::XCPU) => self.too_much_time(),
            Some(Signal::KILL) => self.too_much_memory(),
            Some(_) if said.contains("memory allocation of") => self.too_much_memory(),
            _ => ModuleError::broken(format!("one that ends the compiler ({status}): {said}")).into(),
        }
    }
}

/// A compiler that is killed and waited for when it is let go.
struct Running(Child);

impl Running {
    fn start(compiler: &Compiler, socket: UnixStream) -> io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS));
        Command::new(&compiler.program)
            .arg0(COMPILER)
            .args(&compiler.arguments)
            .env_clear()
            .env("RAYON_NUM_THREADS", threads.to_string())
            .env("MALLOC_ARENA_MAX", threads.to_string())
            .env("ESF_COMPILE_MEMORY", compiler.memory.to_string())
            .env(
                "ESF_COMPILE_SECONDS",
                (compiler.time.as_secs().saturating_mul(threads as u64) + 1).to_string(),
            )
            .stdin(OwnedFd::from(socket))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map(Self)
    }

    /// How it ended and the first of what it said; none when it goes on though it should not.
    fn end(&mut self) -> io::Result<Option<(ExitStatus, String)>> {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > until => return Ok(None),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let mut said = [0; 1024];
        let read = match &self.0.stderr {
            // Not waited for: a process of its own making may hold the other end.
            Some(stderr) => rustix::fs::fcntl_setfl(stderr, OFlags::NONBLOCK)
                .and_then(|()| rustix::io::read(stderr, &mut said))
                .unwrap_or(0),
            None => 0,
        };
        Ok(Some((status, String::from_utf8_lossy(&said[..read]).into_owned())))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a child that has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A socket every use of which ends at the deadline.
struct Timed {
    socket: UnixStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Answer {
    Artefact,
    Refusal(ModuleError),
}

/// Where an exchange broke off.
enum Interrupted {
    Reading(io::Error),
    Writing(io::Error),
    Socket(io::Error),
}

/// Sends the module and takes the answer. A compiler that has seen enough stops reading; then its answer
/// counts.
fn exchange(
    socket: &mut Timed,
    module: &mut dyn Read,
    length: u64,
    fuel: bool,
    out: &mut dyn Write,
) -> Result<Answer, Interrupted> {
    match send(socket, module, length, fuel) {
        Ok(()) => {}
        Err(Interrupted::Socket(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(Interrupted::Socket(error)) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Err(error),
    }
    let (tag, length) = read_header(socket).map_err(Interrupted::Socket)?;
    let invalid =
        |what: &str| Interrupted::Socket(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
    match tag {
        ARTEFACT if length <= LARGEST_ARTEFACT => {
            let mut chunk = vec![0; CHUNK];
            let mut left = length;
            while left > 0 {
                let most = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let read = socket.read(&mut chunk[..most]).map_err(Interrupted::Socket)?;
                if read == 0 {
                    return Err(Interrupted::Socket(io::ErrorKind::UnexpectedEof.into()));
                }
                out.write_all(&chunk[..read]).map_err(Interrupted::Writing)?;
                left -= read as u64;
            }
            Ok(Answer::Artefact)
        }
        REFUSAL if length <= LONGEST_REFUSAL => {
            let mut body = Vec::new();
            socket.take(length).read_to_end(&mut body).map_err(Interrupted::Socket)?;
            serde_json::from_slice(&body)
                .map(Answer::Refusal)
                .map_err(|_| invalid("an answer that is no refusal"))
        }
        _ => Err(invalid("an answer of no known form")),
    }
}

fn send(socket: &mut Timed, module: &mut dyn Read, length: u64, fuel: bool) -> Result<(), Interrupted> {
    socket.write_all(&header(u8::from(fuel), length)).map_err(Interrupted::Socket)?;
    let mut chunk = vec![0; CHUNK];
    let mut left = length;
    while left > 0 {
        let most = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = module.read(&mut chunk[..most]).map_err(Interrupted::Reading)?;
        if read == 0 {
            return Err(Interrupted::Reading(io::ErrorKind::UnexpectedEof.into()));
        }
        socket.write_all(&chunk[..read]).map_err(Interrupted::Socket)?;
        left -= read as u64;
    }
    Ok(())
}

fn header(tag: u8, length: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8] = tag;
    header[9..].copy_from_slice(&length.to_le_bytes());
    header
}

fn read_header(from: &mut impl Read) -> io::Result<(u8, u64)> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let length = header.last_chunk().expect("a header ends with its length");
    match header.starts_with(MAGIC) {
        true => Ok((header[8], u64::from_le_bytes(*length))),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of another protocol")),
    }
}

/// Serves one request on descriptor 0 and ends the process. For a process of its own, called before it has
/// threads.
pub(crate) fn compile_child() -> ! {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let memory = number("ESF_COMPILE_MEMORY").unwrap_or(2 << 30);
    confine(memory, number("ESF_COMPILE_SECONDS").unwrap_or(120));
    let status = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        .map_err(io::Error::from)
        .and_then(|socket| serve(&mut File::from(socket), memory));
    std::process::exit(i32::from(status.is_err()))
}

/// Gives up every right that compiling does not need.
pub(super) fn confine(memory: u64, seconds: u64) {
    let limits = [
        (Resource::As, memory),
        (Resource::Cpu, seconds),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, 64),
    ];
    for (resource, limit) in limits {
        // Limits may only be lowered, which is always allowed; an already lower one stays.
        let _ = setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) });
    }
    confine_files();
}

/// No file can be opened any more. A kernel without Landlock leaves the other walls: no rights are gained and
/// no descriptor but the socket is there.
#[cfg(target_os = "linux")]
fn confine_files() {
    use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr};
    // The parent's end is not waited for: whoever asked is gone.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V5)).and_then(Ruleset::create);
    if let Err(error) = ruleset.and_then(|ruleset| ruleset.restrict_self()) {
        eprintln!("the compiler runs without Landlock: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn confine_files() {}

fn serve(socket: &mut File, memory: u64) -> io::Result<()> {
    let (fuel, length) = read_header(socket)?;
    match read_module(socket, length).and_then(|bytes| build(bytes, fuel != 0, memory)) {
        Ok(artefact) => {
            socket.write_all(&header(ARTEFACT, artefact.len() as u64))?;
            socket.write_all(&artefact)
        }
        Err(refusal) => {
            let body = serde_json::to_vec(&refusal)?;
            socket.write_all(&header(REFUSAL, body.len() as u64))?;
            socket.write_all(&body)
        }
    }
}

/// Reads a module whose first bytes are those of one; anything else is not read to its end.
fn read_module(socket: &mut impl Read, length: u64) -> Result<Vec<u8>, ModuleError> {
    if length > module::LARGEST {
        return Err(ModuleError::TooLarge { limit: module::LARGEST, found: length });
    }
    let mut bytes = Vec::new();
    for upto in [length.min(module::HEAD as u64), length] {
        let more = upto - bytes.len() as u64;
        socket.take(more).read_to_end(&mut bytes).map_err(ModuleError::broken)?;
        module::kind(&bytes)?;
    }
    Ok(bytes)
}

/// Compiles a module in this process, within `memory` bytes if the caller has set such a limit.
///
/// # Errors
///
/// [`ModuleError`]; never `Time`, which is the parent's to see.
pub(super) fn build(bytes: Vec<u8>, fuel: bool, memory: u64) -> Result<Vec<u8>, ModuleError> {
    let component = module::component(bytes)?;
    let engine = engine(Role::Compile, fuel).map_err(|error| ModuleError::broken(format!("{error:#}")))?;
    compile(&engine, &component).map_err(|error| refusal(&error, memory))
}

/// Compiles, and links on trial: what has the right names and other types is found here and not at each
/// start.
fn compile(engine: &Engine, component: &[u8]) -> wasmtime::Result<Vec<u8>> {
    let component = Component::new(engine, component)?;
    CommandPre::new(linker(engine)?.instantiate_pre(&component)?)?;
    component.serialize()
}

/// What the compiler's own error means: memory that cannot be had arrives as an error of the system as well.
fn refusal(error: &wasmtime::Error, memory: u64) -> ModuleError {
    let no_memory = error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory)
            || cause.downcast_ref::<rustix::io::Errno>() == Some(&rustix::io::Errno::NOMEM)
            || cause.is::<wasmtime::OutOfMemory>()
    });
    if no_memory { ModuleError::Memory { limit: memory } } else { ModuleError::broken(format!("{error:#}")) }
}
