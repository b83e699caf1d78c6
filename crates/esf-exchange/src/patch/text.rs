//! Unified hunks over bytes: three lines of context, a missing final newline kept.

use std::io::{self, Write};

use similar::{Algorithm, DiffOp, DiffTag};

const CONTEXT: usize = 3;

/// Writes the hunks that turn `before` into `after`.
pub(super) fn write_hunks(out: &mut dyn Write, before: &[u8], after: &[u8]) -> io::Result<()> {
    let (old, new) = (lines(before), lines(after));
    let ops = similar::capture_diff_slices(Algorithm::Myers, &old, &new);
    for group in similar::group_diff_ops(ops, CONTEXT) {
        write_hunk(out, &group, &old, &new)?;
    }
    Ok(())
}

/// Splits after each newline; the last line may lack one.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|&byte| byte == b'\n').collect()
}

fn write_hunk(out: &mut dyn Write, ops: &[DiffOp], old: &[&[u8]], new: &[&[u8]]) -> io::Result<()> {
    let (Some(first), Some(last)) = (ops.first(), ops.last()) else { return Ok(()) };
    let old_range = first.old_range().start..last.old_range().end;
    let new_range = first.new_range().start..last.new_range().end;
    writeln!(out, "@@ -{} +{} @@", span(&old_range), span(&new_range))?;
    for op in ops {
        let (tag, old_lines, new_lines) = op.as_tag_tuple();
        if tag == DiffTag::Equal {
            write_lines(out, b' ', &old[old_lines])?;
        } else {
            write_lines(out, b'-', &old[old_lines])?;
            write_lines(out, b'+', &new[new_lines])?;
        }
    }
    Ok(())
}

/// Lines count from one; an empty span names the line before it.
fn span(range: &std::ops::Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => format!("{}", range.start + 1),
        count => format!("{},{count}", range.start + 1),
    }
}

fn write_lines(out: &mut dyn Write, sign: u8, lines: &[&[u8]]) -> io::Result<()> {
    for line in lines {
        out.write_all(&[sign])?;
        out.write_all(line)?;
        if !line.ends_with(b"\n") {
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_are_what_diff_writes() {
        let table: [(&str, &str, &str); 4] = [
            ("", "a\n", "@@ -0,0 +1 @@\n+a\n"),
            ("a\n", "", "@@ -1 +0,0 @@\n-a\n"),
            ("a\nb", "a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"),
            ("1\n2\n3\n4\n5\n6\n", "1\n2\n3\n4\n5\nsix\n", "@@ -3,4 +3,4 @@\n 3\n 4\n 5\n-6\n+six\n"),
        ];
        for (before, after, expected) in table {
            let mut out = Vec::new();
            write_hunks(&mut out, before.as_bytes(), after.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{before:?} -> {after:?}");
        }
    }
}
