//! Prune over random graphs: nothing that can be selected loses an ancestor, whatever the shape.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{attempt, meta, node_id, request};
use crate::id::NodeId;
use crate::ops::prune::{Candidate, Prune, PruneReply, Snapshot, decide};
use crate::state::{AttemptStatus, NodeStatus};

/// A whole random graph: node i has parents among those before it; node 0 is its root.
#[derive(Clone, Debug)]
struct Shape {
    parents: Vec<Vec<usize>>,
    marks: Vec<u8>,
    canonical: usize,
    top: usize,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let one =
        (any::<prop::sample::Index>(), prop::option::weighted(0.3, any::<prop::sample::Index>()), 0_u8..12);
    (prop::collection::vec(one, 2..24), any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
        |(rows, canonical, top)| {
            let mut parents = vec![Vec::new()];
            for (index, (first, second, _)) in rows.iter().enumerate() {
                let mut own = vec![first.index(index + 1)];
                own.extend(second.map(|second| second.index(index + 1)).filter(|second| *second != own[0]));
                parents.push(own);
            }
            let marks = std::iter::once(0).chain(rows.iter().map(|row| row.2)).collect();
            let size = parents.len();
            Shape { parents, marks, canonical: canonical.index(size), top: 1 + top.index(size - 1) }
        },
    )
}

fn id(index: usize) -> NodeId {
    node_id(u8::try_from(index).expect("small"))
}

impl Shape {
    fn below(&self, top: usize) -> BTreeSet<usize> {
        let mut below = BTreeSet::from([top]);
        for index in top + 1..self.parents.len() {
            if self.parents[index].iter().any(|parent| below.contains(parent)) {
                below.insert(index);
            }
        }
        below
    }

    fn snapshot(&self) -> Snapshot {
        let candidate = |index: usize| Candidate {
            node_id: id(index),
            parents: self.parents[index].iter().copied().map(id).collect(),
            status: if self.marks[index] == 3 { NodeStatus::Draft } else { NodeStatus::Sealed },
            open: (self.marks[index] == 1).then(|| (attempt(AttemptStatus::Active).attempt_id, None)),
            tagged: self.marks[index] == 2,
            searched: None,
            run: None,
            queued: None,
            kept: Vec::new(),
        };
        Snapshot {
            group_id: crate::GroupId::from_bytes([1; 16]),
            canonical: id(self.canonical),
            subtree: self.below(self.top).into_iter().map(candidate).collect(),
        }
    }

    /// What must stay, said in the plainest way: what has a reason of its own or can be reached from
    /// outside, and every ancestor of these.
    fn must_stay(&self) -> BTreeSet<usize> {
        let below = self.below(self.top);
        let own = |index: &usize| matches!(self.marks[*index], 1 | 2) || *index == self.canonical;
        let entered = |index: &usize| {
            *index != self.top && self.parents[*index].iter().any(|parent| !below.contains(parent))
        };
        let mut stay: BTreeSet<usize> = below.iter().copied().filter(own).collect();
        for entry in below.iter().filter(|index| entered(index)) {
            stay.extend(self.below(*entry));
        }
        for index in (0..self.parents.len()).rev() {
            if stay.contains(&index) && index != self.top {
                stay.extend(self.parents[index].iter().filter(|parent| below.contains(parent)));
            }
        }
        stay
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn what_goes_is_all_that_may_and_nothing_that_must_stay(shape in shapes()) {
        let meta = meta("k");
        let command = Prune { node: id(shape.top), discard: false, unsealed: BTreeMap::new() };
        let decided = decide(&shape.snapshot(), &command, &request(&meta));
        let refused = shape.marks[shape.top] == 1 || shape.canonical == shape.top;
        prop_assert_eq!(decided.is_err(), refused);
        if let Ok(decision) = decided {
            let PruneReply { pruned, kept, released } = decision.reply;
            prop_assert!(released.is_empty());
            let stay: BTreeSet<NodeId> = shape.must_stay().into_iter().map(id).collect();
            let all: BTreeSet<NodeId> = shape.below(shape.top).into_iter().map(id).collect();
            let gone: BTreeSet<NodeId> = pruned.iter().copied().collect();
            prop_assert_eq!(kept.iter().map(|kept| kept.id).collect::<BTreeSet<_>>(), stay.clone());
            prop_assert_eq!(gone, all.difference(&stay).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(decision.changes.len(), pruned.len());
        }
    }
}
