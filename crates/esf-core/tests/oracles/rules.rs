//! The rules of a search that are no selection, by tables.

use esf_core::FailureClass;
use esf_core::digest::Digest;
use esf_core::id::{GroupId, NodeId, SearchId};
use esf_core::search::config::{Budget, LeafValue, Objective, Policy, Solve, Stop};
use esf_core::search::rules::{best, blames, closes, priors, stop, wants_value, worth};
use esf_core::search::visit::{BadValue, accept_value, check_value, recompute};
use esf_core::search::{
    BestKind, Config, EdgeNumber, EdgeStats, EdgeStatus, Expansion, PositionNumber, PositionStats, Search,
    SearchStatus, StopReason,
};
use esf_core::time::Timestamp;

use crate::fan::{Fan, edge, plain, position};

#[test]
fn priors_are_shares_of_open_edges() {
    let of = |given: &[f64]| {
        let edges: Vec<EdgeStats> =
            (0..).zip(given).map(|(ordinal, prior)| edge(ordinal, *prior, 0, 0.0)).collect();
        priors(&edges)
    };
    assert_eq!(of(&[3.0, 1.0]), [0.75, 0.25]);
    assert_eq!(of(&[0.0, 0.0]), [0.5, 0.5]);
    assert_eq!(of(&[f64::MAX, f64::MAX]), [0.5, 0.5]);
    assert_eq!(of(&[0.1, 0.2, 0.7]), [0.1, 0.2, 0.7]);
    assert_eq!(of(&[]), [0.0; 0]);
    let mut edges = vec![edge(0, 1.0, 0, 0.0), edge(1, 2.0, 0, 0.0), edge(2, 1.0, 0, 0.0)];
    edges[1].status = EdgeStatus::Closed;
    assert_eq!(priors(&edges), [0.5, 0.0, 0.5]);
}

#[test]
fn a_value_is_worth_what_the_objective_says() {
    let mover = Config { values: 3, ..Config::default() };
    assert_eq!(worth(&mover, 2, &[1.0, 2.0, 3.0]), 3.0);
    assert_eq!(worth(&mover, 2, &[]), 0.0);
    let weights = Objective::Weights { weights: vec![1.0, 0.5, -2.0] };
    assert_eq!(worth(&Config { objective: weights, ..mover }, 0, &[1.0, 2.0, 3.0]), -4.0);
}

#[test]
fn the_best_edge_is_of_a_kind() {
    let mut fan = Fan::of(0.0, &[(1.0, 90, 0.5), (1.0, 40, 0.58), (1.0, 2, 0.9), (1.0, 0, 0.0)]);
    let config = Config { best_value: Some(1.0), ..plain(Policy::Ucb1 { c: 1.0 }) };
    let pick = |fan: &Fan, config: &Config, kind| {
        best(config, kind, &fan.position, &fan.edges).map(|EdgeNumber(number)| number)
    };
    let solving = Config { solve: Solve::Terminal, ..config.clone() };
    let kinds = [BestKind::Robust, BestKind::Max, BestKind::Secure, BestKind::Finished];
    assert_eq!(kinds.map(|kind| pick(&fan, &config, kind)), [Some(0), Some(2), Some(1), None]);
    fan.edges[1].child_proven = Some(vec![0.3]);
    fan.edges[2].child_proven = Some(vec![0.2]);
    assert_eq!(kinds.map(|kind| pick(&fan, &solving, kind)), [Some(0), Some(0), Some(0), Some(1)]);
    fan.edges[2].child_proven = Some(vec![1.0]);
    assert_eq!(kinds.map(|kind| pick(&fan, &solving, kind)), [Some(2); 4], "a proven win is before all");
    fan.edges[2].status = EdgeStatus::Closed;
    assert_eq!(pick(&fan, &solving, BestKind::Robust), Some(0));
    assert_eq!(pick(&Fan::of(0.0, &[(1.0, 0, 0.0)]), &config, BestKind::Robust), None);
}

#[test]
fn an_edge_is_given_up_by_the_class_of_its_failure() {
    use FailureClass::*;
    let config = Config { edge_retries: 2, ..Config::default() };
    for class in FailureClass::ALL.into_iter().map(Some).chain([None]) {
        let closed = [1, 2, 3].map(|failures| closes(&config, failures, class));
        let expected = match class {
            None | Some(Cancelled | Stale) => [None; 3],
            Some(InfraLost | InfraPrepare | EvaluatorError | Quota) => [None, None, Some(EdgeStatus::Lost)],
            Some(UserExit | UserTimeout | UserOom | OutputLimit) => [Some(EdgeStatus::Closed); 3],
        };
        assert_eq!(closed, expected, "{class:?}");
        assert_eq!(blames(class), closed[2].is_some(), "{class:?}");
    }
}

fn a_search() -> Search {
    let digest = Digest::of(b"");
    Search {
        search_id: SearchId::from_bytes([0; 16]),
        group_id: GroupId::from_bytes([0; 16]),
        root_node_id: NodeId::from_bytes([0; 16]),
        root: PositionNumber(0),
        config: Config::default(),
        config_digest: digest,
        status: SearchStatus::Open,
        stopped: None,
        selected: 20,
        accepted: 14,
        void: 2,
        cost: 5.0,
        positions: 15,
        edges: 20,
        stats_rev: 0,
        created_at: Timestamp(1000),
        created_by: String::new(),
        trace_id: String::new(),
    }
}

