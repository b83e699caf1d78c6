//! The formulas of selection, each against a second writing of it, and the rules that are no selection, by tables.

use std::convert::Infallible;

use esf_core::FailureClass;
use esf_core::digest::Digest;
use esf_core::id::{GroupId, NodeId, SearchId};
use esf_core::search::config::{
    Budget, FirstPlay, LeafValue, Normalize, Objective, Policy, Solve, Stop, Ties, Widening,
};
use esf_core::search::rules::{best, blames, closes, priors, stop, wants_value, widening, worth};
use esf_core::search::visit::{BadValue, accept_value, check_value, recompute};
use esf_core::search::{
    BestKind, Config, Descent, EdgeNumber, EdgeStats, EdgeStatus, Expansion, Found, PositionNumber,
    PositionStats, Search, SearchStatus, Stage, Start, Step, StopReason, Tree, descend,
};
use esf_core::time::Timestamp;

/// A position with edges to positions that nobody looked at.
#[derive(Clone)]
struct Fan {
    position: PositionStats,
    edges: Vec<EdgeStats>,
    /// Rollouts that ask for the actions of each other position.
    asking: Vec<u32>,
}

impl Tree for Fan {
    type Error = Infallible;

    fn position(&self, number: PositionNumber) -> Result<PositionStats, Infallible> {
        match number == self.position.number {
            true => Ok(self.position.clone()),
            false => {
                let asking = self.asking.get(number.0 as usize - 1).copied().unwrap_or(0);
                Ok(PositionStats { number, expansion: Expansion::Unasked, asking, ..position(1.0, 1) })
            }
        }
    }

    fn edges(&self, _: PositionNumber) -> Result<Vec<EdgeStats>, Infallible> {
        Ok(self.edges.clone())
    }

    fn inner(&self, _: u64) -> Result<Option<PositionNumber>, Infallible> {
        Ok(Some(self.position.number))
    }

    fn line(&self, _: PositionNumber) -> Result<Vec<Step>, Infallible> {
        Ok(Vec::new())
    }
}

fn position(mean: f64, visits: u64) -> PositionStats {
    PositionStats {
        number: PositionNumber(0),
        depth: 0,
        to_move: 0,
        terminal: false,
        expansion: Expansion::Exhausted,
        asking: 0,
        values: 1,
        value: vec![mean],
        visits,
        mean: vec![mean],
        proven: None,
    }
}

fn edge(ordinal: u32, prior: f64, visits: u64, mean: f64) -> EdgeStats {
    let taken = visits > 0;
    EdgeStats {
        number: EdgeNumber(u64::from(ordinal)),
        ordinal,
        prior,
        child: taken.then_some(PositionNumber(u64::from(ordinal) + 1)),
        reward: Vec::new(),
        discount: 1.0,
        visits,
        in_flight: 0,
        status: EdgeStatus::Open,
        failures: 0,
        child_mean: if taken { vec![mean] } else { Vec::new() },
        child_visits: visits,
        child_proven: None,
    }
}

impl Fan {
    /// Edges of (prior, visits, mean); N is one more than their visits.
    fn of(mean: f64, edges: &[(f64, u64, f64)]) -> Self {
        let visits = 1 + edges.iter().map(|(_, visits, _)| visits).sum::<u64>();
        let edges = (0..).zip(edges).map(|(ordinal, of)| edge(ordinal, of.0, of.1, of.2)).collect();
        Self { position: position(mean, visits), edges, asking: Vec::new() }
    }

    fn descend(&self, config: &Config, ordinal: u64) -> Descent {
        let Ok(descent) = descend(config, self, Start::root(PositionNumber(0)), ordinal);
        descent
    }

    /// The ordinal of the edge that is chosen.
    fn choice(&self, config: &Config) -> u64 {
        match self.descend(config, 0) {
            Descent::Found(found) => found.path[0].edge.0,
            other => panic!("{other:?}"),
        }
    }

