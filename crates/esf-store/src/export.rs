//! `export`: a sealed node out of the store, with a statement about where it comes from beside it.
//! Invariant: the target appears whole, after its statement, and nothing is ever replaced. A crash
//! leaves partial files beside the target; see `target`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use esf_core::manifest::RootPin;
use esf_core::ops::Meta;
use esf_core::record::Node;
use esf_core::{BlobId, Digest, NodeId, RootId};
use esf_exchange::patch::{self, Source};
use esf_exchange::{LeftOut, identity, tar};
use esf_layerstack::{ExportOptions, Progress};
use serde::Serialize;
use serde_json::{Value, json};

use crate::create::root_of;
use crate::export_git::name_ignored;
use crate::target::Target;
use crate::{Error, RootFiles, Store, Subject, statement};

/// How a root is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A directory, exactly restored.
    Dir,
    /// A tar archive.
    Tar,
    /// A patch that `git apply` accepts.
    Patch,
    /// A commit on a branch of a git repository.
    Git,
}

impl Format {
    /// Reads the name of a format.
    ///
    /// # Errors
    /// `NotSupported` for formats of later builds, `BadRequest` for what is none.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "dir" => Ok(Self::Dir),
            "tar" => Ok(Self::Tar),
            "patch" => Ok(Self::Patch),
            "git" => Ok(Self::Git),
            "oci" | "bundle" | "artifact" => {
                Err(Error::NotSupported { what: format!("export as {text}; use dir, tar, patch or git") })
            }
            _ => Err(Error::BadRequest {
                what: format!("{text:?} is no export format"),
                expected: "dir, tar, patch or git".to_owned(),
            }),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::Tar => "tar",
            Self::Patch => "patch",
            Self::Git => "git",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The sealed node.
    pub node: NodeId,
    /// What to write.
    pub format: Format,
    /// Where; nothing or an empty directory.
    pub to: PathBuf,
    /// The node a patch starts from; the first parent when absent.
    pub from: Option<NodeId>,
    /// Keeps setuid and setgid bits of files and file capabilities.
    pub preserve_privilege: bool,
    /// The branch a commit goes to; `main` of a new repository, `esf/NODE` of another when absent.
    pub branch: Option<String>,
    /// One commit, or one patch, for each node of the line of first parents.
    pub series: bool,
    /// Patches and commits hold what `.gitignore` files ignore, too.
    pub include_ignored: bool,
}

impl Export {
    /// Asks for `node` to be written to `to`, with everything else as it is by default.
    pub fn new(node: NodeId, format: Format, to: &Path) -> Self {
        Self {
            node,
            format,
            to: to.to_owned(),
            from: None,
            preserve_privilege: false,
            branch: None,
            series: false,
            include_ignored: false,
        }
    }

    /// Refuses what goes with other formats alone.
    fn check(&self) -> Result<(), Error> {
        let refuse = |what: &str, expected: &str| {
            let what = format!("{what} with format {}", self.format.as_str());
            Err(Error::BadRequest { what, expected: expected.to_owned() })
        };
        let (patch, git) = (self.format == Format::Patch, self.format == Format::Git);
        if self.from.is_some() && !patch {
            return refuse("--from", "--from with format patch alone");
        }
        if self.branch.is_some() && !git {
            return refuse("--branch", "--branch with format git alone");
        }
        if (self.series || self.include_ignored) && !patch && !git {
            return refuse("--series or --include-ignored", "them with format patch or git");
        }
        Ok(())
    }

