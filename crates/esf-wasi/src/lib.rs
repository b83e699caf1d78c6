//! WASI executor.

mod engine;
