//! Arguments of the graph's own operations.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// Import a tree and make a group whose canonical node it is
    Create(GroupCreate),
}

#[derive(Args)]
pub(crate) struct GroupCreate {
    /// The group's name
    pub(crate) name: String,
    /// A directory, a tar archive, `git:DIR@REV`, or the id of a known root or node
    #[arg(long, value_name = "SOURCE")]
    pub(crate) from: String,
    #[command(flatten)]
    pub(crate) import: ImportOptions,
    /// Group policy, a TOML file: retention, quotas, durability, trusted actors
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// `relaxed` gives up power-loss safety for throw-away work
    #[arg(long, value_enum)]
    pub(crate) durability: Option<DurabilityArg>,
}

#[derive(Args)]
pub(crate) struct ImportOptions {
    /// Keep uids and gids instead of mapping all to 0:0
    #[arg(long)]
    pub(crate) preserve_owners: bool,
    /// Leave sockets and devices out, by name, instead of refusing the import
    #[arg(long)]
    pub(crate) skip_special: bool,
    /// Of a git source, make no private `.git` in the tree
    #[arg(long)]
    pub(crate) no_git: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Survives power loss.
    Full,
    /// Survives a process crash only.
    Relaxed,
}

#[derive(Args)]
pub(crate) struct Fork {
    /// A sealed node: id prefix, GROUP:NAME or GROUP:@
    pub(crate) node: String,
    /// How many drafts
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) count: u32,
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// A group, node, attempt, evaluation, lease or root
    pub(crate) id: String,
    /// Add every ancestor of a node
    #[arg(long)]
    pub(crate) ancestry: bool,
    /// Add where a node came from
    #[arg(long)]
    pub(crate) provenance: bool,
}

#[derive(Args)]
pub(crate) struct Prune {
    /// The top of the subtree
    pub(crate) node: String,
    /// Also drop unsealed changes of drafts in it
    #[arg(long)]
    pub(crate) discard: bool,
}

#[derive(Args)]
pub(crate) struct Evaluate {
    /// Sealed nodes
    #[arg(required = true, value_name = "NODE")]
    pub(crate) nodes: Vec<String>,
    /// Run this evaluator file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["version", "verdict", "reward", "evidence"], required_unless_present = "verdict")]
    pub(crate) evaluator: Option<PathBuf>,
    /// Run it this often for each node
    #[arg(long, requires = "evaluator", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: Option<u32>,
    /// Run this many at once
    #[arg(long, value_name = "N", requires = "evaluator", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) parallel: u32,
    /// Attach by hand: the evaluator's version
    #[arg(long, requires = "verdict")]
    pub(crate) version: Option<String>,
    /// Attach by hand: the verdict
    #[arg(long, requires = "version")]
    pub(crate) verdict: Option<String>,
    /// Attach by hand: the reward
    #[arg(long, requires = "verdict", allow_negative_numbers = true)]
    pub(crate) reward: Option<f64>,
    /// Attach by hand: files whose digests are recorded
    #[arg(long, requires = "verdict", value_name = "FILE")]
    pub(crate) evidence: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Merge {
    /// Sealed nodes; the first is ours. With --matrix also a group: its sealed nodes that nobody went on from
    #[arg(required = true)]
    pub(crate) nodes: Vec<String>,
    /// The generation that the group is believed to be at
    #[arg(long, value_name = "GENERATION", required_unless_present = "matrix", conflicts_with = "matrix")]
    pub(crate) expect: Option<u64>,
    /// The common ancestor to use
    #[arg(long, value_name = "NODE")]
    pub(crate) base: Option<String>,
    /// Merge lines of text files that both sides changed (up to 4 MiB, no NUL); the result wants an evaluation
    #[arg(long)]
    pub(crate) text: bool,
    /// The same for files that a glob names alone; without `/` it names them at any depth (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) text_glob: Vec<String>,
    /// Say what would happen
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Say for each pair of nodes (at most 64 nodes) what their merge would come to; writes nothing
    #[arg(long)]
    pub(crate) matrix: bool,
}

#[derive(Args)]
pub(crate) struct Promote {
    /// A sealed node
    pub(crate) node: String,
    /// The generation that the group is believed to be at
    #[arg(long, value_name = "GENERATION")]
    pub(crate) expect: u64,
    /// Also when the node does not descend from the canonical one
    #[arg(long)]
    pub(crate) replace: bool,
}

#[derive(Args)]
pub(crate) struct Export {
    /// A sealed node
    pub(crate) node: String,
    /// What to write
    #[arg(long, value_enum)]
    pub(crate) format: ExportFormat,
    /// Where; must not exist yet (a directory may be empty); of git also a repository, or REPO#BRANCH
    #[arg(long, value_name = "PATH")]
    pub(crate) to: PathBuf,
    /// Of git: the branch (default: main of a new repository, esf/NODE of another)
    #[arg(long, value_name = "NAME")]
    pub(crate) branch: Option<String>,
    /// Of git and patch: one commit, or one mail for `git am`, for each node
    #[arg(long)]
    pub(crate) series: bool,
    /// Of git and patch: also what .gitignore files ignore
    #[arg(long)]
    pub(crate) include_ignored: bool,
    /// Keep setuid bits and file capabilities
    #[arg(long)]
    pub(crate) preserve_privilege: bool,
    /// Patch against this node instead of the first parent
    #[arg(long, value_name = "NODE")]
    pub(crate) from: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    Dir,
    Tar,
    Oci,
    Patch,
    Git,
    Bundle,
    Artifact,
}

#[derive(Args)]
pub(crate) struct Ls {
    /// A group's name or id
    pub(crate) group: Option<String>,
    /// Pruned nodes too
    #[arg(short, long)]
    pub(crate) all: bool,
}

#[derive(Args)]
pub(crate) struct Log {
    /// A node
    pub(crate) node: String,
    /// Every parent, not only the first
    #[arg(long)]
    pub(crate) graph: bool,
}

#[derive(Args)]
pub(crate) struct Diff {
    /// A node: alone, against its first parent
    pub(crate) node: String,
    /// The node to compare with
    pub(crate) other: Option<String>,
    /// Bytes and counts
    #[arg(long, conflicts_with_all = ["name_status", "patch"])]
    pub(crate) stat: bool,
    /// One letter and path a line (the default)
    #[arg(long, conflicts_with = "patch")]
    pub(crate) name_status: bool,
    /// The text that `git apply` takes
    #[arg(short, long)]
    pub(crate) patch: bool,
}

#[derive(Args)]
pub(crate) struct Cat {
    /// NODE:PATH
    pub(crate) file: String,
}

#[derive(Args)]
pub(crate) struct Tree {
    /// NODE or NODE:PATH
    pub(crate) path: String,
}

#[derive(Args)]
pub(crate) struct Dump {
    /// A node or root
    pub(crate) id: String,
}

#[derive(Args)]
pub(crate) struct Tag {
    /// A node
    pub(crate) node: String,
    /// Its name within the group
    pub(crate) name: String,
}

#[derive(Subcommand)]
pub(crate) enum RootCommand {
    /// Import a tree without a group
    Import(RootImport),
    /// List known roots
    Ls,
}

#[derive(Args)]
pub(crate) struct RootImport {
    /// A directory, a tar archive or `git:DIR@REV`
    pub(crate) source: String,
    #[command(flatten)]
    pub(crate) import: ImportOptions,
}

#[derive(Args)]
pub(crate) struct Verify {
    /// A root, a node, or the path of an export
    pub(crate) id: String,
}