    fn found(&self, config: &Config) -> Found {
        match self.descend(config, 0) {
            Descent::Found(found) => found,
            other => panic!("{other:?}"),
        }
    }
}

fn plain(policy: Policy) -> Config {
    Config { policy, normalize: Normalize::None, solve: Solve::Off, ..Config::default() }
}

const N: f64 = 18.0;

/// Two edges, of 12 and 5 visits: the second is chosen from that value on at which the formula says so.
#[test]
fn each_policy_is_its_formula() {
    let muzero = 1.25 + ((N + 19_652.0 + 1.0) / 19_652.0_f64).ln();
    let table: [(Policy, [f64; 2]); 4] = [
        (Policy::Ucb1 { c: 0.7 }, [0.7 * (N.ln() / 12.0).sqrt(), 0.7 * (N.ln() / 5.0).sqrt()]),
        (Policy::Puct { c: 1.5, own_visit: true }, [0.75, 0.25].map(|p: f64| 1.5 * p * N.sqrt())),
        (Policy::Puct { c: 1.5, own_visit: false }, [0.75, 0.25].map(|p: f64| 1.5 * p * (N - 1.0).sqrt())),
        (Policy::Muzero { c1: 1.25, c2: 19_652.0 }, [0.75, 0.25].map(|p: f64| p * N.sqrt() * muzero)),
    ];
    for (policy, bonus) in table {
        let by_visits = if matches!(policy, Policy::Ucb1 { .. }) { [1.0, 1.0] } else { [13.0, 6.0] };
        let turn = 0.4 + bonus[0] / by_visits[0] - bonus[1] / by_visits[1];
        for (offset, expected) in [(-1e-9, 0), (1e-9, 1)] {
            // Priors are shares of their sum: 3 and 1 are 0.75 and 0.25.
            let fan = Fan::of(0.3, &[(3.0, 12, 0.4), (1.0, 5, turn + offset)]);
            assert_eq!(fan.choice(&plain(policy)), expected, "{policy:?}");
        }
    }
}

/// A rollout in flight is a visit and a loss to the one who moves, whoever that is.
#[test]
fn a_virtual_loss_is_the_movers() {
    for mover in [0, 1] {
        let policy = Policy::Puct { c: 1.5, own_visit: true };
        let config = Config { values: 2, virtual_loss: 0.8, ..plain(policy) };
        let held = 3.0;
        let all = (N + held).sqrt();
        let first = (0.4 * 12.0 - held * 0.8) / (12.0 + held) + 1.5 * 0.75 * all / (12.0 + held + 1.0);
        let turn = first - 1.5 * 0.25 * all / 6.0;
        for (offset, expected) in [(-1e-9, 0), (1e-9, 1)] {
            let mut fan = Fan::of(0.3, &[(3.0, 12, 0.4), (1.0, 5, turn + offset)]);
            fan.position.to_move = mover;
            fan.edges[0].in_flight = 3;
            let both = |value: f64| if mover == 0 { vec![value, -value] } else { vec![-value, value] };
            fan.position.mean = both(0.3);
            fan.edges.iter_mut().for_each(|edge| edge.child_mean = both(edge.child_mean[0]));
            assert_eq!(fan.choice(&config), expected, "mover {mover}");
        }
    }
    // With as much in flight, the better edge gives way.
    let mut fan = Fan::of(0.5, &[(1.0, 4, 0.6), (1.0, 4, 0.5)]);
    let config = plain(Policy::Ucb1 { c: 0.5 });
    assert_eq!(fan.choice(&config), 0);
    fan.edges[0].in_flight = 1;
    assert_eq!(fan.choice(&config), 1);
}

