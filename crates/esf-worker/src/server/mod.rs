//! The resident worker.

mod leftover;
mod relay;
mod running;
