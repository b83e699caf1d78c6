//! The life of one attempt: the `Executor` and `Sandbox` contract, the resident worker that owns a
//! store's live sandboxes, and its client. `ARCHITECTURE.md` has the life of a command.

// A problem is the answer of a request over a socket, which costs far more than moving it.
#![allow(clippy::result_large_err)]

mod client;
mod clock;
mod connect;
pub mod executor;
pub mod kernel_files;
pub mod lock;
pub mod logs;
mod message;
mod place;
mod recover;
mod server;
pub mod spool;
mod wire;

pub use client::{Client, Stdin};
pub use message::*;
pub use recover::{RecoverReport, recover};
pub use server::{WorkerConfig, serve};
