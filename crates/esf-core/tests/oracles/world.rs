//! Random worlds: small, drawn from a seed, of every shape that a search may meet, and their exact values.

use std::collections::HashMap;

use esf_core::search::Config;
use esf_core::search::rules::worth;

use crate::play::{Chance, World};

/// What a world is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    /// Most actions of a state.
    pub(crate) actions: usize,
    /// Where it ends at the latest; never, in a world of cycles.
    pub(crate) depth: u32,
    /// How many states there are at each depth (or in all, with cycles); without bound when absent.
    pub(crate) states: Option<u64>,
    /// Whether a state does not know how deep it is, so that actions lead back.
    pub(crate) cycles: bool,
    /// Numbers in a value.
    pub(crate) values: u8,
    /// Whether actions have rewards.
    pub(crate) rewards: bool,
    /// Whether outcomes are a win, a draw or a loss; else any number from -1 to 1.
    pub(crate) zero_sum: bool,
}

/// A state of such a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random {
    shape: Shape,
    state: u64,
    depth: u32,
    last: u64,
}

impl Shape {
    pub(crate) fn start(self) -> Random {
        Random { shape: self, state: 0, depth: 0, last: 0 }
    }
}

impl Random {
    fn draw(&self, salt: u64) -> Chance {
        let depth = if self.shape.cycles { 0 } else { u64::from(self.depth) };
        let mut chance = Chance(self.shape.seed ^ self.state.rotate_left(17) ^ (depth << 40) ^ (salt << 56));
        chance.next();
        chance
    }

    fn value(&self, salt: u64) -> Vec<f64> {
        let mut chance = self.draw(salt);
        if self.shape.zero_sum {
            let value = chance.below(3) as f64 - 1.0;
            return vec![value, -value];
        }
        (0..self.shape.values).map(|_| 2.0 * chance.unit() - 1.0).collect()
    }
}

impl World for Random {
    fn to_move(&self) -> u8 {
        self.draw(1).below(self.shape.values.into()) as u8
    }

    fn actions(&self) -> Vec<(u64, f64)> {
        if self.outcome().is_some() {
            return Vec::new();
        }
        let mut chance = self.draw(2);
        let count = 1 + chance.below(self.shape.actions);
        let prior = |_| if chance.in_hundred(20) { 0.0 } else { chance.unit() };
        let priors: Vec<f64> = (0..count).map(prior).collect();
        (0..).zip(priors).collect()
    }

    fn act(&mut self, action: u64) {
        self.last = self.draw(3).next() ^ action;
        let next = Chance(self.last).next();
        self.state = self.shape.states.map_or(next, |states| next % states);
        self.depth += 1;
    }

    fn outcome(&self) -> Option<Vec<f64>> {
        let ends = match self.shape.cycles {
            true => self.state != 0 && self.draw(4).in_hundred(10),
            false => self.depth >= self.shape.depth || (self.depth > 1 && self.draw(4).in_hundred(15)),
        };
        ends.then(|| self.value(5))
    }

    fn guess(&self) -> Vec<f64> {
        self.value(6).iter().map(|value| value / 2.0).collect()
    }

    fn reward(&self) -> Vec<f64> {
        match self.shape.rewards {
            true => (0..self.shape.values)
                .map(|index| Chance(self.last ^ u64::from(index)).unit() / 4.0)
                .collect(),
            false => Vec::new(),
        }
    }

    fn key(&self) -> u64 {
        let depth = if self.shape.cycles { 0 } else { u64::from(self.depth) };
        Chance(self.state ^ depth << 50).next()
    }
}

/// The value of a state that is played by the best actions to the end.
pub(crate) fn exact(config: &Config, state: &Random, known: &mut HashMap<u64, Vec<f64>>) -> Vec<f64> {
    if let Some(value) = known.get(&state.key()) {
        return value.clone();
    }
    let value = state.outcome().unwrap_or_else(|| {
        let after = |(action, _): (u64, f64)| {
            let mut next = *state;
            next.act(action);
            let reward = next.reward();
            let rest = exact(config, &next, known);
            let each = rest.iter().enumerate();
            each.map(|(index, rest)| reward.get(index).unwrap_or(&0.0) + config.discount * rest).collect()
        };
        let values: Vec<Vec<f64>> = state.actions().into_iter().map(after).collect();
        let of = |value: &[f64]| worth(config, state.to_move(), value);
        values
            .into_iter()
            .max_by(|a, b| of(a).total_cmp(&of(b)))
            .expect("a state that is not the end has actions")
    });
    known.insert(state.key(), value.clone());
    value
}
