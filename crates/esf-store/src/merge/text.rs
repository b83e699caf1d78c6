//! The contents of files that both sides of a merge changed, merged line by line where that was asked for.
//! Invariant: only text that a glob names, within the bounds of `esf_core::merge::lines`, and never more than
//! `MOST_MERGED` bytes in memory for one merge; everything else stays a conflict.

use std::collections::BTreeMap;

use esf_core::BlobId;
use esf_core::manifest::{EntryKind, RootPin, escape, lookup};
use esf_core::merge::lines::{ALGORITHM, MAX_BYTES, MAX_LINES, VERSION, merge_lines};
use esf_core::merge::{Conflict, Contents};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Error, Store};

/// Most bytes of merged files that one merge makes.
const MOST_MERGED: u64 = 256 << 20;

/// Which files have their lines merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TextMerge {
    /// Globs of paths; one without `/` matches names at any depth. All files when empty.
    pub globs: Vec<String>,
}

impl TextMerge {
    /// What provenance says of it.
    pub(super) fn provenance(&self) -> Value {
        json!({
            "algorithm": ALGORITHM,
            "version": VERSION,
            "globs": self.globs,
            "max_bytes": MAX_BYTES,
            "max_lines": MAX_LINES,
        })
    }

    fn matcher(&self) -> Result<Option<GlobSet>, Error> {
        if self.globs.is_empty() {
            return Ok(None);
        }
        let bad = |error: globset::Error| Error::BadRequest {
            what: format!("text globs: {error}"),
            expected: "globs such as *.py or src/**/*.rs".to_owned(),
        };
        let mut set = GlobSetBuilder::new();
        for glob in &self.globs {
            let anywhere = if glob.contains('/') { glob.clone() } else { format!("**/{glob}") };
            let glob = GlobBuilder::new(anywhere.trim_start_matches('/')).literal_separator(true).build();
            set.add(glob.map_err(bad)?);
        }
        set.build().map(Some).map_err(bad)
    }
}

/// Merges lines for one step of a merge.
pub(super) struct Merger<'a> {
    store: &'a Store,
    wanted: bool,
    globs: Option<GlobSet>,
    /// Where contents may lie, at the same path.
    roots: &'a [RootPin],
    contents: &'a mut BTreeMap<BlobId, Vec<u8>>,
    merged: Vec<Vec<u8>>,
    failed: Option<Error>,
}

impl<'a> Merger<'a> {
    pub(super) fn new(
        store: &'a Store,
        text: Option<&TextMerge>,
        roots: &'a [RootPin],
        contents: &'a mut BTreeMap<BlobId, Vec<u8>>,
    ) -> Result<Self, Error> {
        let globs = text.map(TextMerge::matcher).transpose()?.flatten();
        let (merged, failed) = (Vec::new(), None);
        Ok(Self { store, wanted: text.is_some(), globs, roots, contents, merged, failed })
    }

    /// Merges the contents of the file at `path`; none leaves a conflict.
    pub(super) fn merge(&mut self, path: &[u8], sides: [Contents; 3]) -> Option<Contents> {
        let named = || self.globs.as_ref().is_none_or(|globs| globs.is_match(as_path(path)));
        if !self.wanted || self.failed.is_some() || !named() {
            return None;
        }
        self.try_merge(path, sides).unwrap_or_else(|error| {
            self.failed = Some(error);
            None
        })
    }

    /// The paths of files that were merged.
    pub(super) fn finish(self) -> Result<Vec<Vec<u8>>, Error> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.merged),
        }
    }

    fn try_merge(&mut self, path: &[u8], sides: [Contents; 3]) -> Result<Option<Contents>, Error> {
        let room = MOST_MERGED - self.contents.values().map(|bytes| bytes.len() as u64).sum::<u64>();
        let sizes = sides.map(|side| side.size);
        if sizes.iter().any(|size| *size > MAX_BYTES) || sizes.iter().sum::<u64>() > room {
            return Ok(None);
        }
        let [base, ours, theirs] = sides;
        let base = self.read(path, base)?;
        let (ours, theirs) = (self.read(path, ours)?, self.read(path, theirs)?);
        let Some(bytes) = merge_lines(&base, &ours, &theirs) else { return Ok(None) };
        let merged = Contents { blob: BlobId::of(&bytes), size: bytes.len() as u64 };
        self.contents.insert(merged.blob, bytes);
        self.merged.push(path.to_vec());
        Ok(Some(merged))
    }

    fn read(&self, path: &[u8], contents: Contents) -> Result<Vec<u8>, Error> {
        if let Some(bytes) = self.contents.get(&contents.blob) {
            return Ok(bytes.clone());
        }
        let stack = self.store.stack();
        for root in self.roots {
            let entry = lookup(stack.objects(), root, path)?;
            if entry.is_some_and(
                |entry| matches!(entry.kind, EntryKind::File { blob, .. } if blob == contents.blob),
            ) {
                return Ok(stack.read_blob(root, path, MAX_BYTES)?);
            }
        }
        unreachable!("a side of a merge is a node's, or was merged before")
    }
}

fn as_path(path: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    std::path::Path::new(std::ffi::OsStr::from_bytes(path))
}

/// The paths whose merged lines are in the result: not those at or beneath a conflict, where *ours* stays.
pub(super) fn taken(paths: &[Vec<u8>], conflicts: &[Conflict]) -> Vec<String> {
    let left = |path: &[u8]| {
        conflicts.iter().any(|conflict| {
            path.strip_prefix(&conflict.path[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    };
    paths.iter().filter(|path| !left(path)).map(|path| escape(path)).collect()
}
