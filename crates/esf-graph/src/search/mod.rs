//! Tree search in the graph (design section 6): the facts and statistics of `esf_core::search` in SQLite.
//! `docs/schema.md` describes the tables, `docs/search.md` the use.
//!
//! Invariants: the tree is never resident, one path is touched at a time; facts are written once, and what is
//! derived of them in the same transaction; a rollout is counted once, whoever says so and how often.

pub(crate) mod check;
mod complete;
mod end;
mod expand;
mod link;
mod prune;
mod reads;
pub(crate) mod rows;
mod select;
mod session;
