//! Time as a value: passed in with each command, never read here (style rule 12).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Wall-clock time: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// The state plane's own clock: milliseconds of `CLOCK_BOOTTIME` within one boot. Leases are timed
/// by it, so a wall clock that jumps neither loses nor doubles one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootMillis(pub i64);

/// Seconds and nanoseconds of a file time; nanoseconds are 0..1_000_000_000, seconds may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileTime {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

impl fmt::Display for FileTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanos)
    }
}
