//! What a picture must hold: every shape says the same tree, and nothing hostile gets out of its place.

use super::*;
use esf_core::search::{Config, EdgeNumber, EdgeStats, Expansion, PositionStats, SearchStatus};
use esf_core::time::Timestamp;
use esf_core::{Digest, GroupId, NodeId, SearchId};
use serde_json::json;

const HOSTILE: &str = "</title><script>alert(1)</script>\"]; evil -> x [label=\"\\\u{202e}\u{1b}[2J\n&amp;";

fn position(number: u64, visits: u64, mean: f64) -> Position {
    Position {
        stats: PositionStats {
            number: PositionNumber(number),
            depth: 0,
            to_move: 0,
            terminal: number == 3,
            expansion: Expansion::Open,
            asking: 0,
            values: 1,
            value: vec![mean],
            visits,
            mean: vec![mean],
            proven: None,
        },
        search_id: SearchId::from_bytes([1; 16]),
        node_id: (number != 2).then(|| NodeId::from_bytes([u8::try_from(number).expect("small"); 16])),
        root_id: None,
        key: None,
        evaluation_id: None,
    }
}

fn edge(number: u64, parent: u64, child: Option<u64>, visits: u64, name: &str) -> Edge {
    Edge {
        stats: EdgeStats {
            number: EdgeNumber(number),
            ordinal: u32::try_from(number).expect("small"),
            prior: 1.0,
            child: child.map(PositionNumber),
            reward: Vec::new(),
            discount: 1.0,
            visits,
            in_flight: 0,
            status: EdgeStatus::Open,
            failures: 0,
            child_mean: child.map(|_| 0.5).into_iter().collect(),
            child_visits: visits,
            child_proven: None,
        },
        parent: PositionNumber(parent),
        action: json!({ "name": name }),
        action_digest: Digest::of(name.as_bytes()),
        name: Some(name.to_owned()),
        closed_because: None,
    }
}

fn search() -> Search {
    Search {
        search_id: SearchId::from_bytes([1; 16]),
        group_id: GroupId::from_bytes([2; 16]),
        root_node_id: NodeId::from_bytes([1; 16]),
        root: PositionNumber(1),
        config: Config::default(),
        config_digest: Digest::of(b"config"),
        status: SearchStatus::Open,
        stopped: None,
        selected: 5,
        accepted: 4,
        void: 0,
        cost: 0.0,
        positions: 3,
        edges: 4,
        stats_rev: 1,
        created_at: Timestamp(0),
        created_by: "me".to_owned(),
        trace_id: "t".to_owned(),
    }
}

/// A root with two children, which both lead to one position; an edge that was not taken, and a closed one.
fn shown(name: &str) -> Shown {
    let mut closed = edge(14, 1, None, 0, "no");
    closed.stats.status = EdgeStatus::Closed;
    closed.closed_because = Some(name.to_owned());
    let at = |position, edges| ShownPosition { position, edges };
    let positions = vec![
        at(
            position(1, 4, 0.5),
            vec![
                edge(10, 1, Some(2), 1, "a"),
                edge(11, 1, Some(4), 2, name),
                edge(13, 1, None, 0, "b"),
                closed,
            ],
        ),
        at(position(2, 1, 0.0), vec![edge(15, 2, Some(3), 1, "x")]),
        at(position(4, 2, 0.7), vec![edge(16, 4, Some(3), 1, "y")]),
        at(position(3, 1, 1.0), Vec::new()),
    ];
    Shown { search: search(), positions, left_out: 0, best: None, principal: Vec::new() }
}

#[test]
fn rows_are_a_tree_with_the_most_visited_first() {
    let rows = shown("best").rows(100);
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let expected = [
        "nod_010101010101",
        "├─ best → nod_040404040404",
        "│  └─ y → nod_030303030303",
        "├─ a → position 2",
        "│  └─ x = nod_030303030303",
        "├─ b",
        "└─ no",
    ];
    assert_eq!(names, expected);
    assert_eq!((rows[1].visits.as_str(), rows[1].prior.as_str()), ("2", "0.250"));
    assert_eq!(rows[2].status, "terminal");
    assert_eq!(rows[6].status, "closed: best");
    let few = shown("best").rows(3);
    assert_eq!(few.len(), 4);
    assert!(few[3].name.starts_with("… 3 more"), "{:?}", few[3]);
}

#[test]
fn every_position_is_drawn_once_and_every_edge_that_was_taken() {
    let shown = shown("best");
    let svg = shown.svg();
    assert_eq!(svg.matches("<circle").count(), 4);
    assert_eq!(svg.matches("<path").count(), 4);
    assert_eq!(svg.matches("stroke-dasharray").count(), 1, "the second way to one position");
    let dot = shown.dot();
    assert_eq!(dot.matches(" -> ").count(), 4);
    assert_eq!(dot.matches("[label=\"nod_").count() + dot.matches("[label=\"position").count(), 4);
}

#[test]
fn hostile_names_stay_in_their_place() {
    let (plain, hostile) = (shown("best"), shown(HOSTILE));
    for (calm, text) in [(plain.svg(), hostile.svg()), (plain.html(100), hostile.html(100))] {
        assert!(
            !text.contains("<script") && !text.contains('\u{1b}') && !text.contains('\u{202e}'),
            "{text}"
        );
        assert_eq!(text.matches('<').count(), calm.matches('<').count());
        assert!(text.contains("&lt;script&gt;"), "it is shown all the same");
    }
    let (calm, text) = (plain.dot(), hostile.dot());
    assert_eq!(text.lines().count(), calm.lines().count());
    let open = |text: &str| text.replace("\\\\", "").replace("\\\"", "").matches('"').count();
    assert_eq!(open(&text), open(&calm), "{text}");
    assert!(!text.contains('\u{202e}'));
}

#[test]
fn a_page_loads_and_runs_nothing() {
    let page = shown("best").html(100);
    for word in ["<script", "src=", "href=", "url(", "@import", "onload"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_deep_line_is_no_recursion() {
    let depth = 20_000;
    let positions = (1..depth).map(|number| {
        let edges = vec![edge(number + depth, number, Some(number + 1), 1, "a")];
        ShownPosition { position: Position { node_id: None, ..position(2, 1, 0.5) }, edges }
    });
    let mut positions: Vec<_> = positions.collect();
    for (at, shown) in positions.iter_mut().enumerate() {
        shown.position.stats.number = PositionNumber(at as u64 + 1);
    }
    let shown = Shown { search: search(), positions, left_out: 1, best: None, principal: Vec::new() };
    assert_eq!(shown.svg().matches("<circle").count() as u64, depth - 1);
    assert_eq!(shown.rows(50).len(), 52);
}

#[test]
fn a_search_without_values_is_drawn() {
    let mut nothing = shown("a");
    for shown in &mut nothing.positions {
        shown.position.stats.mean = Vec::new();
    }
    assert!(nothing.svg().contains("#ffffff") && nothing.dot().contains("Q -"));
    nothing.positions.clear();
    assert!(nothing.rows(10).is_empty() && nothing.svg().contains("</svg>"));
}
