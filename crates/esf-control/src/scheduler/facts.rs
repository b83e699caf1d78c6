//! What the scheduler looks at and what it decides, as values.

use std::time::Duration;

use esf_core::environment::{ExecutorKind, Limits};
use esf_core::record::{Attempt, Purpose};
use esf_core::{AttemptId, GroupId, NodeId, RootId, Timestamp, WorkerId};

/// What one attempt takes of a worker while it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Thousandths of one processor.
    pub cpu_milli: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of private delta.
    pub disk: u64,
}

impl Needs {
    /// The limits of an attempt as needs; one that is not limited counts as `assumed`.
    pub fn of(limits: &Limits, assumed: &Self) -> Self {
        Self {
            cpu_milli: limits.cpu_milli.unwrap_or(assumed.cpu_milli),
            memory: limits.memory.unwrap_or(assumed.memory),
            disk: limits.disk.unwrap_or(assumed.disk),
        }
    }
}

/// The bounds of one worker; nothing ever goes over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Live attempts.
    pub attempts: u64,
    /// Thousandths of processors that may be promised.
    pub cpu_milli: u64,
    /// Bytes of memory that may be promised.
    pub memory: u64,
    /// Bytes of delta that may be promised.
    pub disk: u64,
    /// Commands that run at once; a worker that runs as many takes no further attempt.
    pub execs: u64,
    /// Attempts by which it may grow within `GROWTH_WINDOW`, when a tenth of what lived before is less.
    pub growth: u64,
}

/// How far back the bound on growth looks.
pub const GROWTH_WINDOW: Duration = Duration::from_secs(5);

impl Capacity {
    /// No bounds at all.
    pub const UNBOUNDED: Self = Self {
        attempts: u64::MAX,
        cpu_milli: u64::MAX,
        memory: u64::MAX,
        disk: u64::MAX,
        execs: u64::MAX,
        growth: u64::MAX,
    };
}

/// A worker, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its id.
    pub worker: WorkerId,
    /// What it can execute.
    pub executors: Vec<ExecutorKind>,
    /// Its bounds.
    pub capacity: Capacity,
    /// Commands that run there now.
    pub execs: u64,
    /// How many attempts it may start now, by its bound on creates per second.
    pub creates: u64,
    /// How many lived there `GROWTH_WINDOW` ago.
    pub lived: u64,
    /// Whether its file system is nearly full: it starts nothing then.
    pub storage_pressure: bool,
    /// The roots it has ready.
    pub hot: Vec<RootId>,
}

/// A group that has attempts waiting or living.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its id.
    pub group: GroupId,
    /// Most live attempts.
    pub max_live: Option<u64>,
    /// When it was made: the youngest is shed first.
    pub created_at: Timestamp,
    /// The number of the start that served it last; 0 when none did. Starts are numbered by the caller.
    pub last_start: u64,
}

/// An attempt that lives, or is being brought to life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Where.
    pub worker: WorkerId,
    /// Whose.
    pub group: GroupId,
    /// Which siblings it belongs to; see `Waiting::batch`.
    pub batch: Option<NodeId>,
    /// What it takes.
    pub needs: Needs,
}

/// How near an attempt is to finishing something that was begun: the earlier ones go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It saves work that was done.
    Salvage,
    /// It evaluates a node that was sealed.
    Evaluate,
    /// It tries again what was begun.
    Retry,
    /// It belongs to siblings of which one was started already.
    Opened,
    /// It would begin something.
    New,
}

/// An attempt that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its id.
    pub attempt: AttemptId,
    /// Whose.
    pub group: GroupId,
    /// The siblings it belongs to, by the node they began on: a batch that was opened is finished before
    /// another is begun.
    pub batch: Option<NodeId>,
    /// Higher is started earlier.
    pub priority: i32,
    /// How near it is to finishing what was begun.
    pub stage: Stage,
    /// What it is executed by.
    pub executor: ExecutorKind,
    /// What it will take.
    pub needs: Needs,
    /// The tree it begins on.
    pub root: Option<RootId>,
    /// Since when it waits; within one priority and stage the order is first in, first out.
    pub queued_at: Timestamp,
}

