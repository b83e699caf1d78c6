//! How git writes names in patches, and which names it refuses (`quote.c`, `verify_path`).

/// Writes `prefix` + `path` as git does: plain when every byte is printable ASCII other than `"` and
/// `\`, else in double quotes with C escapes.
pub(crate) fn quoted(prefix: &str, path: &[u8]) -> Vec<u8> {
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if path.iter().copied().all(plain) {
        return [prefix.as_bytes(), path].concat();
    }
    let mut text = Vec::with_capacity(prefix.len() + path.len() + 16);
    text.push(b'"');
    text.extend_from_slice(prefix.as_bytes());
    for &byte in path {
        match byte {
            0x07 => text.extend_from_slice(b"\\a"),
            0x08 => text.extend_from_slice(b"\\b"),
            b'\t' => text.extend_from_slice(b"\\t"),
            b'\n' => text.extend_from_slice(b"\\n"),
            0x0b => text.extend_from_slice(b"\\v"),
            0x0c => text.extend_from_slice(b"\\f"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'"' => text.extend_from_slice(b"\\\""),
            b'\\' => text.extend_from_slice(b"\\\\"),
            byte if plain(byte) => text.push(byte),
            byte => text.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
    }
    text.push(b'"');
    text
}

/// Finds the part of `path` that git refuses to hold: up to and including the first component that
/// stands for its own directory, under any spelling it guards against.
pub(crate) fn refused_by_git(path: &[u8], symlink: bool) -> Option<&[u8]> {
    let mut end = 0;
    for component in path.split(|&byte| byte == b'/') {
        end += component.len();
        let last = end == path.len();
        // On NTFS a backslash separates too; git looks behind each of them.
        let mut pieces = component.split(|&byte| byte == b'\\');
        let refused = pieces.any(|piece| {
            stands_for(piece, &[b".git", b"git~1"])
                || (symlink
                    && last
                    && stands_for(
                        piece,
                        &[b".gitmodules", b"gitmod~1", b"gitmod~2", b"gitmod~3", b"gitmod~4"],
                    ))
        });
        if refused || has_ignored_code_point(component) {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

/// Whether NTFS would take `piece` for one of `names`: case, trailing dots and spaces and a stream
/// name do not count.
fn stands_for(piece: &[u8], names: &[&[u8]]) -> bool {
    let stem = piece.split(|&byte| byte == b':').next().unwrap_or(piece);
    let kept = stem.iter().rposition(|&byte| byte != b'.' && byte != b' ').map_or(0, |last| last + 1);
    names.iter().any(|name| stem[..kept].eq_ignore_ascii_case(name))
}

/// Whether HFS+ would take `component` for `.git`: it ignores some invisible code points.
fn has_ignored_code_point(component: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(component) else { return false };
    let ignored = |c: &char| matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let visible: String = text.chars().filter(|c| !ignored(c)).collect();
    visible.len() != text.len() && visible.eq_ignore_ascii_case(".git")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_like_git() {
        let table: [(&[u8], &str); 6] = [
            (b"plain name", "a/plain name"),
            (b"q\"uote", "\"a/q\\\"uote\""),
            (b"back\\slash", "\"a/back\\\\slash\""),
            (b"tab\tnl\n", "\"a/tab\\tnl\\n\""),
            ("caf\u{e9}".as_bytes(), "\"a/caf\\303\\251\""),
            (b"\x01\x7f\xff", "\"a/\\001\\177\\377\""),
        ];
        for (path, expected) in table {
            assert_eq!(quoted("a/", path), expected.as_bytes(), "{path:?}");
        }
    }

    #[test]
    fn the_repository_itself_is_found_under_every_spelling() {
        for bad in [
            ".git",
            "x/.git/config",
            ".GIT",
            ".git.",
            ".git ",
            "git~1",
            ".git::$INDEX",
            "a\\.git",
            ".g\u{200c}it",
        ] {
            assert!(refused_by_git(bad.as_bytes(), false).is_some(), "{bad}");
        }
        for good in [".gitignore", "git", ".git2", "x.git", ".gitmodules"] {
            assert!(refused_by_git(good.as_bytes(), false).is_none(), "{good}");
        }
        assert!(refused_by_git(b".gitmodules", true).is_some());
        assert_eq!(refused_by_git(b"x/.git/config", false), Some(&b"x/.git"[..]));
    }
}