    /// What distinguishes the request from another under the same key.
    fn asked(&self) -> Value {
        let Self { node, format, from, preserve_privilege, branch, series, include_ignored, to: _ } = self;
        json!([node, format, from, preserve_privilege, branch, series, include_ignored])
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exported {
    /// How.
    pub format: Format,
    /// Where.
    pub path: PathBuf,
    /// The statement beside it.
    pub provenance: PathBuf,
    /// The node.
    pub node_id: NodeId,
    /// Its root.
    pub root_id: RootId,
    /// The node a patch starts from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_node_id: Option<NodeId>,
    /// Digest of the file's bytes, or root id of what the directory holds.
    pub digest: String,
    /// What the format cannot hold, by path and reason.
    pub left_out: Vec<LeftOut>,
    /// What else there is to say: counts of the format.
    pub summary: Value,
}

/// The outcome of writing the bytes.
pub(crate) struct Written {
    pub(crate) subject: Subject,
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) summary: Value,
}

impl Store {
    /// Exports a sealed node.
    ///
    /// # Errors
    /// `target_exists`, `target_busy`, `not_sealed`, `pruned`, damaged contents, a full disk; nothing is left
    /// at the target then.
    pub fn export(&self, meta: &Meta, request: &Export, progress: &dyn Progress) -> Result<Exported, Error> {
        let node = self.sealed_node(request.node)?;
        request.check()?;
        let pin = root_of(&node)?;
        if request.format == Format::Git {
            return self.export_git(meta, request, &node);
        }
        let from = self.patch_start(&node, request)?;
        let target = match Target::claim(&request.to) {
            Err(error @ Error::TargetExists { .. }) => {
                return answered_before(meta, request, &node).ok_or(error);
            }
            claimed => claimed?,
        };
        let _held = self.stack().lock_shared()?;
        let written = match (request.format, &from) {
            (Format::Dir, _) => self.write_directory(&pin, request, target.partial(), progress)?,
            (Format::Tar, _) => self.write_tar(&pin, request, target.create_file()?)?,
            (Format::Patch, _) if request.series => self.write_series(request, &node, target.partial())?,
            (Format::Patch, Some(from)) => {
                self.write_patch(request, &node, &root_of(from)?, target.create_file()?)?
            }
            (Format::Patch, None) => unreachable!("a patch has a start"),
            (Format::Git, _) => unreachable!("commits have no target of their own"),
        };
        let predicate = self.predicate(meta, request, &node, from.as_ref(), &written)?;
        let name = target.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let exported = Exported {
            format: request.format,
            path: target.path().to_owned(),
            provenance: target.statement().to_owned(),
            node_id: node.node_id,
            root_id: pin.root,
            from_node_id: from.map(|node| node.node_id),
            digest: written.subject.digest(),
            left_out: written.left_out,
            summary: written.summary,
        };
        target.publish(&statement::write(&name, &written.subject, &predicate))?;
        Ok(exported)
    }

    /// Writes the patch that leads from one root to another.
    ///
    /// # Errors
    /// Objects or contents that cannot be read, or an output that cannot be written.
    pub fn patch_between(
        &self,
        a: &RootPin,
        b: &RootPin,
        out: &mut dyn Write,
    ) -> Result<patch::Summary, Error> {
        let (before, after) = (RootFiles::new(self.stack(), a), RootFiles::new(self.stack(), b));
        let before = Source { pin: a, files: &before };
        let after = Source { pin: b, files: &after };
        Ok(patch::between(self.stack().objects(), before, after, out)?)
    }

    fn patch_start(&self, node: &Node, request: &Export) -> Result<Option<Node>, Error> {
        if request.format != Format::Patch || request.series {
            return request.from.map(|from| self.sealed_node(from)).transpose();
        }
        let start = request.from.or_else(|| node.parents.first().copied());
        let start = start.ok_or_else(|| Error::BadRequest {
            what: format!("node {} has no parent to start a patch from", node.node_id),
            expected: "--from NODE".to_owned(),
        })?;
        self.sealed_node(start).map(Some)
    }

    fn write_directory(
        &self,
        pin: &RootPin,
        request: &Export,
        to: &Path,
        progress: &dyn Progress,
    ) -> Result<Written, Error> {
        let options =
            ExportOptions { preserve_privilege: request.preserve_privilege, ..ExportOptions::default() };
        self.stack().export_directory(pin, to, &options, progress)?;
        let root = if request.preserve_privilege {
            pin.root
        } else {
            identity::without_privilege(self.stack().objects(), pin.root)?
        };
        let summary = json!({ "privilege_dropped": root != pin.root });
        Ok(Written { subject: Subject::Directory(root), left_out: Vec::new(), summary })
    }

    fn write_tar(&self, pin: &RootPin, request: &Export, file: File) -> Result<Written, Error> {
        let mut out = Hashing::new(file);
        let options = tar::Options { preserve_privilege: request.preserve_privilege };
        let files = RootFiles::new(self.stack(), pin);
        let summary = tar::write(self.stack().objects(), pin, &files, options, &mut out)?;
        Ok(Written { subject: out.subject(), left_out: Vec::new(), summary: json!(summary) })
    }

