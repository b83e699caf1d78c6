//! Roots in and out: patches and tar archives; every parser of hostile input lives here.
//! Invariant: what a format cannot hold is named in the summary or refused, never dropped in silence,
//! and memory does not grow with the size of a file.

mod error;
pub mod git;
pub mod identity;
pub mod patch;
pub mod tar;
pub mod untar;

pub use error::Error;

use std::io::Read;

use serde::{Deserialize, Serialize};

/// Where the bytes of a root's regular files come from; one may be opened several times.
pub trait Files {
    /// Opens the regular file at `path` for reading from its start.
    ///
    /// # Errors
    /// Whatever stands in the way of reading it.
    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>, Error>;
}

/// A path that the written format cannot hold, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The path inside the root; bytes that are not UTF-8 are escaped as `\xNN`.
    pub path: String,
    /// Why it was left out, as one lower-case phrase.
    pub reason: String,
}

impl LeftOut {
    /// Names `path` and why it was left out.
    pub fn new(path: &[u8], reason: &str) -> Self {
        Self { path: readable(path), reason: reason.to_owned() }
    }
}

/// Shows a path for people: UTF-8 without control characters stays, everything else is escaped.
pub fn readable(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if !text.chars().any(|c| c.is_control() || c == '\\') => text.to_owned(),
        _ => path.escape_ascii().to_string(),
    }
}
