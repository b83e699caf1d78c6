//! Pictures of a search's tree: DOT, SVG, a page of HTML that needs nothing else, and rows of text. Pure: what is
//! shown comes in, text goes out. Invariant: names, reasons and actions are hostile; none of them can leave
//! its place in a picture, and a picture is as large as what it was given.

use std::collections::{HashMap, HashSet};

use esf_core::search::{Edge, EdgeNumber, EdgeStatus, Position, PositionNumber, Search};
use serde::Serialize;

use crate::picture_layout::{Layout, Spot};

/// Characters of a name that are shown.
const NAME: usize = 60;

/// What is shown of a search: positions with their edges, the root first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// The search.
    pub search: Search,
    /// Its positions, or the most visited of them.
    pub positions: Vec<ShownPosition>,
    /// Positions that are left out.
    pub left_out: u64,
    /// The best position that was found.
    pub best: Option<PositionNumber>,
    /// The edges of the principal path.
    pub principal: Vec<EdgeNumber>,
}

/// A position and what may be done there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownPosition {
    /// The position.
    #[serde(flatten)]
    pub position: Position,
    /// Its edges, in their order.
    pub edges: Vec<Edge>,
}

/// A line of the tree as text; the columns are put together, and made safe for a terminal, by who prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// N of the edge; of the root, N of the position.
    pub visits: String,
    /// Q of where it leads.
    pub value: String,
    /// P, normalised over the position's edges.
    pub prior: String,
    /// Rollouts in flight through it.
    pub in_flight: String,
    /// What is to be known of it beyond numbers.
    pub status: String,
    /// Its place in the tree and its name.
    pub name: String,
}

/// An edge's short name: the proposer's, else the action.
pub fn edge_name(edge: &Edge) -> String {
    match &edge.name {
        Some(name) => cut(name),
        None => match edge.action.as_str() {
            Some(text) => cut(text),
            None => cut(&edge.action.to_string()),
        },
    }
}

fn cut(text: &str) -> String {
    let mut name: String = text.chars().take(NAME).collect();
    if name.len() < text.len() {
        name.push('…');
    }
    name
}

fn position_name(position: &Position) -> String {
    match &position.node_id {
        Some(node) => node.to_string().chars().take(16).collect(),
        None => format!("position {}", position.stats.number.0),
    }
}

/// A value vector as people read it.
pub fn value_text(value: &[f64]) -> String {
    match value {
        [] => "-".to_owned(),
        values => values.iter().map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(" "),
    }
}

fn status_text(edge: &Edge, child: Option<&Position>) -> String {
    let mut words = Vec::new();
    match edge.stats.status {
        EdgeStatus::Open => {}
        status @ (EdgeStatus::Closed | EdgeStatus::Lost) => words.push(match &edge.closed_because {
            Some(reason) => format!("{}: {}", status.as_str(), cut(reason)),
            None => status.as_str().to_owned(),
        }),
        EdgeStatus::Pruned => words.push("pruned".to_owned()),
    }
    if let Some(child) = child {
        words.extend(child.stats.terminal.then(|| "terminal".to_owned()));
        words.extend(child.stats.proven.as_ref().map(|value| format!("proven {}", value_text(value))));
    }
    words.join(", ")
}

impl Shown {
    fn by_number(&self) -> HashMap<PositionNumber, &ShownPosition> {
        self.positions.iter().map(|shown| (shown.position.stats.number, shown)).collect()
    }

    /// Least and greatest of the values that are shown, by their first component.
    fn range(&self) -> (f64, f64) {
        let firsts = self.positions.iter().filter_map(|shown| shown.position.stats.mean.first().copied());
        firsts
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    }

    /// A line that says where the search is.
    pub fn headline(&self) -> String {
        let search = &self.search;
        let budget = search.config.budget.rollouts.map_or(String::new(), |budget| format!("/{budget}"));
        let state = match search.stopped {
            Some(reason) => format!("stopped ({})", reason.as_str()),
            None => search.status.as_str().to_owned(),
        };
        format!(
            "{} {state}: {}{budget} rollouts, {} void, {} in flight, {} positions, {} edges",
            search.search_id,
            search.accepted,
            search.void,
            search.in_flight(),
            search.positions,
            search.edges
        )
    }

