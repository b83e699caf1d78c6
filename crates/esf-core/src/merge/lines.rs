//! Three-way merge of the lines of one text (acceptance M03): changes that an unchanged line parts are both
//! taken, changes that overlap or touch are a conflict unless they are equal. Invariant: the result has only
//! lines of its sides, each with the line end that it had there, and no contents with a NUL are merged.
//! Pure; the differences are `similar`'s.

use std::ops::Range;

use similar::{Algorithm, DiffTag};

/// Name of the way in which lines are merged; part of provenance.
pub const ALGORITHM: &str = "diff3 over Myers differences";
/// Version of the algorithm: raised when the same three texts may come to another result.
pub const VERSION: u32 = 1;
/// Most bytes of a file whose lines are merged.
pub const MAX_BYTES: u64 = 4 << 20;
/// Most lines of a file whose lines are merged.
pub const MAX_LINES: usize = 200_000;

/// Merges the lines of three texts; none when they conflict, when one of them is no text, or when one is
/// larger than the bounds.
pub fn merge_lines(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let [base, ours, theirs] = [split(base)?, split(ours)?, split(theirs)?];
    let changes = [changes(&base, &ours), changes(&base, &theirs)];
    let mut left = [changes[0].as_slice(), changes[1].as_slice()];
    let mut merged: Vec<u8> = Vec::new();
    let mut done = 0;
    while let Some((span, taken)) = cluster(&mut left) {
        merged.extend(base[done..span.start].concat());
        let lines = match taken.map(|changes| side_of(&span, changes)) {
            [Some(one), Some(other)] => (ours[one.clone()] == theirs[other]).then(|| ours[one].concat())?,
            [Some(one), None] => ours[one].concat(),
            [None, Some(other)] => theirs[other].concat(),
            [None, None] => unreachable!("a cluster has a change"),
        };
        merged.extend(lines);
        done = span.end;
    }
    merged.extend(base[done..].concat());
    Some(merged)
}

/// Lines with their ends; none for what is no text or too large.
fn split(text: &[u8]) -> Option<Vec<&[u8]>> {
    if text.len() as u64 > MAX_BYTES || text.contains(&0) {
        return None;
    }
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').take(MAX_LINES + 1).collect();
    (lines.len() <= MAX_LINES).then_some(lines)
}

/// Lines of the base that a side has replaced, and those that it has instead.
struct Change {
    base: Range<usize>,
    side: Range<usize>,
}

/// Ascending; an unchanged line is between any two.
fn changes(base: &[&[u8]], side: &[&[u8]]) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for op in similar::capture_diff_slices(Algorithm::Myers, base, side) {
        let (tag, base, side) = op.as_tag_tuple();
        match changes.last_mut() {
            _ if tag == DiffTag::Equal => {}
            Some(last) if last.base.end == base.start && last.side.end == side.start => {
                (last.base.end, last.side.end) = (base.end, side.end);
            }
            _ => changes.push(Change { base, side }),
        }
    }
    changes
}

