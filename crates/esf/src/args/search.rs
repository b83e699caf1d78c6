//! Arguments of tree search. Numbers that are not finite are refused here, before anything is opened.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::execution::{ActivateOptions, Millis, some_time};

/// A search over checkpoints: rollouts are selected, carried out and completed, each exactly once
#[derive(Subcommand)]
pub(crate) enum SearchCommand {
    /// Begin a search at a sealed node
    Create(SearchCreate),
    /// Select rollouts, each held under a lease
    Select(SearchSelect),
    /// Give a rollout the actions it waits for
    Expand(SearchExpand),
    /// Bring a rollout's outcome; counted once, however often it is said
    Complete(SearchComplete),
    /// Give a rollout up; it counts nothing
    Void(SearchVoid),
    /// Hold rollouts longer
    Extend(SearchExtend),
    /// The best action at the root
    Best(SearchBest),
    /// The line of best actions from the root
    Pv(SearchNamed),
    /// Write the tree out: JSON, DOT, SVG or HTML
    Export(SearchExport),
    /// Let go of nodes that the search no longer needs; its statistics stay
    Prune(SearchPrune),
    /// Watch the tree grow
    Watch(SearchWatch),
    /// Run a search: a proposer, sandboxes and an evaluator, to its budget
    Run(Box<SearchRun>),
    /// List searches
    Ls(SearchLs),
    /// Show a search
    Show(SearchNamed),
    /// Take no more rollouts
    Stop(SearchNamed),
}

/// A command on a search and nothing else.
#[derive(Args)]
pub(crate) struct SearchNamed {
    /// A search
    pub(crate) search: String,
}

#[derive(Args)]
pub(crate) struct SearchCreate {
    /// A sealed node: id prefix, GROUP:NAME or GROUP:@
    pub(crate) node: String,
    /// A search.toml; its [search] table is how it searches
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Decides ties and everything drawn, instead of the file's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Accepted rollouts at most, instead of the file's
    #[arg(long, value_name = "N")]
    pub(crate) budget_rollouts: Option<u64>,
}

#[derive(Args)]
pub(crate) struct SearchSelect {
    /// A search
    pub(crate) search: String,
    /// How many
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) count: u32,
    /// How long each is held
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "10m")]
    pub(crate) lease: Millis,
    /// Begin at this position instead of the root
    #[arg(long, value_name = "POSITION")]
    pub(crate) at: Option<u64>,
    /// Take this edge of the position where it begins
    #[arg(long, value_name = "EDGE")]
    pub(crate) edge: Option<u64>,
}

#[derive(Args)]
pub(crate) struct SearchExpand {
    /// A rollout in stage `expand`
    pub(crate) rollout: String,
    /// JSON: {"actions":[{"action":…,"name":…,"prior":…,"key":…}],"exhausted":bool}; `-` is standard input
    #[arg(long, value_name = "FILE|-")]
    pub(crate) actions: PathBuf,
    /// Whose choice it is there, in a search of several players
    #[arg(long, value_name = "I")]
    pub(crate) to_move: Option<u8>,
}

#[derive(Args)]
pub(crate) struct SearchComplete {
    /// A rollout
    #[arg(required_unless_present = "batch")]
    pub(crate) rollout: Option<String>,
    /// The sealed node that it reached
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// The evaluation of that node that gives its value
    #[arg(long, value_name = "EVALUATION")]
    pub(crate) evaluation: Option<String>,
    /// The value, one number for each player or objective, with commas
    #[arg(long, value_name = "X[,Y…]", value_parser = finite, value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) value: Vec<f64>,
    /// What the action itself brought, likewise
    #[arg(long, value_name = "X[,Y…]", value_parser = finite, value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) reward: Vec<f64>,
    /// How much what follows counts, instead of the search's
    #[arg(long, value_name = "X", value_parser = finite)]
    pub(crate) discount: Option<f64>,
    /// It ends there
    #[arg(long)]
    pub(crate) terminal: bool,
    /// Whose choice it is there, in a search of several players
    #[arg(long, value_name = "I")]
    pub(crate) to_move: Option<u8>,
    /// What equal states have in common, where the caller keeps states
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// The actions there, at once; as for `expand`
    #[arg(long, value_name = "FILE|-")]
    pub(crate) actions: Option<PathBuf>,
    /// What it cost, in your unit
    #[arg(long, value_name = "X", value_parser = finite, default_value_t = 0.0)]
    pub(crate) cost: f64,
    /// Many at once, a JSON object a line: rollout_id, and node_id, evaluation_id, value and reward as arrays, discount,
    /// terminal, to_move, key, candidates {actions, exhausted}, cost; ids may be unique prefixes
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["rollout", "node", "evaluation", "value", "reward", "discount", "terminal", "to_move", "key", "actions"])]
    pub(crate) batch: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct SearchVoid {
    /// A rollout
    pub(crate) rollout: String,
    /// Why, in words
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// The class of failure, such as user_exit or infra_lost; none when it is merely given back
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
}

