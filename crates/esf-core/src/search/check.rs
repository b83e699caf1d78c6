//! Reading and checking the settings of a search: every number has bounds, and what is refused is named.
//! Invariant: a configuration that passes [`Config::check`] makes no rule divide by zero, overflow or panic.

use super::config::{Config, FirstPlay, Normalize, Objective, Policy};
use super::rules::MAX_VALUE;
use crate::canonical;
use crate::digest::Digest;

/// Settings that no search can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// The text is neither TOML nor JSON, or has an unknown key or a value of the wrong kind.
    #[error("not a search configuration: {reason}")]
    Syntax {
        /// What the parser said, with line and column.
        reason: String,
    },
    /// A setting is outside its bounds.
    #[error("bad search configuration: expected {field} to be {expected}, found {found}")]
    Field {
        /// Which, as it is written: `policy.c`.
        field: &'static str,
        /// What would do.
        expected: String,
        /// What was there.
        found: String,
    },
}

/// The longest text of a configuration in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// The greatest constant of exploration, and of what else is weighed against values.
const MAX_CONSTANT: f64 = 1e9;

impl Config {
    /// Reads TOML, or JSON if it begins with `{`, and checks it; what is not said has its default.
    ///
    /// # Errors
    /// `BadConfig` for another text, an unknown key, more than 64 KiB, and whatever [`Config::check`] refuses.
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let refused = |reason: String| BadConfig::Syntax { reason };
        if text.len() > MAX_TEXT {
            return Err(refused(format!("expected at most {MAX_TEXT} bytes, found {}", text.len())));
        }
        let config: Self = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text).map_err(|error| refused(error.to_string()))?,
            false => toml::from_str(text).map_err(|error| refused(error.to_string()))?,
        };
        config.check()?;
        Ok(config)
    }

    /// The digest of the settings, defaults and all: equal settings have equal digests, however they were written.
    pub fn digest(&self) -> Digest {
        canonical::digest("esf search config v1", self)
    }

    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// `BadConfig::Field` for the first that is outside them, or that fits no other.
    pub fn check(&self) -> Result<(), BadConfig> {
        self.check_policy()?;
        self.check_values()?;
        self.check_growth()?;
        self.check_end()
    }

    fn check_policy(&self) -> Result<(), BadConfig> {
        match self.policy {
            Policy::Ucb1 { c } | Policy::Puct { c, own_visit: _ } => {
                within("policy.c", c, 0.0, MAX_CONSTANT)?
            }
            Policy::Muzero { c1, c2 } => {
                within("policy.c1", c1, 0.0, MAX_CONSTANT)?;
                within("policy.c2", c2, 1.0, 1e15)?;
            }
            Policy::Uniform | Policy::UniformNonleaf | Policy::Caller => {}
        }
        match self.first_play {
            FirstPlay::Parent { reduction } => within("first_play.reduction", reduction, 0.0, MAX_CONSTANT)?,
            FirstPlay::Value { value } => value_within("first_play.value", value)?,
            FirstPlay::Least | FirstPlay::First => {}
        }
        within("virtual_loss", self.virtual_loss, 0.0, MAX_CONSTANT)
    }

    fn check_values(&self) -> Result<(), BadConfig> {
        count("values", self.values.into(), 1, 16)?;
        if let Objective::Weights { weights } = &self.objective {
            if weights.len() != usize::from(self.values) {
                let expected = format!("{} weights, one for each value", self.values);
                return Err(field("objective.weights", expected, weights.len()));
            }
            weights.iter().try_for_each(|w| within("objective.weights", *w, -MAX_CONSTANT, MAX_CONSTANT))?;
        }
        within("discount", self.discount, 0.0, 1.0)?;
        if let Normalize::Fixed { min, max } = self.normalize {
            value_within("normalize.min", min)?;
            value_within("normalize.max", max)?;
            if max - min < 1e-9 {
                return Err(field("normalize.max", format!("at least 1e-9 more than min, {min}"), max));
            }
        }
        self.best_value.map_or(Ok(()), |value| value_within("best_value", value))
    }

    fn check_growth(&self) -> Result<(), BadConfig> {
        if let Some(widening) = &self.widening {
            within("widening.k", widening.k, 1e-3, 1e6)?;
            within("widening.alpha", widening.alpha, 0.0, 1.0)?;
            count("widening.max_children", widening.max_children.into(), 1, 65_536)?;
        }
        if let Some(depth) = self.max_depth {
            count("max_depth", depth.into(), 1, 1_000_000)?;
        }
        count("edge_retries", self.edge_retries.into(), 0, 1000)
    }

    fn check_end(&self) -> Result<(), BadConfig> {
        let least = |name, value: Option<u64>| value.map_or(Ok(()), |value| count(name, value, 1, u64::MAX));
        least("budget.rollouts", self.budget.rollouts)?;
        least("budget.attempts", self.budget.attempts)?;
        least("budget.wall_ms", self.budget.wall_ms)?;
        self.budget.cost.map_or(Ok(()), |cost| within("budget.cost", cost, f64::MIN_POSITIVE, MAX_VALUE))?;
        self.stop.reward.map_or(Ok(()), |value| value_within("stop.reward", value))?;
        if self.stop.margin && self.budget.rollouts.is_none() && self.budget.attempts.is_none() {
            let expected = "false where neither budget.rollouts nor budget.attempts says what is left";
            return Err(field("stop.margin", expected, true));
        }
        Ok(())
    }
}