impl Waiting {
    /// The stage of an attempt before anything is known of its siblings.
    pub fn stage_of(attempt: &Attempt) -> Stage {
        match (attempt.purpose, attempt.retry_of) {
            (Purpose::Salvage { .. }, _) => Stage::Salvage,
            (Purpose::Evaluate, _) => Stage::Evaluate,
            (Purpose::Work, Some(_)) => Stage::Retry,
            (Purpose::Work, None) => Stage::New,
        }
    }
}

/// Everything a step looks at. `waiting` is in order of arrival, which decides between equal times.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The workers that can be reached.
    pub workers: &'a [Worker],
    /// Every group that has attempts waiting or living.
    pub groups: &'a [Group],
    /// What lives.
    pub live: &'a [Live],
    /// What waits.
    pub waiting: &'a [Waiting],
    /// How many may wait; beyond, the youngest groups are shed.
    pub max_waiting: u64,
    /// How long an attempt that does not fit beside what lives is passed by; then a worker is kept free for it.
    pub patience: Duration,
}

/// Why attempts of a group are not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The group has as many live attempts as its policy allows.
    GroupQuota,
    /// No worker can execute them.
    NoWorker,
    /// The file systems of the workers are nearly full.
    Storage,
    /// The workers have as many live attempts as they may.
    Attempts,
    /// As many were started within the last second as may be.
    Creates,
    /// The number of live attempts grew as fast as it may.
    Growth,
    /// As many commands run as may.
    Execs,
    /// The memory is promised to others.
    Memory,
    /// The processors are promised to others.
    Cpu,
    /// The disk is promised to others.
    Disk,
    /// The worker that would do is kept free for one that waited longer.
    Reserved,
}

impl Reason {
    /// The stable text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GroupQuota => "group_quota",
            Self::NoWorker => "no_worker",
            Self::Storage => "storage_pressure",
            Self::Attempts => "max_live",
            Self::Creates => "creates_per_second",
            Self::Growth => "growth",
            Self::Execs => "execs",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::Reserved => "reserved",
        }
    }

    /// After how long it may be over without anything having ended.
    pub(crate) const fn passes(self) -> Option<Duration> {
        match self {
            Self::Creates => Some(Duration::from_millis(50)),
            Self::Growth => Some(Duration::from_millis(250)),
            Self::Execs => Some(Duration::from_millis(250)),
            Self::Storage => Some(Duration::from_secs(1)),
            Self::GroupQuota
            | Self::NoWorker
            | Self::Attempts
            | Self::Memory
            | Self::Cpu
            | Self::Disk
            | Self::Reserved => None,
        }
    }
}

/// Why an attempt will not be started at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// It asks for more than any worker has.
    OverCapacity {
        /// `memory`, `cpu` or `disk`.
        what: Reason,
        /// How much it asks for.
        needed: u64,
        /// The most that a worker has.
        most: u64,
    },
    /// The file systems are nearly full, and it would begin something new.
    Storage,
    /// More wait than may.
    QueueFull {
        /// How many wait.
        waiting: u64,
        /// How many may.
        most: u64,
    },
}

/// What a step decides. What is in neither list goes on waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Attempts to start, in this order, and where.
    pub starts: Vec<(AttemptId, WorkerId)>,
    /// Attempts to end instead of starting them.
    pub shed: Vec<(AttemptId, Shed)>,
    /// For each group that goes on waiting: how many of it, and why the first of them does.
    pub waits: Vec<Waits>,
    /// After how long to look again though nothing ended; never, when absent.
    pub again_after: Option<Duration>,
}

/// A group that goes on waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The group.
    pub group: GroupId,
    /// How many of it.
    pub waiting: u64,
    /// Why its first one waits.
    pub reason: Reason,
}
