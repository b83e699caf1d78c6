//! The cgroups of a jail's programs, kept ready and reused.
//!
//! Invariant: a group is handed out only while it is empty and belongs to nobody else, so killing
//! it kills one program's descendants and nothing more.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cgroup::ExecGroup;

/// Most empty groups kept.
const MOST_FREE: usize = 16;

#[derive(Debug)]
pub(crate) struct ExecGroups {
    jail: OwnedFd,
    /// First host id of the jail's range, who may be born into the groups.
    id_base: u32,
    made: AtomicU64,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    free: Vec<ExecGroup>,
    /// Left by programs whose descendants live on.
    occupied: Vec<ExecGroup>,
}

impl ExecGroups {
    pub(crate) fn new(jail: OwnedFd, id_base: u32) -> Arc<ExecGroups> {
        let pool = Mutex::default();
        Arc::new(ExecGroups { jail, id_base, made: AtomicU64::new(0), pool })
    }

    fn make(&self) -> io::Result<ExecGroup> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        ExecGroup::create(&self.jail, number, self.id_base, self.id_base)
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> io::Result<ExecGroup> {
        let mut pool = self.pool();
        let spent = if pool.free.is_empty() { pool.collect() } else { Vec::new() };
        let free = pool.free.pop();
        drop(pool);
        spent.into_iter().for_each(|group| self.remove(group));
        free.map_or_else(|| self.make(), Ok)
    }

    /// Makes a group for the next program where none is ready, off that program's time.
    pub(crate) fn make_spare(&self) {
        if self.pool().free.is_empty() {
            // A failure shows when the group is needed.
            if let Ok(group) = self.make() {
                self.pool().free.push(group);
            }
        }
    }

    pub(crate) fn give_back(&self, group: ExecGroup) {
        let mut pool = self.pool();
        if !group.is_empty().unwrap_or(false) {
            pool.occupied.push(group);
        } else if pool.free.len() < MOST_FREE && group.is_reusable() {
            pool.free.push(group);
        } else {
            drop(pool);
            self.remove(group);
        }
    }

    fn remove(&self, group: ExecGroup) {
        // One that stays is removed with the jail.
        let _ = group.remove(&self.jail);
    }
}

impl Pool {
    /// Moves groups whose last process ended to the free ones; gives those that cannot be reused.
    fn collect(&mut self) -> Vec<ExecGroup> {
        let occupied = std::mem::take(&mut self.occupied);
        let (empty, occupied) = occupied.into_iter().partition(|group| group.is_empty().unwrap_or(false));
        self.occupied = occupied;
        let empty: Vec<ExecGroup> = empty;
        let (reusable, spent) = empty.into_iter().partition(ExecGroup::is_reusable);
        self.free.extend::<Vec<_>>(reusable);
        spent
    }
}
