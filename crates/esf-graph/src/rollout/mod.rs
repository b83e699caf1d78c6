//! Rollouts for training in the graph (design section 6): the records of `esf_core::rollout` in SQLite.
//! `docs/schema.md` describes the tables, `docs/rollouts.md` the use.
//!
//! Invariants: a revision of a sibling has one terminal event, made in the transaction that ends it; sequences are
//! dense; counts of a run equal a recount of its rows; what came too late counts nowhere.

mod book;
pub(crate) mod check;
mod create;
mod deliver;
mod finish;
mod reads;
pub(crate) mod rows;
mod start;
mod steps;

pub(crate) use reads::artifacts;
