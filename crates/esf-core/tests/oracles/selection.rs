//! The formulas of selection, each against a second writing of it, and what may not be chosen.

use esf_core::search::config::{FirstPlay, Normalize, Policy, Solve, Ties, Widening};
use esf_core::search::rules::{best, widening};
use esf_core::search::visit::recompute;
use esf_core::search::{
    BestKind, Config, Descent, EdgeNumber, EdgeStatus, Expansion, Found, PositionNumber, Stage, Start, Step,
    descend,
};

use crate::fan::{Fan, plain};

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

/// Whoever names only the position gets the likeliest action that nobody tried.
#[test]
fn a_caller_who_names_no_edge_gets_the_likeliest() {
    let mut fan = Fan::of(0.0, &[(9.0, 4, 1.0), (1.0, 0, 0.0), (3.0, 0, 0.0)]);
    assert_eq!(fan.choice(&plain(Policy::Caller)), 2);
    fan.edges[2].in_flight = 1;
    assert_eq!(fan.choice(&plain(Policy::Caller)), 1);
    fan.edges[1].status = EdgeStatus::Closed;
    assert_eq!(fan.choice(&plain(Policy::Caller)), 0);
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
    // A closed edge is no choice: its value proves nothing, nor does it stand in the way.
    fan.position.expansion = Expansion::Exhausted;
    fan.edges[0].status = EdgeStatus::Closed;
    for left in [fan.edges[0].child_proven.clone(), None] {
        fan.edges[0].child_proven = left;
        recompute(&config, &mut fan.position, &fan.edges);
        assert_eq!(fan.position.proven, Some(vec![0.5]));
    }
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
