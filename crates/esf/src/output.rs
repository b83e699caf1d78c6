//! How results and errors leave the program: data on stdout, everything else on stderr; the exit
//! code derives from the error's class, here and nowhere else.

use std::io::{self, Write};

use esf_core::{Class, Problem};
use serde_json::{Value, json};

use crate::args::Format;

/// A command's result in its three shapes.
pub(crate) struct Reply {
    /// The JSON document of the contract.
    pub(crate) value: Value,
    /// Column heads and rows for people.
    pub(crate) table: Table,
    /// What `-q` prints.
    pub(crate) ids: Vec<String>,
}

/// Rows of text under column heads; a table without heads is plain lines.
#[derive(Default)]
pub(crate) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(crate) fn lines(lines: impl IntoIterator<Item = String>) -> Self {
        Self { heads: Vec::new(), rows: lines.into_iter().map(|line| vec![line]).collect() }
    }

    /// The columns, aligned, control characters escaped so that no file name can drive a terminal.
    pub(crate) fn render(&self) -> String {
        let heads: Vec<String> = self.heads.iter().map(|head| (*head).to_owned()).collect();
        let all: Vec<Vec<String>> = std::iter::once(heads)
            .filter(|heads| !heads.is_empty())
            .chain(self.rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()))
            .collect();
        let columns = all.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| {
            all.iter().filter_map(|row| row.get(column)).map(|cell: &String| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &all {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Escapes what a terminal would act on.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control()
                || ('\u{202a}'..='\u{202e}').contains(&c)
                || ('\u{2066}'..='\u{2069}').contains(&c) =>
            {
                shown.extend(c.escape_default());
            }
            c => shown.push(c),
        }
    }
    shown
}

/// Bytes of a name or path for people; what is not UTF-8 is escaped.
pub(crate) fn show_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// Prints a result. A reader that went away (`esf ls | head`) is no error.
pub(crate) fn print(format: Format, quiet: bool, reply: &Reply) -> io::Result<()> {
    let text = match (quiet, format) {
        (true, _) => reply.ids.iter().map(|id| format!("{id}\n")).collect(),
        (_, Format::Table) => reply.table.render(),
        (_, Format::Json) => format!("{}\n", reply.value),
        (_, Format::Jsonl) => json_lines(&reply.value),
    };
    write_out(text.as_bytes())
}

/// Writes to stdout; a closed pipe is success.
pub(crate) fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A listing (an object with one array) is one line an element; all else one line.
fn json_lines(value: &Value) -> String {
    let listing =
        value.as_object().filter(|object| object.len() == 1).and_then(|object| object.values().next());
    match listing {
        Some(Value::Array(items)) => items.iter().map(|item| format!("{item}\n")).collect(),
        _ => format!("{value}\n"),
    }
}

/// Prints an error on stderr, as JSON when the output is JSON.
pub(crate) fn print_problem(format: Format, problem: &Problem) {
    let text = match format {
        Format::Table => {
            let mut text = format!("esf: {} [{}]\n", lines(&problem.message), problem.code);
            let details =
                [("expected", &problem.expected), ("found", &problem.found), ("do", &problem.remediation)];
            for (label, detail) in details {
                if let Some(detail) = detail {
                    text.push_str(&format!("  {label}: {}\n", lines(detail)));
                }
            }
            text
        }
        Format::Json | Format::Jsonl => format!("{}\n", json!({ "error": problem })),
    };
    // A closed stderr leaves nobody to tell; the exit code still says it.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Text of several lines as an indented block: a parser's message points into what it read.
fn lines(text: &str) -> String {
    text.trim_end().lines().map(printable).collect::<Vec<_>>().join("\n    ")
}

/// The process's exit code for a problem.
pub(crate) fn exit_code(problem: &Problem) -> u8 {
    match problem.class {
        Class::Usage => 2,
        Class::NotFound => 3,
        Class::Conflict => 4,
        Class::Refused => 5,
        Class::Damaged => 6,
        Class::Failure => 125,
    }
}

/// A command line that could not be read, from the parser's text: what is wrong first, then how it
/// is used.
pub(crate) fn usage_problem(text: &str) -> Problem {
    let (what, how) = text.split_once("\n\n").unwrap_or((text, ""));
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = one_line(what.strip_prefix("error: ").unwrap_or(what));
    let usage = how.split("\n\n").find_map(|part| part.strip_prefix("Usage: ")).map(one_line);
    let problem = Problem::new(Class::Usage, "usage", message).remedy("see `esf help`");
    usage.into_iter().fold(problem, Problem::expected)
}

/// What this build lacks, told the same way everywhere.
pub(crate) fn not_supported(what: &str, remedy: &str) -> Problem {
    Problem::new(Class::Refused, "not_supported", format!("{what} is not in this build")).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_the_terminal() {
        let mut table = Table::new(&["NAME"]);
        table.row(["a\u{1b}]0;x\u{7}\u{202e}b\n"]);
        let text = table.render();
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn a_usage_error_is_one_line_and_says_how() {
        let text = "error: unexpected argument 'x' found\n\nUsage: esf fork [OPTIONS] <NODE>\n\nFor more\n";
        let problem = usage_problem(text);
        assert_eq!(problem.message, "unexpected argument 'x' found");
        assert_eq!(problem.expected.as_deref(), Some("esf fork [OPTIONS] <NODE>"));
        assert_eq!(exit_code(&problem), 2);
    }

    #[test]
    fn json_is_seen_in_a_line_that_cannot_be_read() {
        let wants = |line: &str| crate::args::wants_json(line.split(' ').map(Into::into));
        for line in ["-o json fork", "fork -ojson", "fork --output json", "--output=jsonl x", "x -o=json"] {
            assert!(wants(line), "{line}");
        }
        for line in ["fork", "-o table fork", "exec a -- -o json", "fork --oops json"] {
            assert!(!wants(line), "{line}");
        }
    }

    #[test]
    fn a_listing_is_one_line_an_element() {
        assert_eq!(json_lines(&json!({"nodes": [1, 2]})), "1\n2\n");
        assert_eq!(json_lines(&json!({"a": 1, "b": [1]})), "{\"a\":1,\"b\":[1]}\n");
    }
}
