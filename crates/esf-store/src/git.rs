//! A commit as a source: resolved in the user's repository, laid out in a scratch directory of the store, taken
//! in as an archive is. Invariant: the commit's id is on record; what was not followed (submodules, pointers
//! of git-lfs) is on record by path; what the working tree has beside its commit is told, never imported.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

use esf_core::record::Node;
use esf_exchange::git::{self, Bench, Commit, Git, Imported, Repository, Submodule, Uncommitted};
use esf_exchange::readable;
use esf_layerstack::{ImportOptions, Progress, Scratch, Skipped};
use serde_json::{Value, json};

use crate::{Error, Store};

/// How many pointers are named to the user.
const NAMED: usize = 10;

/// A commit that was taken in.
pub(crate) struct Taken {
    pub(crate) imported: esf_layerstack::Imported,
    /// Submodules: what was not followed.
    pub(crate) left_out: Skipped,
    /// What else the user wants to know.
    pub(crate) notes: Vec<String>,
    /// For the record.
    pub(crate) provenance: Value,
}

/// Where a group's first tree came from, when that was a commit.
pub(crate) struct Origin {
    pub(crate) commit: String,
    pub(crate) format: git::ObjectFormat,
    pub(crate) submodules: Vec<Submodule>,
}

impl Store {
    /// Takes the commit `revision` of the repository at `directory` in; `private` adds a `.git`.
    pub(crate) fn take_commit(
        &self,
        directory: &Path,
        revision: &OsStr,
        private: bool,
        options: &ImportOptions,
        progress: &dyn Progress,
    ) -> Result<Taken, Error> {
        let told = esf_exchange::Error::from;
        let repository = Repository::open(Git::system(), directory).map_err(told)?;
        let id = repository.resolve(revision).map_err(told)?;
        let branch = repository.branch_of(revision).map_err(told)?;
        let (tree, work) = (self.stack().scratch()?, self.stack().scratch()?);
        let bench = bench(&work, repository.format())?;
        bench.borrow_from(repository.objects())?;
        let commit = bench.commit(&id).map_err(told)?;
        let missing = || git::Error::ObjectMissing { id: id.clone(), path: String::new() };
        let commit = commit.ok_or_else(missing).map_err(told)?;
        let how = git::Options { private, branch, ..git::Options::default() };
        let top = open(tree.path())?.into();
        let found = git::import(&bench, &commit, &top, tree.form(), &how)?;
        let uncommitted = git::uncommitted(&repository, &bench);
        let options = ImportOptions { preserve_owners: false, ..options.clone() };
        let imported = self.stack().import_scratch(&tree, &found.records, &options, progress)?;
        let notes = notes(&commit, &found, &uncommitted);
        let provenance = provenance(&repository, &commit, &found, &uncommitted, private);
        let left_out = found.submodules.into_iter().map(|submodule| {
            let why = format!("a submodule at commit {}, not followed", submodule.commit);
            (submodule.path, why)
        });
        Ok(Taken { imported, left_out: left_out.collect(), notes, provenance })
    }
}

/// A repository of our own in a scratch directory.
pub(crate) fn bench(work: &Scratch, format: git::ObjectFormat) -> Result<Bench, esf_exchange::Error> {
    Bench::make(Git::system(), &work.path().join("repository"), format)
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::Io { action: "open", path: path.to_owned(), source })
}

fn listed(paths: &[Vec<u8>], most: usize) -> String {
    let named: Vec<_> = paths.iter().take(most).map(|path| readable(path)).collect();
    named.join(", ")
}

fn notes(
    commit: &Commit,
    found: &Imported,
    uncommitted: &Result<Option<Uncommitted>, git::Error>,
) -> Vec<String> {
    let mut notes = Vec::new();
    match uncommitted {
        Ok(None) => {}
        Ok(Some(changes)) if changes.paths == 0 => {}
        Ok(Some(changes)) => notes.push(format!(
            "not included: uncommitted changes of {} paths in the working tree ({}{}); commit {} was imported",
            changes.paths,
            listed(&changes.some, changes.some.len()),
            if changes.paths > changes.some.len() as u64 { ", ..." } else { "" },
            commit.id.get(..12).unwrap_or(&commit.id),
        )),
        Err(error) => notes.push(format!("whether the working tree has uncommitted changes is unknown: {error}")),
    }
    if !found.pointers.is_empty() {
        notes.push(format!(
            "not followed: {} git-lfs pointers, imported as the pointers they are ({}{})",
            found.pointers.len(),
            listed(&found.pointers, NAMED),
            if found.pointers.len() > NAMED { ", ..." } else { "" },
        ));
    }
    notes
}

fn provenance(
    repository: &Repository,
    commit: &Commit,
    found: &Imported,
    uncommitted: &Result<Option<Uncommitted>, git::Error>,
    private: bool,
) -> Value {
    let submodules = found.submodules.iter();
    json!({
        "commit": commit.id,
        "tree": commit.tree,
        "object_format": repository.format(),
        "private_git": private,
        "submodules": submodules
            .map(|submodule| json!({ "path": readable(&submodule.path), "commit": submodule.commit }))
            .collect::<Vec<_>>(),
        "lfs_pointers": found.pointers.iter().map(|path| readable(path)).collect::<Vec<_>>(),
        "uncommitted_paths": uncommitted.as_ref().ok().and_then(|found| found.as_ref().map(|found| found.paths)),
    })
}

/// What a node without parents says about the commit it came from.
pub(crate) fn origin(node: &Node) -> Option<Origin> {
    let record = node.provenance.get("git")?;
    let format = serde_json::from_value(record.get("object_format")?.clone()).ok()?;
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let submodules = record.get("submodules")?.as_array()?.iter().filter_map(|submodule| {
        Some(Submodule { path: text(submodule, "path")?.into_bytes(), commit: text(submodule, "commit")? })
    });
    Some(Origin { commit: text(record, "commit")?, format, submodules: submodules.collect() })
}
