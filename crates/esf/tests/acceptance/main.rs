//! Acceptance: the rows of the specification's black-box list, through the binary and nothing else.
//! Each test has a store of its own; its guard stops the worker and asserts that nothing stays.

mod bad_input;
mod concurrency;
mod development;
mod durability;
mod evaluator;
mod examples;
mod executors_page;
mod generated;
mod git;
mod guests;
mod keep;
mod merge;
mod overlay;
mod processes;
mod quickstart;
mod rollout_run;
mod rollouts;
mod scheduler;
mod search;
mod search_run;
mod support;
mod wasi;
mod wasi_equivalence;
mod wasi_guests;
mod wasi_hostile;

#[cfg(feature = "failpoints")]
mod crash;
