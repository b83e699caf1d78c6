//! What a search refuses, each with its code, leaving nothing behind.

use esf_core::Digest;
use esf_core::failure::FailureClass;
use esf_core::id::{NodeId, RolloutId, SearchId};
use esf_core::ops::evaluate::NewEvaluation;
use esf_core::ops::search::{BudgetSearch, Complete, CreateSearch, Expand, Select};
use esf_core::record::{Evaluation, Evaluator, Failure, Json, Verdict};
use esf_core::search::config::Budget;
use esf_core::search::{Config, EdgeNumber, PositionNumber, RolloutStatus, SearchStatus, StopReason};
use serde_json::json;

use super::{Searching, actions, plain, valued};
use crate::tests::{code, keyed, meta};

const NOBODY: RolloutId = RolloutId::from_bytes([1; 16]);

fn refuse(searching: &Searching, complete: Complete, expected: &str) {
    let before = (searching.now(), searching.graph().last_event().expect("last"));
    let error = searching.graph().complete(&meta(), complete.clone()).expect_err(expected);
    assert_eq!(code(&error), expected, "{complete:?}: {error}");
    let problem = error.problem();
    assert!(problem.expected.is_some() && problem.found.is_some(), "{problem:?}");
    let all = searching.graph().complete_all(&meta(), vec![complete]).expect("the whole");
    assert_eq!(code(all[0].as_ref().expect_err(expected)), expected);
    let mut after = (searching.now(), searching.graph().last_event().expect("last"));
    after.0.stats_rev = before.0.stats_rev;
    assert_eq!(after, before);
}

#[test]
fn what_is_not_there_is_not_found() {
    let (searching, ticket) = Searching::begun(plain());
    let other = Searching::new(plain());
    let graph = searching.graph();
    let nothing = SearchId::from_bytes([1; 16]);
    let expect = |error: crate::Error| assert_eq!(code(&error), "not_found", "{error}");
    expect(graph.search(nothing).expect_err("search"));
    expect(graph.select(&meta(), Select { search: nothing, ..searching.ask(1) }).expect_err("search"));
    expect(graph.stop_search(&meta(), nothing).expect_err("search"));
    let far = PositionNumber(u64::MAX);
    for at in [far, PositionNumber(999), PositionNumber(0)] {
        expect(graph.position(at).expect_err("position"));
        expect(graph.select(&meta(), Select { at: Some(at), ..searching.ask(1) }).expect_err("position"));
    }
    for edge in [EdgeNumber(u64::MAX), EdgeNumber(ticket.rollout.path[0].edge.0 + 99)] {
        expect(graph.edge(edge).expect_err("edge"));
        expect(graph.select(&meta(), Select { edge: Some(edge), ..searching.ask(1) }).expect_err("edge"));
    }
    expect(graph.rollout(NOBODY).expect_err("rollout"));
    refuse(&searching, valued(NOBODY, 1.0), "not_found");
    let missing = Some(NodeId::from_bytes([1; 16]));
    refuse(&searching, Complete { node: missing, ..valued(ticket.rollout.rollout_id, 1.0) }, "not_found");
    let evaluation = Some(esf_core::EvaluationId::from_bytes([1; 16]));
    refuse(&searching, Complete { evaluation, ..valued(ticket.rollout.rollout_id, 1.0) }, "not_found");
    assert_eq!(graph.extend_rollouts(&meta(), &[NOBODY], 1).expect("renewal").lost, [NOBODY]);
    expect(other.graph().rollout(ticket.rollout.rollout_id).expect_err("another store's"));
    // A position of another search of the same store is not this one's.
    let command = CreateSearch { root: searching.root, config: plain() };
    let second = graph.create_search(&meta(), command).expect("second");
    expect(graph.select(&meta(), Select { at: Some(second.root), ..searching.ask(1) }).expect_err("its own"));
}

#[test]
fn numbers_that_are_none_are_bad_values() {
    let (searching, ticket) = Searching::begun(plain());
    let id = ticket.rollout.rollout_id;
    for value in
        [vec![f64::NAN], vec![f64::INFINITY], vec![f64::NEG_INFINITY], vec![1e101], vec![], vec![1.0; 2]]
    {
        refuse(&searching, Complete { value: Some(value.clone()), ..Complete::of(id) }, "bad_value");
        if !value.is_empty() {
            refuse(&searching, Complete { reward: value, ..valued(id, 0.0) }, "bad_value");
        }
    }
    for discount in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
        refuse(&searching, Complete { discount: Some(discount), ..valued(id, 0.0) }, "bad_value");
    }
    for cost in [f64::NAN, -1.0, f64::INFINITY] {
        refuse(&searching, Complete { cost, ..valued(id, 0.0) }, "bad_value");
    }
    for prior in [f64::NAN, -1.0, f64::INFINITY] {
        let mut candidates = actions(&["x"]);
        candidates.actions[0].prior = prior;
        refuse(&searching, Complete { candidates: Some(candidates), ..valued(id, 0.0) }, "bad_value");
    }
    refuse(&searching, Complete { to_move: Some(1), ..valued(id, 0.0) }, "bad_argument");
    let terminal = Complete { terminal: true, candidates: Some(actions(&["x"])), ..valued(id, 0.0) };
    refuse(&searching, terminal, "bad_argument");
    refuse(&searching, Complete::of(id), "value_missing");
    searching.value(id, 0.0).expect("a number is one");
    searching.sound();
}