#[test]
fn a_search_stops_when_it_has_enough() {
    let search = a_search();
    let fan = Fan::of(0.0, &[(1.0, 9, 0.5), (1.0, 4, 0.4)]);
    let none = Budget::default();
    let budget = |budget| Config { budget, ..Config::default() };
    let good = |reward, min_rollouts| Config {
        stop: Stop { reward: Some(reward), min_rollouts, margin: false },
        ..Config::default()
    };
    let margin = |rollouts, attempts, min_rollouts| Config {
        budget: Budget { rollouts: Some(rollouts), attempts, ..none },
        stop: Stop { reward: None, min_rollouts, margin: true },
        ..Config::default()
    };
    for (config, expected) in [
        (Config::default(), None),
        (budget(Budget { rollouts: Some(15), ..none }), None),
        (budget(Budget { rollouts: Some(14), ..none }), Some(StopReason::Rollouts)),
        (budget(Budget { attempts: Some(20), ..none }), Some(StopReason::Attempts)),
        (budget(Budget { wall_ms: Some(501), ..none }), None),
        (budget(Budget { wall_ms: Some(500), ..none }), Some(StopReason::Wall)),
        (budget(Budget { cost: Some(5.0), ..none }), Some(StopReason::Cost)),
        (good(0.71, 0), None),
        (good(0.7, 0), Some(StopReason::Reward)),
        (good(0.7, 15), None),
        // A lead of 5: it takes 6 to be passed.
        (margin(19, None, 0), None),
        (margin(18, None, 0), Some(StopReason::Margin)),
        (margin(18, None, 15), None),
        (margin(100, Some(21), 0), None),
        (margin(100, Some(20), 0), Some(StopReason::Attempts)),
    ] {
        let found = stop(&config, &search, &fan.position, &fan.edges, Some(0.7), Timestamp(1500));
        assert_eq!(found, expected, "{:?} {:?}", config.budget, config.stop);
    }
}

#[test]
fn a_search_of_which_nothing_is_left_stops() {
    let search = a_search();
    let reason = |fan: &Fan, solve| {
        let config = Config { solve, ..Config::default() };
        stop(&config, &search, &fan.position, &fan.edges, None, Timestamp(1500))
    };
    let mut fan = Fan::of(0.0, &[(1.0, 9, 0.5), (1.0, 4, 0.4)]);
    fan.edges[0].status = EdgeStatus::Closed;
    fan.edges[1].child_proven = Some(vec![0.4]);
    assert_eq!(reason(&fan, Solve::Off), None);
    assert_eq!(reason(&fan, Solve::Terminal), Some(StopReason::Exhausted));
    fan.edges[0].in_flight = 1;
    assert_eq!(reason(&fan, Solve::Terminal), None, "somebody is not back yet");
    fan.edges[0].in_flight = 0;
    fan.position.expansion = Expansion::Open;
    assert_eq!(reason(&fan, Solve::Terminal), None, "there may be others");
    fan.position.proven = Some(vec![0.4]);
    assert_eq!(reason(&fan, Solve::Full), Some(StopReason::Proven));
    fan.position.terminal = true;
    assert_eq!(reason(&fan, Solve::Off), Some(StopReason::Proven));
}

#[test]
fn a_visit_is_computed_from_facts_alone() {
    let config = Config { discount: 0.5, solve: Solve::Full, ..Config::default() };
    let mut fan = Fan::of(0.0, &[(1.0, 3, 0.5), (1.0, 1, -1.0), (1.0, 0, 0.0)]);
    fan.position.value = vec![0.2];
    fan.edges[0].reward = vec![0.1];
    fan.edges[0].discount = 0.5;
    for _ in 0..2 {
        recompute(&config, &mut fan.position, &fan.edges);
        assert_eq!(fan.position.visits, 5);
        assert!((fan.position.mean[0] - (0.2 + 3.0 * (0.1 + 0.5 * 0.5) - 1.0) / 5.0).abs() < 1e-12);
        assert_eq!(fan.position.proven, None);
    }
    // The mean of several values, or the first of them.
    for (leaf_value, expected) in [(LeafValue::Mean, 0.4), (LeafValue::First, 0.2)] {
        let config = Config { leaf_value, ..Config::default() };
        let mut position = PositionStats { values: 0, value: Vec::new(), ..position(0.0, 0) };
        [0.2, 0.9, 0.1].iter().for_each(|value| accept_value(&config, &mut position, &[*value]));
        assert_eq!(position.values, 3);
        assert!((position.value[0] - expected).abs() < 1e-12, "{leaf_value:?}");
        assert_eq!(wants_value(&config, &position), leaf_value == LeafValue::Mean);
        position.terminal = true;
        assert!(!wants_value(&config, &position));
    }
}

#[test]
fn a_value_that_cannot_be_is_refused() {
    let config = Config { values: 2, ..Config::default() };
    assert_eq!(check_value(&config, &[0.0, -1e100]), Ok(()));
    assert_eq!(check_value(&config, &[0.0]), Err(BadValue::Length { expected: 2, found: 1 }));
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e101] {
        let found = bad.to_string();
        assert_eq!(check_value(&config, &[0.0, bad]), Err(BadValue::Number { index: 1, found }));
    }
}
