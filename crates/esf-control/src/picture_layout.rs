//! Where positions are drawn: a column for each distance from the root, a row for each leaf, parents in the
//! middle of their children. Iterative, since a search may be as deep as it likes. A position that is reached
//! by several edges hangs where it was found first.

use std::collections::{HashMap, HashSet};

use esf_core::search::PositionNumber;

use crate::picture::ShownPosition;

const COLUMN: f64 = 240.0;
const ROW: f64 = 26.0;
const MARGIN: f64 = 30.0;

/// A place in the picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spot {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// The places of all positions that hang below the first.
pub(crate) struct Layout {
    spots: HashMap<PositionNumber, Spot>,
    parents: HashMap<PositionNumber, PositionNumber>,
}

impl Layout {
    pub(crate) fn new(positions: &[ShownPosition]) -> Self {
        let by_number: HashMap<PositionNumber, &ShownPosition> =
            positions.iter().map(|shown| (shown.position.stats.number, shown)).collect();
        let mut layout = Self { spots: HashMap::new(), parents: HashMap::new() };
        let Some(root) = positions.first().map(|shown| shown.position.stats.number) else { return layout };
        let mut seen = HashSet::from([root]);
        let mut rows = 0_u32;
        // Each position twice: once to find its children, and when they have their places, to get its own.
        let mut waiting = vec![(root, 0_u32, None)];
        while let Some((number, depth, children)) = waiting.pop() {
            let children: Vec<PositionNumber> = match children {
                Some(children) => children,
                None => {
                    let edges = by_number[&number].edges.iter().filter_map(|edge| edge.stats.child);
                    let found: Vec<_> =
                        edges.filter(|child| by_number.contains_key(child) && seen.insert(*child)).collect();
                    waiting.push((number, depth, Some(found.clone())));
                    for child in found.iter().rev() {
                        layout.parents.insert(*child, number);
                        waiting.push((*child, depth + 1, None));
                    }
                    continue;
                }
            };
            let ys: Vec<f64> = children.iter().map(|child| layout.spots[child].y).collect();
            let y = match (ys.first(), ys.last()) {
                (Some(first), Some(last)) => f64::midpoint(*first, *last),
                _ => {
                    rows += 1;
                    MARGIN + ROW * f64::from(rows - 1)
                }
            };
            layout.spots.insert(number, Spot { x: MARGIN + COLUMN * f64::from(depth), y });
        }
        layout
    }

    pub(crate) fn spot(&self, position: PositionNumber) -> Option<Spot> {
        self.spots.get(&position).copied()
    }

    /// The position that it hangs from.
    pub(crate) fn parent(&self, position: PositionNumber) -> Option<PositionNumber> {
        self.parents.get(&position).copied()
    }

    /// Width and height, in pixels.
    pub(crate) fn size(&self) -> (u64, u64) {
        let far = |get: fn(&Spot) -> f64| self.spots.values().map(get).fold(0.0, f64::max);
        ((far(|spot| spot.x) + COLUMN + MARGIN) as u64, (far(|spot| spot.y) + MARGIN + 10.0) as u64)
    }
}
