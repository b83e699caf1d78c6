//! A bare repository of our own in a scratch directory, written by hand: nothing is configured in it, so
//! that git reads and writes objects there as it does everywhere.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::git::{Git, ObjectFormat};
use crate::patch::quoted;

/// The repository; its directory belongs to whoever gave it.
#[derive(Debug)]
pub struct Bench {
    git: Git,
    directory: PathBuf,
    format: ObjectFormat,
    /// Where new objects go, when not into the bench.
    objects: Option<PathBuf>,
}

impl Bench {
    /// Makes an empty one at `directory`, which must not exist.
    ///
    /// # Errors
    /// `Io` when it cannot be written.
    pub fn make(git: Git, directory: &Path, format: ObjectFormat) -> Result<Self, Error> {
        lay_out(directory, format).map_err(Error::io(directory.display().to_string()))?;
        Ok(Self { git, directory: directory.to_owned(), format, objects: None })
    }

    /// Lets it read the objects in the object directory `objects`, and in what that borrows from.
    ///
    /// # Errors
    /// `Io` when it cannot be written.
    pub fn borrow_from(&self, objects: &Path) -> Result<(), Error> {
        let place = self.directory.join("objects/info");
        let mut line = quoted("", objects.as_os_str().as_bytes());
        line.push(b'\n');
        fs::create_dir_all(&place)
            .and_then(|()| fs::write(place.join("alternates"), line))
            .map_err(Error::io(place.display().to_string()))
    }

    /// Lets it write into the object directory `objects` from now on.
    #[must_use]
    pub fn write_to(mut self, objects: &Path) -> Self {
        self.objects = Some(objects.to_owned());
        self
    }

    /// Where its own files lie.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How its objects are named.
    pub const fn format(&self) -> ObjectFormat {
        self.format
    }

    /// A command of git on it.
    pub(super) fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = self.git.command();
        command.current_dir(&self.directory).env("GIT_DIR", &self.directory);
        if let Some(objects) = &self.objects {
            command.env("GIT_OBJECT_DIRECTORY", objects);
        }
        command.args(arguments);
        command
    }
}

fn lay_out(directory: &Path, format: ObjectFormat) -> io::Result<()> {
    for inner in ["objects", "refs"] {
        fs::create_dir_all(directory.join(inner))?;
    }
    fs::write(directory.join("HEAD"), "ref: refs/heads/main\n")?;
    fs::write(directory.join("config"), config(format, "\tbare = true\n"))
}

/// A configuration that says the object format and what `core` adds.
pub(super) fn config(format: ObjectFormat, core: &str) -> String {
    let (version, extension) = match format {
        ObjectFormat::Sha1 => (0, ""),
        ObjectFormat::Sha256 => (1, "[extensions]\n\tobjectformat = sha256\n"),
    };
    format!("[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n{core}{extension}")
}