#[derive(Args)]
pub(crate) struct SearchExtend {
    /// Rollouts
    #[arg(required = true)]
    pub(crate) rollouts: Vec<String>,
    /// How long they are held from now on
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "10m")]
    pub(crate) lease: Millis,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BestKindArg {
    /// The most visited.
    Robust,
    /// Of the highest value.
    Max,
    /// Of the highest value that its visits make sure of.
    Secure,
    /// The most visited that leads to an end.
    Finished,
}

#[derive(Args)]
pub(crate) struct SearchBest {
    /// A search
    pub(crate) search: String,
    /// What best means
    #[arg(long, value_enum, default_value_t = BestKindArg::Robust)]
    pub(crate) kind: BestKindArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TreeFormat {
    /// Every position and edge.
    Json,
    /// For graphviz.
    Dot,
    /// A picture.
    Svg,
    /// A page with the picture and a table.
    Html,
}

#[derive(Args)]
pub(crate) struct SearchExport {
    /// A search
    pub(crate) search: String,
    /// The shape
    #[arg(long, value_enum, default_value_t = TreeFormat::Json)]
    pub(crate) format: TreeFormat,
    /// Where; standard output when not said
    #[arg(long, value_name = "PATH")]
    pub(crate) to: Option<PathBuf>,
    /// Positions in a picture at most, the most visited first; JSON has all of them
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) most: u32,
}

#[derive(Args)]
pub(crate) struct SearchPrune {
    /// A search
    pub(crate) search: String,
    /// Keep the nodes of so many best positions, beside the frontier, the principal line and all ancestors
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) keep_best: u32,
    /// Let go of the frontier, too: what was found good is kept, the search goes on in it alone
    #[arg(long)]
    pub(crate) no_frontier: bool,
    /// Show what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args)]
pub(crate) struct SearchWatch {
    /// A search
    pub(crate) search: String,
    /// Print it once
    #[arg(long)]
    pub(crate) once: bool,
    /// Time between two looks
    #[arg(long, value_name = "DUR", value_parser = some_time, default_value = "1s")]
    pub(crate) every: Millis,
    /// Rows at most; what the terminal has when not said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rows: Option<u32>,
}

#[derive(Args)]
pub(crate) struct SearchRun {
    /// A search, to go on with; or a sealed node, to begin one
    pub(crate) at: String,
    /// A search.toml: [search] is how it searches, [run] who proposes, applies and evaluates
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Rollouts at one time, instead of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) parallel: Option<u32>,
    /// Accepted rollouts at most, instead of the file's; a stopped search goes on when it is raised
    #[arg(long, value_name = "N")]
    pub(crate) budget_rollouts: Option<u64>,
    #[command(flatten)]
    pub(crate) options: ActivateOptions,
}

#[derive(Args)]
pub(crate) struct SearchLs {
    /// A group; all when not said
    pub(crate) group: Option<String>,
}

/// What a driver starts its proposer through.
#[derive(Args)]
pub(crate) struct Tethered {
    /// The process that starts it
    #[arg(long)]
    pub(crate) parent: u32,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// A number that is one.
pub(super) fn finite(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!("expected a finite number, found {text:?}")),
    }
}
