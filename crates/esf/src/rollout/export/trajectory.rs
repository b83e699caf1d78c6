//! A rollout as exports see it: its records, and its steps from the first one on with their content read. Invariants:
//! steps that a fork shares are there once for each trajectory, but owned by the one that sampled them; a trajectory
//! is read whole or refused, so what is in memory is bounded.

use std::collections::{BTreeMap, HashSet};

use esf_core::rollout::{Array, Content, Dtype, Outcome, PolicyVersion, Prompt, Run, Sibling, Step, Trial};
use esf_core::{AttemptId, BlobId, Class, Problem, SiblingId};
use esf_store::Store;
use serde_json::{Map, Value, json};

use crate::rollout::refused;

/// Most bytes of actions, observations and arrays of one trajectory.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// Most steps of one trajectory.
const MAX_STEPS: usize = 100_000;
/// Steps that are read at one time.
const PAGE: u64 = 1000;

/// A rollout that ended.
pub(super) struct Trajectory<'a> {
    pub(super) run: &'a Run,
    pub(super) versions: &'a [PolicyVersion],
    pub(super) prompt: &'a Prompt,
    pub(super) sibling: Sibling,
    /// The trial that counts; none for a sibling that was given up before it began.
    pub(super) trial: Option<Trial>,
    pub(super) turns: Vec<Turn>,
    /// Bytes of what its steps name.
    pub(super) bytes: u64,
}

/// A step with its content.
pub(super) struct Turn {
    pub(super) step: Step,
    /// Whose step it is.
    pub(super) sibling: SiblingId,
    /// Whether its tokens are this trajectory's to train on.
    pub(super) owned: bool,
    pub(super) action: Option<Value>,
    pub(super) observation: Option<Value>,
    pub(super) arrays: BTreeMap<String, Numbers>,
}

/// An array with its bytes.
pub(super) struct Numbers {
    pub(super) dtype: Dtype,
    pub(super) bytes: Vec<u8>,
}

impl Numbers {
    fn chunks<const N: usize>(&self) -> impl Iterator<Item = [u8; N]> + '_ {
        self.bytes.as_chunks::<N>().0.iter().copied()
    }

    /// As whole numbers; none when they are not.
    pub(super) fn whole(&self) -> Option<Vec<i64>> {
        Some(match self.dtype {
            Dtype::Bool | Dtype::U8 => self.bytes.iter().map(|byte| i64::from(*byte)).collect(),
            Dtype::U16 => self.chunks().map(|bytes| i64::from(u16::from_le_bytes(bytes))).collect(),
            Dtype::U32 => self.chunks().map(|bytes| i64::from(u32::from_le_bytes(bytes))).collect(),
            Dtype::I32 => self.chunks().map(|bytes| i64::from(i32::from_le_bytes(bytes))).collect(),
            Dtype::I64 => self.chunks().map(i64::from_le_bytes).collect(),
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => return None,
        })
    }

    /// As real numbers.
    pub(super) fn real(&self) -> Vec<f64> {
        match self.dtype {
            Dtype::F64 => self.chunks().map(f64::from_le_bytes).collect(),
            Dtype::F32 => self.chunks().map(|bytes| f64::from(f32::from_le_bytes(bytes))).collect(),
            Dtype::F16 => self.chunks().map(|bytes| half(u16::from_le_bytes(bytes))).collect(),
            Dtype::Bf16 => self
                .chunks()
                .map(|bytes| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)))
                .collect(),
            Dtype::Bool | Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::I32 | Dtype::I64 => {
                self.whole().into_iter().flatten().map(|number| number as f64).collect()
            }
        }
    }

    /// As JSON: null where a real number is not finite.
    pub(super) fn json(&self) -> Value {
        match self.whole() {
            Some(numbers) => json!(numbers),
            None => json!(self.real()),
        }
    }
}

/// A number of 16 bits as IEEE 754 has it.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

impl<'a> Trajectory<'a> {
    /// Reads a sibling that ended; only its own steps when `own`, else also those that it shares.
    pub(super) fn read(
        store: &Store,
        (run, versions): (&'a Run, &'a [PolicyVersion]),
        prompt: &'a Prompt,
        sibling: Sibling,
        own: bool,
    ) -> Result<Self, Problem> {
        let trial =
            sibling.trial.and_then(|number| sibling.trials.iter().find(|t| t.trial == number)).cloned();
        let (mut turns, mut bytes) = (Vec::new(), 0);
        if let Some(trial) = &trial {
            let mut reader = Reader { store, left: MAX_BYTES, sibling: sibling.sibling_id };
            for (step, whose) in reader.steps(sibling.sibling_id, trial, own)? {
                let owned = whose == sibling.sibling_id
                    && trial.owned_from_step.is_none_or(|from| step.index >= from);
                turns.push(reader.turn(step, whose, owned)?);
            }
            bytes = MAX_BYTES - reader.left;
        }
        Ok(Self { run, versions, prompt, sibling, trial, turns, bytes })
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.sibling.outcome.as_ref()
    }