#[test]
fn a_rollout_that_has_ended_or_waits_for_something_else_says_so() {
    let (searching, ticket) = Searching::begun(plain());
    let id = ticket.rollout.rollout_id;
    let expand = |rollout| Expand { rollout, candidates: actions(&["z"]), to_move: None };
    let wrong = searching.graph().expand(&meta(), expand(id)).expect_err("it visits");
    assert_eq!(code(&wrong), "wrong_stage");
    searching.value(id, 0.5).expect("value");
    refuse(&searching, valued(id, 0.25), "rollout_ended");
    assert_eq!(code(&searching.graph().expand(&meta(), expand(id)).expect_err("ended")), "rollout_ended");
    let void =
        esf_core::ops::search::VoidRollout { rollout: id, class: None, reason: "x".to_owned(), node: None };
    assert_eq!(code(&searching.graph().void_rollout(&meta(), void).expect_err("ended")), "rollout_ended");
    let second = searching.one().rollout.rollout_id;
    let first = searching.void(second, Some(FailureClass::Cancelled));
    assert_eq!(first.status, RolloutStatus::Void);
    assert_eq!(searching.void(second, None), first, "the first reason stays");
    refuse(&searching, valued(second, 0.5), "rollout_void");
    assert_eq!(code(&searching.graph().expand(&meta(), expand(second)).expect_err("void")), "rollout_void");
    searching
        .select(2)
        .tickets
        .iter()
        .for_each(|ticket| drop(searching.value(ticket.rollout.rollout_id, 0.1)));
    let asks = searching.one().rollout;
    assert_eq!(asks.stage, esf_core::search::Stage::Expand);
    refuse(&searching, valued(asks.rollout_id, 0.5), "wrong_stage");
    searching.sound();
}

#[test]
fn a_search_that_was_stopped_takes_what_is_in_flight_and_no_more() {
    let (searching, ticket) = Searching::begun(plain());
    let others = searching.select(2).tickets;
    for other in &others {
        searching.value(other.rollout.rollout_id, 0.5).expect("value");
    }
    let asks = searching.one().rollout.rollout_id;
    let stopped = searching.graph().stop_search(&meta(), searching.id()).expect("stop");
    assert_eq!((stopped.status, stopped.stopped), (SearchStatus::Stopped, Some(StopReason::User)));
    let none = searching.select(1);
    assert_eq!((none.tickets.len(), none.stopped), (0, Some(StopReason::User)));
    let expand = Expand { rollout: asks, candidates: actions(&["z"]), to_move: None };
    let refused = searching.graph().expand(&meta(), expand).expect_err("nothing new");
    assert_eq!(code(&refused), "search_stopped");
    searching.value(ticket.rollout.rollout_id, 1.0).expect("what is in flight");
    let budget = BudgetSearch { search: searching.id(), budget: Budget::default() };
    let open = searching.graph().budget_search(&meta(), budget).expect("open");
    assert_eq!((open.status, open.stopped), (SearchStatus::Open, None));
    assert!(!searching.select(1).tickets.is_empty());
    searching.sound();
}

#[test]
fn bad_settings_counts_and_roots_are_refused() {
    let searching = Searching::new(plain());
    let graph = searching.graph();
    let create = |root, config| graph.create_search(&meta(), CreateSearch { root, config });
    let bad = create(searching.root, Config { values: 0, ..plain() }).expect_err("no values");
    assert_eq!(code(&bad), "bad_config");
    let draft = searching.fixture.fork(searching.root, 1)[0].node_id;
    assert_eq!(code(&create(draft, plain()).expect_err("a draft")), "not_sealed");
    for count in [0, Select::MAX + 1] {
        let error = graph.select(&meta(), searching.ask(count)).expect_err("count");
        assert_eq!(code(&error), "bad_argument");
    }
    let budget =
        BudgetSearch { search: searching.id(), budget: Budget { cost: Some(f64::NAN), ..Budget::default() } };
    assert_eq!(code(&graph.budget_search(&meta(), budget).expect_err("no number")), "bad_config");
    graph.select(&keyed("one"), searching.ask(1)).expect("one");
    let error = graph.select(&keyed("one"), searching.ask(2)).expect_err("another request");
    assert_eq!(code(&error), "idempotency_conflict");
    searching.sound();
}

