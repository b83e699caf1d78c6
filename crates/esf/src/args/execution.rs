//! Arguments of attempts and what runs in them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use esf_core::units::{ParseUnitError, parse_duration_ms, parse_size};

/// A size in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);
/// A duration in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Millis(pub(crate) u64);

pub(super) fn size(text: &str) -> Result<Size, ParseUnitError> {
    parse_size(text).map(Size)
}

fn millis(text: &str) -> Result<Millis, ParseUnitError> {
    parse_duration_ms(text).map(Millis)
}

/// A duration that is not over at once.
pub(super) fn some_time(text: &str) -> Result<Millis, String> {
    match millis(text).map_err(|error| error.to_string())? {
        Millis(0) => Err("expected more than 0".to_owned()),
        some => Ok(some),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("expected NAME=VALUE, found {text:?}")),
    }
}

/// What a sandbox is given.
#[derive(Args, Clone, Default)]
pub(crate) struct ActivateOptions {
    /// oci: programs of this machine or the tree, in Linux namespaces; wasi: WebAssembly, without privilege
    #[arg(long, value_name = "oci|wasi")]
    pub(crate) executor: Option<String>,
    /// host: this machine's system directories below, the tree at the workspace; root: the tree is /
    #[arg(long, value_name = "host|root|image:ROOT")]
    pub(crate) base: Option<String>,
    /// Show a directory of this machine inside, read-only; on record
    #[arg(long, value_name = "PATH[:AT]")]
    pub(crate) bind_ro: Vec<String>,
    /// Where the tree is mounted
    #[arg(long, value_name = "PATH")]
    pub(crate) workspace: Option<PathBuf>,
    /// Who commands run as: a name or uid[:gid] of the sandbox
    #[arg(long, value_name = "U")]
    pub(crate) user: Option<String>,
    /// A variable for every command
    #[arg(short = 'e', long = "env", value_name = "K=V", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Where commands start
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// Processors, such as 0.5
    #[arg(long, value_name = "F")]
    pub(crate) cpus: Option<f64>,
    /// Memory limit
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<Size>,
    /// Most processes and threads; with wasi, commands at once
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u64>,
    /// Most bytes of changes (wasi)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) disk: Option<Size>,
    /// When the holder seals or discards by itself
    #[arg(long, value_name = "DUR", value_parser = some_time)]
    pub(crate) lifetime: Option<Millis>,
    /// none, or host with wasi (others are not in this build)
    #[arg(long, value_name = "none|host|allow:…")]
    pub(crate) network: Option<String>,
    /// What happens at the end of the lifetime
    #[arg(long, value_enum)]
    pub(crate) on_expiry: Option<OnExpiryArg>,
    /// Refuse (exit 5) instead of waiting when the quota is used up
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Higher is started earlier when not all can live at once
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    pub(crate) priority: i32,
    /// A program for wasi: a file of this machine, or one of the node's tree; called by its name
    #[arg(long, value_name = "FILE|root:PATH")]
    pub(crate) module: Vec<String>,
    /// A directory of the tree that guests are given, instead of all of it (wasi)
    #[arg(long, value_name = "PATH[:AT][:ro|rw]")]
    pub(crate) preopen: Vec<String>,
    /// Most work of each command, about one unit an instruction (wasi)
    #[arg(long, value_name = "N")]
    pub(crate) fuel: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExpiryArg {
    Seal,
    Discard,
}

#[derive(Args)]
pub(crate) struct Activate {
    /// A draft, or a sealed node (which is forked first)
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) options: ActivateOptions,
}

/// How a command runs.
#[derive(Args)]
pub(crate) struct Exec {
    /// A live attempt
    pub(crate) attempt: String,
    /// Pass standard input on
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give it a terminal (not in this build)
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// A variable
    #[arg(short = 'e', long = "env", value_name = "K=V", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Where it starts
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// Who it runs as
    #[arg(short = 'u', long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Kill it and all it started after this long (exit 124)
    #[arg(long, value_name = "DUR", value_parser = some_time)]
    pub(crate) timeout: Option<Millis>,
    /// Return at once; `esf logs` has the output
    #[arg(long)]
    pub(crate) detach: bool,
    /// Most bytes of each stream in the reply; the whole stays in `esf logs`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_output: Option<Size>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct Run {
    /// A sealed node or a draft
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) options: ActivateOptions,
    /// Kill the command after this long (exit 124)
    #[arg(long, value_name = "DUR", value_parser = some_time)]
    pub(crate) timeout: Option<Millis>,
    /// Pass standard input on
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Keep nothing
    #[arg(long)]
    pub(crate) discard: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct Suspend {
    /// A live attempt, or a lost one whose changes are still there
    pub(crate) attempt: String,
    /// The node can be evaluated and exported, not forked
    #[arg(long)]
    pub(crate) terminal: bool,
    /// Logical state: a JSON file
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// What was done
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// Seal and go on from the new node, in a new attempt like this one; processes end all the same
    #[arg(long, conflicts_with = "terminal")]
    pub(crate) keep: bool,
    /// With --keep: leave the attempt and its processes as they are when nothing has changed
    #[arg(long, requires = "keep")]
    pub(crate) if_changed: bool,
}

#[derive(Args)]
pub(crate) struct Retry {
    /// A failed or released attempt
    pub(crate) attempt: String,
    /// Refuse (exit 5) instead of waiting when the quota is used up
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Args)]
pub(crate) struct Ps {
    /// Ended ones too
    #[arg(short, long)]
    pub(crate) all: bool,
}

#[derive(Args)]
pub(crate) struct Logs {
    /// An attempt
    pub(crate) attempt: String,
    /// One command of it; default: all, in order
    pub(crate) exec: Option<String>,
    /// Wait for more
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin at this byte
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
    /// Standard error instead of standard output
    #[arg(long)]
    pub(crate) stderr: bool,
}

#[derive(Args)]
pub(crate) struct Cp {
    /// A file here or ATTEMPT:PATH; `-` is standard input
    pub(crate) source: String,
    /// A file here or ATTEMPT:PATH; `-` is standard output
    pub(crate) destination: String,
}

#[derive(Subcommand)]
pub(crate) enum FilesCommand {
    /// List a directory of a live attempt
    Ls(FilesLs),
}

#[derive(Args)]
pub(crate) struct FilesLs {
    /// ATTEMPT:PATH
    pub(crate) path: String,
}

#[derive(Args)]
pub(crate) struct Kill {
    /// A live attempt
    pub(crate) attempt: String,
    /// One command of it; default: all
    pub(crate) exec: Option<String>,
    /// A signal's name or number
    #[arg(short, long, default_value = "KILL")]
    pub(crate) signal: String,
}

#[derive(Args)]
pub(crate) struct Cancel {
    /// A group: its name or id
    pub(crate) group: String,
    /// Why; recorded with each attempt
    #[arg(long, value_enum, default_value_t = CancelReasonArg::User)]
    pub(crate) reason: CancelReasonArg,
    /// Those that live too; what they have not sealed is kept until they are released
    #[arg(long)]
    pub(crate) live: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CancelReasonArg {
    /// What they were for has moved on
    Stale,
    /// There is too much to do
    Overload,
    /// Somebody wants it so
    User,
}

#[derive(Args)]
pub(crate) struct Top {
    /// Print once and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Time between two looks
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "1s")]
    pub(crate) interval: Millis,
}

#[derive(Args)]
pub(crate) struct Release {
    /// An attempt
    pub(crate) attempt: String,
    /// Drop unsealed changes
    #[arg(long)]
    pub(crate) discard: bool,
}
