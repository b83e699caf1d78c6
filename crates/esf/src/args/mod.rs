//! What the command line accepts, as `cli.md`'s contract says; parsed here, made ready in
//! `context.rs`. Options that this build lacks are parsed and refused (`not_supported`), never
//! ignored.

mod development;
mod execution;
mod graph;
mod rollout;
mod search;
mod upkeep;

pub(crate) use development::*;
pub(crate) use execution::*;
pub(crate) use graph::*;
pub(crate) use rollout::*;
pub(crate) use search::*;
pub(crate) use upkeep::*;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Durable checkpoints of a workspace, and a bounded number of isolated sandboxes on them.
#[derive(Parser)]
#[command(name = "esf", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "Start with `esf quickstart`: it does the main job on a real tree and shows each command.\n\
Exit codes: 0 ok, 2 usage, 3 not found, 4 conflict, 5 refused, 6 damaged data, 125 our failure;\n\
exec and run pass the inner command's own code (124 time-out, 126 not executable, 127 not found).";

/// Options of every command.
#[derive(Args, Clone)]
pub(crate) struct Global {
    /// The store; default: a per-user state directory, /var/lib/esf for root
    #[arg(long, global = true, value_name = "DIR", env = "ESF_STORE")]
    pub(crate) store: Option<PathBuf>,
    /// How results are printed
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Print ids only
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Repeat-safe name of this request; the same key gives the same answer
    #[arg(long, global = true, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Who asks; recorded with every change
    #[arg(long, global = true, value_name = "NAME", env = "ESF_ACTOR")]
    pub(crate) actor: Option<String>,
    /// More log lines on stderr; twice for debugging
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Whether a command line that could not be read asks for JSON all the same, as far as one can see.
pub(crate) fn wants_json(words: impl Iterator<Item = OsString>) -> bool {
    // What follows `--` belongs to the inner command.
    let words: Vec<OsString> = words.take_while(|word| word != "--").collect();
    let named = |word: &OsString| matches!(word.to_str(), Some("-o" | "--output"));
    let is_json = |text: &str| matches!(text, "json" | "jsonl");
    let joined = words.iter().filter_map(|word| word.to_str()).any(|word| {
        let value = word.strip_prefix("--output=").or_else(|| word.strip_prefix("-o"));
        value.is_some_and(|value| is_json(value.trim_start_matches('=')))
    });
    joined || words.windows(2).any(|pair| named(&pair[0]) && pair[1].to_str().is_some_and(is_json))
}

/// Shape of the output.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON document a line.
    Jsonl,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a group from an existing tree
    #[command(subcommand)]
    Group(GroupCommand),
    /// Make drafts of a sealed node
    Fork(Fork),
    /// Show one record and what it refers to
    Inspect(Inspect),
    /// Mark an unleased subtree unreachable
    Prune(Prune),
    /// Bring a node to life as a sandbox
    Activate(Activate),
    /// Run a command inside a live attempt
    Exec(Exec),
    /// Seal an attempt's changes as a new immutable node
    Suspend(Suspend),
    /// Try a failed attempt's draft again
    Retry(Retry),
    /// Test a sealed node, or attach a verdict to it
    Evaluate(Evaluate),
    /// Merge sealed nodes by path
    Merge(Merge),
    /// Make a node the canonical one of its group
    Promote(Promote),
    /// Write a node out as a directory, tar or patch
    Export(Export),

    /// Fork, activate, exec and suspend in one
    Run(Run),
    /// List groups, or the nodes of one
    Ls(Ls),
    /// List attempts
    Ps(Ps),
    /// Show a node's line of parents
    Log(Log),
    /// Show what changed between two nodes
    Diff(Diff),
    /// Print a file of a node
    Cat(Cat),
    /// List the entries of a node
    Tree(Tree),
    /// Print every entry of a node; equal trees have equal dumps
    Dump(Dump),
    /// Name a node within its group
    Tag(Tag),
    /// Roots: import a tree, list what is known
    #[command(subcommand)]
    Root(RootCommand),
    /// Check every object and file that a root needs
    Verify(Verify),
    /// Print what commands of an attempt wrote
    Logs(Logs),
    /// Copy a file into or out of a live attempt
    Cp(Cp),
    /// Files of a live attempt
    #[command(subcommand)]
    Files(FilesCommand),
    /// Signal what runs in an attempt
    Kill(Kill),
    /// End an attempt; unsealed changes need --discard
    Release(Release),
    /// End all attempts of a group that wait
    Cancel(Cancel),
    /// Show what lives, what waits and why, and what it all uses
    Top(Top),

    /// Tree search over checkpoints
    #[command(subcommand)]
    Search(SearchCommand),
    /// Rollouts for training: runs, siblings, steps, delivery, exports
    #[command(subcommand)]
    Rollout(Box<RolloutCommand>),

    /// Tasks: named lines of nodes with a goal, for many agents on one project
    #[command(subcommand)]
    Task(TaskCommand),
    /// Reviews of sealed nodes
    #[command(subcommand)]
    Review(ReviewCommand),
    /// The merge queue: rebase, check, make canonical
    #[command(subcommand)]
    Queue(QueueCommand),

    /// Bytes by the five terms: hot, cold, uppers, staging, metadata
    Df,
    /// Bytes that a node's carriers hold
    Du(Du),
    /// Say what keeps a record or its bytes
    Why(Why),
    /// Remove what nothing reaches any more
    Gc(Gc),
    /// Flatten a deep root without copying
    Squash(Squash),
    /// Settle what a crash left behind
    Recover,
    /// Check the whole store
    Fsck,
    /// Say what this machine can run, and how to get the rest
    Doctor,
    /// Measure against floors taken in the same run
    Bench(Bench),
    /// Print the event log
    Events(Events),
    /// Print a completion script
    Completion(Completion),
    /// Print the version
    Version,
    /// Do the main job on a real tree, shown step by step
    Quickstart(Quickstart),
    /// The store's resident worker (started on demand)
    Worker(Worker),

    /// Run a program that is killed when the process that started it ends
    #[command(hide = true)]
    Tethered(Tethered),
    /// For tests
    #[command(subcommand, hide = true)]
    Debug(DebugCommand),
    /// Not in this build yet: archive, shell, serve, mcp
    #[command(external_subcommand)]
    Later(Vec<OsString>),
}
