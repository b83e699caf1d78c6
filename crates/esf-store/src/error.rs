//! What can go wrong with a whole store, each with a class, a stable code and what to do.

use std::io;
use std::path::PathBuf;

use esf_core::{Class, NodeId, Problem};
use serde_json::json;

/// An error of this crate, or of a plane beneath it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The layer stack failed or refused.
    #[error(transparent)]
    LayerStack(#[from] esf_layerstack::Error),
    /// The graph failed or refused.
    #[error(transparent)]
    Graph(#[from] esf_graph::Error),
    /// Writing a root out failed.
    #[error(transparent)]
    Exchange(#[from] esf_exchange::Error),
    /// A manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] esf_core::manifest::Error),
    /// An operation on this machine's filesystem failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as an infinitive.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// This build cannot do it yet.
    #[error("not supported in this build: {what}")]
    NotSupported {
        /// What was asked for.
        what: String,
    },
    /// A source that is neither a directory nor a known root or node.
    #[error("no such source: {text:?}")]
    SourceMissing {
        /// The source as it was written.
        text: String,
    },
    /// The target of an export is taken.
    #[error("{} exists already", path.display())]
    TargetExists {
        /// The target.
        path: PathBuf,
    },
    /// Another export to the same target is running.
    #[error("another export to {} is running", path.display())]
    TargetBusy {
        /// The target.
        path: PathBuf,
    },
    /// The nodes of a merge have several nearest common ancestors, or none.
    #[error("{} nearest common ancestors of {ours} and {theirs}", candidates.len())]
    AmbiguousBase {
        /// The side that is merged into.
        ours: NodeId,
        /// The side that is merged.
        theirs: NodeId,
        /// The ancestors that could be the base, in ascending order.
        candidates: Vec<NodeId>,
    },
    /// A node of another group than the others.
    #[error("node {node} is of another group")]
    OtherGroup {
        /// The node.
        node: NodeId,
    },
    /// A base that a side of the merge does not descend from.
    #[error("{side} does not descend from {base}")]
    NotAncestor {
        /// The base that was named.
        base: NodeId,
        /// The side.
        side: NodeId,
    },
    /// Lines were merged that no evaluation has seen.
    #[error("no evaluation has seen the lines that were merged in {merged}")]
    EvaluationWanted {
        /// The node that was to be promoted.
        node: NodeId,
        /// The node that a merge of lines made.
        merged: NodeId,
    },
    /// A node that has no sealed tree yet.
    #[error("node {node} has no sealed tree")]
    NotSealed {
        /// The node.
        node: NodeId,
        /// Its nearest sealed ancestor.
        last_sealed: Option<NodeId>,
    },
    /// A request that makes no sense by itself.
    #[error("{what}")]
    BadRequest {
        /// What is wrong, as a phrase.
        what: String,
        /// What would have been accepted.
        expected: String,
    },
    /// A store that has bytes but no graph.
    #[error("the store's graph {} is missing", path.display())]
    GraphMissing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A problem with everything there is to tell about it.
    #[error("{0}")]
    Told(Box<Problem>),
    /// A node that went out of sight.
    #[error("node {node} was pruned")]
    Pruned {
        /// The node.
        node: NodeId,
    },
    /// An export that is not what its statement says.
    #[error("{} is not what its statement says", path.display())]
    Unverified {
        /// The export.
        path: PathBuf,
        /// What the statement says, or what was looked for.
        expected: String,
        /// What was there instead.
        found: String,
    },
}

impl Error {
    /// The problem as it is told to a user or a program.
    pub fn problem(&self) -> Problem {
        let of = |class, code| Problem::new(class, code, self.to_string());
        match self {
            Self::LayerStack(error) => error.problem(),
            Self::Graph(error) => error.problem(),
            Self::Exchange(error) => error.problem(),
            Self::Manifest(error) => error.problem(),
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    of(Class::Failure, "storage_full")
                        .remedy("free some space and repeat the command")
                        .retryable()
                }
                io::ErrorKind::NotFound => of(Class::NotFound, "not_found"),
                io::ErrorKind::PermissionDenied => {
                    of(Class::Failure, "permission_denied").remedy("check the permissions of the named path")
                }
                _ => of(Class::Failure, "io"),
            },
            Self::NotSupported { .. } => {
                of(Class::Refused, "not_supported").remedy("`esf --help` lists what this build can do")
            }
            Self::SourceMissing { text } => of(Class::NotFound, "source_missing")
                .expected("an existing directory or archive, git:DIR@REV, a root id (b3:…), a node id or GROUP:NAME")
                .found(text.clone())
                .remedy("check the path, or see `esf ls` and `esf root ls`"),
            Self::TargetExists { .. } => of(Class::Conflict, "target_exists")
                .expected("a path where nothing is, or an empty directory")
                .remedy("choose another path with --to, or remove it first"),
            Self::TargetBusy { .. } => {
                of(Class::Conflict, "target_busy").remedy("wait for it to end").retryable()
            }
            Self::OtherGroup { node } => of(Class::Conflict, "other_group")
                .expected("nodes of one group")
                .remedy("name nodes of one group; `esf inspect NODE` tells a node's")
                .context(json!({ "node_id": node })),
            Self::NotAncestor { base, side } => of(Class::Conflict, "not_ancestor")
                .expected("a base from which every side descends")
                .found(base.to_string())
                .remedy("name an ancestor of both; `esf log --graph NODE` shows them")
                .context(json!({ "base": base, "side": side })),
            Self::EvaluationWanted { node, merged } => of(Class::Refused, "evaluation_wanted")
                .expected(format!("an evaluation that counts, of {node}"))
                .found("none")
                .remedy(format!("`esf evaluate {node} --evaluator FILE`, then promote again"))
                .context(json!({ "node_id": node, "merged_node_id": merged })),
            Self::AmbiguousBase { candidates, ours, theirs } if candidates.is_empty() => {
                of(Class::Conflict, "no_base")
                    .expected("a common ancestor")
                    .found("none")
                    .context(json!({ "ours": ours, "theirs": theirs }))
            }
            Self::AmbiguousBase { candidates, .. } => of(Class::Conflict, "ambiguous_base")
                .expected("one nearest common ancestor")
                .found(candidates.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" "))
                .remedy("name the base with --base NODE")
                .context(json!({ "candidates": candidates })),
            Self::NotSealed { node, last_sealed } => of(Class::Conflict, "not_sealed")
                .expected("a sealed node")
                .found("draft")
                .remedy(match last_sealed {
                    Some(last) => format!("seal it with `esf suspend`, or use the last sealed node {last}"),
                    None => "seal it with `esf suspend`".to_owned(),
                })
                .context(json!({ "node_id": node, "last_sealed": last_sealed })),
            Self::GraphMissing { .. } => of(Class::Damaged, "store_damaged")
                .expected("graph.db beside the store's carriers")
                .remedy("bring graph.db back from a copy; without it nothing says what the bytes are"),
            Self::Told(problem) => (**problem).clone(),
            Self::Pruned { node } => of(Class::Conflict, "pruned")
                .expected("a node that was not pruned")
                .found("pruned")
                .context(json!({ "node_id": node })),
            Self::Unverified { expected, found, .. } => {
                crate::statement::unverified(self.to_string(), expected, found)
            }
            Self::BadRequest { expected, .. } => of(Class::Usage, "bad_request").expected(expected.clone()),
        }
    }
}
