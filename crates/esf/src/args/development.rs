//! Arguments of tasks, reviews and the merge queue.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// A task: a named line of nodes with a goal
#[derive(Subcommand)]
pub(crate) enum TaskCommand {
    /// Begin a task: a draft on the canonical node, with a name and a goal; -q prints the draft
    Create(TaskCreate),
    /// List the tasks of a group
    Ls(TaskGroup),
    /// Show a task: its goal, its nodes with their verdicts, and what the queue said; -q prints the node at which it goes on
    Show(TaskNamed),
    /// Put a sealed node of the task into the queue; its newest if none is named
    Submit(TaskSubmit),
    /// Take what waits of the task out of the queue
    Withdraw(TaskNamed),
    /// Give the task up
    Close(TaskClose),
}

#[derive(Args)]
pub(crate) struct TaskCreate {
    /// The group
    pub(crate) group: String,
    /// Its name, unique in the group
    #[arg(long)]
    pub(crate) name: String,
    /// What is to be reached
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) goal: String,
    /// The same, from a file; `-` is standard input
    #[arg(long, value_name = "FILE|-", conflicts_with = "goal")]
    pub(crate) goal_file: Option<PathBuf>,
    /// The sealed node on which it begins, instead of the canonical one
    #[arg(long, value_name = "NODE")]
    pub(crate) from: Option<String>,
}

#[derive(Args)]
pub(crate) struct TaskGroup {
    /// The group
    pub(crate) group: String,
}

#[derive(Args)]
pub(crate) struct TaskNamed {
    /// A task: its id, or GROUP:NAME
    pub(crate) task: String,
}

#[derive(Args)]
pub(crate) struct TaskSubmit {
    /// A task: its id, or GROUP:NAME
    pub(crate) task: String,
    /// The sealed node that is meant
    pub(crate) node: Option<String>,
    /// Greater goes first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i64,
}

#[derive(Args)]
pub(crate) struct TaskClose {
    /// A task: its id, or GROUP:NAME
    pub(crate) task: String,
    /// Why
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
}

/// Reviews of sealed nodes: evaluations by hand
#[derive(Subcommand)]
pub(crate) enum ReviewCommand {
    /// Say what you think of a node
    Add(ReviewAdd),
    /// List the reviews of a node, or of a task's nodes
    Ls(ReviewLs),
}

/// What a reviewer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReviewVerdict {
    /// It may be integrated
    Accept,
    /// It may not
    Reject,
    /// Neither; only words
    Comment,
}

#[derive(Args)]
pub(crate) struct ReviewAdd {
    /// A sealed node, or a task: then its node in the queue, else its newest
    pub(crate) node: String,
    /// What you say; it counts for the queue if the group's policy trusts you (--actor)
    #[arg(long, value_name = "VERDICT")]
    pub(crate) verdict: ReviewVerdict,
    /// Why
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) comment: String,
    /// A file to keep with it
    #[arg(long, value_name = "FILE")]
    pub(crate) evidence: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ReviewLs {
    /// A node, or a task
    pub(crate) node: String,
}

/// The merge queue of a group
#[derive(Subcommand)]
pub(crate) enum QueueCommand {
    /// List what waits; with --all also what has ended
    Ls(QueueLs),
    /// Rebase what waits on the canonical node, check it, and make it canonical, one after the other
    Run(QueueRun),
}

#[derive(Args)]
pub(crate) struct QueueLs {
    /// The group
    pub(crate) group: String,
    /// Also what has ended
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Args)]
pub(crate) struct QueueRun {
    /// The group
    pub(crate) group: String,
    /// An evaluator that must pass on what becomes canonical; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) evaluator: Vec<PathBuf>,
    /// Let nodes in although nothing checks them
    #[arg(long)]
    pub(crate) unchecked: bool,
    /// Merge lines of text files that both sides changed, instead of refusing them
    #[arg(long, conflicts_with = "unchecked")]
    pub(crate) text: bool,
    /// At most so many entries, then stop
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    /// Wait for more when the queue is empty, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
}