#[test]
fn values_are_brought_to_one_scale() {
    let policy = Policy::Puct { c: 1.0, own_visit: true };
    let bonus = [0.5 * N.sqrt() / 13.0, 0.5 * N.sqrt() / 6.0];
    // Of siblings and the position's own, from 10 to 50; and from 0 to 100.
    for (normalize, least, span) in
        [(Normalize::Siblings, 10.0, 40.0), (Normalize::Fixed { min: 0.0, max: 100.0 }, 0.0, 100.0)]
    {
        let config = Config { normalize, ..plain(policy) };
        let turn = ((50.0 - least) / span + bonus[0] - bonus[1]) * span + least;
        for (offset, expected) in [(-1e-6, 0), (1e-6, 1)] {
            let fan = Fan::of(10.0, &[(1.0, 12, 50.0), (1.0, 5, turn + offset)]);
            assert_eq!(fan.choice(&config), expected, "{normalize:?}");
        }
    }
    // Rewards and discounts are of the edge's value.
    let mut fan = Fan::of(0.0, &[(1.0, 5, 0.5), (1.0, 5, 0.4)]);
    (fan.edges[1].reward, fan.edges[1].discount) = (vec![0.2], 0.9);
    assert_eq!(fan.choice(&plain(policy)), 1, "0.2 + 0.9 * 0.4 = 0.56");
    fan.edges[1].discount = 0.7;
    assert_eq!(fan.choice(&plain(policy)), 0, "0.2 + 0.7 * 0.4 = 0.48");
}

#[test]
fn an_untried_edge_counts_as_it_is_told() {
    let policy = Policy::Puct { c: 0.0, own_visit: true };
    let fan = Fan::of(0.5, &[(1.0, 6, 0.45), (1.0, 6, 0.2), (1.0, 0, 0.0)]);
    for (first_play, expected) in [
        (FirstPlay::Parent { reduction: 0.0 }, 2),
        (FirstPlay::Parent { reduction: 0.1 }, 0),
        (FirstPlay::Value { value: 0.46 }, 2),
        (FirstPlay::Value { value: 0.44 }, 0),
        (FirstPlay::Least, 0),
        (FirstPlay::First, 2),
    ] {
        assert_eq!(fan.choice(&Config { first_play, ..plain(policy) }), expected, "{first_play:?}");
    }
    assert_eq!(fan.choice(&plain(Policy::Ucb1 { c: 0.0 })), 2, "in UCB1 an untried edge is first");
    // The prior decides the first visit of all, though the plain formula of AlphaZero is 0 there.
    let fan = Fan::of(0.5, &[(1.0, 0, 0.0), (3.0, 0, 0.0), (2.0, 0, 0.0)]);
    assert_eq!(fan.choice(&plain(Policy::Puct { c: 1.0, own_visit: false })), 1);
}

#[test]
fn an_exact_value_needs_no_exploration() {
    let mut fan = Fan::of(0.0, &[(1.0, 10, 0.2), (1.0, 1, 0.1)]);
    fan.edges[1].child_proven = Some(vec![0.1]);
    let with = |solve| Config { solve, ..plain(Policy::Ucb1 { c: 1.0 }) };
    assert_eq!(fan.choice(&with(Solve::Off)), 1, "one visit: much to explore");
    assert_eq!(fan.choice(&with(Solve::Terminal)), 0);
    fan.edges[1].child_proven = Some(vec![0.9]);
    assert_eq!(fan.choice(&with(Solve::Terminal)), 1, "what is proven counts, not the mean");
}

#[test]
fn ties_go_to_the_first_or_are_drawn() {
    let fan = Fan::of(0.0, &[(1.0, 0, 0.0), (1.0, 0, 0.0), (1.0, 0, 0.0)]);
    let counts = |config: &Config| {
        let mut counts = [0; 3];
        for ordinal in 0..300 {
            let Descent::Found(found) = fan.descend(config, ordinal) else { panic!("all is open") };
            counts[found.path[0].edge.0 as usize] += 1;
        }
        counts
    };
    let puct = plain(Policy::Puct { c: 1.0, own_visit: true });
    assert_eq!(counts(&puct), [300, 0, 0]);
    for config in
        [Config { ties: Ties::Seeded, ..puct }, plain(Policy::Uniform), plain(Policy::UniformNonleaf)]
    {
        let drawn = counts(&config);
        assert!(drawn.iter().all(|count| *count > 60), "{drawn:?}");
        assert_eq!(counts(&config), drawn, "the same seed draws the same");
        assert_ne!(counts(&Config { seed: 1, ..config }), drawn);
    }
}

