//! What of the tree guests see, and where: pure arithmetic on paths, made by the executor and handed to the
//! host as data. Invariants: every path that leaves here is relative to the tree and says nothing of this
//! machine; it may still hold `..` and pass through links, which the union resolves inside the tree.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use esf_core::environment::{Environment, Preopen};
use esf_worker::executor::{ExecutorError, SpawnError};
use serde::{Deserialize, Serialize};

/// Most preopens of an environment.
const MOST_PREOPENS: usize = 64;

/// The directories that guests are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    /// Where the top of the tree is, absolute.
    pub(crate) workspace: String,
    /// In the order in which guests find them; a guest's working directory follows as `.`.
    pub(crate) preopens: Vec<Preopen>,
}

/// A working directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cwd {
    /// In the tree.
    pub(crate) path: Vec<u8>,
    /// As the guest is told.
    pub(crate) at: String,
    /// Whether somebody asked for it: then it must be in a preopen; else a guest may do without one.
    pub(crate) asked: bool,
}

impl View {
    /// What an environment gives.
    ///
    /// # Errors
    /// `Invalid` for a workspace or preopen that cannot be one.
    pub(crate) fn new(environment: &Environment) -> Result<Self, ExecutorError> {
        let workspace = environment.workspace.as_str();
        if !is_plain(Path::new(workspace).strip_prefix("/").unwrap_or(Path::new(".."))) {
            return invalid(format!("workspace {workspace:?}"), "an absolute path without `.` and `..`");
        }
        let workspace = format!("/{}", workspace.trim_matches('/'));
        let given = environment.wasi.as_ref().map_or(&[][..], |wasi| &wasi.preopens);
        if given.is_empty() {
            let all = Preopen { path: String::new(), at: workspace.clone(), write: true };
            return Ok(Self { workspace, preopens: vec![all] });
        }
        if given.len() > MOST_PREOPENS {
            return invalid(format!("{} preopens", given.len()), &format!("at most {MOST_PREOPENS}"));
        }
        for (index, preopen) in given.iter().enumerate() {
            if !is_plain(Path::new(&preopen.path)) || preopen.path.contains('\0') {
                let what = format!("preopen {:?}", preopen.path);
                return invalid(what, "a path in the tree, relative, without `.` and `..`");
            }
            if preopen.at.is_empty() || preopen.at.contains('\0') {
                return invalid(
                    format!("preopen {:?} at {:?}", preopen.path, preopen.at),
                    "a name for the guest",
                );
            }
            if given[..index].iter().any(|other| other.at == preopen.at) {
                return invalid(format!("two preopens at {:?}", preopen.at), "one for each name");
            }
        }
        Ok(Self { workspace, preopens: given.to_vec() })
    }

    /// The path in the tree of an absolute path inside; nothing when it is not of the tree.
    pub(crate) fn in_tree(&self, path: &Path) -> Option<Vec<u8>> {
        let absolute = Path::new("/").join(path);
        absolute.strip_prefix(&self.workspace).ok().map(|path| path.as_os_str().as_bytes().to_vec())
    }

    /// Where a command starts: `own`, relative to the environment's, relative to the workspace.
    ///
    /// # Errors
    /// `BadCwd` when that is not of the tree.
    pub(crate) fn cwd(&self, environment: &Environment, own: Option<&Path>) -> Result<Cwd, SpawnError> {
        let mut at = PathBuf::from(&self.workspace);
        at.extend(environment.cwd.as_deref().map(Path::new).into_iter().chain(own));
        let bad = |why: &str| SpawnError::BadCwd(format!("{}: {why}", at.display()));
        let asked = own.is_some() || environment.cwd.is_some();
        let path = self.as_named(&at).or_else(|| self.in_tree(&at));
        let path = path.ok_or_else(|| bad(&format!("it is not in {}, nor in a preopen", self.workspace)))?;
        if !asked && self.covering(&path).is_none() {
            // Nobody asked for the workspace, and it is not given: what is given first will do.
            let first = &self.preopens[0];
            return Ok(Cwd { path: first.path.clone().into_bytes(), at: first.at.clone(), asked });
        }
        let text = at.to_str().filter(|text| !text.contains('\0'));
        let text = text.ok_or_else(|| bad("guests have names of UTF-8 only"))?;
        Ok(Cwd { path, at: text.to_owned(), asked })
    }

