//! `create_group` and `root import`: bytes from a source become a root, then the graph names it.
//! Invariant: one key imports once; a repeated request is answered from the record before any byte is
//! read. A crash during the import leaves staging that the next opening undoes or finishes; a crash
//! between import and commit leaves a root that nobody names, which a repeat finds again (equal
//! content is stored once) or collection takes away.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use esf_core::environment::{Base, Environment};
use esf_core::manifest::RootPin;
use esf_core::ops::{self, Meta};
use esf_core::policy::{Durability, PolicyDocument};
use esf_core::record::{Group, Node};
use esf_exchange::untar;
use esf_layerstack::{ImportOptions, Imported, Progress, Records, Scratch, Skipped};
use serde_json::{Value, json};

use crate::boundary::{Boundary, reach};
use crate::git::Taken;
use crate::{Error, Source, Store};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct CreateGroup {
    /// The group's name, unique in the store.
    pub name: String,
    /// Where the first root comes from.
    pub source: Source,
    /// How a directory is imported; `relaxed` is taken from the policy.
    pub import: ImportOptions,
    /// The group's rules; its environment is the default of the group's attempts.
    pub policy: PolicyDocument,
}

impl CreateGroup {
    /// What the caller asked for, as far as it decides the answer.
    fn asked(&self) -> Value {
        json!({
            "name": self.name, "source": self.source.identity(), "policy": self.policy.digest(),
            "import": asked_of(&self.import),
        })
    }
}

fn asked_of(options: &ImportOptions) -> Value {
    let ImportOptions { preserve_owners, skip_special, exclude, relaxed } = options;
    json!([preserve_owners, skip_special, exclude, relaxed])
}

/// A new group.
#[derive(Clone, Debug)]
pub struct Created {
    /// The group.
    pub group: Group,
    /// Its canonical node.
    pub node: Node,
    /// What the import left out, and why; empty when the request was answered before.
    pub skipped: Skipped,
    /// What else to tell about a commit: uncommitted changes, pointers that were not followed.
    pub notes: Vec<String>,
}

/// A root that the store now has.
#[derive(Clone, Debug)]
pub struct ImportedRoot {
    /// The root and its attributes.
    pub pin: RootPin,
    /// What the import left out, and why; empty when the request was answered before.
    pub skipped: Skipped,
    /// What else to tell about a commit: uncommitted changes, pointers that were not followed.
    pub notes: Vec<String>,
}

impl Store {
    /// Makes a group whose canonical node is the root that `request.source` stands for.
    ///
    /// # Errors
    /// `name_taken` and `idempotency_conflict` before anything is read; what the import refuses.
    pub fn create_group(
        &self,
        meta: &Meta,
        request: CreateGroup,
        progress: &dyn Progress,
    ) -> Result<Created, Error> {
        if let Some(created) = self.created_before(meta, &request)? {
            return Ok(created);
        }
        ops::label::check(&request.name).map_err(esf_graph::Error::from)?;
        if let Some(taken) = self.graph().groups()?.into_iter().find(|group| group.name == request.name) {
            // Perhaps by this very request, sent twice at once.
            if let Some(created) = self.created_before(meta, &request)? {
                return Ok(created);
            }
            let by = taken.group_id.to_string();
            return Err(esf_graph::Error::from(ops::Reject::NameTaken { name: request.name, by }).into());
        }
        let asked = request.asked();
        let relaxed = request.policy.policy().durability == Durability::Relaxed;
        let options = ImportOptions { relaxed, ..request.import.clone() };
        let Obtained { pin, skipped, notes, provenance, environment, sealed } =
            self.obtain(&request.source, &options, progress)?;
        reach(Boundary::CreateGroupCommit)?;
        let default_environment = request.policy.policy().environment.clone().unwrap_or(environment);
        let command = ops::create_group::CreateGroup {
            name: request.name,
            root: pin,
            default_environment,
            policy: request.policy,
            source: request.source.label(),
            provenance,
        };
        let created = self.graph().create_group_asked(meta, &asked, command, sealed.as_ref())?;
        Ok(Created { group: created.group, node: created.node, skipped, notes })
    }

    /// Brings a root into the store without making a group.
    ///
    /// # Errors
    /// What the import refuses, `not_found` for an unknown root or node.
    pub fn import_root(
        &self,
        meta: &Meta,
        source: &Source,
        options: &ImportOptions,
        progress: &dyn Progress,
    ) -> Result<ImportedRoot, Error> {
        let asked = json!({ "source": source.identity(), "import": asked_of(options) });
        if let Some(pin) = self.graph().recorded_asked(meta, "register_root", &asked)? {
            return Ok(ImportedRoot { pin, skipped: Skipped::new(), notes: Vec::new() });
        }
        let Obtained { pin, skipped, notes, sealed, .. } = self.obtain(source, options, progress)?;
        reach(Boundary::ImportRegister)?;
        let Some(sealed) = sealed else { return Ok(ImportedRoot { pin, skipped, notes }) };
        let pin = self.graph().register_root_asked(meta, &asked, &sealed)?;
        Ok(ImportedRoot { pin, skipped, notes })
    }

