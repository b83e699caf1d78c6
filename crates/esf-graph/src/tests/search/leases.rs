//! Leases of rollouts are on the boot clock, and what they hold goes with them (security row 78).

use esf_core::failure::FailureClass;
use esf_core::search::config::Budget;
use esf_core::search::{Config, EdgeStatus, RolloutStatus, StopReason};
use esf_core::time::BootMillis;
use esf_core::{RolloutId, Timestamp};

use super::{Searching, plain, valued};
use crate::tests::{code, meta};
use crate::{BootClock, Meta};

fn at(millis: i64) -> Meta {
    Meta { boot: BootClock { boot_id: "boot-1".to_owned(), millis: BootMillis(millis) }, ..meta() }
}

fn statuses(searching: &Searching, ids: &[RolloutId]) -> Vec<RolloutStatus> {
    ids.iter().map(|id| searching.graph().rollout(*id).expect("rollout").status).collect()
}

#[test]
fn a_lease_lapses_on_the_boot_clock_and_gives_its_edge_back() {
    let (searching, ticket) = Searching::begun(plain());
    let id = ticket.rollout.rollout_id;
    assert_eq!(ticket.rollout.expires_at, BootMillis(11_000));
    // A wall clock that jumps a day in either direction changes nothing.
    for now in [Timestamp(1_700_000_000_000 + 86_400_000), Timestamp(1_700_000_000_000 - 86_400_000)] {
        searching.graph().select(&Meta { now, ..at(10_999) }, searching.ask(1)).expect("select");
    }
    assert_eq!(statuses(&searching, &[id]), [RolloutStatus::Selected]);
    let again = searching.graph().select(&at(11_000), searching.ask(1)).expect("select").tickets;
    let rollout = searching.graph().rollout(id).expect("rollout");
    assert_eq!(rollout.status, RolloutStatus::Void);
    assert_eq!(rollout.void.as_ref().and_then(|void| void.class), Some(FailureClass::InfraLost));
    assert_eq!(again[0].action, ticket.action, "the edge is free again");
    let error = searching.graph().complete(&meta(), valued(id, 1.0)).expect_err("too late");
    assert_eq!(code(&error), "rollout_lapsed");
    let edge = searching.graph().edge(ticket.rollout.path[0].edge).expect("edge");
    assert_eq!((edge.stats.in_flight, edge.stats.failures), (1, 0), "a lapse says nothing of the action");
    searching.sound();
}

#[test]
fn what_is_late_but_not_given_up_counts() {
    let (searching, ticket) = Searching::begun(plain());
    let done = searching.graph().complete(&at(1_000_000), valued(ticket.rollout.rollout_id, 1.0));
    assert_eq!(done.expect("nobody took it").rollout.status, RolloutStatus::Accepted);
    searching.sound();
}

#[test]
fn another_boot_ends_every_lease() {
    let (searching, ticket) = Searching::begun(plain());
    for boot_id in ["boot-0", "boot-2"] {
        let boot = BootClock { boot_id: boot_id.to_owned(), millis: BootMillis(0) };
        let rebooted = Meta { boot, ..meta() };
        let held = searching.now().in_flight();
        let renewal = searching.graph().extend_rollouts(&rebooted, &[ticket.rollout.rollout_id], 1);
        assert_eq!(renewal.expect("renewal").lost.len(), 1);
        searching.graph().select(&rebooted, searching.ask(1)).expect("select");
        let search = searching.now();
        assert_eq!((search.in_flight(), held), (1, 1), "{boot_id}: the old one is void, one is new");
    }
    assert_eq!(searching.now().void, 2);
    searching.sound();
}

#[test]
fn a_heartbeat_holds_on_and_names_what_is_lost() {
    let (searching, ticket) = Searching::begun(plain());
    let lost = searching.one().rollout.rollout_id;
    searching.void(lost, None);
    let id = ticket.rollout.rollout_id;
    let renewal = searching.graph().extend_rollouts(&at(20_000), &[id, lost], 5_000).expect("renewal");
    assert_eq!((renewal.held, renewal.lost), (vec![id], vec![lost]));
    searching.graph().select(&at(24_999), searching.ask(1)).expect("select");
    assert_eq!(statuses(&searching, &[id]), [RolloutStatus::Selected]);
    searching.graph().select(&at(25_000), searching.ask(1)).expect("select");
    assert_eq!(statuses(&searching, &[id]), [RolloutStatus::Void]);
}

#[test]
fn an_edge_is_closed_after_its_retries_or_at_once() {
    let (searching, ticket) = Searching::begun(Config { edge_retries: 2, ..plain() });
    let edge = ticket.rollout.path[0].edge;
    let mut id = ticket.rollout.rollout_id;
    for failures in 1..=3 {
        searching.void(id, Some(FailureClass::InfraLost));
        let stats = searching.graph().edge(edge).expect("edge").stats;
        let status = if failures > 2 { EdgeStatus::Lost } else { EdgeStatus::Open };
        assert_eq!((stats.failures, stats.status), (failures, status));
        id = searching.one().rollout.rollout_id;
    }
    let other = searching.graph().rollout(id).expect("rollout").path[0].edge;
    assert_ne!(other, edge);
    searching.void(id, Some(FailureClass::UserExit));
    let closed = searching.graph().edge(other).expect("edge");
    assert_eq!(
        (closed.stats.status, closed.closed_because.as_deref()),
        (EdgeStatus::Closed, Some("no reason"))
    );
    searching.sound();
}

#[test]
fn budgets_stop_a_search_and_more_opens_it() {
    let budget = |rollouts, attempts| Budget { rollouts, attempts, ..Budget::default() };
    let (searching, ticket) = Searching::begun(Config { budget: budget(Some(3), None), ..plain() });
    let rest = searching.select(10);
    assert_eq!(
        (rest.tickets.len(), rest.saturated, rest.stopped),
        (1, true, None),
        "1 is in, 2 are in flight"
    );
    searching.value(ticket.rollout.rollout_id, 0.5).expect("value");
    searching.value(rest.tickets[0].rollout.rollout_id, 0.5).expect("value");
    assert_eq!(searching.now().stopped, Some(StopReason::Rollouts));
    assert_eq!(searching.select(1).stopped, Some(StopReason::Rollouts));
    let more = esf_core::ops::search::BudgetSearch { search: searching.id(), budget: budget(None, Some(5)) };
    assert_eq!(searching.graph().budget_search(&meta(), more).expect("more").stopped, None);
    let rest = searching.select(10);
    assert_eq!((rest.tickets.len(), rest.stopped), (2, Some(StopReason::Attempts)));
    for ticket in rest.tickets {
        searching.void(ticket.rollout.rollout_id, None);
    }
    searching.sound();
}
