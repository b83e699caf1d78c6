//! What a step carries: actions, observations and arrays of numbers. Small JSON is kept in the record; everything
//! else is an artifact by digest. Invariant: an array's size is its length times the width of its numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::BlobId;
use crate::record::{Json, text_forms};

/// JSON in the record, or an artifact of any size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The JSON itself, of at most [`Content::MAX_INLINE`] bytes as text.
    Inline(Json),
    /// Its bytes lie in the store.
    Artifact {
        /// Their digest.
        digest: BlobId,
        /// How many there are.
        size: u64,
    },
}

impl Content {
    /// The most bytes of JSON that a record keeps.
    pub const MAX_INLINE: usize = 4096;

    /// The artifact it is in, if it is in one.
    pub fn artifact(&self) -> Option<BlobId> {
        match self {
            Self::Inline(_) => None,
            Self::Artifact { digest, size: _ } => Some(*digest),
        }
    }

    /// Why it cannot be kept, if so.
    pub fn problem(&self) -> Option<String> {
        let Self::Inline(json) = self else { return None };
        let bytes = json.to_string().len();
        (bytes > Self::MAX_INLINE).then(|| format!("{bytes} bytes of inline JSON"))
    }
}

/// What the numbers of an array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Truth values, a byte each.
    Bool,
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Signed, 4 bytes.
    I32,
    /// Signed, 8 bytes.
    I64,
    /// Floating point, 2 bytes.
    F16,
    /// Floating point, 2 bytes, the upper half of `f32`.
    Bf16,
    /// Floating point, 4 bytes.
    F32,
    /// Floating point, 8 bytes.
    F64,
}

text_forms!(Dtype {
    Bool = "bool",
    U8 = "u8",
    U16 = "u16",
    U32 = "u32",
    I32 = "i32",
    I64 = "i64",
    F16 = "f16",
    Bf16 = "bf16",
    F32 = "f32",
    F64 = "f64",
});

impl Dtype {
    /// Bytes of one number.
    pub const fn width(self) -> u64 {
        match self {
            Self::Bool | Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
}

/// An array of numbers in an artifact: little endian, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// What its numbers are.
    pub dtype: Dtype,
    /// How many there are.
    pub length: u64,
    /// Digest of the bytes.
    pub digest: BlobId,
    /// How many bytes there are.
    pub size: u64,
    /// Another array of the same step that must have the same length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aligned_with: Option<String>,
}

/// The arrays of a step, by name.
pub type Contents = BTreeMap<String, Array>;

/// The most arrays of a step.
pub const MAX_ARRAYS: usize = 64;

/// Arrays that have one number for each token of the completion.
const PER_COMPLETION_TOKEN: [&str; 2] = ["logprobs", "loss_mask"];

/// The tokens that the policy sampled.
const COMPLETION: &str = "completion_token_ids";

/// What is wrong with the lengths of `arrays`: which one, what it should be, what it is.
pub fn bad_array(arrays: &Contents) -> Option<(String, String, String)> {
    if arrays.len() > MAX_ARRAYS {
        return Some((String::new(), format!("at most {MAX_ARRAYS} arrays"), arrays.len().to_string()));
    }
    for (name, array) in arrays {
        if !(1..=64).contains(&name.len()) || !name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') {
            let name: String = name.chars().take(80).collect();
            return Some((name.clone(), "a name of 1 to 64 letters, digits and _".to_owned(), name));
        }
        if array.length.checked_mul(array.dtype.width()) != Some(array.size) {
            let expected = format!("{} numbers of {} bytes", array.length, array.dtype.width());
            return Some((name.clone(), expected, format!("{} bytes", array.size)));
        }
        let implied = PER_COMPLETION_TOKEN.contains(&name.as_str()).then_some(COMPLETION);
        for other in implied.into_iter().chain(array.aligned_with.as_deref()) {
            match arrays.get(other) {
                Some(found) if found.length == array.length => {}
                Some(found) => {
                    let expected = format!("the length of {other}, {}", found.length);
                    return Some((name.clone(), expected, array.length.to_string()));
                }
                None => return Some((name.clone(), format!("{other} beside it"), "none".to_owned())),
            }
        }
    }
    None
}
