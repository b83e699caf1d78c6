//! From what a user typed to what is meant: an id or a unique prefix of one, `GROUP:NAME`, `GROUP:@`, a
//! group's name, a root. Invariant: a text that may mean two things is never guessed.

use std::ops::RangeInclusive;

use esf_core::id::{
    AttemptId, EntryId, EvaluationId, ExecId, GroupId, LeaseId, NodeId, PromptId, RolloutId, RunId, SearchId,
    SiblingId, TaskId,
};
use esf_core::{Digest, RootId};
use rusqlite::{Connection, params};

use crate::error::{Error, Result};
use crate::row::{Bytes, every, first};
use crate::{Graph, load, records, statements};

/// What a text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ref {
    /// A group.
    Group(GroupId),
    /// A node.
    Node(NodeId),
    /// An attempt.
    Attempt(AttemptId),
    /// An evaluation.
    Evaluation(EvaluationId),
    /// A lease.
    Lease(LeaseId),
    /// An exec.
    Exec(ExecId),
    /// A root.
    Root(RootId),
    /// A search.
    Search(SearchId),
    /// A rollout of a search.
    Rollout(RolloutId),
    /// A run.
    Run(RunId),
    /// A prompt of a run.
    Prompt(PromptId),
    /// A sibling of a prompt.
    Sibling(SiblingId),
    /// A task.
    Task(TaskId),
    /// An entry of the queue.
    Entry(EntryId),
}

impl Ref {
    /// The word for its kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Group(_) => "group",
            Self::Node(_) => "node",
            Self::Attempt(_) => "attempt",
            Self::Evaluation(_) => "evaluation",
            Self::Lease(_) => "lease",
            Self::Exec(_) => "exec",
            Self::Root(_) => "root",
            Self::Search(_) => "search",
            Self::Rollout(_) => "rollout",
            Self::Run(_) => "run",
            Self::Prompt(_) => "prompt",
            Self::Sibling(_) => "sibling",
            Self::Task(_) => "task",
            Self::Entry(_) => "queue entry",
        }
    }
}

impl std::fmt::Display for Ref {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Group(id) => id.fmt(f),
            Self::Node(id) => id.fmt(f),
            Self::Attempt(id) => id.fmt(f),
            Self::Evaluation(id) => id.fmt(f),
            Self::Lease(id) => id.fmt(f),
            Self::Exec(id) => id.fmt(f),
            Self::Root(id) => id.fmt(f),
            Self::Search(id) => id.fmt(f),
            Self::Rollout(id) => id.fmt(f),
            Self::Run(id) => id.fmt(f),
            Self::Prompt(id) => id.fmt(f),
            Self::Sibling(id) => id.fmt(f),
            Self::Task(id) => id.fmt(f),
            Self::Entry(id) => id.fmt(f),
        }
    }
}

/// Bare hex digits are taken for an id from this many on.
const BARE: usize = 4;

impl Graph {
    /// What `text` means: `grp_…`, `nod_…` and so on or a unique prefix of it, `b3:…`, `GROUP:NAME`,
    /// `GROUP:@`, a group's name, or bare hex digits of any id.
    ///
    /// # Errors
    /// `NotFound`; `Ambiguous` with the candidates.
    pub fn resolve(&self, text: &str) -> Result<Ref> {
        self.read(|db| {
            let mut found = candidates(db, text)?;
            found.sort();
            found.dedup();
            match found.as_slice() {
                [] => Err(Error::not_found("record", text)),
                [one] => Ok(*one),
                several => Err(Error::Ambiguous {
                    text: text.to_owned(),
                    candidates: several.iter().take(20).map(ToString::to_string).collect(),
                }),
            }
        })
    }

    /// The node that `text` means; an attempt or a group is not a node.
    ///
    /// # Errors
    /// As `resolve`; `NotFound` when it is something else.
    pub fn resolve_node(&self, text: &str) -> Result<NodeId> {
        match self.resolve(text)? {
            Ref::Node(id) => Ok(id),
            other => Err(Error::not_found("node", format!("{text} (a {})", other.kind()))),
        }
    }

    /// The group that `text` means.
    ///
    /// # Errors
    /// As `resolve`; `NotFound` when it is something else.
    pub fn resolve_group(&self, text: &str) -> Result<GroupId> {
        match self.resolve(text)? {
            Ref::Group(id) => Ok(id),
            other => Err(Error::not_found("group", format!("{text} (a {})", other.kind()))),
        }
    }

    /// The attempt that `text` means.
    ///
    /// # Errors
    /// As `resolve`; `NotFound` when it is something else.
    pub fn resolve_attempt(&self, text: &str) -> Result<AttemptId> {
        match self.resolve(text)? {
            Ref::Attempt(id) => Ok(id),
            other => Err(Error::not_found("attempt", format!("{text} (a {})", other.kind()))),
        }
    }

    /// The search that `text` means.
    ///
    /// # Errors
    /// As `resolve`; `NotFound` when it is something else.
    pub fn resolve_search(&self, text: &str) -> Result<SearchId> {
        match self.resolve(text)? {
            Ref::Search(id) => Ok(id),
            other => Err(Error::not_found("search", format!("{text} (a {})", other.kind()))),
        }
    }

