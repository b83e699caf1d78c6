//! Names that users give to groups and nodes. Invariant: a label can never be taken for an id, for the
//! canonical node (`@`) or for `GROUP:NAME`, so what was named is found again.

use crate::ops::Reject;

/// Longest label in bytes.
pub const MAX: usize = 128;

/// Checks a name for a group or a node.
///
/// # Errors
/// `Reject::BadName` saying what would do.
pub fn check(name: &str) -> Result<(), Reject> {
    let bad = |reason| Reject::BadName { name: name.chars().take(80).collect(), reason };
    if !(1..=MAX).contains(&name.len()) {
        return Err(bad("1 to 128 bytes"));
    }
    if !name.as_bytes()[0].is_ascii_alphanumeric() {
        return Err(bad("a letter or digit first"));
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Err(bad("letters, digits, `.`, `_` and `-` only"));
    }
    let id_like =
        name.len() >= 4 && name.as_bytes()[3] == b'_' && name.bytes().take(3).all(|b| b.is_ascii_lowercase());
    if id_like {
        return Err(bad("nothing that begins like an id, such as `nod_`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_be_taken_for_ids() {
        for good in ["a", "my-project", "v1.2_3", "9", "node_1", "ab_c"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", "@", "a:b", "a b", "-x", ".x", "nod_1", "grp_", "é", "a/b", &"x".repeat(129)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