/// Takes the next changes that overlap or touch: the lines of the base that they span, and each side's.
fn cluster<'a>(left: &mut [&'a [Change]; 2]) -> Option<(Range<usize>, [&'a [Change]; 2])> {
    let whole = *left;
    let start = left.iter().filter_map(|changes| Some(changes.first()?.base.start)).min()?;
    let mut end = start;
    while let Some((changes, first)) = left.iter_mut().find_map(|changes| {
        Some(changes.first()?.base.clone()).filter(|base| base.start <= end).map(|base| (changes, base))
    }) {
        end = end.max(first.end);
        *changes = &changes[1..];
    }
    let taken = [0, 1].map(|side| &whole[side][..whole[side].len() - left[side].len()]);
    Some((start..end, taken))
}

/// The lines that a side has for a span of the base; none if it has not changed it.
fn side_of(span: &Range<usize>, changes: &[Change]) -> Option<Range<usize>> {
    let (first, last) = (changes.first()?, changes.last()?);
    let before = first.base.start - span.start;
    let after = span.end - last.base.end;
    Some(first.side.start - before..last.side.end + after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(base: &str, ours: &str, theirs: &str) -> Option<String> {
        merge_lines(base.as_bytes(), ours.as_bytes(), theirs.as_bytes())
            .map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn changes_that_a_line_parts_are_both_taken() {
        let table = [
            ("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", Some("A\nb\nC\n")),
            ("a\nb\nc\n", "A\nb\nc\n", "A\nb\nc\n", Some("A\nb\nc\n")),
            ("a\nb\nc\n", "A\nb\nc\n", "a\nB\nc\n", None),
            ("a\nb\nc\n", "A\nb\nc\n", "1\nb\nc\n", None),
            ("a\nb\nc\n", "b\nc\n", "a\nb\nc\nd\n", Some("b\nc\nd\n")),
            ("a\nb\nc\n", "0\na\nb\nc\n", "a\nb\n", Some("0\na\nb\n")),
            ("a\nb\n", "a\nx\nb\n", "a\ny\nb\n", None),
            ("a\nb\n", "a\nx\nb\n", "a\nx\nb\n", Some("a\nx\nb\n")),
            ("", "a\n", "b\n", None),
            ("a\n", "", "a\nb\n", None),
        ];
        for (base, ours, theirs, expected) in table {
            assert_eq!(merged(base, ours, theirs).as_deref(), expected, "{base:?} {ours:?} {theirs:?}");
            assert_eq!(merged(base, theirs, ours).as_deref(), expected, "{base:?} {theirs:?} {ours:?}");
        }
    }

    #[test]
    fn line_ends_stay_as_they_are() {
        let table = [
            // Windows' ends, and one side that turned a line to the other form.
            ("a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", Some("A\r\nb\r\nC\r\n")),
            ("a\r\nb\r\nc\r\n", "a\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", Some("a\nb\r\nC\r\n")),
            ("a\r\nb\r\n", "A\r\nb\r\n", "a\nb\r\n", None),
            // No newline at the end: kept, dropped by one side, added by one side.
            ("a\nb\nc", "A\nb\nc", "a\nb\nC", Some("A\nb\nC")),
            ("a\nb\nc\n", "A\nb\nc\n", "a\nb\nc", Some("A\nb\nc")),
            ("a\nb\nc", "A\nb\nc", "a\nb\nc\n", Some("A\nb\nc\n")),
            ("a\nb\nc", "a\nb\nc\nd", "a\nb\nc\n", None),
        ];
        for (base, ours, theirs, expected) in table {
            assert_eq!(merged(base, ours, theirs).as_deref(), expected, "{base:?} {ours:?} {theirs:?}");
        }
    }

    #[test]
    fn what_is_no_text_or_too_large_is_left_alone() {
        assert_eq!(merged("a\0\nb\nc\n", "A\0\nb\nc\n", "a\0\nb\nC\n"), None);
        assert_eq!(merged("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\0\n"), None);
        let long = "\n".repeat(MAX_LINES + 1);
        assert_eq!(merged(&long, &format!("a\n{long}"), &format!("{long}b\n")), None);
        let large = "x".repeat(usize::try_from(MAX_BYTES).unwrap());
        assert_eq!(merged(&large, &format!("a\n{large}"), &format!("{large}\nb\n")), None);
    }

    #[test]
    fn many_changes_take_time_in_proportion() {
        let text = |changed: usize| -> String {
            (0..MAX_LINES)
                .map(|line| if line % 4 == changed { format!("{line}!\n") } else { format!("{line}\n") })
                .collect()
        };
        let merged = merged(&text(9), &text(0), &text(2)).unwrap();
        assert_eq!(merged.matches('!').count(), MAX_LINES / 2);
    }
}