    /// The rollout that `text` means.
    ///
    /// # Errors
    /// As `resolve`; `NotFound` when it is something else.
    pub fn resolve_rollout(&self, text: &str) -> Result<RolloutId> {
        match self.resolve(text)? {
            Ref::Rollout(id) => Ok(id),
            other => Err(Error::not_found("rollout", format!("{text} (a {})", other.kind()))),
        }
    }
}

fn candidates(db: &Connection, text: &str) -> Result<Vec<Ref>> {
    if let Some(hex) = text.strip_prefix("b3:") {
        return by_prefix(db, statements::IDS_OF_ROOTS, hex, |id: Digest| Ref::Root(RootId::new(id)));
    }
    if let Some((group, name)) = text.split_once(':') {
        return of_group(db, group, name);
    }
    if let Some(group) = first(db, statements::GROUP_BY_NAME, [text], records::group)? {
        return Ok(vec![Ref::Group(group.group_id)]);
    }
    for kind in KINDS {
        if let Some(hex) = text.strip_prefix(kind.prefix) {
            return (kind.find)(db, hex);
        }
    }
    let mut found = Vec::new();
    if text.len() >= BARE {
        for kind in KINDS {
            found.extend((kind.find)(db, text)?);
        }
    }
    Ok(found)
}

struct Kind {
    prefix: &'static str,
    find: fn(&Connection, &str) -> Result<Vec<Ref>>,
}

const KINDS: &[Kind] = &[
    Kind {
        prefix: GroupId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_GROUPS, hex, Ref::Group),
    },
    Kind { prefix: NodeId::PREFIX, find: |db, hex| by_prefix(db, statements::IDS_OF_NODES, hex, Ref::Node) },
    Kind {
        prefix: AttemptId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_ATTEMPTS, hex, Ref::Attempt),
    },
    Kind {
        prefix: EvaluationId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_EVALUATIONS, hex, Ref::Evaluation),
    },
    Kind {
        prefix: LeaseId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_LEASES, hex, Ref::Lease),
    },
    Kind { prefix: ExecId::PREFIX, find: |db, hex| by_prefix(db, statements::IDS_OF_EXECS, hex, Ref::Exec) },
    Kind {
        prefix: SearchId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_SEARCHES, hex, Ref::Search),
    },
    Kind {
        prefix: RolloutId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_ROLLOUTS, hex, Ref::Rollout),
    },
    Kind { prefix: RunId::PREFIX, find: |db, hex| by_prefix(db, statements::IDS_OF_RUNS, hex, Ref::Run) },
    Kind {
        prefix: PromptId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_PROMPTS, hex, Ref::Prompt),
    },
    Kind {
        prefix: SiblingId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_SIBLINGS, hex, Ref::Sibling),
    },
    Kind { prefix: TaskId::PREFIX, find: |db, hex| by_prefix(db, statements::IDS_OF_TASKS, hex, Ref::Task) },
    Kind {
        prefix: EntryId::PREFIX,
        find: |db, hex| by_prefix(db, statements::IDS_OF_ENTRIES, hex, Ref::Entry),
    },
];

fn of_group(db: &Connection, group: &str, name: &str) -> Result<Vec<Ref>> {
    let groups = candidates(db, group)?;
    let [Ref::Group(group)] = groups.as_slice() else { return Ok(groups) };
    if name == "@" {
        return Ok(vec![Ref::Node(load::group(db, *group)?.canonical_node_id)]);
    }
    let node = first(db, statements::NODE_OF_TAG, params![group.bytes(), name], |columns| columns.id())?;
    Ok(node.map(Ref::Node).into_iter().collect())
}

fn by_prefix<T: Bytes>(db: &Connection, sql: &str, hex: &str, wrap: fn(T) -> Ref) -> Result<Vec<Ref>> {
    let Some(range) = range(hex, size_of::<T>()) else { return Ok(Vec::new()) };
    every(db, sql, params![range.start(), range.end()], |columns| columns.id().map(wrap))
}

/// The least and the greatest id of `size` bytes whose text begins with `hex`.
fn range(hex: &str, size: usize) -> Option<RangeInclusive<Vec<u8>>> {
    if hex.is_empty() || hex.len() > 2 * size {
        return None;
    }
    let nibble = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let (mut least, mut greatest) = (vec![0; size], vec![0xff; size]);
    for (at, c) in hex.bytes().enumerate() {
        let nibble = nibble(c)?;
        let (shift, keep) = if at % 2 == 0 { (4, 0x0f) } else { (0, 0xf0) };
        least[at / 2] |= nibble << shift;
        greatest[at / 2] = greatest[at / 2] & keep | nibble << shift;
    }
    Some(least..=greatest)
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn a_prefix_spans_what_begins_with_it() {
        assert_eq!(range("a", 2), Some(vec![0xa0, 0x00]..=vec![0xaf, 0xff]));
        assert_eq!(range("a1b", 2), Some(vec![0xa1, 0xb0]..=vec![0xa1, 0xbf]));
        assert_eq!(range("a1b2", 2), Some(vec![0xa1, 0xb2]..=vec![0xa1, 0xb2]));
        for bad in ["", "A", "g", "a1b2c"] {
            assert_eq!(range(bad, 2), None, "{bad}");
        }
    }
}
