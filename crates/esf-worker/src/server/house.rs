//! What this machine has for its attempts, and whether its file system is nearly full.
//! Invariant: what the configuration leaves open is taken from the machine once, at the worker's start.

use std::path::Path;

use esf_control::scheduler::{Capacity, Needs};
use esf_core::environment::{ExecutorKind, Limits};
use esf_core::{Class, Problem};

use crate::server::WorkerConfig;

/// Memory that an attempt without a limit counts for: an idle sandbox with a small program.
const ASSUMED_MEMORY: u64 = 32 << 20;

/// The machine, as the scheduler is told.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) capacity: Capacity,
    pub(crate) executors: Vec<ExecutorKind>,
    min_free: Option<u64>,
}

/// The file system of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Storage {
    pub(crate) free: u64,
    pub(crate) total: u64,
    /// Whether it is so full that nothing new is admitted.
    pub(crate) pressure: bool,
}

impl House {
    pub(crate) fn new(config: &WorkerConfig, executors: Vec<ExecutorKind>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let capacity = Capacity {
            attempts: config.max_live,
            // Processor time is shared out when there is not enough; memory is not.
            cpu_milli: config.cpu_milli.unwrap_or(processors * 4_000),
            memory: config.memory.unwrap_or_else(|| machine_memory() / 10 * 9),
            disk: u64::MAX,
            execs: config.max_execs,
            growth: config.growth,
        };
        Self { capacity, executors, min_free: config.min_free }
    }

    pub(crate) fn needs(limits: &Limits) -> Needs {
        Needs::of(limits, &Needs { memory: ASSUMED_MEMORY, ..Needs::default() })
    }

    /// The file system as it is now. One that cannot be asked is not taken for full.
    pub(crate) fn storage(&self, store: &Path) -> Storage {
        let Ok(found) = rustix::fs::statvfs(store) else { return Storage::default() };
        let [total, free] =
            [found.f_blocks, found.f_bavail].map(|blocks| blocks.saturating_mul(found.f_frsize));
        // A twentieth of it, and never more than a gibibyte, stays for those who live already.
        let least = self.min_free.unwrap_or_else(|| (total / 20).min(1 << 30));
        // Some file systems count no inodes.
        let few = found.f_files > 0 && found.f_favail < (found.f_files / 100).min(1_000);
        Storage { free, total, pressure: free < least || few }
    }

    /// Refuses what this machine could never hold.
    pub(crate) fn holds(&self, needs: &Needs) -> Result<(), Problem> {
        let over = [
            ("memory", needs.memory, self.capacity.memory, "bytes"),
            ("cpu", needs.cpu_milli, self.capacity.cpu_milli, "thousandths of a processor"),
        ];
        match over.into_iter().find(|(_, needed, most, _)| needed > most) {
            None => Ok(()),
            Some((what, needed, most, unit)) => Err(over_capacity(what, needed, most, unit)),
        }
    }
}

pub(crate) fn over_capacity(what: &str, needed: u64, most: u64, unit: &str) -> Problem {
    Problem::new(Class::Refused, "over_capacity", format!("it asks for more {what} than this worker has"))
        .expected(format!("at most {most} {unit}"))
        .found(format!("{needed} {unit}"))
        .remedy("ask for less, or give the worker more (`esf worker --help`)")
}

/// Refuses because the file system is nearly full.
pub(crate) fn storage_pressure(storage: Storage) -> Problem {
    let message = "the store's file system is nearly full: nothing new is admitted; what lives goes on";
    Problem::new(Class::Refused, "storage_pressure", message)
        .found(format!("{} of {} bytes free", storage.free, storage.total))
        .remedy("free some space: `esf gc` and `esf release` what is not wanted, then try again")
        .retryable()
}

/// Bytes of memory of this machine, or of the worker's own cgroup when that has less.
fn machine_memory() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let meminfo = read("/proc/meminfo");
    let kibibytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = kibibytes.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let machine = kibibytes.map_or(u64::MAX, |kibibytes| kibibytes * 1024);
    // The top of what a container sees is its own.
    let own = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let own = own.iter().filter_map(|path| read(path).trim().parse::<u64>().ok()).min();
    machine.min(own.unwrap_or(u64::MAX))
}
