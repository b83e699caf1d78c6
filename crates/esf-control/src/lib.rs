//! Controllers over the graph, as pure step functions: they decide, somebody else does. This crate
//! cannot name a seal and never touches the state plane (design section 1): what it asks for goes
//! through the graph and the worker.

pub mod evaluator;
pub mod judge;
pub mod picture;
mod picture_layout;
pub mod proposer;
pub mod proposer_talk;
pub mod report;
mod report_junit;
mod report_tap;
pub mod retry;
pub mod scheduler;

pub use evaluator::{Evaluator, InvalidEvaluator, JudgedBy};
pub use judge::{Evidence, Found, Judgement, Outcome, judge};