    /// The path in the tree of what a guest calls by an absolute path; nothing when it is in no preopen.
    fn as_named(&self, path: &Path) -> Option<Vec<u8>> {
        let rest = |preopen: &Preopen| {
            let rest = path.strip_prefix(&preopen.at).ok()?;
            let path = Path::new(&preopen.path);
            let inside = if rest.as_os_str().is_empty() { path.to_owned() } else { path.join(rest) };
            Some((rest.as_os_str().len(), inside))
        };
        let (_, path) = self.preopens.iter().filter_map(rest).min_by_key(|(left, _)| *left)?;
        Some(path.into_os_string().into_vec())
    }

    /// Where in the tree a program named `name` is looked for from `cwd`; nothing when it is outside.
    pub(crate) fn program(&self, cwd: &Cwd, name: &str) -> Option<Vec<u8>> {
        if name.starts_with('/') {
            return self.as_named(Path::new(name)).or_else(|| self.in_tree(Path::new(name)));
        }
        let here = Path::new(OsStr::from_bytes(&cwd.path));
        Some(here.join(name).into_os_string().as_bytes().to_vec())
    }

    /// The innermost preopen that contains a path of the tree, and the rest of the path.
    pub(crate) fn covering(&self, path: &[u8]) -> Option<(usize, Vec<u8>)> {
        let path = Path::new(OsStr::from_bytes(path));
        let rest =
            |preopen: &Preopen| Some(path.strip_prefix(&preopen.path).ok()?.as_os_str().as_bytes().to_vec());
        let inside =
            self.preopens.iter().enumerate().filter_map(|(index, found)| Some((index, rest(found)?)));
        inside.min_by_key(|(_, rest)| rest.len())
    }
}

/// Whether a relative path has only names in it, if anything.
fn is_plain(path: &Path) -> bool {
    path.components().all(|component| matches!(component, Component::Normal(_)))
}

fn invalid<T>(what: String, expected: &str) -> Result<T, ExecutorError> {
    Err(ExecutorError::Invalid { what, expected: expected.to_owned() })
}

#[cfg(test)]
mod tests {
    use esf_core::environment::Wasi;

    use super::*;

    fn preopen(path: &str, at: &str) -> Preopen {
        Preopen { path: path.to_owned(), at: at.to_owned(), write: true }
    }

    fn with(workspace: &str, preopens: Vec<Preopen>) -> Environment {
        let wasi = Some(Wasi { preopens, ..Wasi::default() });
        Environment { workspace: workspace.to_owned(), wasi, ..Environment::default() }
    }

    #[test]
    fn without_preopens_the_tree_is_at_the_workspace() {
        let view = View::new(&with("/workspace/", vec![])).expect("a view");
        assert_eq!(view.preopens, [preopen("", "/workspace")]);
        assert_eq!(View::new(&with("/", vec![])).expect("a view").preopens, [preopen("", "/")]);
    }

    #[test]
    fn what_cannot_be_a_view_is_refused() {
        for workspace in ["", "x", "/a/../b", "/.."] {
            assert!(View::new(&with(workspace, vec![])).is_err(), "{workspace:?}");
        }
        let bad = [
            vec![preopen("/a", "/a")],
            vec![preopen("../a", "/a")],
            vec![preopen("a/../../b", "/a")],
            vec![preopen("a", "")],
            vec![preopen("a", "/x\0")],
            vec![preopen("a", "/x"), preopen("b", "/x")],
            vec![preopen("a", "/x"); 65],
        ];
        for preopens in bad {
            assert!(View::new(&with("/w", preopens.clone())).is_err(), "{preopens:?}");
        }
    }