    /// The tree as rows, a child beneath its parent, the most visited first; at most `most` of them. A
    /// position that was shown before is named and not shown again.
    pub fn rows(&self, most: usize) -> Vec<Row> {
        let by_number = self.by_number();
        let Some(root) = self.positions.first() else { return Vec::new() };
        let mut rows = vec![Row {
            visits: root.position.stats.visits.to_string(),
            value: value_text(&root.position.stats.mean),
            prior: String::new(),
            in_flight: self.search.in_flight().to_string(),
            status: {
                let best = (self.best == Some(root.position.stats.number)).then_some("best");
                let proven = root.position.stats.proven.as_ref().map(|_| "proven");
                best.into_iter().chain(proven).collect::<Vec<_>>().join(", ")
            },
            name: position_name(&root.position),
        }];
        let mut seen = HashSet::from([root.position.stats.number]);
        // What is still to be shown, the next one last: an edge, how it is indented, whether it is the last.
        let mut waiting: Vec<(&Edge, f64, String, bool)> = Vec::new();
        push_edges(&mut waiting, root, "");
        while let Some((edge, prior, indent, is_last)) = waiting.pop() {
            if rows.len() >= most {
                let left = waiting.len() + 1;
                rows.push(Row::remark(format!("… {left} more edges of what is shown")));
                break;
            }
            let child = edge.stats.child.and_then(|child| by_number.get(&child));
            let again = edge.stats.child.is_some_and(|child| !seen.insert(child));
            let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let mut name = format!("{indent}{branch}{}", edge_name(edge));
            if let Some(child) = child {
                let mark = if again { " = " } else { " → " };
                name.push_str(mark);
                name.push_str(&position_name(&child.position));
            }
            rows.push(Row {
                visits: edge.stats.visits.to_string(),
                value: value_text(&edge.stats.child_mean),
                prior: format!("{prior:.3}"),
                in_flight: if edge.stats.in_flight > 0 {
                    edge.stats.in_flight.to_string()
                } else {
                    String::new()
                },
                status: self.marked(edge, child.map(|child| &child.position)),
                name,
            });
            if let Some(child) = child.filter(|_| !again) {
                push_edges(&mut waiting, child, &format!("{indent}{below}"));
            }
        }
        if self.left_out > 0 {
            rows.push(Row::remark(format!("… {} positions are left out", self.left_out)));
        }
        rows
    }

    /// What is to be known of an edge, with whether it is of the principal path or leads to the best position.
    fn marked(&self, edge: &Edge, child: Option<&Position>) -> String {
        let mut words = Vec::new();
        words.extend(edge.stats.child.filter(|child| self.best == Some(*child)).map(|_| "best".to_owned()));
        words.extend(self.principal.contains(&edge.stats.number).then(|| "principal".to_owned()));
        words.extend(Some(status_text(edge, child)).filter(|text| !text.is_empty()));
        words.join(", ")
    }

    /// The tree in the language of graphviz.
    pub fn dot(&self) -> String {
        let by_number = self.by_number();
        let mut text = format!(
            "digraph search {{\n  label={};\n  rankdir=LR;\n  node [shape=box, style=filled, fillcolor=white];\n",
            quoted(&self.headline())
        );
        let (low, high) = self.range();
        for shown in &self.positions {
            let stats = &shown.position.stats;
            let label = format!(
                "{}\nN {} Q {}",
                position_name(&shown.position),
                stats.visits,
                value_text(&stats.mean)
            );
            text.push_str(&format!(
                "  p{} [label={}, fillcolor=\"{}\"{}];\n",
                stats.number.0,
                quoted(&label),
                colour(stats.mean.first().copied(), low, high),
                if stats.terminal { ", peripheries=2" } else { "" }
            ));
        }
        for shown in &self.positions {
            for edge in &shown.edges {
                let Some(child) = edge.stats.child.filter(|child| by_number.contains_key(child)) else {
                    continue;
                };
                let dashed = if edge.stats.status == EdgeStatus::Open { "" } else { ", style=dashed" };
                let label = format!("{} N {}", edge_name(edge), edge.stats.visits);
                let (from, label) = (shown.position.stats.number.0, quoted(&label));
                text.push_str(&format!("  p{from} -> p{} [label={label}{dashed}];\n", child.0));
            }
        }
        text.push_str("}\n");
        text
    }

