//! Tests of the pure rules.

use std::collections::BTreeMap;

use super::*;
use crate::failure::FailureClass;
use crate::record::Failure;

fn score(score: Option<f64>) -> Score {
    Score { score, weight: None }
}

fn rewards(named: &[(&str, Option<f64>)]) -> BTreeMap<String, Score> {
    named.iter().map(|(name, value)| ((*name).to_owned(), score(*value))).collect()
}

fn failed(class: FailureClass) -> Outcome {
    Outcome { failure: Some(Failure::new(class, "exec", "")), ..Outcome::default() }
}

#[test]
fn what_was_not_scored_is_null_and_never_zero() {
    let declared = BTreeMap::from([("correct".to_owned(), 2.0), ("style".to_owned(), 0.5)]);
    let of = |named: &[(&str, Option<f64>)]| {
        Outcome { rewards: rewards(named), ..Outcome::default() }
            .complete(&declared)
            .map(|outcome| outcome.reward)
    };
    assert_eq!(of(&[]), Ok(None));
    assert_eq!(of(&[("correct", None), ("style", None)]), Ok(None));
    assert_eq!(of(&[("correct", Some(0.0)), ("style", None)]), Ok(Some(0.0)));
    assert_eq!(of(&[("correct", Some(1.0)), ("style", Some(1.0))]), Ok(Some(2.5)));
    assert_eq!(of(&[("other", Some(1.0))]).expect_err("unknown").field, "rewards");
}

#[test]
fn numbers_that_are_none_are_refused_wherever_they_stand() {
    let none = BTreeMap::new();
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let scored = Outcome { rewards: rewards(&[("a", Some(number))]), ..Outcome::default() };
        assert_eq!(scored.complete(&none).expect_err("score").field, "rewards.a.score");
        let weight = Score { score: Some(1.0), weight: Some(number) };
        let weighted = Outcome { rewards: BTreeMap::from([("a".to_owned(), weight)]), ..Outcome::default() };
        assert_eq!(weighted.complete(&none).expect_err("weight").field, "rewards.a.weight");
        let scalar = Outcome { reward: Some(number), ..Outcome::default() };
        assert_eq!(scalar.complete(&none).expect_err("reward").field, "reward");
    }
    let overflow =
        Outcome { rewards: rewards(&[("a", Some(f64::MAX)), ("b", Some(f64::MAX))]), ..Outcome::default() };
    assert_eq!(overflow.complete(&none).expect_err("sum").field, "reward");
}

#[test]
fn a_failure_that_says_nothing_of_the_policy_has_no_reward_and_is_not_usable() {
    let none = BTreeMap::new();
    for class in FailureClass::ALL {
        let outcome = failed(class);
        assert_eq!(outcome.status() == SiblingStatus::Result, class.gradable(), "{class:?}");
        let complete = outcome.clone().complete(&none).expect("without a reward");
        assert_eq!((complete.usable, complete.reward), (Some(class.gradable()), None), "{class:?}");
        let scored = Outcome { reward: Some(0.0), ..outcome.clone() }.complete(&none);
        assert_eq!(scored.is_ok(), class.reward_valid(), "{class:?}");
        let usable = Outcome { usable: Some(true), ..outcome }.complete(&none);
        assert_eq!(usable.is_ok(), class.gradable(), "{class:?}");
        if !class.gradable() {
            let mut claimed = failed(class);
            let failure = claimed.failure.as_mut().expect("failure");
            (failure.gradable, failure.reward_valid) = (true, true);
            assert_eq!(claimed.complete(&none).expect_err("claimed").field, "failure", "{class:?}");
        }
    }
}

#[test]
fn statistics_are_of_usable_and_scored_members_alone() {
    let stats = RewardStats::of([
        (true, Some(1.0)),
        (false, Some(100.0)),
        (true, None),
        (true, Some(3.0)),
        (false, None),
    ]);
    assert_eq!((stats.count, stats.usable, stats.mean), (2, 3, Some(2.0)));
    assert_eq!((stats.std, stats.std_population), (Some(2.0_f64.sqrt()), Some(1.0)));
    assert_eq!(RewardStats::of([(true, Some(4.0))]).std, None);
    assert_eq!(RewardStats::of([(true, Some(4.0))]).std_population, Some(0.0));
    assert_eq!(RewardStats::of([(false, Some(4.0))]), RewardStats::default());
}

fn array(length: u64, size: u64) -> Array {
    let digest = crate::BlobId::new(crate::Digest::of(b"array"));
    Array { dtype: Dtype::I32, length, digest, size, aligned_with: None }
}

#[test]
fn arrays_of_a_step_have_the_lengths_they_must() {
    let bad = |named: &[(&str, Array)]| {
        let arrays = named.iter().map(|(name, array)| ((*name).to_owned(), array.clone())).collect();
        content::bad_array(&arrays).map(|(name, _, _)| name)
    };
    let ok = array(3, 12);
    assert_eq!(
        bad(&[("completion_token_ids", ok.clone()), ("logprobs", ok.clone()), ("loss_mask", ok.clone())]),
        None
    );
    assert_eq!(bad(&[("prompt_token_ids", array(7, 28)), ("completion_token_ids", ok.clone())]), None);
    assert_eq!(
        bad(&[("completion_token_ids", ok.clone()), ("logprobs", array(2, 8))]),
        Some("logprobs".into())
    );
    assert_eq!(
        bad(&[("completion_token_ids", ok.clone()), ("loss_mask", array(4, 16))]),
        Some("loss_mask".into())
    );
    assert_eq!(bad(&[("logprobs", ok.clone())]), Some("logprobs".into()), "without the tokens");
    assert_eq!(bad(&[("experts", array(3, 11))]), Some("experts".into()));
    assert_eq!(bad(&[("experts", array(u64::MAX, 4))]), Some("experts".into()));
    let aligned = Array { aligned_with: Some("prompt_token_ids".into()), ..array(2, 8) };
    assert_eq!(bad(&[("prompt_token_ids", ok), ("experts", aligned)]), Some("experts".into()));
    assert_eq!(bad(&[("a b", array(1, 4))]), Some("a b".into()));
}

#[test]
fn seeds_differ_by_place_and_by_revision_and_fit_a_double() {
    let mut seen = std::collections::HashSet::new();
    for prompt in 0..10 {
        for index in 0..10 {
            for revision in 0..3 {
                let seed = rules::sibling_seed(prompt, index, revision);
                assert!(seed <= rules::MAX_SEED && seen.insert(seed));
            }
        }
    }
}
