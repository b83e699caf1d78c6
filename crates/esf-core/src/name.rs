//! Names of directory entries: bytes, exactly as the kernel has them (design section 2).
//! Invariant: a `Name` is 1 to 255 bytes, without `/` or NUL, and neither `.` nor `..`.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// One component of a path, as raw bytes; ordered as unsigned bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

/// Bytes that cannot name a directory entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a name: expected 1 to 255 bytes without `/` or NUL, neither `.` nor `..`; found {found:?}")]
pub struct InvalidName {
    /// The refused bytes, lossily, at most 80 characters.
    pub found: String,
}

impl Name {
    /// Longest name in bytes.
    pub const MAX: usize = 255;

    /// Checks `bytes` and wraps them.
    ///
    /// # Errors
    /// `InvalidName` when the kernel could not hold such an entry.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidName> {
        let fits = (1..=Self::MAX).contains(&bytes.len());
        if !fits || bytes == b"." || bytes == b".." || bytes.iter().any(|b| matches!(b, 0 | b'/')) {
            let found = String::from_utf8_lossy(bytes).chars().take(80).collect();
            return Err(InvalidName { found });
        }
        Ok(Self(bytes.into()))
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same bytes as an `OsStr`.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.escape_ascii(), f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_no_directory_can_hold() {
        let long = [b'a'; 256];
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &long] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for good in [&b"..."[..], b"\xff", b"new\nline", &long[..255]] {
            assert_eq!(Name::new(good).expect("valid").as_bytes(), good);
        }
    }
}
