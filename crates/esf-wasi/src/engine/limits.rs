//! What the guests of one attempt may take of the host: memory shared by all of them, and for each guest a
//! number of tables, instances and resources.
//!
//! A refusal is an answer to the guest (`memory.grow` says -1, a call says out of memory), counted here so
//! that the attempt's report can say why. What a guest took is given back when its store is dropped, however
//! it ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::ResourceLimiter;

/// Elements that all tables of one guest may hold together.
const TABLE_ELEMENTS: usize = 1 << 20;

/// Bytes of host memory that one element of a table takes.
const TABLE_ELEMENT: u64 = 8;

/// Core instances, tables and memories of one guest: components are made of a few modules each.
const INSTANCES: usize = 256;
const TABLES: usize = 256;
const MEMORIES: usize = 64;

/// Files, streams, pollables and sockets that one guest may hold at once.
pub(super) const RESOURCES: usize = 16 << 10;

/// Handles onto them, lent ones included: a poll lends each that it waits for.
pub(super) const HANDLES: usize = 2 * RESOURCES;

/// Bytes that one call of a guest may hand to the host.
pub(super) const CALL_BYTES: usize = 64 << 20;

/// Random bytes that one call may ask for.
pub(super) const RANDOM_BYTES: u64 = 16 << 20;

/// The limits of an attempt and what its guests have taken; shared by all of them.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    memory: Option<u64>,
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Limits {
    /// With `memory`, the guests of the attempt hold at most that many bytes of linear memory and tables
    /// together.
    pub(crate) fn new(memory: Option<u64>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// How often a guest was refused memory or a table.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes of linear memory and tables that guests hold now.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let limit = self.memory.unwrap_or(u64::MAX);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            taken.checked_add(bytes).filter(|&taken| taken <= limit)
        });
        if taken.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// One guest's share: what it took is given back on drop.
#[derive(Debug)]
pub(super) struct Limiter {
    limits: Arc<Limits>,
    taken: u64,
    last: u64,
    elements: usize,
    /// Whether this guest was refused anything: a start that fails after it failed for want of memory.
    pub(super) refused: bool,
}

impl Limiter {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
        Self { limits, taken: 0, last: 0, elements: 0, refused: false }
    }

    fn take(&mut self, bytes: u64) -> bool {
        let allowed = self.limits.take(bytes);
        self.last = if allowed { bytes } else { 0 };
        self.taken += self.last;
        self.refused |= !allowed;
        allowed
    }

    /// The growth that was just allowed did not happen.
    fn undo(&mut self) {
        self.limits.give_back(self.last);
        self.taken -= self.last;
        self.last = 0;
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.limits.give_back(self.taken);
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.take(desired.saturating_sub(current) as u64))
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.undo();
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        let elements = self.elements.saturating_add(more);
        if elements > TABLE_ELEMENTS {
            self.limits.refused.fetch_add(1, Ordering::Relaxed);
            self.refused = true;
            return Ok(false);
        }
        let allowed = self.take(more as u64 * TABLE_ELEMENT);
        if allowed {
            self.elements = elements;
        }
        Ok(allowed)
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.elements -= (self.last / TABLE_ELEMENT) as usize;
        self.undo();
        Ok(())
    }

    fn instances(&self) -> usize {
        INSTANCES
    }

    fn tables(&self) -> usize {
        TABLES
    }

    fn memories(&self) -> usize {
        MEMORIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_share_one_budget_and_give_it_back() {
        let limits = Arc::new(Limits::new(Some(100)));
        let mut one = Limiter::new(Arc::clone(&limits));
        let mut two = Limiter::new(Arc::clone(&limits));
        assert!(one.memory_growing(0, 60, None).unwrap());
        assert!(!two.memory_growing(0, 41, None).unwrap());
        assert!(two.memory_growing(0, 40, None).unwrap());
        assert_eq!((limits.taken(), limits.refused()), (100, 1));
        assert!(two.refused && !one.refused);
        drop(one);
        assert_eq!(limits.taken(), 40);
        two.memory_grow_failed(wasmtime::Error::msg("no")).unwrap();
        assert_eq!(limits.taken(), 0);
    }

    #[test]
    fn tables_are_bounded_and_cost_memory() {
        let limits = Arc::new(Limits::new(None));
        let mut one = Limiter::new(Arc::clone(&limits));
        assert!(one.table_growing(0, TABLE_ELEMENTS, None).unwrap());
        assert!(!one.table_growing(TABLE_ELEMENTS, TABLE_ELEMENTS + 1, None).unwrap());
        assert_eq!(limits.taken(), TABLE_ELEMENTS as u64 * TABLE_ELEMENT);
        assert_eq!(limits.refused(), 1);
    }
}
