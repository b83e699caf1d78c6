//! What the tour works on: the small project that ships with `esf`, or the user's tree with given or
//! generic agents. Its files lie beside the store (`STORE-quickstart`) and stay, so that every shown
//! command works by hand afterwards.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use esf_core::{Class, Problem};

use crate::args;
use crate::context::Context;

/// A named shell command that works on the tree.
pub(super) struct Agent {
    pub(super) name: String,
    pub(super) command: String,
    /// Where the command's text lies, when it lies in a file.
    pub(super) file: Option<PathBuf>,
}

/// The tour's inputs, all on disk.
pub(super) struct Plan {
    pub(super) place: PathBuf,
    pub(super) tree: PathBuf,
    pub(super) agents: Vec<Agent>,
    pub(super) evaluator: PathBuf,
    pub(super) policy: PathBuf,
}

macro_rules! shipped {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../examples/", $path)))),*]
    };
}

const SHIPPED: &[(&str, &str)] = shipped![
    "wordcount/wordcount",
    "wordcount/count.awk",
    "wordcount/cases.sh",
    "wordcount/test.sh",
    "agents/wrong.sh",
    "agents/half.sh",
    "agents/right.sh",
    "evaluator.toml",
    "evaluator/cases.sh",
    "evaluator/evaluate.sh",
];

const POLICY: &str =
    "# Two sandboxes of this group may live at once; the rest wait.\n[quotas]\nmax_live_attempts = 2\n";

const GENERIC: [(&str, &str); 3] = [
    ("note", "printf 'Written in a sandbox.\\n' > ESF-NOTE.md"),
    (
        "script",
        "mkdir -p esf-tools && printf '#!/bin/sh\\necho hello\\n' > esf-tools/hello && chmod +x esf-tools/hello",
    ),
    ("list", "find . -type f ! -path './.git/*' | LC_ALL=C sort | head -n 1000 > ESF-FILES.txt"),
];

impl Plan {
    pub(super) fn make(context: &Context, arguments: &args::Quickstart) -> Result<Self, Problem> {
        let place = place(context.dir());
        make_directory(&place)?;
        let policy = place.join("policy.toml");
        write(&policy, POLICY)?;
        match &arguments.dir {
            None => Self::shipped(place, policy, arguments),
            Some(dir) => Self::own(place, policy, dir, arguments),
        }
    }

    fn shipped(place: PathBuf, policy: PathBuf, arguments: &args::Quickstart) -> Result<Self, Problem> {
        for (path, text) in SHIPPED {
            let file = place.join(path);
            make_directory(file.parent().expect("every shipped file has a directory"))?;
            write(&file, text)?;
        }
        let script = |name: &str| {
            let path = format!("agents/{name}.sh");
            let text =
                SHIPPED.iter().find(|(shipped, _)| *shipped == path).expect("the agents are shipped").1;
            Agent { name: name.to_owned(), command: text.to_owned(), file: Some(place.join(path)) }
        };
        let agents = match arguments.agent.as_slice() {
            [] => ["wrong", "half", "right"].map(script).into(),
            given => given_agents(given),
        };
        let evaluator = match &arguments.test {
            None => place.join("evaluator.toml"),
            Some(test) => own_evaluator(&place, test)?,
        };
        Ok(Self { tree: place.join("wordcount"), place, agents, evaluator, policy })
    }

    fn own(
        place: PathBuf,
        policy: PathBuf,
        dir: &Path,
        arguments: &args::Quickstart,
    ) -> Result<Self, Problem> {
        let tree = fs::canonicalize(dir).map_err(|error| {
            Problem::new(
                Class::NotFound,
                "source_not_found",
                format!("cannot open {}: {error}", dir.display()),
            )
            .expected("a directory that can be read")
            .remedy("check the path, or leave it out for the project that ships with esf")
        })?;
        let agents = match arguments.agent.as_slice() {
            [] => GENERIC
                .map(|(name, command)| Agent { name: name.into(), command: command.into(), file: None })
                .into(),
            given => given_agents(given),
        };
        let test = arguments.test.as_deref().unwrap_or("test -n \"$(ls -A)\"");
        let evaluator = own_evaluator(&place, test)?;
        Ok(Self { place, tree, agents, evaluator, policy })
    }
}

fn given_agents(commands: &[String]) -> Vec<Agent> {
    let agent = |(index, command): (usize, &String)| Agent {
        name: format!("agent-{}", index + 1),
        command: command.clone(),
        file: None,
    };
    commands.iter().enumerate().map(agent).collect()
}

fn own_evaluator(place: &Path, test: &str) -> Result<PathBuf, Problem> {
    let command = toml::Value::Array(["sh", "-c", test].map(|word| word.to_owned().into()).into());
    let digest = esf_core::Digest::of(test.as_bytes()).to_string();
    // Another tour on this store may test otherwise, and this one's commands stay true.
    let path = place.join(format!("own-test-{}.toml", &digest[3..15]));
    let text = format!(
        "name = \"own-test\"\nversion = \"{}\"\ncommand = {command}\ntimeout = \"10m\"\n",
        &digest[3..15]
    );
    write(&path, &text)?;
    Ok(path)
}

fn place(store: &Path) -> PathBuf {
    let mut name = store.file_name().unwrap_or_else(|| "esf".as_ref()).to_owned();
    name.push("-quickstart");
    store.with_file_name(name)
}

fn make_directory(path: &Path) -> Result<(), Problem> {
    fs::create_dir_all(path).map_err(|error| crate::context::io_problem("create", path, &error))
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
    let write = || {
        if fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        // Another tour may be reading it: it is whole at every moment.
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        new.write_all(text.as_bytes())?;
        new.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        new.persist(path).map(drop).map_err(|error| error.error)
    };
    write().map_err(|error| crate::context::io_problem("write", path, &error))
}
