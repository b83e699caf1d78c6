//! The rules of a run: what may begin, what is too old, what counts where. Pure arithmetic.

use serde::{Deserialize, Serialize};

use super::{DropReason, GenerationSource, Run};

/// How much a run has of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Prompts; the next one's index.
    pub prompts: u64,
    /// Prompts whose siblings have all ended.
    pub complete: u64,
    /// Siblings.
    pub siblings: u64,
    /// Siblings that nobody has begun, in their revision.
    pub waiting: u64,
    /// Siblings of which a trial goes on.
    pub running: u64,
    /// Terminal events that brought a result.
    pub results: u64,
    /// Terminal events that brought an error.
    pub errors: u64,
    /// Terminal events of siblings that were given up.
    pub cancelled_siblings: u64,
    /// Siblings and prompts done again.
    pub refills: u64,
    /// Outcomes that came too late to count.
    pub late: u64,
    /// The last sequence of its log.
    pub sequence: u64,
    /// Usable results that no consumer dropped.
    pub accepted: u64,
    /// Those of them that some consumer trained on.
    pub trained: u64,
}

impl Counts {
    /// Usable results that wait for a trainer.
    pub fn ready(&self) -> u64 {
        self.accepted.saturating_sub(self.trained)
    }
}

/// Why nothing more begins now; it may later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Wait {
    /// What began now would be too old once it is trained on.
    Staleness {
        /// Results and running siblings.
        committed: u64,
        /// The most of them at this step of the trainer.
        most: u64,
    },
    /// Enough results wait for a trainer.
    Ready {
        /// How many.
        ready: u64,
        /// How many may, before nothing new begins.
        most: u64,
    },
}

/// How many more siblings may begin, and what bounds them.
pub fn room(run: &Run) -> (u64, Option<Wait>) {
    let mut room = (u64::MAX, None);
    if let Some(most) = run.max_ready {
        let ready = run.counts.ready();
        if ready >= most {
            room = (0, Some(Wait::Ready { ready, most }));
        }
    }
    if let (Some(staleness), Some(batch), GenerationSource::Live) =
        (run.max_staleness, run.batch, run.generation_source)
    {
        // The step that is being trained is the one after the last that was acknowledged.
        let step = run.trainer_step.saturating_add(1);
        let most = staleness.saturating_add(step).saturating_mul(batch);
        let committed = run.counts.accepted + run.counts.running;
        let left = most.saturating_sub(committed);
        if left < room.0 {
            room = (left, Some(Wait::Staleness { committed, most }));
        }
    }
    room
}

/// Whether what version `start` began is too old to be delivered.
pub fn is_stale(run: &Run, start: Option<u64>) -> bool {
    match (run.generation_source, run.max_staleness, start) {
        (GenerationSource::Live, Some(most), Some(start)) => run.policy.version.saturating_sub(start) > most,
        (GenerationSource::Live | GenerationSource::Frozen, _, _) => false,
    }
}

/// What an entry adds to `accepted` and to `trained`: whether it is usable, how many consumers dropped it, and how
/// many trained on it.
pub fn contribution(usable: bool, dropped: u64, trained: u64) -> (u64, u64) {
    let accepted = usable && dropped == 0;
    (u64::from(accepted), u64::from(accepted && trained > 0))
}

/// Whether `reason` takes a usable entry out of what was accepted.
pub const fn loses(reason: DropReason) -> bool {
    match reason {
        DropReason::Stale | DropReason::Filtered | DropReason::Superseded => true,
        DropReason::Unusable => false,
    }
}

/// The greatest seed: such as every JSON reader keeps exactly.
pub const MAX_SEED: u64 = (1 << 53) - 1;

/// The seed of a sibling's revision.
pub fn sibling_seed(prompt_seed: u64, index: u32, revision: u32) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("esf sibling seed v1");
    hasher.update(&prompt_seed.to_le_bytes());
    hasher.update(&index.to_le_bytes());
    hasher.update(&revision.to_le_bytes());
    let mut seed = [0; 8];
    seed.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(seed) & MAX_SEED
}
