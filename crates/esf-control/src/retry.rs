//! Whether what failed is tried again, and after how long: a pure rule over the class of the failure, the
//! tries so far and the group's policy. Invariant: one owner. Who holds the work (a search's run, an
//! evaluation) asks here and makes a new attempt from the same node; the worker and its client never
//! try again by themselves, so no two loops multiply.

use esf_core::FailureClass;
use esf_core::policy::Retries;

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Try again after so many milliseconds.
    Again {
        /// The pause.
        after_ms: u64,
    },
    /// It would end the same way, or the budget is used up.
    GiveUp,
}

/// Decides after a failure of `class`, the `tries`-th try of the same work (1 for the first). `seed` spreads
/// the pauses of those who failed together; the same seed gives the same pause.
pub fn decide(class: FailureClass, tries: u32, retries: &Retries, seed: u64) -> Retry {
    if tries > budget(class, retries) {
        return Retry::GiveUp;
    }
    let doublings = tries.saturating_sub(1).min(63);
    let pause = retries.backoff.0.saturating_mul(1 << doublings).min(retries.backoff_most.0);
    // Between three quarters and the whole of it.
    let spread = pause / 4;
    Retry::Again { after_ms: pause - scattered(seed, tries) % (spread + 1) }
}

/// How many further tries a class is worth.
fn budget(class: FailureClass, retries: &Retries) -> u32 {
    match class {
        FailureClass::InfraLost | FailureClass::InfraPrepare | FailureClass::Quota => retries.infra,
        FailureClass::EvaluatorError => retries.evaluator,
        // What the work did to itself it would do again; and what somebody stopped is not wanted.
        FailureClass::UserExit
        | FailureClass::UserTimeout
        | FailureClass::UserOom
        | FailureClass::OutputLimit
        | FailureClass::Cancelled
        | FailureClass::Stale => 0,
    }
}

/// A well mixed number (the finaliser of splitmix64).
fn scattered(seed: u64, tries: u32) -> u64 {
    let mut mixed = seed.wrapping_add(u64::from(tries).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use esf_core::policy::Millis;

    use super::*;

    #[test]
    fn only_what_is_retryable_is_tried_again() {
        let retries = Retries::default();
        for class in FailureClass::ALL {
            let again = decide(class, 1, &retries, 7) != Retry::GiveUp;
            assert_eq!(again, class.retryable(), "{class:?}");
        }
    }

    #[test]
    fn the_budget_ends_and_the_pause_grows_to_its_bound() {
        let retries = Retries { infra: 40, ..Retries::default() };
        let mut before = 0;
        for tries in 1..=40 {
            let Retry::Again { after_ms } = decide(FailureClass::InfraLost, tries, &retries, 3) else {
                panic!("within the budget")
            };
            let whole = 1_000_u64.saturating_mul(1 << (tries - 1).min(20)).min(60_000);
            assert!((whole * 3 / 4..=whole).contains(&after_ms), "{tries}: {after_ms}");
            assert!(after_ms * 4 >= before * 3, "{tries}: it does not shrink by more than the spread");
            before = after_ms;
        }
        assert_eq!(decide(FailureClass::InfraLost, 41, &retries, 3), Retry::GiveUp);
        let none = Retries { infra: 0, ..retries };
        assert_eq!(decide(FailureClass::InfraLost, 1, &none, 3), Retry::GiveUp);
    }

    #[test]
    fn those_who_failed_together_do_not_come_back_together() {
        let retries = Retries { backoff: Millis(10_000), ..Retries::default() };
        let pauses = (0..100).map(|seed| decide(FailureClass::InfraPrepare, 1, &retries, seed));
        let mut pauses: Vec<_> = pauses.map(|retry| format!("{retry:?}")).collect();
        pauses.sort();
        pauses.dedup();
        assert!(pauses.len() > 80, "{}", pauses.len());
    }
}