    pub(super) fn usable(&self) -> bool {
        self.outcome().is_some_and(|outcome| outcome.usable == Some(true))
    }

    pub(super) fn reward(&self) -> Option<f64> {
        self.outcome().and_then(|outcome| outcome.reward)
    }

    /// The least and the greatest policy version in it.
    pub(super) fn span(&self) -> (Option<u64>, Option<u64>) {
        let began = self.trial.as_ref().map(|trial| trial.policy_version);
        match self.outcome() {
            Some(outcome) => (outcome.policy_version_start.or(began), outcome.policy_version_end.or(began)),
            None => (began, began),
        }
    }

    /// Every attempt that it ran in, in order.
    pub(super) fn attempts(&self) -> Vec<AttemptId> {
        let began = self.trial.as_ref().and_then(|trial| trial.attempt_id);
        let mut attempts = Vec::new();
        for attempt in began.into_iter().chain(self.turns.iter().filter_map(|turn| turn.step.attempt_id)) {
            if !attempts.contains(&attempt) {
                attempts.push(attempt);
            }
        }
        attempts
    }

    /// Everything about it but its steps.
    pub(super) fn head(&self) -> Map<String, Value> {
        let (start, end) = self.span();
        let policy = &self.run.policy;
        let version = self.versions.iter().find(|known| Some(known.version) == start);
        let outcome = self.outcome();
        let fork = self.trial.as_ref();
        let last = outcome.and_then(|outcome| outcome.node_id);
        let value = json!({
            "run_id": self.run.run_id,
            "group_id": self.run.group_id,
            "prompt_id": self.prompt.prompt_id,
            "prompt_index": self.prompt.index,
            "sibling_id": self.sibling.sibling_id,
            "sibling_index": self.sibling.index,
            "group_size": self.prompt.size,
            "revision": self.sibling.revision,
            "trial": self.sibling.trial,
            "attempt_ids": self.attempts(),
            "trace_id": self.sibling.trace_id,
            "task": self.prompt.task,
            "seed": self.sibling.seed,
            "policy": {
                "name": policy.name, "version_start": start, "version_end": end,
                "digest": version.and_then(|version| version.digest),
                "adapter": version.and_then(|version| version.adapter.as_ref()),
            },
            "sampler": self.run.sampler,
            "generation_source": self.run.generation_source,
            "root_id": self.prompt.root_id,
            "node_id": self.prompt.node_id,
            "final_node_id": last.or(fork.map(|trial| trial.node_id)),
            "environment_digest": self.run.environment_digest,
            "evaluators": self.run.evaluators,
            "status": self.sibling.status,
            "cancelled": self.sibling.cancelled,
            "usable": self.usable(),
            "reward": self.reward(),
            "rewards": outcome.map(|outcome| &outcome.rewards),
            "metrics": outcome.map(|outcome| &outcome.metrics),
            "terminated": outcome.is_some_and(|outcome| outcome.terminated),
            "truncated": outcome.and_then(|outcome| outcome.truncated),
            "stop_reason": outcome.map(|outcome| &outcome.stop_reason),
            "failure": outcome.and_then(|outcome| outcome.failure.as_ref()),
            "cost": outcome.map(|outcome| &outcome.cost),
            "statement_digest": outcome.and_then(|outcome| outcome.statement_digest),
            "parent_sibling": fork.and_then(|trial| trial.parent_sibling),
            "fork_step": fork.and_then(|trial| trial.fork_step),
            "owned_from_step": fork.and_then(|trial| trial.owned_from_step),
        });
        match value {
            Value::Object(head) => head,
            _ => unreachable!("it was made as an object"),
        }
    }
}

/// Reads steps, within one trajectory's bytes.
struct Reader<'a> {
    store: &'a Store,
    left: u64,
    sibling: SiblingId,
}