    /// The tree as an SVG picture, root at the left.
    pub fn svg(&self) -> String {
        let layout = Layout::new(&self.positions);
        let (width, height) = layout.size();
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            escaped(&self.headline())
        );
        for shown in &self.positions {
            self.draw_edges(shown, &layout, &mut text);
        }
        let (low, high) = self.range();
        for shown in &self.positions {
            if let Some(spot) = layout.spot(shown.position.stats.number) {
                let best = self.best == Some(shown.position.stats.number);
                draw_position(&shown.position, spot, (low, high), self.search.accepted, best, &mut text);
            }
        }
        text.push_str("</svg>\n");
        text
    }

    fn draw_edges(&self, shown: &ShownPosition, layout: &Layout, text: &mut String) {
        let Some(from) = layout.spot(shown.position.stats.number) else { return };
        for edge in &shown.edges {
            let Some((child, to)) = edge.stats.child.and_then(|child| Some((child, layout.spot(child)?)))
            else {
                continue;
            };
            let in_tree = layout.parent(child) == Some(shown.position.stats.number);
            let colour = match (edge.stats.status, edge.stats.in_flight) {
                (EdgeStatus::Open, 0) => "#888",
                (EdgeStatus::Open, _) => "#06c",
                (EdgeStatus::Closed | EdgeStatus::Lost | EdgeStatus::Pruned, _) => "#ccc",
            };
            let middle = f64::midpoint(from.x, to.x);
            text.push_str(&format!(
                "<path d=\"M{:.1} {:.1} C{middle:.1} {:.1} {middle:.1} {:.1} {:.1} {:.1}\" fill=\"none\" \
                 stroke=\"{colour}\"{}{}><title>{} N {} P {:.3} {}</title></path>\n",
                from.x,
                from.y,
                from.y,
                to.y,
                to.x,
                to.y,
                if in_tree { "" } else { " stroke-dasharray=\"4 3\"" },
                if self.principal.contains(&edge.stats.number) { " stroke-width=\"3\"" } else { "" },
                escaped(&edge_name(edge)),
                edge.stats.visits,
                edge.stats.prior,
                escaped(&self.marked(edge, None)),
            ));
            if in_tree {
                text.push_str(&format!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#333\">{}</text>\n",
                    to.x + 14.0,
                    to.y - 2.0,
                    escaped(&edge_name(edge))
                ));
            }
        }
    }

    /// A page with the picture and the tree as a table; nothing in it is loaded from elsewhere or executed.
    pub fn html(&self, most_rows: usize) -> String {
        let title = escaped(&self.search.search_id.to_string());
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>body{{font-family:sans-serif;margin:1em}}div{{overflow:auto;\
             max-height:80vh;border:1px solid #ccc}}td,th{{padding:0 .6em;text-align:right;white-space:pre}}\
             td:last-child,th:last-child{{text-align:left;font-family:monospace}}</style></head>\n<body><h1>{title}</h1>\n\
             <p>{}</p>\n<div>{}</div>\n<h2>Edges</h2>\n<table><tr><th>N</th><th>Q</th><th>P</th><th>in flight</th>\
             <th>status</th><th>action</th></tr>\n",
            escaped(&self.headline()),
            self.svg()
        );
        for row in self.rows(most_rows) {
            let cells = [row.visits, row.value, row.prior, row.in_flight, row.status, row.name];
            let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
            text.push_str(&format!("<tr>{cells}</tr>\n"));
        }
        text.push_str("</table></body></html>\n");
        text
    }
}

impl Row {
    fn remark(name: String) -> Self {
        let none = String::new;
        Self { visits: none(), value: none(), prior: none(), in_flight: none(), status: none(), name }
    }
}

/// Puts a position's edges on the stack so that the most visited comes off first.
fn push_edges<'a>(waiting: &mut Vec<(&'a Edge, f64, String, bool)>, at: &'a ShownPosition, indent: &str) {
    let total: f64 = at.edges.iter().map(|edge| edge.stats.prior).sum();
    let share = |edge: &Edge| if total > 0.0 { edge.stats.prior / total } else { 0.0 };
    let mut edges: Vec<&Edge> = at.edges.iter().collect();
    edges.sort_by_key(|edge| (edge.stats.visits, std::cmp::Reverse(edge.stats.ordinal)));
    let last = edges.first().map(|edge| edge.stats.number);
    waiting.extend(
        edges.into_iter().map(|edge| (edge, share(edge), indent.to_owned(), Some(edge.stats.number) == last)),
    );
}

fn draw_position(
    position: &Position,
    spot: Spot,
    range: (f64, f64),
    accepted: u64,
    best: bool,
    text: &mut String,
) {
    let stats = &position.stats;
    let share = stats.visits as f64 / accepted.max(1) as f64;
    let radius = 4.0 + 6.0 * share.clamp(0.0, 1.0).sqrt();
    let (low, high) = range;
    text.push_str(&format!(
        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\" fill=\"{}\" stroke=\"{}\"{}><title>{} N {} Q {}{}{}</title></circle>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#666\" font-size=\"9\">N {} Q {}</text>\n",
        spot.x,
        spot.y,
        colour(stats.mean.first().copied(), low, high),
        if stats.terminal { "#000" } else { "#666" },
        if best { " stroke-width=\"3\"" } else { "" },
        escaped(&position_name(position)),
        stats.visits,
        value_text(&stats.mean),
        if stats.terminal { " terminal" } else { "" },
        if best { " best" } else { "" },
        spot.x + 14.0,
        spot.y + 9.0,
        stats.visits,
        value_text(&stats.mean),
    ));
}

/// From red over yellow to green, by the place of `value` between `low` and `high`; white without a value.
fn colour(value: Option<f64>, low: f64, high: f64) -> String {
    let Some(value) = value else { return "#ffffff".to_owned() };
    let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
    let part = |up: f64| (120.0 + 135.0 * up.clamp(0.0, 1.0)).round() as u8;
    format!("#{:02x}{:02x}78", part(2.0 - 2.0 * share), part(2.0 * share))
}

/// Text for XML and HTML: markup, control characters and marks of writing direction cannot get through.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if is_unsafe(c) => safe.extend(c.escape_default()),
            c => safe.push(c),
        }
    }
    safe
}

/// A string of DOT's language, in which a backslash begins an escape of its own.
fn quoted(text: &str) -> String {
    let mut safe = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => safe.push_str("\\\""),
            '\\' => safe.push_str("\\\\"),
            '\n' => safe.push_str("\\n"),
            c if is_unsafe(c) => safe
                .extend(c.escape_default().flat_map(|c| if c == '\\' { vec!['\\', '\\'] } else { vec![c] })),
            c => safe.push(c),
        }
    }
    safe.push('"');
    safe
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c)
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
