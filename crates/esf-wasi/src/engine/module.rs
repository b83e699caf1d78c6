//! What a file that is to run is, found by looking at it, and what is said of one that cannot.
//!
//! Runs in the compiler's process only: nothing else here reads WebAssembly. Everything that would make the
//! start of a guest fail is found before it is compiled, where the answer can name what was expected and what
//! was found.

use serde::{Deserialize, Serialize};
use wasmparser::{Encoding, Parser, Payload};

use super::preview1;

/// The largest module that is read, in bytes.
pub(crate) const LARGEST: u64 = 256 << 20;

/// Bytes that tell what a file is.
pub(super) const HEAD: usize = 256;

/// Names that one message lists.
pub(super) const NAMES: usize = 8;

/// Characters of one message.
const LONGEST: usize = 500;

/// The entry point of a component, without its version.
const RUN: &str = "wasi:cli/run";

/// Every interface that a guest may import, at any version that 0.2.12 serves.
const INTERFACES: &[&str] = &[
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/network",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
    "wasi:sockets/udp",
    "wasi:sockets/udp-create-socket",
];

/// Why a file does not run as a guest. Crosses the pipe of the compiler's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum ModuleError {
    /// Neither a component nor a module.
    #[error("expected a WebAssembly component or module, found {found}")]
    NotWasm {
        /// What it looks like.
        found: String,
    },
    /// Made for another version of WebAssembly or WASI.
    #[error("expected {expected}, found {found}")]
    OtherVersion {
        /// What runs here.
        expected: String,
        /// What the file asks for.
        found: String,
    },
    /// Has no entry point.
    #[error("expected an export {expected}, found {found}")]
    MissingExport {
        /// The entry point.
        expected: String,
        /// What there is in its place.
        found: String,
    },
    /// Needs what is not provided here.
    #[error("expected imports of WASI 0.2 or preview 1 only, found {}", .names.join(", "))]
    UnknownImport {
        /// The imports that nobody provides, the first few.
        names: Vec<String>,
    },
    /// Larger than what is read.
    #[error("expected a module of at most {limit} bytes, found {found}")]
    TooLarge {
        /// Bytes allowed.
        limit: u64,
        /// Bytes found, or one more than allowed when it was not read to its end.
        found: u64,
    },
    /// Compiling it took more memory than a compiler may have.
    #[error("expected a module that compiles in {limit} bytes of memory, found one that needs more")]
    Memory {
        /// Bytes allowed.
        limit: u64,
    },
    /// Compiling it took longer than a compiler may.
    #[error("expected a module that compiles in {limit_ms} ms, found one that takes longer")]
    Time {
        /// Milliseconds allowed.
        limit_ms: u64,
    },
    /// Begins like a module and is not a valid one.
    #[error("expected a valid module, found {reason}")]
    Broken {
        /// What the reader, the adapter or the compiler said.
        reason: String,
    },
}

impl ModuleError {
    /// What a reader or compiler said.
    pub(super) fn broken(reason: impl std::fmt::Display) -> Self {
        Self::Broken { reason: reason.to_string() }
    }

    /// The same, of bounded length and without anything that a terminal would act on: names come from the module.
    pub(super) fn printable(mut self) -> Self {
        match &mut self {
            Self::NotWasm { found } => printable(found),
            Self::OtherVersion { expected, found } | Self::MissingExport { expected, found } => {
                printable(expected);
                printable(found);
            }
            Self::UnknownImport { names } => {
                names.truncate(NAMES);
                names.iter_mut().for_each(printable);
            }
            Self::Broken { reason } => printable(reason),
            Self::TooLarge { .. } | Self::Memory { .. } | Self::Time { .. } => {}
        }
        self
    }
}

/// On one line, control characters escaped, at most [`LONGEST`] characters.
pub(super) fn printable(text: &mut String) {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    *text = line.chars().take(LONGEST).map(shown).collect();
}

/// What a file is, by its first eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Component,
    Module,
}

