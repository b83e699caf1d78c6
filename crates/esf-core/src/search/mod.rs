//! Tree search over checkpoints, as pure rules (design section 6): what a position, an edge and a rollout
//! are, how a path is chosen, and what a visit makes of the statistics along it.
//!
//! Facts are journaled and never change: an expansion (edge), a leaf value, a visit. Everything else, N
//! and Q among it, is recomputed from them along one path, so repetition and reordering change nothing
//! (the form of KataGo's `docs/GraphSearch.md`). Statistics never enter a manifest.

mod check;
pub mod config;
pub mod memory;
pub mod record;
pub mod rules;
mod score;
pub mod select;
pub mod tree;
pub mod visit;

pub use check::BadConfig;
pub use config::Config;
pub use record::{
    Candidate, Candidates, Edge, EdgeNumber, EdgeStats, EdgeStatus, Expansion, Position, PositionNumber,
    PositionStats, Rollout, RolloutStatus, Search, SearchStatus, Stage, Step, StopReason, Ticket, Void,
};
pub use rules::BestKind;
pub use select::{Descent, Found, Start, descend};
pub use tree::Tree;
