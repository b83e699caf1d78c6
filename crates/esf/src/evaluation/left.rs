//! A file that a run left in its sandbox, read from outside. Invariants: it is a regular file and no part
//! of its path below the starting point is a link, so that it is where it says and nothing else; its length
//! is known before it is read, and nothing runs any more that could change either.

use std::path::{Path, PathBuf};

use esf_control::Found;
use esf_core::Problem;
use esf_core::record::Attempt;
use esf_worker::Client;

/// What is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    Bytes(Vec<u8>),
    /// Something that is not taken, and why.
    Unusable(String),
}

impl Left {
    pub(super) fn found(&self) -> Found<'_> {
        match self {
            Self::Nothing => Found::Nothing,
            Self::Bytes(bytes) => Found::Bytes(bytes),
            Self::Unusable(why) => Found::Unusable(why),
        }
    }
}

/// Reads the file `path` below `top`, up to `most` bytes.
///
/// # Errors
/// The worker's.
pub(super) fn read(
    client: &mut Client,
    attempt: &Attempt,
    top: &str,
    path: &str,
    most: usize,
) -> Result<Left, Problem> {
    let mut here = PathBuf::from(top);
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        let wanted = if parts.peek().is_some() { "directory" } else { "file" };
        let Some((kind, size)) = look(client, attempt, &here, part)? else { return Ok(Left::Nothing) };
        here.push(part);
        if kind != wanted {
            return Ok(Left::Unusable(format!("expected a {wanted} at {}, found a {kind}", here.display())));
        }
        if wanted == "file" && size > most as u64 {
            return Ok(Left::Unusable(format!("expected at most {most} bytes, found {size}")));
        }
    }
    let mut bytes = Vec::new();
    client.get_file(attempt.attempt_id, &here, &mut bytes)?;
    Ok(Left::Bytes(bytes))
}

/// Kind and length of the entry `name` of a directory.
fn look(
    client: &mut Client,
    attempt: &Attempt,
    directory: &Path,
    name: &str,
) -> Result<Option<(String, u64)>, Problem> {
    let mut found = None;
    let listed = client.list_files(attempt.attempt_id, directory, &mut |entry| {
        if entry.bytes() == name.as_bytes() {
            found = Some((entry.kind.clone(), entry.size));
        }
    });
    match listed {
        Ok(_) => Ok(found),
        Err(problem) if problem.code == "not_found" => Ok(None),
        Err(problem) => Err(problem),
    }
}
