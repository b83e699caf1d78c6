//! One position with edges, written down by hand: what selection does at it.

use std::convert::Infallible;

use esf_core::search::config::{Normalize, Policy, Solve};
use esf_core::search::{
    Config, Descent, EdgeNumber, EdgeStats, EdgeStatus, Expansion, Found, PositionNumber, PositionStats,
    Start, Step, Tree, descend,
};

/// A position with edges to positions that nobody looked at.
#[derive(Clone)]
pub(crate) struct Fan {
    pub(crate) position: PositionStats,
    pub(crate) edges: Vec<EdgeStats>,
    /// Rollouts that ask for the actions of each other position.
    pub(crate) asking: Vec<u32>,
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

pub(crate) fn position(mean: f64, visits: u64) -> PositionStats {
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

pub(crate) fn edge(ordinal: u32, prior: f64, visits: u64, mean: f64) -> EdgeStats {
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
    pub(crate) fn of(mean: f64, edges: &[(f64, u64, f64)]) -> Self {
        let visits = 1 + edges.iter().map(|(_, visits, _)| visits).sum::<u64>();
        let edges = (0..).zip(edges).map(|(ordinal, of)| edge(ordinal, of.0, of.1, of.2)).collect();
        Self { position: position(mean, visits), edges, asking: Vec::new() }
    }

    pub(crate) fn descend(&self, config: &Config, ordinal: u64) -> Descent {
        let Ok(descent) = descend(config, self, Start::root(PositionNumber(0)), ordinal);
        descent
    }

    /// The ordinal of the edge that is chosen.
    pub(crate) fn choice(&self, config: &Config) -> u64 {
        match self.descend(config, 0) {
            Descent::Found(found) => found.path[0].edge.0,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn found(&self, config: &Config) -> Found {
        match self.descend(config, 0) {
            Descent::Found(found) => found,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn plain(policy: Policy) -> Config {
    Config { policy, normalize: Normalize::None, solve: Solve::Off, ..Config::default() }
}