#[test]
fn what_others_hold_is_not_chosen() {
    let config = plain(Policy::Puct { c: 1.0, own_visit: true });
    let mut fan = Fan::of(0.0, &[(1.0, 0, 0.0), (1.0, 0, 0.0)]);
    fan.edges[0].in_flight = 1;
    assert_eq!(fan.choice(&config), 1);
    fan.edges[1].in_flight = 1;
    assert_eq!(fan.descend(&config, 0), Descent::Saturated);
    fan.edges.iter_mut().for_each(|edge| edge.status = EdgeStatus::Closed);
    assert_eq!(fan.descend(&config, 0), Descent::Exhausted);
    fan.position.expansion = Expansion::Open;
    assert_eq!(fan.found(&config).stage, Stage::Expand, "all failed, and there may be others");
    fan.position.asking = 1;
    assert_eq!(fan.descend(&config, 0), Descent::Saturated);
    // The first value of the root is one rollout's business.
    fan.position.values = 0;
    assert_eq!(fan.descend(&config, 0), Descent::Saturated);
    fan.position.asking = 0;
    assert_eq!(
        fan.found(&config),
        Found { path: vec![], leaf: PositionNumber(0), stage: Stage::Revisit, want: None, known: 0 }
    );
}

#[test]
fn a_dead_end_is_backed_out_of() {
    let config = plain(Policy::Puct { c: 0.0, own_visit: true });
    let mut fan = Fan::of(0.0, &[(1.0, 2, 0.9), (1.0, 2, 0.5), (1.0, 2, 0.7)]);
    assert_eq!(fan.choice(&config), 0);
    fan.asking = vec![1];
    assert_eq!(fan.choice(&config), 2, "the next best");
    fan.asking = vec![1, 0, 1];
    assert_eq!(fan.choice(&config), 1);
    fan.asking = vec![1; 3];
    assert_eq!(fan.descend(&config, 0), Descent::Saturated);
}

#[test]
fn a_position_at_the_greatest_depth_is_visited_again() {
    let config = Config { max_depth: Some(1), ..plain(Policy::Puct { c: 0.0, own_visit: true }) };
    let mut fan = Fan::of(0.0, &[(1.0, 2, 0.9)]);
    let path = vec![Step { position: PositionNumber(7), edge: EdgeNumber(9) }];
    let start = || Start { path: path.clone(), ..Start::root(PositionNumber(0)) };
    fan.position.depth = 1;
    let Ok(Descent::Found(found)) = descend(&config, &fan, start(), 0) else { panic!("it is visited again") };
    assert_eq!((found.stage, found.path), (Stage::Revisit, path.clone()));
    fan.position.depth = 0;
    let Ok(Descent::Found(found)) = descend(&config, &fan, start(), 0) else { panic!("it has an edge") };
    assert_eq!((found.stage, found.path.len()), (Stage::Expand, 2));
}