#[test]
fn a_node_must_follow_from_the_leaf() {
    let (searching, ticket) = Searching::begun(plain());
    let id = ticket.rollout.rollout_id;
    let child = searching.fixture.sealed(searching.root, "child").node;
    let grandchild = searching.fixture.sealed(child.node_id, "grandchild").node;
    let draft = searching.fixture.fork(searching.root, 1)[0].node_id;
    let of = |node| Complete { node: Some(node), ..valued(id, 1.0) };
    refuse(&searching, of(grandchild.node_id), "not_child");
    refuse(&searching, of(draft), "not_sealed");
    let done = searching.graph().complete(&meta(), of(child.node_id)).expect("a child");
    assert_eq!((done.position.node_id, done.position.root_id), (Some(child.node_id), child.root_id));
    let position = searching.graph().position_of_node(searching.id(), child.node_id).expect("position");
    assert_eq!(position.map(|position| position.stats.number), Some(done.position.stats.number));
    // An edit that changed nothing is a child by its root.
    let same = searching.fixture.sealed(grandchild.node_id, "base").node.node_id;
    let second = searching.one().rollout.rollout_id;
    let command = Complete { node: Some(same), ..valued(second, 1.0) };
    searching.graph().complete(&meta(), command).expect("the same tree");
    // Below a position without a node there are none.
    let third = searching.one().rollout.rollout_id;
    searching.value(third, 3.0).expect("no node");
    let asks = searching.select(3).tickets.into_iter().find(|ticket| ticket.leaf_node_id.is_none());
    let below = searching.expand(asks.expect("one asks there").rollout.rollout_id, &["x"]).ticket;
    let command = Complete { node: Some(grandchild.node_id), ..valued(below.rollout.rollout_id, 1.0) };
    refuse(&searching, command, "not_child");
    searching.sound();
}

fn evaluate(
    searching: &Searching,
    node: NodeId,
    digest: Digest,
    verdict: Verdict,
    reward: f64,
) -> Evaluation {
    let failed = verdict.is_error();
    let command = NewEvaluation {
        node,
        evaluator: Evaluator { name: "tests".to_owned(), version: "1".to_owned(), digest: Some(digest) },
        failure: failed.then(|| Failure::new(FailureClass::EvaluatorError, "score", "it broke")),
        verdict,
        reward: Some(reward).filter(|_| !failed),
        metrics: Json::Null,
        evidence: Vec::new(),
        attempt: None,
        run_attempt: None,
        epoch: None,
    };
    searching.graph().evaluate(&meta(), command).expect("evaluation")
}

#[test]
fn a_value_is_of_the_searchs_evaluator_and_of_the_node() {
    let digest = Digest::of(b"evaluator");
    let searching = Searching::trusting(Config { evaluator: Some(digest), ..plain() });
    let root = searching.one().rollout.rollout_id;
    refuse(&searching, valued(root, 1.0), "evaluation_mismatch");
    refuse(&searching, Complete { terminal: true, ..valued(root, 1.0) }, "evaluation_mismatch");
    let good = evaluate(&searching, searching.root, digest, Verdict::pass(), 0.5);
    let child = searching.fixture.sealed(searching.root, "child").node.node_id;
    let of_child = evaluate(&searching, child, digest, Verdict::pass(), 0.75);
    let other = evaluate(&searching, searching.root, Digest::of(b"other"), Verdict::pass(), 0.5);
    let broken = evaluate(&searching, searching.root, digest, Verdict::error(), 0.5);
    let by = |evaluation: &Evaluation| Complete {
        evaluation: Some(evaluation.evaluation_id),
        ..Complete::of(root)
    };
    for wrong in [&of_child, &other, &broken] {
        refuse(&searching, by(wrong), "evaluation_mismatch");
    }
    refuse(&searching, Complete { value: Some(vec![0.6]), ..by(&good) }, "evaluation_mismatch");
    refuse(&searching, Complete { reward: vec![0.1], ..by(&good) }, "evaluation_mismatch");
    refuse(&searching, Complete { discount: Some(0.9), ..by(&good) }, "evaluation_mismatch");
    let done = searching.graph().complete(&meta(), by(&good)).expect("the evaluator's");
    assert_eq!((&done.rollout.value, done.position.evaluation_id), (&vec![0.5], Some(good.evaluation_id)));
    let asks = searching.one().rollout.rollout_id;
    let visit = searching.expand(asks, &["a"]).ticket.rollout.rollout_id;
    let command =
        Complete { node: Some(child), evaluation: Some(of_child.evaluation_id), ..Complete::of(visit) };
    let done = searching.graph().complete(&meta(), command).expect("the child's");
    assert_eq!(done.position.stats.value, [0.75]);
    searching.sound();
}

