//! Who waits in this worker, and with whom. The order is the scheduler's (`esf_control::scheduler`); this
//! only remembers. Invariant: an attempt waits as long as somebody waits for it.

use std::collections::HashMap;
use std::sync::Arc;

use esf_control::scheduler::{Stage, Waiting};
use esf_core::{AttemptId, GroupId, NodeId};

use crate::server::running::Bell;

/// The attempts that wait, in order of arrival, and the bells of those who wait for them.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Vec<Waiting>,
    bells: HashMap<AttemptId, Vec<Arc<Bell>>>,
}

impl Queue {
    pub(crate) fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn contains(&self, id: AttemptId) -> bool {
        self.bells.contains_key(&id)
    }

    /// Adds one that waits, at the end.
    pub(crate) fn push(&mut self, waiting: Waiting, bell: Arc<Bell>) {
        self.bells.insert(waiting.attempt, vec![bell]);
        self.waiting.push(waiting);
    }

    /// Puts one back that was taken, at the head.
    pub(crate) fn put_back(&mut self, waiting: Waiting, bells: Vec<Arc<Bell>>) {
        self.bells.insert(waiting.attempt, bells);
        self.waiting.insert(0, waiting);
    }

    /// Waits for one that waits already; false when it does not.
    pub(crate) fn join(&mut self, id: AttemptId, bell: &Arc<Bell>) -> bool {
        let bells = self.bells.get_mut(&id);
        bells.map(|bells| bells.push(Arc::clone(bell))).is_some()
    }

    /// Takes one out.
    pub(crate) fn take(&mut self, id: AttemptId) -> Option<(Waiting, Vec<Arc<Bell>>)> {
        let bells = self.bells.remove(&id)?;
        let at = self.waiting.iter().position(|waiting| waiting.attempt == id);
        Some((self.waiting.remove(at.expect("it has bells while it waits")), bells))
    }

    /// Takes all out, of one group or of any.
    pub(crate) fn take_all(&mut self, of: Option<GroupId>) -> Vec<(AttemptId, Vec<Arc<Bell>>)> {
        let wanted = |waiting: &Waiting| of.is_none_or(|group| waiting.group == group);
        let (taken, left) = std::mem::take(&mut self.waiting).into_iter().partition(wanted);
        self.waiting = left;
        let taken: Vec<Waiting> = taken;
        taken.iter().map(|it| (it.attempt, self.bells.remove(&it.attempt).unwrap_or_default())).collect()
    }

    /// One who waited for it goes; true when nobody is left, and then it waits no more.
    pub(crate) fn leave(&mut self, id: AttemptId, bell: &Arc<Bell>) -> Option<bool> {
        let bells = self.bells.get_mut(&id)?;
        bells.retain(|other| !Arc::ptr_eq(other, bell));
        let last = bells.is_empty();
        if last {
            self.take(id);
        }
        Some(last)
    }

    /// A sibling was started: the others finish what was begun.
    pub(crate) fn opened(&mut self, batch: NodeId) {
        let siblings = self.waiting.iter_mut().filter(|waiting| waiting.batch == Some(batch));
        siblings.filter(|waiting| waiting.stage == Stage::New).for_each(|it| it.stage = Stage::Opened);
    }

    /// How many came before one that waits, by priority and then by arrival.
    pub(crate) fn before(&self, id: AttemptId) -> Option<u64> {
        let at = self.waiting.iter().position(|waiting| waiting.attempt == id)?;
        let own = self.waiting[at].priority;
        let earlier = |(other, waiting): &(usize, &Waiting)| {
            waiting.priority > own || (waiting.priority == own && *other < at)
        };
        Some(self.waiting.iter().enumerate().filter(earlier).count() as u64)
    }

    pub(crate) fn group_of(&self, id: AttemptId) -> Option<GroupId> {
        self.waiting.iter().find(|waiting| waiting.attempt == id).map(|waiting| waiting.group)
    }
}