    fn write_patch(
        &self,
        request: &Export,
        node: &Node,
        from: &RootPin,
        file: File,
    ) -> Result<Written, Error> {
        let mut out = Hashing::new(file);
        let pins = (from, &root_of(node)?);
        let (summary, ignored) = self.patch_without_ignored(node, pins, request.include_ignored, &mut out)?;
        let patch::Summary { paths, binary, attributes_only, mut left_out } = summary;
        let ignored = name_ignored(&ignored, &mut left_out);
        let summary = json!({
            "paths": paths, "binary": binary, "attributes_only": attributes_only, "ignored": ignored,
        });
        Ok(Written { subject: out.subject(), left_out, summary })
    }

    /// What the statement says: the node with its parents, who made it and how, and how it was judged.
    pub(crate) fn predicate(
        &self,
        meta: &Meta,
        request: &Export,
        node: &Node,
        from: Option<&Node>,
        written: &Written,
    ) -> Result<Value, Error> {
        let mut parents = Vec::new();
        for parent in &node.parents {
            parents.push(brief(&self.graph().node(*parent)?));
        }
        let attempt = node.attempt_id.map(|id| self.graph().attempt(id)).transpose()?;
        let evaluations = self.graph().evaluations(node.node_id)?;
        Ok(json!({
            "format": request.format,
            "signed": false,
            "store_id": self.stack().store_id(),
            "group_id": node.group_id,
            "node": {
                "node_id": node.node_id,
                "root_id": node.root_id,
                "attrs_id": node.attrs_id,
                "base_root_id": node.base_root_id,
                "state_id": node.state_id,
                "logical_state": node.logical_state,
                "status": node.status,
                "message": node.message,
                "provenance": node.provenance,
                "created_at": node.created_at,
                "created_by": node.created_by,
                "sealed_at": node.sealed_at,
            },
            "parents": parents,
            "from": from.map(brief),
            "attempt": attempt.map(|attempt| json!({
                "attempt_id": attempt.attempt_id,
                "lease_epoch": attempt.lease_epoch,
                "worker_id": attempt.worker_id,
                "environment": attempt.environment,
                "environment_digest": attempt.environment_digest,
            })),
            "evaluations": evaluations,
            "preserve_privilege": request.preserve_privilege,
            "summary": written.summary,
            "left_out": written.left_out,
            "exported_at": meta.now,
            "exported_by": meta.actor,
            "request": { "key": meta.key, "asked": request.asked() },
        }))
    }
}

/// The answer to this very request, when its export is there already and is what its statement says.
fn answered_before(meta: &Meta, request: &Export, node: &Node) -> Option<Exported> {
    let path = std::path::absolute(&request.to).ok()?;
    let verified = statement::verify_export(&path).ok()?;
    let predicate = &verified.statement["predicate"];
    let same = predicate["request"] == json!({ "key": meta.key, "asked": request.asked() })
        && predicate["exported_by"] == meta.actor.as_str();
    if !same || verified.node_id != Some(node.node_id) {
        return None;
    }
    let from = &predicate["from"]["node_id"];
    Some(Exported {
        format: request.format,
        provenance: statement::beside(&path),
        path,
        node_id: node.node_id,
        root_id: verified.root_id?,
        from_node_id: from.as_str().and_then(|id| id.parse().ok()),
        digest: verified.digest,
        left_out: serde_json::from_value(predicate["left_out"].clone()).ok()?,
        summary: predicate["summary"].clone(),
    })
}

fn brief(node: &Node) -> Value {
    json!({ "node_id": node.node_id, "root_id": node.root_id, "attrs_id": node.attrs_id })
}

/// Writes and hashes.
struct Hashing {
    out: BufWriter<File>,
    hasher: blake3::Hasher,
}

impl Hashing {
    fn new(file: File) -> Self {
        Self { out: BufWriter::with_capacity(1 << 16, file), hasher: blake3::Hasher::new() }
    }

    fn subject(&self) -> Subject {
        Subject::File(BlobId::new(Digest::from_bytes(*self.hasher.finalize().as_bytes())))
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
