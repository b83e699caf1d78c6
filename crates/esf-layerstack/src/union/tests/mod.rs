//! Tests of the union on plain directories as layers: no mount, but whiteouts need a kernel that lets
//! anybody make them (5.8).

mod basic;
mod limits;
mod paths;
mod threads;

use std::path::{Path, PathBuf};

use super::*;

/// Layers in a temporary directory, and the union over them.
pub(super) struct Bench {
    dir: tempfile::TempDir,
    pub(super) union: Union,
}

/// Runs a shell script in a directory.
pub(super) fn shell(dir: &Path, script: &str) {
    let status = std::process::Command::new("sh").args(["-euc", script]).current_dir(dir).status();
    assert!(status.expect("run sh").success(), "{script}");
}

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).expect("open").into()
}

impl Bench {
    /// The scripts make the lowers, the topmost first.
    pub(super) fn new(scripts: &[&str], quota: Option<u64>) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in ["upper", "work"] {
            std::fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        for (n, script) in scripts.iter().enumerate() {
            std::fs::create_dir(dir.path().join(n.to_string())).expect("mkdir");
            shell(&dir.path().join(n.to_string()), script);
        }
        let union = Self::open(dir.path(), scripts.len(), quota);
        Self { dir, union }
    }

    fn open(dir: &Path, lowers: usize, quota: Option<u64>) -> Union {
        let layers = Layers {
            lowers: (0..lowers).map(|n| open(&dir.join(n.to_string()))).collect(),
            upper: open(&dir.join("upper")),
            work: open(&dir.join("work")),
            form: Form::of_this_process(),
        };
        Union::new(layers, quota).expect("a union")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn open_how(&self, path: &str, how: Open) -> Result<Node> {
        self.union.open(&self.union.root(), path.as_bytes(), how)
    }

    pub(super) fn file(&self, path: &str, how: Open) -> Result<File> {
        match self.open_how(path, Open { follow: true, ..how })? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    pub(super) fn dir(&self, path: &str) -> Result<Dir> {
        match self.open_how(path, Open { follow: true, read: true, ..Open::default() })? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.file(path, Open { read: true, ..Open::default() })?;
        let mut buffer = vec![0; 1 << 16];
        let read = file.read_at(&mut buffer, 0)?;
        buffer.truncate(read);
        Ok(buffer)
    }

    pub(super) fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let how = Open { write: true, create: true, truncate: true, ..Open::default() };
        let file = self.file(path, how)?;
        match file.write_at(bytes, 0)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }

    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let listing = self.union.list(&self.dir(path).expect("a directory")).expect("list");
        let mut names: Vec<_> =
            listing.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
        names.sort();
        names
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let root = self.union.root();
        self.union.rename(&root, from.as_bytes(), &root, to.as_bytes())
    }

    /// What is counted is what a fresh count of the upper gives, and `work` is empty.
    pub(super) fn check(&self) {
        let quota = Quota::new(None);
        weigh::weigh(&open(&self.path("upper")), &quota).expect("weigh");
        assert_eq!(self.union.delta(), quota.used(), "the delta and a recount of it");
        assert_eq!(std::fs::read_dir(self.path("work")).expect("list").count(), 0, "work is empty");
    }
}
