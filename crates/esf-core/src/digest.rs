//! BLAKE3-256 digests, one type for each kind of thing they name (design section 2).
//! Invariant: a blob's digest is plain BLAKE3 of its bytes (`b3sum` agrees); every structured object
//! is hashed with a context of its own kind, so no object can pass for one of another kind.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A raw 32-byte BLAKE3 digest; `b3:` and 64 lower-case hex digits as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is not a digest of the form `b3:<64 lower-case hex digits>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest: expected b3: and 64 lower-case hex digits, found {found:?}")]
pub struct ParseDigestError {
    /// The text that was refused.
    pub found: String,
}

impl Digest {
    /// Wraps 32 bytes that already are a digest.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Plain BLAKE3 of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// BLAKE3 in key-derivation mode under `context`: the domain separation of structured objects.
    pub fn in_context(context: &str, bytes: &[u8]) -> Self {
        Self(blake3::derive_key(context, bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("b3:")?;
        crate::id::write_hex(f, &self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseDigestError { found: text.chars().take(80).collect() };
        let hex = text.strip_prefix("b3:").ok_or_else(refused)?;
        crate::id::read_hex::<32>(hex).map(Self).ok_or_else(refused)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! digest_types {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Digest);

        impl $name {
            /// Wraps a digest that is known to name this kind of thing.
            pub const fn new(digest: Digest) -> Self {
                Self(digest)
            }

            /// The bare digest.
            pub const fn digest(&self) -> &Digest {
                &self.0
            }

            /// The 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseDigestError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    )*};
}

digest_types! {
    /// Names the bytes of a file: plain BLAKE3, however they are stored.
    BlobId;
    /// Names a `Tree` object: the portable identity of one directory.
    TreeId;
    /// Names an `Attrs` object: times, owners, xattrs and hard-link groups of one directory.
    AttrsId;
    /// Names a workspace root: its top directory's own mode and its top `Tree`.
    RootId;
    /// Names a canonical JSON logical state.
    StateId;
    /// Names an execution environment.
    EnvironmentDigest;
    /// Names a group policy's text.
    PolicyDigest;
    /// Names the body of a request: same idempotency key, other digest means conflict.
    RequestDigest;
}

impl BlobId {
    /// The blob id of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Digest::of(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_id_is_what_b3sum_prints() {
        assert_eq!(
            BlobId::of(b"").to_string(),
            "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    #[test]
    fn text_round_trips_and_refuses_everything_else() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
        let upper = digest.to_string().to_uppercase();
        for bad in ["", "b3:", "b3:00", upper.as_str(), &digest.to_string()[3..]] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