fn field(field: &'static str, expected: impl ToString, found: impl ToString) -> BadConfig {
    BadConfig::Field { field, expected: expected.to_string(), found: found.to_string() }
}

fn within(name: &'static str, value: f64, least: f64, most: f64) -> Result<(), BadConfig> {
    // A comparison with what is not a number is false.
    match value >= least && value <= most {
        true => Ok(()),
        false => Err(field(name, format!("a number from {least:?} to {most:?}"), format!("{value:?}"))),
    }
}

fn value_within(name: &'static str, value: f64) -> Result<(), BadConfig> {
    within(name, value, -MAX_VALUE, MAX_VALUE)
}

fn count(name: &'static str, value: u64, least: u64, most: u64) -> Result<(), BadConfig> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false if most == u64::MAX => Err(field(name, format!("at least {least}"), value)),
        false => Err(field(name, format!("from {least} to {most}"), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::config::{Budget, LeafValue, Solve, Stop, Widening};

    /// A setting's name, and what puts it outside its bounds.
    type Case = (&'static str, Box<dyn Fn(&mut Config)>);

    fn refused(config: &Config) -> Option<&'static str> {
        match config.check() {
            Ok(()) => None,
            Err(BadConfig::Field { field, .. }) => Some(field),
            Err(BadConfig::Syntax { reason }) => panic!("check reads no text: {reason}"),
        }
    }

    #[test]
    fn every_number_has_bounds_and_is_named() {
        let nan = f64::NAN;
        let with = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            refused(&config)
        };
        assert_eq!(with(&|_| {}), None);
        let widening = |k, alpha, max_children| Some(Widening { k, alpha, max_children });
        let cases: Vec<Case> = vec![
            ("policy.c", Box::new(|c| c.policy = Policy::Ucb1 { c: -0.1 })),
            ("policy.c", Box::new(move |c| c.policy = Policy::Puct { c: nan, own_visit: true })),
            ("policy.c1", Box::new(|c| c.policy = Policy::Muzero { c1: f64::INFINITY, c2: 19652.0 })),
            ("policy.c2", Box::new(|c| c.policy = Policy::Muzero { c1: 1.25, c2: 0.0 })),
            ("first_play.reduction", Box::new(move |c| c.first_play = FirstPlay::Parent { reduction: nan })),
            ("first_play.value", Box::new(|c| c.first_play = FirstPlay::Value { value: f64::MAX })),
            ("virtual_loss", Box::new(|c| c.virtual_loss = -1.0)),
            ("values", Box::new(|c| c.values = 0)),
            ("values", Box::new(|c| c.values = 17)),
            ("objective.weights", Box::new(|c| c.objective = Objective::Weights { weights: vec![1.0, 1.0] })),
            ("objective.weights", Box::new(move |c| c.objective = Objective::Weights { weights: vec![nan] })),
            ("discount", Box::new(|c| c.discount = 1.01)),
            ("discount", Box::new(|c| c.discount = -1.0)),
            ("normalize.min", Box::new(move |c| c.normalize = Normalize::Fixed { min: nan, max: 1.0 })),
            ("normalize.max", Box::new(|c| c.normalize = Normalize::Fixed { min: 1.0, max: 1.0 })),
            ("best_value", Box::new(move |c| c.best_value = Some(nan))),
            ("widening.k", Box::new(move |c| c.widening = widening(0.0, 0.5, 4))),
            ("widening.alpha", Box::new(move |c| c.widening = widening(2.0, 1.5, 4))),
            ("widening.max_children", Box::new(move |c| c.widening = widening(2.0, 0.5, 0))),
            ("max_depth", Box::new(|c| c.max_depth = Some(0))),
            ("edge_retries", Box::new(|c| c.edge_retries = u32::MAX)),
            ("budget.rollouts", Box::new(|c| c.budget.rollouts = Some(0))),
            ("budget.attempts", Box::new(|c| c.budget.attempts = Some(0))),
            ("budget.wall_ms", Box::new(|c| c.budget.wall_ms = Some(0))),
            ("budget.cost", Box::new(move |c| c.budget.cost = Some(nan))),
            ("stop.reward", Box::new(|c| c.stop.reward = Some(f64::NEG_INFINITY))),
            ("stop.margin", Box::new(|c| c.stop.margin = true)),
        ];
        for (name, change) in &cases {
            assert_eq!(with(change), Some(*name), "{name}");
        }
    }

    #[test]
    fn a_configuration_is_one_in_either_language() {
        let toml = "discount = 0.97\nseed = 7\n[policy]\nkind = \"muzero\"\nc1 = 1.25\nc2 = 19652.0\n[widening]\nk = 3";
        let json = r#" {"seed": 7, "widening": {"k": 3, "alpha": 0.5}, "discount": 0.97,
            "policy": {"kind": "muzero", "c1": 1.25, "c2": 19652}}"#;
        let [from_toml, from_json] = [toml, json].map(|text| Config::parse(text).expect(text));
        assert_eq!(from_toml, from_json);
        assert_eq!(from_toml.digest(), from_json.digest());
        assert_ne!(from_toml.digest(), Config::default().digest());
        let text = serde_json::to_string(&from_toml).expect("writable");
        assert_eq!(Config::parse(&text).expect("its own text"), from_toml);
        assert_eq!(Config::parse("").expect("defaults"), Config::default());
        let puct = "policy = { kind = \"puct\" }\nfirst_play = { kind = \"parent\" }";
        assert_eq!(Config::parse(puct).expect("a policy's own defaults"), Config::default());
    }

    #[test]
    fn a_text_that_says_what_nobody_knows_is_refused() {
        for (text, word) in [
            ("discont = 1.0", "discont"),
            ("[policy]\nkind = \"ucb2\"\nc = 1.0", "ucb2"),
            ("[policy]\nkind = \"ucb1\"\nc = 1.0\nd = 2.0", "d"),
            ("[widening]\nbeta = 1.0", "beta"),
            ("discount = inf", "discount"),
            ("policy = {kind = \"ucb1\", c = nan}", "policy.c"),
            ("{\"values\": 300}", "300"),
            ("{\"values\": 1} x", "trailing"),
        ] {
            let error = Config::parse(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(Config::parse(&" ".repeat(MAX_TEXT + 1)).is_err());
    }

    /// What is named here is what a search of everything at once may have.
    #[test]
    fn everything_at_once_passes() {
        let config = Config {
            policy: Policy::Puct { c: 0.0, own_visit: true },
            values: 2,
            objective: Objective::Weights { weights: vec![1.0, -0.5] },
            solve: Solve::Full,
            leaf_value: LeafValue::First,
            best_value: Some(1.0),
            max_depth: Some(1),
            widening: Some(Widening::default()),
            budget: Budget { rollouts: Some(1), attempts: Some(1), wall_ms: Some(1), cost: Some(0.1) },
            stop: Stop { reward: Some(1.0), min_rollouts: 3, margin: true },
            ..Config::default()
        };
        assert_eq!(config.check(), Ok(()));
    }
}