#[test]
fn what_does_not_count_is_no_value() {
    let searching = Searching::new(plain());
    let root = searching.one().rollout.rollout_id;
    let attached = evaluate(&searching, searching.root, Digest::of(b"x"), Verdict::pass(), 0.5);
    assert!(!attached.counts, "nobody is trusted here");
    let command = Complete { evaluation: Some(attached.evaluation_id), ..Complete::of(root) };
    refuse(&searching, command, "evaluation_mismatch");
    let text = json!({ "rollout_id": root, "value": [1.0], "valeu": 2 });
    assert!(serde_json::from_value::<Complete>(text).is_err(), "a slip of the pen is not left out");
}

#[test]
fn an_outcome_with_too_many_actions_is_refused_whole() {
    let (searching, ticket) = Searching::begun(plain());
    let id = ticket.rollout.rollout_id;
    let names: Vec<String> = (0..=Expand::MAX_ACTIONS).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = |names: &[&str]| Complete { candidates: Some(actions(names)), ..valued(id, 0.5) };
    refuse(&searching, many(&names), "bad_argument");
    let done = searching.graph().complete(&meta(), many(&names[1..])).expect("as many as may be");
    assert_eq!(searching.now().edges, 3 + Expand::MAX_ACTIONS as u64);
    assert_eq!(done.position.stats.visits, 1);
    searching.sound();
}

#[test]
fn an_evaluation_counts_once_at_a_position() {
    let digest = Digest::of(b"evaluator");
    let searching = Searching::trusting(Config { evaluator: Some(digest), max_depth: Some(1), ..plain() });
    let by = |rollout, evaluation: &Evaluation| Complete {
        evaluation: Some(evaluation.evaluation_id),
        ..Complete::of(rollout)
    };
    let of_root = evaluate(&searching, searching.root, digest, Verdict::pass(), 0.1);
    let first = searching.one().rollout.rollout_id;
    searching.graph().complete(&meta(), by(first, &of_root)).expect("root");
    let visit = searching.expand(searching.one().rollout.rollout_id, &["a"]).ticket.rollout.rollout_id;
    let node = searching.fixture.sealed(searching.root, "child").node.node_id;
    let lucky = evaluate(&searching, node, digest, Verdict::pass(), 0.75);
    let command = Complete { node: Some(node), ..by(visit, &lucky) };
    searching.graph().complete(&meta(), command.clone()).expect("child");
    let again = searching.one().rollout.rollout_id;
    refuse(&searching, by(again, &lucky), "evaluation_mismatch");
    let error = searching.graph().complete(&meta(), by(again, &lucky)).expect_err("counted");
    let found = format!("{} was counted before by {visit}", lucky.evaluation_id);
    assert_eq!(error.problem().found, Some(found));
    assert!(!searching.graph().complete(&meta(), command).expect("a repetition").fresh);
    let other = evaluate(&searching, node, digest, Verdict::pass(), 0.25);
    let done = searching.graph().complete(&meta(), by(again, &other)).expect("another measurement");
    assert_eq!(done.position.stats.value, [0.5]);
    searching.sound();
}

#[test]
fn a_reward_is_that_of_whose_choice_the_root_is() {
    let stop = esf_core::search::config::Stop { reward: Some(1.0), ..Default::default() };
    let searching = Searching::new(Config { values: 2, stop, ..plain() });
    let of = |rollout, value: [f64; 2]| Complete { value: Some(value.to_vec()), ..Complete::of(rollout) };
    let first = searching.one().rollout.rollout_id;
    searching.graph().complete(&meta(), of(first, [1.0, -1.0])).expect("root");
    assert_eq!(searching.now().status, SearchStatus::Open, "nobody has said who chooses");
    let asks = searching.one().rollout.rollout_id;
    let command = Expand { rollout: asks, candidates: actions(&["a", "b"]), to_move: Some(1) };
    let visit = searching.graph().expand(&meta(), command).expect("expand").ticket.rollout.rollout_id;
    searching.sound();
    assert_eq!(searching.select(1).stopped, None, "it was the other's reward");
    searching.graph().complete(&meta(), of(visit, [-1.0, 1.0])).expect("child");
    assert_eq!(searching.now().stopped, Some(StopReason::Reward));
    searching.sound();
}
