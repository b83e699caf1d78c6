//! The engine from outside: modules written in the text format, run over a union on temporary directories.

mod cache;
mod cancel;
mod files;
mod limits;
mod modules;
mod network;
mod programs;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use esf_layerstack::Form;
use esf_layerstack::union::{Dir, Layers, Node, Open, Union};

use super::*;

/// All that preview 1 modules of these tests import, as functions `$fd_write` and so on.
const IMPORTS: &str = r#"
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $fd_close (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
"#;

/// One process has one set of engines.
static ENGINES: LazyLock<Engines> = LazyLock::new(|| Engines::new().expect("engines"));

/// A union over one lower, in a directory that goes away.
struct Bench {
    directory: tempfile::TempDir,
    union: Arc<Union>,
    limits: Arc<Limits>,
    fuel: Option<u64>,
    network: bool,
    argv: Vec<String>,
    env: Vec<(String, String)>,
    /// Paths in the tree, what the guest calls them, whether they may be written.
    preopens: Vec<(&'static str, &'static str, bool)>,
    stdin: Vec<u8>,
}

/// What a guest left.
#[derive(Debug, PartialEq)]
struct Outcome {
    exit: GuestExit,
    stdout: Vec<u8>,
    stderr: String,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// The closure fills the lower.
    fn with(fill: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["lower", "upper", "work"] {
            fs::create_dir(directory.path().join(name)).expect("a layer");
        }
        fill(&directory.path().join("lower"));
        let open = |name: &str| OwnedFd::from(File::open(directory.path().join(name)).expect("a layer"));
        let layers = Layers {
            lowers: vec![open("lower")],
            upper: open("upper"),
            work: open("work"),
            form: Form::Native,
        };
        let union = Arc::new(Union::new(layers, None).expect("a union"));
        Self {
            directory,
            union,
            limits: Arc::new(Limits::new(None)),
            fuel: None,
            network: false,
            argv: vec!["guest".to_owned()],
            env: Vec::new(),
            preopens: vec![("", "/", true)],
            stdin: Vec::new(),
        }
    }

    fn upper(&self) -> std::path::PathBuf {
        self.directory.path().join("upper")
    }

    fn directory(&self, path: &str) -> Dir {
        if path.is_empty() {
            return self.union.root();
        }
        let how = Open { read: true, directory: true, ..Open::default() };
        match self.union.open(&self.union.root(), path.as_bytes(), how).expect("a directory of the tree") {
            Node::Dir(directory) => directory,
            Node::File(_) => panic!("{path} is a file"),
        }
    }

    fn spec(&self, artefact: OwnedFd, key: String) -> GuestSpec {
        let preopens = self.preopens.iter().map(|(path, at, write)| Preopen {
            directory: self.directory(path),
            at: (*at).to_owned(),
            write: *write,
        });
        GuestSpec {
            artefact,
            key,
            argv: self.argv.clone(),
            env: self.env.clone(),
            preopens: preopens.collect(),
            union: Arc::clone(&self.union),
            limits: Arc::clone(&self.limits),
            fuel: self.fuel,
            network: self.network,
        }
    }

    /// Runs a module in the text format.
    fn run(&self, text: &str) -> Outcome {
        self.run_bytes(wat::parse_str(text).expect("valid text"))
    }

    fn run_bytes(&self, module: Vec<u8>) -> Outcome {
        let (artefact, key) = artefact(module, self.fuel.is_some());
        let (stdin, mut to_stdin) = pipe();
        let input = self.stdin.clone();
        let feed = std::thread::spawn(move || to_stdin.write_all(&input));
        let outcome =
            self.start(artefact, key, stdin.into(), &Cancel::new()).join().expect("a guest's thread");
        // A guest that does not read all its input ends the pipe early.
        let _ = feed.join().expect("the feeding thread");
        outcome
    }

    /// Starts a guest on a thread of its own, as a host process does.
    fn start(
        &self,
        artefact: OwnedFd,
        key: String,
        stdin: OwnedFd,
        cancel: &Cancel,
    ) -> std::thread::JoinHandle<Outcome> {
        let (spec, cancel) = (self.spec(artefact, key), cancel.clone());
        std::thread::spawn(move || {
            let ((out, stdout), (err, stderr)) = (pipe(), pipe());
            let read = |mut from: File| {
                std::thread::spawn(move || {
                    let mut all = Vec::new();
                    from.read_to_end(&mut all).expect("read a pipe");
                    all
                })
            };
            let (out, err) = (read(out), read(err));
            let stdio = GuestStdio { stdin, stdout: stdout.into(), stderr: stderr.into() };
            let exit = ENGINES.run(spec, stdio, &cancel);
            let (stdout, stderr) = (out.join().expect("stdout"), err.join().expect("stderr"));
            Outcome { exit, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
        })
    }
}

/// Reading and writing end.
fn pipe() -> (File, File) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    (read.into(), write.into())
}

fn null() -> OwnedFd {
    File::open("/dev/null").expect("/dev/null").into()
}

/// Compiles in this process.
fn artefact(module: Vec<u8>, fuel: bool) -> (OwnedFd, String) {
    let key = format!("{}-{fuel}", blake3::hash(&module).to_hex());
    let bytes = compile::build(module, fuel, u64::MAX).expect("a module that compiles");
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&bytes).expect("write the artefact");
    (file.into(), key)
}

/// A preview 1 module: `body` is what `_start` does, `more` what else it defines. Memory 0..1024 is for
/// iovecs and results.
fn module(more: &str, body: &str) -> String {
    format!(
        r#"(module {IMPORTS}
          (memory (export "memory") 4)
          {more}
          (func (export "_start") (local $i i32) (local $j i32) {body}))"#
    )
}
