//! The provenance statement that lies beside an export: an in-toto Statement v1, unsigned in this build
//! and saying so. Invariant: it names the exported bytes by a digest that can be computed without the
//! store, and every record it refers to by id; it holds no path of this machine.

use std::path::{Path, PathBuf};

use esf_core::{BlobId, Class, NodeId, Problem, RootId, RunId};
use esf_exchange::git::{Git, Repository};
use esf_exchange::identity;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Error;

/// The type of every in-toto statement.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// What the predicate of an export's statement is.
pub const PREDICATE_TYPE: &str = "https://github.com/ephemeral-sandbox-fabric/esf/export/v1";

/// What the predicate of the statement of exported rollouts is.
pub const RECORDS_TYPE: &str = "https://github.com/ephemeral-sandbox-fabric/esf/rollouts/v1";

/// Largest statement in bytes that is read back.
const STATEMENT_MAX: u64 = 16 << 20;

/// What the bytes of an export are known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A file: the plain BLAKE3 digest of its bytes.
    File(BlobId),
    /// A directory: the root id of what it holds.
    Directory(RootId),
    /// A commit: its name, which covers all it holds.
    Commit(String),
}

impl Subject {
    /// The digest as text.
    pub fn digest(&self) -> String {
        match self {
            Self::File(blob) => blob.to_string(),
            Self::Directory(root) => root.to_string(),
            Self::Commit(id) => id.clone(),
        }
    }

    fn key(&self) -> &'static str {
        match self {
            Self::File(_) => "blake3",
            Self::Directory(_) => "esfRoot",
            Self::Commit(_) => "gitCommit",
        }
    }

    fn hex(&self) -> String {
        self.digest().trim_start_matches("b3:").to_owned()
    }
}

/// Writes the statement about `subject`, which lies in a file or directory called `name`.
pub(crate) fn write(name: &str, subject: &Subject, predicate: &Value) -> Vec<u8> {
    write_of(PREDICATE_TYPE, name, subject, predicate)
}

/// The same with a predicate of another type.
pub(crate) fn write_of(kind: &str, name: &str, subject: &Subject, predicate: &Value) -> Vec<u8> {
    let statement = json!({
        "_type": STATEMENT_TYPE,
        "subject": [{ "name": name, "digest": { subject.key(): subject.hex() } }],
        "predicateType": kind,
        "predicate": predicate,
    });
    let mut text = serde_json::to_vec_pretty(&statement).expect("JSON values are always writable");
    text.push(b'\n');
    text
}

/// Where the statement about the export at `path` lies.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".provenance.json");
    path.with_file_name(name)
}

/// An export whose bytes are those of its statement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerifiedExport {
    /// How it was written.
    pub format: String,
    /// The exported node; none when a run's rollouts were exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<NodeId>,
    /// Its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_id: Option<RootId>,
    /// The run whose rollouts were exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The digest that was checked.
    pub digest: String,
    /// Whether somebody vouches for the statement; never in this build.
    pub signed: bool,
    /// Everything the statement says.
    pub statement: Value,
}

#[derive(Deserialize)]
struct Predicate {
    format: String,
    node: Option<NodeOf>,
    run: Option<RunOf>,
}

#[derive(Deserialize)]
struct RunOf {
    run_id: RunId,
}

#[derive(Deserialize)]
struct NodeOf {
    node_id: NodeId,
    root_id: RootId,
}

