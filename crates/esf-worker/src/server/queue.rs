//! Who may live next: a pure decision over who waits and who lives.
//! Invariants: never more live attempts than the worker's bound or a group's; among those whose group
//! has room, higher priority first, then first come first served; a full group holds up no other.

use std::collections::HashMap;

use esf_core::{AttemptId, GroupId};

/// An attempt that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) attempt: AttemptId,
    pub(crate) group: GroupId,
    pub(crate) priority: i32,
    /// Most live attempts of its group.
    pub(crate) quota: Option<u64>,
}

/// Which of `waiting` (in order of arrival) may live now, beside the groups in `living`.
pub(crate) fn admissible(waiting: &[Waiting], living: &[GroupId], max_live: u64) -> Vec<AttemptId> {
    let mut count = HashMap::<GroupId, u64>::new();
    for group in living {
        *count.entry(*group).or_default() += 1;
    }
    let mut room = max_live.saturating_sub(living.len() as u64);
    let mut order: Vec<&Waiting> = waiting.iter().collect();
    order.sort_by_key(|waiting| std::cmp::Reverse(waiting.priority));
    let mut admitted = Vec::new();
    for waiting in order {
        let used = count.entry(waiting.group).or_default();
        if room == 0 {
            break;
        }
        if waiting.quota.is_none_or(|quota| *used < quota) {
            *used += 1;
            room -= 1;
            admitted.push(waiting.attempt);
        }
    }
    admitted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(attempt: u8, group: u8, priority: i32, quota: Option<u64>) -> Waiting {
        Waiting {
            attempt: AttemptId::from_bytes([attempt; 16]),
            group: GroupId::from_bytes([group; 16]),
            priority,
            quota,
        }
    }

    fn admitted(waiting: &[Waiting], living: &[u8], max_live: u64) -> Vec<u8> {
        let living: Vec<GroupId> = living.iter().map(|group| GroupId::from_bytes([*group; 16])).collect();
        admissible(waiting, &living, max_live).iter().map(|attempt| attempt.as_bytes()[0]).collect()
    }

    #[test]
    fn order_bounds_and_groups() {
        let three = [waiting(1, 1, 0, None), waiting(2, 1, 0, None), waiting(3, 2, 5, None)];
        assert_eq!(admitted(&three, &[], 9), [3, 1, 2], "priority, then arrival");
        assert_eq!(admitted(&three, &[7, 7], 3), [3]);
        assert_eq!(admitted(&three, &[7, 7], 2), [0_u8; 0]);
        assert_eq!(admitted(&three, &[7, 7], 1), [0_u8; 0], "over the bound already");
        let bounded = [waiting(1, 1, 0, Some(1)), waiting(2, 1, 0, Some(1)), waiting(3, 2, 0, Some(1))];
        assert_eq!(admitted(&bounded, &[], 9), [1, 3], "a full group holds up no other");
        assert_eq!(admitted(&bounded, &[1], 9), [3]);
    }

    #[test]
    fn the_bounds_hold_whatever_waits() {
        for max_live in 0..6 {
            for quota in 0..4 {
                for living in 0..6_u8 {
                    let all: Vec<Waiting> =
                        (0..20).map(|n| waiting(n, n % 3, i32::from(n % 2), Some(quota))).collect();
                    let living: Vec<u8> = (0..living).map(|n| n % 3).collect();
                    let found = admitted(&all, &living, max_live);
                    assert!(found.is_empty() || (living.len() + found.len()) as u64 <= max_live);
                    for group in 0..3 {
                        let before = living.iter().filter(|g| **g == group).count();
                        let added = found.iter().filter(|n| **n % 3 == group).count();
                        assert!(added == 0 || (before + added) as u64 <= quota);
                    }
                }
            }
        }
    }
}