/// Looks at the first bytes of a file, of which [`HEAD`] are enough.
pub(super) fn kind(bytes: &[u8]) -> Result<Kind, ModuleError> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let not = |found: &str| Err(ModuleError::NotWasm { found: found.to_owned() });
    let Some(version) = head.strip_prefix(b"\0asm") else {
        return match head {
            [] => not("an empty file"),
            _ if head.starts_with(b"\x7fELF") => not("a native program (ELF)"),
            _ if head.starts_with(b"#!") => not("a script"),
            _ if is_text(head) => {
                not("the text format: translate it to binary first (wat2wasm, wasm-tools parse)")
            }
            _ if b"\0asm".starts_with(head) => not("a truncated file"),
            _ => not("something else"),
        };
    };
    match version {
        [1, 0, 0, 0, ..] => Ok(Kind::Module),
        [0x0d, 0, 1, 0, ..] => Ok(Kind::Component),
        [a, b, c, d, ..] => Err(ModuleError::OtherVersion {
            expected: "WebAssembly version 1 (module) or 13, layer 1 (component)".to_owned(),
            found: format!(
                "version {}, layer {}",
                u16::from_le_bytes([*a, *b]),
                u16::from_le_bytes([*c, *d])
            ),
        }),
        _ => not("a truncated file"),
    }
}

/// Whether it begins like the text format, after blanks and comments.
fn is_text(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let code = text.lines().map(str::trim_start).find(|line| !line.is_empty() && !line.starts_with(";;"));
    code.is_some_and(|line| line.starts_with("(module") || line.starts_with("(component"))
}

/// The component that a file is, or becomes by the preview 1 adapter; its imports and entry point are there.
pub(super) fn component(bytes: Vec<u8>) -> Result<Vec<u8>, ModuleError> {
    match kind(&bytes)? {
        Kind::Component => check_component(&bytes).map(|()| bytes),
        Kind::Module => preview1::adapt(&bytes),
    }
}

/// Checks the outermost names of a component.
fn check_component(bytes: &[u8]) -> Result<(), ModuleError> {
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(ModuleError::broken)? {
            Payload::Version { encoding: Encoding::Component, .. } if depth == 0 => depth = 1,
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    imports.push(import.map_err(ModuleError::broken)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    exports.push(export.map_err(ModuleError::broken)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    check_imports(&imports)?;
    check_run(&exports)
}

/// Every import must be an interface of WASI 0.2 that is provided here.
fn check_imports(imports: &[String]) -> Result<(), ModuleError> {
    for import in imports {
        if let Some(("wasi", _, version)) = split(import)
            && !is_served(version)
        {
            return Err(other_version(import));
        }
    }
    let known = |name: &String| {
        let served = |(namespace, interface, _)| namespace == "wasi" && INTERFACES.contains(&interface);
        split(name).is_some_and(served) || cfg!(test) && name == "test:host/fault"
    };
    match imports.iter().filter(|name| !known(name)).take(NAMES).cloned().collect::<Vec<_>>() {
        names if names.is_empty() => Ok(()),
        names => Err(ModuleError::UnknownImport { names }),
    }
}

fn check_run(exports: &[String]) -> Result<(), ModuleError> {
    let run = exports.iter().find(|name| split(name).is_some_and(|(_, interface, _)| interface == RUN));
    match run {
        Some(name) if split(name).is_some_and(|(_, _, version)| is_served(version)) => Ok(()),
        Some(name) => Err(other_version(name)),
        None => Err(ModuleError::MissingExport { expected: format!("{RUN}@0.2"), found: listed(exports) }),
    }
}

fn other_version(name: &str) -> ModuleError {
    ModuleError::OtherVersion { expected: "WASI 0.2 or preview 1".to_owned(), found: name.to_owned() }
}

/// Namespace, interface with its package, and version of `wasi:cli/run@0.2.3`; the version may be missing.
fn split(name: &str) -> Option<(&str, &str, &str)> {
    let (namespace, _) = name.split_once(':')?;
    let (interface, version) = name.split_once('@').unwrap_or((name, ""));
    Some((namespace, interface, version))
}

/// Whether an interface of this version is served by one of 0.2.12: any release of 0.2.
fn is_served(version: &str) -> bool {
    let patch = version.strip_prefix("0.2.").unwrap_or_default();
    !patch.is_empty() && patch.bytes().all(|digit| digit.is_ascii_digit())
}

/// The first few of some names, for a message.
pub(super) fn listed(names: &[String]) -> String {
    match names {
        [] => "no exports".to_owned(),
        _ if names.len() <= NAMES => names.join(", "),
        _ => format!("{} and {} more", names[..NAMES].join(", "), names.len() - NAMES),
    }
}