/// Checks the file or directory at `path` against the statement beside it; needs no store.
///
/// # Errors
/// `Unverified` when the statement is missing, malformed, or about other bytes.
pub fn verify_export(path: &Path) -> Result<VerifiedExport, Error> {
    let place = beside(path);
    let wrong = |expected: &str, found: String| Error::Unverified {
        path: path.to_owned(),
        expected: expected.to_owned(),
        found,
    };
    let text = read_bounded(&place).map_err(|error| wrong("a statement beside it", error.to_string()))?;
    let statement: Value =
        serde_json::from_slice(&text).map_err(|error| wrong("a statement in JSON", error.to_string()))?;
    if statement["_type"] != STATEMENT_TYPE {
        return Err(wrong(STATEMENT_TYPE, statement["_type"].to_string()));
    }
    let of_rollouts = statement["predicateType"] == RECORDS_TYPE;
    if !of_rollouts && statement["predicateType"] != PREDICATE_TYPE {
        return Err(wrong(PREDICATE_TYPE, statement["predicateType"].to_string()));
    }
    let predicate = Predicate::deserialize(&statement["predicate"])
        .map_err(|error| wrong("a predicate of an export", error.to_string()))?;
    if of_rollouts && predicate.run.is_none() || !of_rollouts && predicate.node.is_none() {
        return Err(wrong("a predicate of an export", "one that names neither node nor run".to_owned()));
    }
    let named = &statement["subject"][0]["digest"];
    let subject = if let Some(commit) = named["gitCommit"].as_str() {
        let repository = Repository::open(Git::system(), path).map_err(esf_exchange::Error::from)?;
        let whole = repository.verify(commit).map_err(esf_exchange::Error::from)?;
        whole.map_err(|said| wrong(&format!("commit {commit} with all it names"), said))?;
        Subject::Commit(commit.to_owned())
    } else if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        Subject::Directory(identity::of_directory(path)?)
    } else {
        Subject::File(identity::of_file(path)?.1)
    };
    if named[subject.key()] != subject.hex() {
        return Err(wrong(&named.to_string(), subject.digest()));
    }
    Ok(VerifiedExport {
        format: predicate.format,
        node_id: predicate.node.as_ref().map(|node| node.node_id),
        root_id: predicate.node.map(|node| node.root_id),
        run_id: predicate.run.map(|run| run.run_id),
        digest: subject.digest(),
        signed: false,
        statement,
    })
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(STATEMENT_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > STATEMENT_MAX {
        return Err(std::io::Error::other("a statement of more than 16 MiB"));
    }
    Ok(text)
}

/// The problem of an export that does not verify.
pub(crate) fn unverified(message: String, expected: &str, found: &str) -> Problem {
    Problem::new(Class::Damaged, "export_unverified", message)
        .expected(expected)
        .found(found)
        .remedy("export the node again, or get the export from where it was made")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn predicate() -> Value {
        let node = NodeId::from_bytes([7; 16]);
        let root = RootId::new(esf_core::Digest::of(b"root"));
        json!({ "format": "tar", "node": { "node_id": node, "root_id": root } })
    }

    #[test]
    fn a_tampered_export_or_statement_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.tar");
        fs::write(&path, b"bytes").unwrap();
        let text = write("out.tar", &Subject::File(BlobId::of(b"bytes")), &predicate());
        fs::write(beside(&path), &text).unwrap();
        let verified = verify_export(&path).unwrap();
        assert_eq!((verified.format.as_str(), verified.signed), ("tar", false));

        let code = |path: &Path| verify_export(path).unwrap_err().problem().code;
        fs::write(&path, b"other").unwrap();
        assert_eq!(code(&path), "export_unverified");
        fs::write(&path, b"bytes").unwrap();
        for (from, to) in [("Statement/v1", "Statement/v2"), ("\"format\"", "\"fmt\""), ("blake3", "sha256")]
        {
            let changed = String::from_utf8(text.clone()).unwrap().replace(from, to);
            fs::write(beside(&path), changed).unwrap();
            assert_eq!(code(&path), "export_unverified", "{from}");
        }
        fs::remove_file(beside(&path)).unwrap();
        assert_eq!(code(&path), "export_unverified");
    }

    #[test]
    fn a_directory_is_known_by_its_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), b"1").unwrap();
        let subject = Subject::Directory(identity::of_directory(&path).unwrap());
        fs::write(beside(&path), write("out", &subject, &predicate())).unwrap();
        assert_eq!(verify_export(&path).unwrap().digest, subject.digest());
        fs::write(path.join("file"), b"2").unwrap();
        assert!(verify_export(&path).is_err());
    }
}
