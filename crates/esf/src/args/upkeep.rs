//! Arguments of upkeep, measurement and the guided tour.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args)]
pub(crate) struct Du {
    /// A node or root; default: every node
    pub(crate) node: Option<String>,
}

#[derive(Args)]
pub(crate) struct Why {
    /// A node or root
    pub(crate) id: String,
}

#[derive(Args)]
pub(crate) struct Gc {
    /// Show the plan only
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args)]
pub(crate) struct Squash {
    /// A node or root
    pub(crate) node: String,
}

#[derive(Args)]
pub(crate) struct Events {
    /// Begin after this sequence number
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
    /// Wait for more
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Args)]
pub(crate) struct Completion {
    /// bash, zsh, fish, elvish or powershell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args)]
pub(crate) struct Bench {
    /// Only rows whose name contains this
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
    /// Samples a row; more is steadier
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(5..=100_000))]
    pub(crate) samples: u32,
}

#[derive(Args)]
pub(crate) struct Quickstart {
    /// A tree of yours; default: a small project with a bug that ships with esf
    pub(crate) dir: Option<PathBuf>,
    /// A shell command that works on the tree; one child node for each
    #[arg(long, value_name = "CMD")]
    pub(crate) agent: Vec<String>,
    /// A shell command that tests the tree by its exit code
    #[arg(long, value_name = "CMD")]
    pub(crate) test: Option<String>,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Worker {
    #[command(subcommand)]
    pub(crate) command: Option<WorkerCommand>,
    /// Most live attempts at once
    #[arg(long, value_name = "N", env = "ESF_WORKER_MAX_LIVE")]
    pub(crate) max_live: Option<u32>,
    /// Memory that live attempts may be promised; default: nine tenths of this machine's
    #[arg(long, value_name = "SIZE", env = "ESF_WORKER_MEMORY")]
    pub(crate) memory: Option<String>,
    /// Processors that live attempts may be promised; default: four times this machine's
    #[arg(long, value_name = "N", env = "ESF_WORKER_CPUS")]
    pub(crate) cpus: Option<u32>,
    /// Admit nothing new with less than this free; default: a twentieth of the disk, at most 1g
    #[arg(long, value_name = "SIZE", env = "ESF_WORKER_MIN_FREE")]
    pub(crate) min_free: Option<String>,
    /// Most commands at once; the rest wait
    #[arg(long, value_name = "N", env = "ESF_WORKER_MAX_EXECS")]
    pub(crate) max_execs: Option<u32>,
    /// Most attempts started in a second
    #[arg(long, value_name = "N", env = "ESF_WORKER_CREATES")]
    pub(crate) creates: Option<u32>,
    /// Most attempts that wait
    #[arg(long, value_name = "N", env = "ESF_WORKER_MAX_WAITING")]
    pub(crate) max_waiting: Option<u32>,
    /// Exit after this long without work
    #[arg(long, value_name = "DUR", env = "ESF_WORKER_IDLE_EXIT")]
    pub(crate) idle_exit: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum WorkerCommand {
    /// Say whether a worker runs, and what it holds
    Status,
    /// End the worker; live attempts need --force and keep their changes
    Stop {
        /// Also with live attempts, which end `infra_lost`
        #[arg(long)]
        force: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum DebugCommand {
    /// Print the name of every durability boundary
    Boundaries,
}
