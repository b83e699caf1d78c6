//! Nearest common ancestors of nodes, over their parents alone. Pure: the caller loads the records.
//! Invariant: an ancestor is returned exactly when it is common to both sides and no other common
//! ancestor descends from it.

use std::collections::{BTreeMap, BTreeSet};

use esf_core::NodeId;

/// What the search looks at of a node; `depth` is greater than that of every parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ancestor {
    pub(crate) depth: u64,
    pub(crate) parents: Vec<NodeId>,
}

#[derive(Clone, Default)]
struct Marks {
    ours: bool,
    theirs: bool,
    /// Lies beneath a common ancestor that was found already.
    covered: bool,
    parents: Vec<NodeId>,
}

/// The nearest common ancestors of what was made from all of `ours` and of `theirs`, ascending. A node
/// is its own ancestor.
pub(crate) fn nearest<E>(
    ours: &[NodeId],
    theirs: NodeId,
    mut load: impl FnMut(NodeId) -> Result<Ancestor, E>,
) -> Result<Vec<NodeId>, E> {
    // Deepest first: when a node's turn comes, all its descendants have left their marks on it.
    let mut queue: BTreeMap<(u64, NodeId), Marks> = BTreeMap::new();
    let mut mark =
        |queue: &mut BTreeMap<(u64, NodeId), Marks>, node: NodeId, from: &Marks| -> Result<(), E> {
            let Ancestor { depth, parents } = load(node)?;
            let marks = queue.entry((depth, node)).or_default();
            marks.ours |= from.ours;
            marks.theirs |= from.theirs;
            marks.covered |= from.covered;
            marks.parents = parents;
            Ok(())
        };
    for node in ours {
        mark(&mut queue, *node, &Marks { ours: true, ..Marks::default() })?;
    }
    mark(&mut queue, theirs, &Marks { theirs: true, ..Marks::default() })?;
    let mut found = Vec::new();
    while queue.values().any(|marks| !marks.covered) {
        let Some(((_, node), mut marks)) = queue.pop_last() else { break };
        if marks.ours && marks.theirs && !marks.covered {
            found.push(node);
            marks.covered = true;
        }
        for parent in std::mem::take(&mut marks.parents) {
            mark(&mut queue, parent, &marks)?;
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Whether one of `nodes` is, or descends from, the ancestor of this id and depth.
pub(crate) fn descends<E>(
    nodes: &[NodeId],
    (ancestor, depth): (NodeId, u64),
    mut load: impl FnMut(NodeId) -> Result<Ancestor, E>,
) -> Result<bool, E> {
    let (mut open, mut seen) = (nodes.to_vec(), BTreeSet::new());
    while let Some(node) = open.pop() {
        if node == ancestor {
            return Ok(true);
        }
        if seen.insert(node) {
            let found = load(node)?;
            open.extend(found.parents.into_iter().filter(|_| found.depth > depth));
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn id(number: usize) -> NodeId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
        NodeId::from_bytes(bytes)
    }

    fn number(id: NodeId) -> usize {
        usize::from_be_bytes(id.as_bytes()[..8].try_into().unwrap())
    }

    fn depth(graph: &[Vec<usize>], node: usize) -> u64 {
        graph[node].iter().map(|parent| 1 + depth(graph, *parent)).max().unwrap_or(0)
    }

    fn search(graph: &[Vec<usize>], ours: &[usize], theirs: usize) -> Vec<usize> {
        let ours: Vec<_> = ours.iter().copied().map(id).collect();
        let load = |node| {
            let parents = graph[number(node)].iter().copied().map(id).collect();
            Ok::<_, Infallible>(Ancestor { depth: depth(graph, number(node)), parents })
        };
        nearest(&ours, id(theirs), load).unwrap().into_iter().map(number).collect()
    }

    fn ancestors(graph: &[Vec<usize>], node: usize) -> BTreeSet<usize> {
        let mut all = BTreeSet::from([node]);
        for parent in &graph[node] {
            all.extend(ancestors(graph, *parent));
        }
        all
    }

    #[test]
    fn known_shapes() {
        // 0 - 1 - 2, 0 - 1 - 3, and the criss-cross 4 = (2, 3), 5 = (3, 2).
        let graph = [vec![], vec![0], vec![1], vec![1], vec![2, 3], vec![3, 2]];
        assert_eq!(search(&graph, &[2], 3), [1]);
        assert_eq!(search(&graph, &[2], 2), [2]);
        assert_eq!(search(&graph, &[0], 3), [0]);
        assert_eq!(search(&graph, &[3], 0), [0]);
        assert_eq!(search(&graph, &[4], 5), [2, 3]);
        assert_eq!(search(&graph, &[2, 3], 5), [2, 3]);
        assert_eq!(search(&[vec![], vec![]], &[0], 1), [0; 0]);
    }

    proptest! {
        #[test]
        fn equals_the_definition(shape in prop::collection::vec((any::<u8>(), any::<u8>(), any::<bool>()), 1..9)) {
            let mut graph: Vec<Vec<usize>> = vec![vec![]];
            for (one, two, merge) in shape {
                let count = graph.len();
                let mut parents = vec![one as usize % count];
                if merge && two as usize % count != parents[0] {
                    parents.push(two as usize % count);
                }
                graph.push(parents);
            }
            for ours in 0..graph.len() {
                for theirs in 0..graph.len() {
                    let common: BTreeSet<usize> =
                        ancestors(&graph, ours).intersection(&ancestors(&graph, theirs)).copied().collect();
                    let best: Vec<usize> = common.iter().copied()
                        .filter(|node| !common.iter().any(|other| other != node && ancestors(&graph, *other).contains(node)))
                        .collect();
                    let load = |node| {
                        let parents = graph[number(node)].iter().copied().map(id).collect();
                        Ok::<_, Infallible>(Ancestor { depth: depth(&graph, number(node)), parents })
                    };
                    let above = (id(theirs), depth(&graph, theirs));
                    let found = descends(&[id(ours)], above, load).unwrap();
                    prop_assert_eq!(found, ancestors(&graph, ours).contains(&theirs));
                    prop_assert_eq!(search(&graph, &[ours], theirs), best, "{:?} {} {}", graph, ours, theirs);
                }
            }
        }
    }
}