    #[test]
    fn paths_inside_become_paths_of_the_tree() {
        let view = View::new(&with("/w", vec![])).expect("a view");
        let tree =
            |path: &str| view.in_tree(Path::new(path)).map(|path| String::from_utf8(path).expect("text"));
        assert_eq!(tree("/w/a/b").as_deref(), Some("a/b"));
        assert_eq!(tree("w/a").as_deref(), Some("a"));
        assert_eq!(tree("/w").as_deref(), Some(""));
        assert_eq!(tree("/w/../etc").as_deref(), Some("../etc"), "which the union refuses");
        assert_eq!((tree("/wa"), tree("/etc"), tree("a")), (None, None, None));
        let top = View::new(&with("/", vec![])).expect("a view");
        assert_eq!(top.in_tree(Path::new("/etc/x")).expect("of the tree"), b"etc/x");
    }

    #[test]
    fn directories_and_programs_are_looked_for_from_where_a_command_starts() {
        let view = View::new(&with("/w", vec![])).expect("a view");
        let plain = with("/w", vec![]);
        let cwd = |environment: &Environment, own: Option<&str>| view.cwd(environment, own.map(Path::new));
        let top = cwd(&plain, None).expect("the workspace");
        assert_eq!((&top.path[..], top.at.as_str(), top.asked), (&b""[..], "/w", false));
        let deep = Environment { cwd: Some("a".to_owned()), ..plain.clone() };
        let below = cwd(&deep, Some("b")).expect("below");
        assert_eq!((&below.path[..], below.at.as_str(), below.asked), (&b"a/b"[..], "/w/a/b", true));
        assert!(matches!(cwd(&deep, Some("/nowhere")), Err(SpawnError::BadCwd(_))));
        assert_eq!(view.program(&below, "tool").expect("relative"), b"a/b/tool");
        assert_eq!(view.program(&below, "../tool").expect("relative"), b"a/b/../tool");
        assert_eq!(view.program(&below, "/w/bin/tool").expect("absolute"), b"bin/tool");
        assert_eq!(view.program(&below, "/bin/tool"), None);
    }

    #[test]
    fn a_command_starts_where_a_preopen_is_called() {
        let environment = with("/w", vec![preopen("src", "/data"), preopen("src/deep", "/data/deep")]);
        let view = View::new(&environment).expect("a view");
        let cwd = |own: Option<&str>| {
            let cwd = view.cwd(&environment, own.map(Path::new)).expect("a directory");
            (String::from_utf8(cwd.path).expect("text"), cwd.at)
        };
        let is = |path: &str, at: &str| (path.to_owned(), at.to_owned());
        assert_eq!(cwd(Some("/data/x")), is("src/x", "/data/x"));
        assert_eq!(cwd(Some("/data/deep")), is("src/deep", "/data/deep"));
        assert_eq!(cwd(Some("/w/src")), is("src", "/w/src"));
        assert_eq!(cwd(None), is("src", "/data"), "the workspace itself is not given");
        assert!(view.cwd(&environment, Some(Path::new("/elsewhere"))).is_err());
    }

    #[test]
    fn the_innermost_preopen_decides() {
        let view = View::new(&with("/w", vec![preopen("a", "/a"), preopen("a/b", "/b")])).expect("a view");
        assert_eq!(view.covering(b"a/x"), Some((0, b"x".to_vec())));
        assert_eq!(view.covering(b"a/b/c"), Some((1, b"c".to_vec())));
        assert_eq!(view.covering(b"a"), Some((0, Vec::new())));
        assert_eq!(view.covering(b"ab"), None);
        assert_eq!(view.covering(b""), None);
    }
}