#[test]
fn what_is_solved_is_not_visited_again() {
    let config = Config { solve: Solve::Full, ..plain(Policy::Puct { c: 0.0, own_visit: true }) };
    let mut fan = Fan::of(0.0, &[(1.0, 2, 0.9), (1.0, 2, 0.5)]);
    fan.edges[0].child_proven = Some(vec![0.9]);
    assert_eq!(fan.choice(&config), 1);
    assert_eq!(fan.choice(&Config { solve: Solve::Terminal, ..config.clone() }), 0);
    // Its mover has at least that, whatever the mean is; and the most visited other must be better to be best.
    recompute(&config, &mut fan.position, &fan.edges);
    assert_eq!((fan.position.mean.as_slice(), &fan.position.proven), ([0.9].as_slice(), &None));
    let robust = |fan: &Fan| best(&config, BestKind::Robust, &fan.position, &fan.edges);
    fan.edges[1].visits = 50;
    assert_eq!(robust(&fan), Some(EdgeNumber(0)));
    fan.edges[1].child_mean = vec![0.91];
    assert_eq!(robust(&fan), Some(EdgeNumber(1)));
    // Where all are proven, others are asked for if there may be any.
    fan.edges[1].child_proven = Some(vec![0.5]);
    assert_eq!(fan.descend(&config, 0), Descent::Exhausted);
    fan.position.expansion = Expansion::Open;
    assert_eq!(fan.found(&config).stage, Stage::Expand);
    // A closed edge is no choice, so that its value proves nothing.
    fan.position.expansion = Expansion::Exhausted;
    fan.edges[0].status = EdgeStatus::Closed;
    recompute(&config, &mut fan.position, &fan.edges);
    assert_eq!(fan.position.proven, Some(vec![0.5]));
}

#[test]
fn widening_bounds_what_a_position_may_have() {
    let config = Config {
        widening: Some(Widening { k: 2.0, alpha: 0.5, max_children: 7 }),
        ..plain(Policy::Puct { c: 0.0, own_visit: true })
    };
    let allowed: Vec<u32> =
        [0, 1, 2, 4, 5, 9, 10, 10_000].iter().map(|n| widening(&config, *n).unwrap()).collect();
    assert_eq!(allowed, [1, 2, 3, 4, 5, 6, 7, 7]);
    assert_eq!(widening(&Config::default(), 9), None);

    // Five visits: five actions, and there are three.
    let mut fan = Fan::of(0.0, &[(1.0, 2, 0.9), (1.0, 2, 0.0), (1.0, 0, 0.0)]);
    fan.position.expansion = Expansion::Open;
    let found = fan.found(&config);
    assert_eq!((found.stage, found.want, found.known), (Stage::Expand, Some(2), 3));
    // Whoever asked chooses of what came, though it is less.
    let Ok(given) = descend(&config, &fan, Start { asked: true, ..Start::root(PositionNumber(0)) }, 0);
    assert!(matches!(given, Descent::Found(found) if found.path[0].edge == EdgeNumber(0)));
    // While somebody asks, the others choose of what there is.
    fan.position.asking = 1;
    assert_eq!(fan.choice(&config), 0);

    // All are known: of the untried ones, those of the best priors are let in, in their number.
    let narrow =
        Config { widening: Some(Widening { k: 1.0, alpha: 0.0, max_children: 9 }), ..config.clone() };
    let mut fan = Fan::of(0.0, &[(1.0, 0, 0.0), (5.0, 0, 0.0), (2.0, 0, 0.0)]);
    assert_eq!(fan.choice(&narrow), 1);
    fan.edges[1].in_flight = 1;
    assert_eq!(fan.descend(&narrow, 0), Descent::Saturated, "the one that it may have is held");
    let Ok(forced) =
        descend(&narrow, &fan, Start { edge: Some(EdgeNumber(2)), ..Start::root(PositionNumber(0)) }, 0);
    assert!(
        matches!(forced, Descent::Found(found) if found.path[0].edge == EdgeNumber(2)),
        "but one may insist"
    );
    fan.edges[2].status = EdgeStatus::Closed;
    let Ok(closed) =
        descend(&narrow, &fan, Start { edge: Some(EdgeNumber(2)), ..Start::root(PositionNumber(0)) }, 0);
    assert_eq!(closed, Descent::Exhausted, "not on what is closed");
}

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
            None | Some(Cancelled | Stale) => [false; 3],
            Some(InfraLost | InfraPrepare | EvaluatorError | Quota) => [false, false, true],
            Some(UserExit | UserTimeout | UserOom | OutputLimit) => [true; 3],
        };
        assert_eq!(closed, expected, "{class:?}");
        assert_eq!(blames(class), closed[2], "{class:?}");
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
