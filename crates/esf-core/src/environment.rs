//! The execution environment of an attempt: pinned, digested and part of every result's provenance
//! (design section 5). Pure data; paths in it are paths *inside* the sandbox, except `Bind::source`,
//! which a user asked for by name and which is on record for that reason.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::{Digest, EnvironmentDigest};
use crate::manifest::RootPin;

/// Which back end executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    /// Linux namespaces and an overlay.
    #[default]
    Oci,
    /// WebAssembly with preopened directories.
    Wasi,
}

impl ExecutorKind {
    /// The stable text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Oci => "oci",
            Self::Wasi => "wasi",
        }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Oci, Self::Wasi].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// What lies beneath and around the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Base {
    /// This machine's system directories, read-only; not pinned.
    #[default]
    Host,
    /// The tree is the whole filesystem.
    Root,
    /// Another root below, the workspace mounted on top; writes outside it are ephemeral.
    Image(RootPin),
}

/// Resource limits; `None` means not limited by ESF. Honoured or refused, never clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Thousandths of one processor.
    pub cpu_milli: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes of the private delta.
    pub disk: Option<u64>,
}

/// What the network reaches.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Network {
    /// Nothing.
    #[default]
    None,
    /// Whatever the host reaches.
    Host,
    /// Only these `HOST[:PORT]`.
    Allow {
        /// The allowed destinations.
        hosts: Vec<String>,
    },
}

/// A host path bound read-only into the sandbox on a user's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// The host path, as the user named it.
    pub source: String,
    /// Where it appears inside.
    pub at: String,
}

/// A program given to an attempt from outside its tree, by what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedModule {
    /// The name commands call it by; no slash in it.
    pub name: String,
    /// The digest of its bytes, under which the store keeps them as an artifact.
    pub digest: Digest,
}

/// A directory of the tree that a guest is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preopen {
    /// Where it is in the tree, relative; empty for all of it.
    pub path: String,
    /// What the guest calls it.
    pub at: String,
    /// Whether the guest may change what is in it.
    pub write: bool,
}

/// What pins how WebAssembly guests run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wasi {
    /// The engine: its name, its version, a digest of what decides how it compiles and runs.
    pub engine: String,
    /// Programs given from outside the tree.
    pub modules: Vec<PinnedModule>,
    /// The directories a guest is given; the whole tree, writable, when there is none.
    pub preopens: Vec<Preopen>,
    /// Most units of work of each command, about one an instruction; not counted when absent.
    pub fuel: Option<u64>,
}

/// Everything that pins how commands of an attempt run. The defaults are those of `Default`: OCI on
/// the `host` base, workspace at `/workspace`, root inside, no network, no secrets, no limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Environment {
    /// The back end.
    pub executor: ExecutorKind,
    /// What lies beneath and around the workspace.
    pub base: Base,
    /// Where the tree is mounted inside; `/` for the `root` base.
    pub workspace: String,
    /// `USER[:GROUP]` by name or number; root inside when absent.
    pub user: Option<String>,
    /// Variables added to the executor's defaults.
    pub env: BTreeMap<String, String>,
    /// Working directory inside; the workspace when absent.
    pub cwd: Option<String>,
    /// `LANG` inside.
    pub locale: String,
    /// Resource limits.
    pub limits: Limits,
    /// What the network reaches.
    pub network: Network,
    /// Name of the secrets policy; `none` gives no secrets.
    pub secrets_policy: String,
    /// Digest of the seccomp profile, when the executor has one.
    pub seccomp: Option<Digest>,
    /// Further host paths, read-only.
    pub binds: Vec<Bind>,
    /// What only the `wasi` executor needs; left out of the JSON, and so of the digest, where it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wasi: Option<Wasi>,
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            executor: ExecutorKind::Oci,
            base: Base::Host,
            workspace: "/workspace".to_owned(),
            user: None,
            env: BTreeMap::new(),
            cwd: None,
            locale: "C.UTF-8".to_owned(),
            limits: Limits::default(),
            network: Network::None,
            secrets_policy: "none".to_owned(),
            seccomp: None,
            binds: Vec::new(),
            wasi: None,
        }
    }
}

impl Environment {
    /// The digest that provenance pins.
    pub fn digest(&self) -> EnvironmentDigest {
        EnvironmentDigest::new(canonical::digest("esf environment v1", self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_depends_on_what_is_pinned() {
        let plain = Environment::default();
        assert_eq!(plain.digest(), Environment::default().digest());
        let others = [
            Environment { executor: ExecutorKind::Wasi, ..plain.clone() },
            Environment { base: Base::Root, ..plain.clone() },
            Environment { env: [("A".to_owned(), "1".to_owned())].into(), ..plain.clone() },
            Environment { limits: Limits { pids: Some(1), ..Limits::default() }, ..plain.clone() },
            Environment { network: Network::Host, ..plain.clone() },
        ];
        for other in others {
            assert_ne!(other.digest(), plain.digest(), "{other:?}");
        }
    }

    /// Records made by an earlier build are found again by their environment's digest.
    #[test]
    fn the_digest_of_an_environment_without_wasi_is_what_it_always_was() {
        let plain = Environment::default();
        assert!(!serde_json::to_string(&plain).expect("json").contains("wasi\""));
        assert_eq!(
            plain.digest().to_string(),
            "b3:1bd469078b6b632c6f6a30613b15eee8c3e5a304ccd24246010c1918528c6c1a"
        );
    }

    #[test]
    fn everything_about_guests_is_pinned() {
        let of = |wasi: Wasi| Environment { wasi: Some(wasi), ..Environment::default() };
        let module = PinnedModule { name: "a.wasm".to_owned(), digest: Digest::of(b"a") };
        let preopen = Preopen { path: "src".to_owned(), at: "/src".to_owned(), write: false };
        let all = [
            Environment::default(),
            of(Wasi::default()),
            of(Wasi { engine: "e".to_owned(), ..Wasi::default() }),
            of(Wasi { modules: vec![module.clone()], ..Wasi::default() }),
            of(Wasi {
                modules: vec![PinnedModule { digest: Digest::of(b"b"), ..module }],
                ..Wasi::default()
            }),
            of(Wasi { preopens: vec![preopen.clone()], ..Wasi::default() }),
            of(Wasi { preopens: vec![Preopen { write: true, ..preopen }], ..Wasi::default() }),
            of(Wasi { fuel: Some(1), ..Wasi::default() }),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                assert_ne!(one.digest(), other.digest(), "{one:?} {other:?}");
            }
            let text = serde_json::to_string(one).expect("json");
            assert_eq!(serde_json::from_str::<Environment>(&text).expect("same"), *one);
        }
    }

    #[test]
    fn json_round_trips_and_unknown_fields_are_refused() {
        let environment = Environment { base: Base::Root, ..Environment::default() };
        let text = serde_json::to_string(&environment).expect("json");
        assert_eq!(serde_json::from_str::<Environment>(&text).expect("same"), environment);
        assert!(serde_json::from_str::<Environment>(r#"{"memory": 1}"#).is_err());
    }
}
