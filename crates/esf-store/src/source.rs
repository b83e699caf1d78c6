//! What a root is made from, as people write it: parsed once, at the edge.
//! Invariant: a form that this build cannot read is refused with `not_supported`, never guessed at.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use esf_core::RootId;

use crate::Error;

/// Where a root comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A tar archive, not compressed: a whole filesystem.
    Tar(PathBuf),
    /// A commit of a git repository of this machine.
    Git {
        /// The top of a working tree, or a git directory.
        directory: PathBuf,
        /// What git resolves to a commit.
        revision: OsString,
        /// Adds a private `.git` that holds the commit.
        private: bool,
    },
    /// A sealed node of this store, as text that the graph resolves.
    Node(String),
    /// A root of this store.
    Root(RootId),
}

/// Reads `text` as a directory, `tar:`, `oci:` or `git:` source, a root id, or a node.
///
/// A path wins over a node's name when it exists; `./NAME` always means the path.
///
/// # Errors
/// `NotSupported` for forms that this build cannot read yet, `SourceMissing` for what is nothing.
pub fn parse_source(text: &str) -> Result<Source, Error> {
    if let Some(path) = text.strip_prefix("tar:") {
        return existing_file(Path::new(path), text).map(Source::Tar);
    }
    if let Some(rest) = text.strip_prefix("git:") {
        return parse_git(rest);
    }
    for (prefix, what) in [("oci:", "an OCI layout"), ("docker:", "an image")] {
        if text.starts_with(prefix) {
            return Err(Error::NotSupported { what: format!("import of {what}") });
        }
    }
    if text.starts_with("b3:") {
        return text.parse().map(Source::Root).map_err(|_| Error::SourceMissing { text: text.to_owned() });
    }
    let path = Path::new(text.strip_prefix("dir:").unwrap_or(text));
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(Source::Directory(path.to_owned())),
        Ok(found) if found.is_file() && path.extension().is_some_and(|end| end == "tar") => {
            Ok(Source::Tar(path.to_owned()))
        }
        Ok(_) => Err(Error::NotSupported { what: format!("import of the file {}", path.display()) }),
        Err(error) if may_be_node(text) && error.kind() == std::io::ErrorKind::NotFound => {
            Ok(Source::Node(text.to_owned()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::SourceMissing { text: text.to_owned() })
        }
        Err(source) => Err(Error::Io { action: "look at", path: path.to_owned(), source }),
    }
}

/// `DIR` or `DIR@REV`; of several readings the one with the longest directory that exists.
fn parse_git(text: &str) -> Result<Source, Error> {
    let mut ends = std::iter::once(text.len()).chain(text.rmatch_indices('@').map(|(at, _)| at));
    let end = ends.find(|end| Path::new(&text[..*end]).is_dir());
    let end = end.ok_or_else(|| Error::SourceMissing { text: format!("git:{text}") })?;
    let revision = text.get(end + 1..).unwrap_or("HEAD").into();
    Ok(Source::Git { directory: PathBuf::from(&text[..end]), revision, private: true })
}

fn existing_file(path: &Path, text: &str) -> Result<PathBuf, Error> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(path.to_owned()),
        Ok(_) => Err(Error::SourceMissing { text: text.to_owned() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::SourceMissing { text: text.to_owned() })
        }
        Err(source) => Err(Error::Io { action: "look at", path: path.to_owned(), source }),
    }
}

/// Node ids and `GROUP:NAME` have no slash.
fn may_be_node(text: &str) -> bool {
    !text.contains('/') && (text.starts_with("nod_") || text.contains(':') && !text.starts_with("dir:"))
}

impl Source {
    /// What distinguishes it from every other source: for a request's digest, never stored as text.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Directory(path) | Self::Tar(path) => {
                let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("{} {}", self.label(), whole.as_os_str().as_encoded_bytes().escape_ascii())
            }
            Self::Git { directory, private, .. } => {
                let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
                format!("{} {} {private}", self.label(), whole.as_os_str().as_encoded_bytes().escape_ascii())
            }
            Self::Node(_) | Self::Root(_) => self.label(),
        }
    }

    /// The same without a private `.git`; nothing changes for what is no commit.
    #[must_use]
    pub fn without_git(self) -> Self {
        match self {
            Self::Git { directory, revision, .. } => Self::Git { directory, revision, private: false },
            other => other,
        }
    }

    /// How the group records it: the kind and a name, never a path.
    pub fn label(&self) -> String {
        let named = |kind: &str, path: &Path| match path.file_name() {
            Some(name) => format!("{kind}:{}", name.to_string_lossy()),
            None => kind.to_owned(),
        };
        match self {
            Self::Directory(path) => named("directory", path),
            Self::Tar(path) => named("tar", path),
            Self::Git { directory, revision, .. } => {
                format!("{}@{}", named("git", directory), revision.to_string_lossy())
            }
            Self::Node(text) => format!("node:{text}"),
            Self::Root(root) => format!("root:{root}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_or_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        assert_eq!(parse_source(path).unwrap(), Source::Directory(dir.path().to_owned()));
        assert_eq!(parse_source(&format!("dir:{path}")).unwrap(), Source::Directory(dir.path().to_owned()));
        assert_eq!(parse_source("nod_12ab").unwrap(), Source::Node("nod_12ab".to_owned()));
        assert_eq!(parse_source("project:@").unwrap(), Source::Node("project:@".to_owned()));
        let root = format!("b3:{}", "0".repeat(64));
        assert_eq!(parse_source(&root).unwrap(), Source::Root(root.parse().unwrap()));
        let archive = dir.path().join("x.tar");
        std::fs::write(&archive, b"").unwrap();
        for text in [archive.to_str().unwrap(), &format!("tar:{}", archive.display())] {
            assert_eq!(parse_source(text).unwrap(), Source::Tar(archive.clone()), "{text}");
        }
        let file = dir.path().join("x.tar.gz");
        std::fs::write(&file, b"").unwrap();
        let odd = dir.path().join("a@b");
        std::fs::create_dir(&odd).unwrap();
        for (text, revision) in [("", "HEAD"), ("@v1", "v1"), ("@HEAD@{1}", "HEAD@{1}"), ("@", "")] {
            let found = parse_source(&format!("git:{}{text}", odd.display())).unwrap();
            let expected = Source::Git { directory: odd.clone(), revision: revision.into(), private: true };
            assert_eq!(found, expected, "{text}");
        }
        let table = [
            ("git:/nonexistent/repository@HEAD", "source_missing"),
            ("oci:layout", "not_supported"),
            ("tar:/nonexistent/x.tar", "source_missing"),
            (file.to_str().unwrap(), "not_supported"),
            ("/nonexistent/esf", "source_missing"),
            ("no-such-name", "source_missing"),
            ("b3:12", "source_missing"),
        ];
        for (text, code) in table {
            assert_eq!(parse_source(text).unwrap_err().problem().code, code, "{text}");
        }
    }

    #[test]
    fn labels_hold_no_path() {
        assert_eq!(Source::Directory("/home/me/project".into()).label(), "directory:project");
        assert_eq!(Source::Directory("/".into()).label(), "directory");
    }
}