    /// The answer to a request that was committed under this key already.
    fn created_before(&self, meta: &Meta, request: &CreateGroup) -> Result<Option<Created>, Error> {
        let created: Option<ops::create_group::Created> =
            self.graph().recorded_asked(meta, "create_group", &request.asked())?;
        let Some(ops::create_group::Created { group, node }) = created else { return Ok(None) };
        Ok(Some(Created { group, node, skipped: Skipped::new(), notes: Vec::new() }))
    }

    /// Finds the root of a source in the store, or makes it.
    fn obtain(
        &self,
        source: &Source,
        options: &ImportOptions,
        progress: &dyn Progress,
    ) -> Result<Obtained, Error> {
        match source {
            Source::Directory(path) => {
                let imported = self.stack().import_directory(path, options, progress)?;
                Ok(obtained(source, options, imported, Skipped::new(), Environment::default()))
            }
            Source::Tar(path) => {
                let scratch = self.stack().scratch()?;
                let (left_out, records) = unpack(path, &scratch, options.skip_special)?;
                // An archive says who owns what.
                let options = ImportOptions { preserve_owners: true, ..options.clone() };
                let imported = self.stack().import_scratch(&scratch, &records, &options, progress)?;
                // An archive is a whole filesystem.
                let environment =
                    Environment { base: Base::Root, workspace: "/".to_owned(), ..Environment::default() };
                Ok(obtained(source, &options, imported, left_out, environment))
            }
            Source::Git { directory, revision, private } => {
                let Taken { imported, left_out, notes, provenance } =
                    self.take_commit(directory, revision, *private, options, progress)?;
                let mut found = obtained(source, options, imported, left_out, Environment::default());
                found.provenance["git"] = provenance;
                Ok(Obtained { notes, ..found })
            }
            Source::Node(text) => {
                let node = self.sealed_node(self.graph().resolve_node(text)?)?;
                let pin = root_of(&node)?;
                let provenance =
                    json!({ "kind": "node", "node_id": node.node_id, "group_id": node.group_id });
                let environment = self.graph().group(node.group_id)?.default_environment;
                Ok(Obtained {
                    pin,
                    skipped: Skipped::new(),
                    notes: Vec::new(),
                    provenance,
                    environment,
                    sealed: None,
                })
            }
            Source::Root(root) => {
                let pin = self.graph().root_pins(*root)?.into_iter().next();
                let pin = pin.ok_or_else(|| Error::SourceMissing { text: root.to_string() })?;
                Ok(Obtained {
                    pin,
                    skipped: Skipped::new(),
                    notes: Vec::new(),
                    provenance: json!({ "kind": "root" }),
                    environment: Environment::default(),
                    sealed: None,
                })
            }
        }
    }
}

fn obtained(
    source: &Source,
    options: &ImportOptions,
    imported: Imported,
    left_out: Skipped,
    environment: Environment,
) -> Obtained {
    let skipped = [left_out, imported.skipped].concat();
    let provenance = json!({
        "kind": "import",
        "source": source.label(),
        "entries": imported.files,
        "bytes": imported.bytes,
        "preserve_owners": options.preserve_owners,
        "skipped": skipped_json(&skipped),
    });
    let (pin, sealed) = (*imported.sealed.pin(), Some(imported.sealed));
    Obtained { pin, skipped, notes: Vec::new(), provenance, environment, sealed }
}

/// Unpacks an archive; answers what no root holds, and what the scratch directory cannot hold.
fn unpack(archive: &Path, to: &Scratch, skip_special: bool) -> Result<(Skipped, Records), Error> {
    let open = |path: &Path| {
        File::open(path).map_err(|source| Error::Io { action: "open", path: path.to_owned(), source })
    };
    let mut input = BufReader::with_capacity(1 << 16, open(archive)?);
    let (top, limits) = (open(to.path())?.into(), untar::Limits::default());
    let unpacked = untar::unpack(&mut input, &top, to.form(), limits, skip_special)?;
    let left_out = unpacked.summary.left_out.into_iter();
    Ok((left_out.map(|item| (item.path.into_bytes(), item.reason)).collect(), unpacked.records))
}

struct Obtained {
    pin: RootPin,
    skipped: Skipped,
    notes: Vec<String>,
    provenance: Value,
    /// What attempts of a group that begins with it run in, unless its policy says otherwise.
    environment: Environment,
    /// Proof of a root that the graph does not know yet; keeps collection away until it does.
    sealed: Option<esf_layerstack::SealedRoot>,
}

fn skipped_json(skipped: &Skipped) -> Value {
    skipped.iter().map(|(path, why)| json!({ "path": esf_exchange::readable(path), "reason": why })).collect()
}

/// The root of a node that `sealed_node` let pass.
pub(crate) fn root_of(node: &Node) -> Result<RootPin, Error> {
    node.root().ok_or(Error::NotSealed { node: node.node_id, last_sealed: None })
}
