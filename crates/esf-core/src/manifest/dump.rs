//! The text by which two trees are equal: one line for each entry.
//! Invariant: different entries give different lines, and fields never contain a space or newline,
//! whatever bytes names, targets and attributes hold.

use std::fmt::Write;

use super::entry::EntryKind;
use super::walk::WalkEntry;

/// Bytes as text: printable ASCII but space, `\`, `,` and `=` as itself, the rest as `\xhh`. A
/// field that is empty or a lone `-` differs from the `-` that stands for nothing.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' | b',' | b'=' | b' ' | 0x7f.. | ..b' ' => {
                write!(text, "\\x{byte:02x}").expect("writing to a string does not fail");
            }
            _ => text.push(char::from(*byte)),
        }
    }
    text
}

/// One line without its newline; fields are separated by one space, `-` stands for nothing:
/// path (`/` is the top), kind, mode in octal, uid, gid, size in bytes, content, xattrs as
/// `name=value,...`, mtime as seconds and nanoseconds, hard-link group. The content is a file's blob
/// id or a symlink's target; a directory's own is in the lines that follow.
pub fn dump_line(entry: &WalkEntry) -> String {
    let nothing = || "-".to_owned();
    let (size, content) = match &entry.kind {
        EntryKind::Directory { .. } | EntryKind::Fifo => (nothing(), nothing()),
        EntryKind::File { size, blob } => (size.to_string(), blob.to_string()),
        EntryKind::Symlink { target } if **target == *b"-" => (nothing(), "\\x2d".to_owned()),
        EntryKind::Symlink { target } => (nothing(), escape(target)),
    };
    let attrs = &entry.attrs;
    let xattrs: Vec<String> =
        attrs.xattrs.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
    format!(
        "/{} {} {} {} {} {size} {content} {} {} {}",
        escape(&entry.path),
        entry.kind.word(),
        entry.mode,
        attrs.uid,
        attrs.gid,
        if xattrs.is_empty() { nothing() } else { xattrs.join(",") },
        attrs.mtime.map_or_else(nothing, |time| time.to_string()),
        attrs.hard_link.map_or_else(nothing, |group| group.to_string()),
    )
}
