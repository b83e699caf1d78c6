//! Each counter and statistic of a search is checked: one that is off is named.

use esf_core::FailureClass;
use rusqlite::Connection;

use super::{Searching, plain};

fn busy() -> Searching {
    let (searching, ticket) = Searching::begun(plain());
    searching.value(ticket.rollout.rollout_id, 0.5).expect("value");
    for ticket in searching.select(2).tickets {
        searching.value(ticket.rollout.rollout_id, 0.25).expect("value");
    }
    let asks = searching.one().rollout.rollout_id;
    let ticket = searching.expand(asks, &["x", "y"]).ticket;
    searching.void(ticket.rollout.rollout_id, Some(FailureClass::InfraLost));
    assert_eq!(searching.select(2).tickets.len(), 2);
    searching.sound();
    searching
}

#[test]
fn what_is_off_is_named() {
    let searching = busy();
    let db = Connection::open(&searching.fixture.path).expect("open");
    db.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON").expect("pragma");
    let root = searching.search.root.0;
    let at_root = format!("WHERE number = {root}");
    let of_root = format!("WHERE parent = {root}");
    for (table, column, place, finding) in [
        ("edges", "visits", of_root.as_str(), "visits of edge"),
        ("edges", "in_flight", &of_root, "visits in flight of edge"),
        ("edges", "child_visits", &of_root, "visits of the child of edge"),
        ("edges", "child_mean", &of_root, "mean of the child of edge"),
        ("positions", "asking", &at_root, "asking of position"),
        ("positions", "visits", &at_root, "visits of position"),
        ("positions", "value_count", &at_root, "values of position"),
        ("positions", "value", &at_root, "value of position"),
        ("positions", "mean", &at_root, "mean of position"),
        ("positions", "edge_count", &at_root, "edges of position"),
        ("positions", "level", &at_root, "level above its parent's"),
        ("searches", "selected", "", "selected"),
        ("searches", "accepted", "", "accepted"),
        ("searches", "void", "", "void"),
        ("searches", "positions", "", "positions"),
        ("searches", "expanded", "", "expanded"),
        ("searches", "edges", "", "edges"),
        ("searches", "best", "", "best"),
        ("searches", "cost", "", "cost"),
        ("rollouts", "ordinal", "WHERE number = 7", "gaps in ordinals"),
        ("rollouts", "ended", "WHERE number = 5", "order in which rollouts ended"),
    ] {
        let change =
            |by: &str| db.execute_batch(&format!("UPDATE {table} SET {column} = {column} {by} {place}"));
        change("+ 1").expect("damage");
        let findings = searching.graph().check_search(searching.id()).expect("check");
        assert!(findings.iter().any(|found| found.contains(finding)), "{table}.{column}: {findings:?}");
        assert!(findings.iter().all(|found| found.contains(&searching.id().to_string())));
        change("- 1").expect("repair");
        searching.sound();
    }
}