impl Reader<'_> {
    /// The steps of a trial in order, each with whose it is: first those that it shares, unless only its `own` are
    /// asked for.
    fn steps(
        &mut self,
        sibling: SiblingId,
        trial: &Trial,
        own: bool,
    ) -> Result<Vec<(Step, SiblingId)>, Problem> {
        let mut parts: Vec<Vec<(Step, SiblingId)>> = Vec::new();
        let (mut whose, mut trial, mut before) = (sibling, trial.clone(), u64::MAX);
        let mut seen = HashSet::new();
        let mut count = 0;
        loop {
            if !seen.insert((whose, trial.trial)) {
                return Err(Problem::new(Class::Damaged, "damaged", format!("{whose} goes on from itself")));
            }
            let first = trial.fork_step.unwrap_or(0);
            let part = self.own_steps(whose, trial.trial, first, before)?;
            count += part.len();
            if count > MAX_STEPS {
                return Err(self.too_large("steps", &format!("at most {MAX_STEPS} steps")));
            }
            parts.push(part);
            before = before.min(first);
            let (Some(parent), Some(number), false) = (trial.parent_sibling, trial.parent_trial, own) else {
                break;
            };
            let found = self.store.graph().sibling(parent).map_err(refused)?;
            let missing =
                || Problem::new(Class::Damaged, "damaged", format!("{parent} has no trial {number}"));
            trial = found.trials.into_iter().find(|known| known.trial == number).ok_or_else(missing)?;
            whose = parent;
        }
        Ok(parts.into_iter().rev().flatten().collect())
    }

    fn own_steps(
        &self,
        sibling: SiblingId,
        trial: u32,
        first: u64,
        before: u64,
    ) -> Result<Vec<(Step, SiblingId)>, Problem> {
        let mut steps: Vec<(Step, SiblingId)> = Vec::new();
        let mut next = first;
        while next < before && steps.len() <= MAX_STEPS {
            let page = self.store.graph().steps(sibling, Some(trial), next, PAGE.min(before - next));
            let page = page.map_err(refused)?;
            let Some(last) = page.last() else { break };
            next = last.index + 1;
            steps.extend(page.into_iter().filter(|step| step.index < before).map(|step| (step, sibling)));
        }
        Ok(steps)
    }

    fn turn(&mut self, mut step: Step, sibling: SiblingId, owned: bool) -> Result<Turn, Problem> {
        if step.attempt_id.is_none() && step.node_after != step.node_before {
            // The one that sealed its node.
            step.attempt_id = self.store.graph().node(step.node_after).map_err(refused)?.attempt_id;
        }
        let action = step.action.as_ref().map(|content| self.content(content)).transpose()?;
        let observation = step.observation.as_ref().map(|content| self.content(content)).transpose()?;
        let mut arrays = BTreeMap::new();
        for (name, Array { dtype, digest, size, .. }) in &step.arrays {
            arrays.insert(name.clone(), Numbers { dtype: *dtype, bytes: self.bytes(*digest, *size)? });
        }
        Ok(Turn { step, sibling, owned, action, observation, arrays })
    }

    /// JSON, or else text.
    fn content(&mut self, content: &Content) -> Result<Value, Problem> {
        match content {
            Content::Inline(json) => Ok(json.clone()),
            Content::Artifact { digest, size } => {
                let bytes = self.bytes(*digest, *size)?;
                let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
                Ok(serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
            }
        }
    }

    fn bytes(&mut self, digest: BlobId, size: u64) -> Result<Vec<u8>, Problem> {
        self.left = self.left.checked_sub(size).ok_or_else(|| {
            self.too_large("bytes", &format!("at most {MAX_BYTES} bytes of actions, observations and arrays"))
        })?;
        self.store.stack().get_artifact(digest).map_err(|error| error.problem())
    }

    fn too_large(&self, what: &str, expected: &str) -> Problem {
        let message = format!("{} has too many {what} for a row of an export", self.sibling);
        Problem::new(Class::Refused, "too_large", message)
            .expected(expected)
            .remedy("leave it out with --only, or read its steps with `esf rollout show`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_16_bits_are_what_ieee_says() {
        for (bits, number) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_953_125),
            (0x0001, 2_f64.powi(-24)),
            (0x7bff, 65504.0),
        ] {
            assert_eq!(half(bits), number, "{bits:x}");
        }
        assert!(half(0x7e00).is_nan());
        let bf16 = Numbers { dtype: Dtype::Bf16, bytes: vec![0x80, 0x3f, 0x20, 0xc0] };
        assert_eq!(bf16.real(), [1.0, -2.5]);
    }

    #[test]
    fn arrays_become_json_of_their_kind() {
        let mask = Numbers { dtype: Dtype::Bool, bytes: vec![1, 0] };
        assert_eq!(mask.json(), json!([1, 0]));
        let real = Numbers {
            dtype: Dtype::F32,
            bytes: [0.5_f32, f32::NAN].iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        assert_eq!(real.json(), json!([0.5, null]));
    }
}
