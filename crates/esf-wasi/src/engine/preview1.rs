//! Makes a component of a preview 1 module, by the published adapter.
//!
//! One import is changed first: the adapter knows only success and failure, so that `proc_exit(7)` would end
//! with 1. The import is renamed to `wasi:cli/exit`'s `exit-with-code`, which has the same core signature, so
//! the exact code arrives. And the module is kept off the adapter's part of its memory ([`super::heap`]).
//! The rest of the module stays byte for byte what it was.

use std::borrow::Cow;

use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME as PREVIEW1, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER as ADAPTER,
};
use wasm_encoder::{Encode, Module, RawSection};
use wasmparser::{ExternalKind, ImportSectionReader, Imports, Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use super::heap;
use super::module::{ModuleError, NAMES, listed};

const PROC_EXIT: &str = "proc_exit";

/// What `proc_exit` becomes: an interface and its function, as [`EXIT_WORLD`] describes them.
const EXIT: (&str, &str) = ("wasi:cli/exit@0.2.12", "exit-with-code");

/// The signature that the renamed import has in the component model.
const EXIT_WORLD: &str = "package esf:preview1;
    world exact-exit { import wasi:cli/exit@0.2.12; }
    package wasi:cli@0.2.12 {
        interface exit { exit: func(status: result); exit-with-code: func(status-code: u8); }
    }";

/// The only import section id there is.
const IMPORT_SECTION: u8 = 2;

/// What the outside of a module looks like.
#[derive(Default)]
struct Outline {
    imports: Vec<(String, String)>,
    exports: Vec<String>,
    memory: bool,
    start: bool,
}

/// Adapts a module of WASI preview 1.
///
/// # Errors
///
/// [`ModuleError`], naming what the module lacks or asks for.
pub(super) fn adapt(bytes: &[u8]) -> Result<Vec<u8>, ModuleError> {
    let outline = outline(bytes)?;
    check_imports(&outline.imports)?;
    check_exports(&outline)?;
    let bytes = &*heap::own(bytes)?;
    let exits = outline.imports.iter().any(|(_, name)| name == PROC_EXIT);
    let module = if exits { Cow::Owned(with_exact_exit(bytes)?) } else { Cow::Borrowed(bytes) };
    ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| encoder.adapter(PREVIEW1, ADAPTER))
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| ModuleError::broken(format!("{error:#}")))
}

fn outline(bytes: &[u8]) -> Result<Outline, ModuleError> {
    let mut outline = Outline::default();
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(ModuleError::broken)? {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(ModuleError::broken)?;
                    outline.imports.push((import.module.to_owned(), import.name.to_owned()));
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(ModuleError::broken)?;
                    outline.memory |= export.name == "memory" && export.kind == ExternalKind::Memory;
                    outline.start |= export.name == "_start" && export.kind == ExternalKind::Func;
                    outline.exports.push(export.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(outline)
}

/// Every import must be a function of preview 1 that the adapter has.
fn check_imports(imports: &[(String, String)]) -> Result<(), ModuleError> {
    if let Some((module, name)) = imports.iter().find(|(module, _)| module == "wasi_unstable") {
        return Err(ModuleError::OtherVersion {
            expected: "WASI 0.2 or preview 1".to_owned(),
            found: format!("WASI preview 0 ({module}.{name})"),
        });
    }
    let provided = adapter_functions();
    let unknown =
        imports.iter().filter(|(module, name)| module != PREVIEW1 || !provided.contains(&name.as_str()));
    match unknown.take(NAMES).map(|(module, name)| format!("{module}.{name}")).collect::<Vec<_>>() {
        names if names.is_empty() => Ok(()),
        names => Err(ModuleError::UnknownImport { names }),
    }
}

/// What the adapter offers to a module, read from the adapter itself.
fn adapter_functions() -> Vec<&'static str> {
    let mut names = Vec::new();
    for payload in Parser::new(0).parse_all(ADAPTER) {
        if let Ok(Payload::ExportSection(section)) = payload {
            names.extend(section.into_iter().flatten().map(|export| export.name));
        }
    }
    names
}

fn check_exports(outline: &Outline) -> Result<(), ModuleError> {
    let missing = |expected: &str, found: String| {
        Err(ModuleError::MissingExport { expected: expected.to_owned(), found })
    };
    if !outline.start {
        let reactor = outline.exports.iter().any(|name| name == "_initialize");
        let found = listed(&outline.exports);
        let found = if reactor { format!("a reactor (a library, not a program): {found}") } else { found };
        return missing("_start", found);
    }
    if !outline.memory {
        return missing("memory", listed(&outline.exports));
    }
    Ok(())
}

/// The module with its `proc_exit` renamed, and the description of what it now imports.
fn with_exact_exit(bytes: &[u8]) -> Result<Vec<u8>, ModuleError> {
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(ModuleError::broken)?;
        let renamed;
        let (id, data) = match (&payload, payload.as_section()) {
            (Payload::ImportSection(section), _) => {
                renamed = rename_exit(bytes, section.clone())?;
                (IMPORT_SECTION, renamed.as_slice())
            }
            (_, Some((id, range))) => (id, &bytes[range]),
            (_, None) => continue,
        };
        module.section(&RawSection { id, data });
    }
    let mut bytes = module.finish();
    let mut resolve = Resolve::default();
    resolve
        .push_str("exit.wit", EXIT_WORLD)
        .and_then(|package| resolve.select_world(&[package], None))
        .and_then(|world| embed_component_metadata(&mut bytes, &resolve, world, StringEncoding::UTF8))
        .map_err(|error| ModuleError::broken(format!("{error:#}")))?;
    Ok(bytes)
}

/// The import section's bytes with `proc_exit` renamed; every other entry is copied as it is.
fn rename_exit(bytes: &[u8], section: ImportSectionReader<'_>) -> Result<Vec<u8>, ModuleError> {
    let section_end = section.range().end;
    let mut entries = Vec::new();
    for imports in section {
        match imports.map_err(ModuleError::broken)? {
            Imports::Single(offset, import) => entries.push((offset, import)),
            Imports::Compact1 { .. } | Imports::Compact2 { .. } => {
                return Err(ModuleError::broken("grouped imports, a proposal that is not enabled"));
            }
        }
    }
    let mut renamed = Vec::new();
    entries.len().encode(&mut renamed);
    for (at, (offset, import)) in entries.iter().enumerate() {
        let end = entries.get(at + 1).map_or(section_end, |(next, _)| *next);
        let mut rest = *offset..end;
        if import.name == PROC_EXIT {
            EXIT.0.encode(&mut renamed);
            EXIT.1.encode(&mut renamed);
            rest.start = import.name.as_ptr().addr() - bytes.as_ptr().addr() + import.name.len();
        }
        renamed.extend_from_slice(&bytes[rest]);
    }
    Ok(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(component: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        for payload in Parser::new(0).parse_all(component) {
            if let Payload::ComponentImportSection(section) = payload.unwrap() {
                names.extend(section.into_iter().map(|import| import.unwrap().name.name.to_owned()));
            }
        }
        names
    }

    #[test]
    fn only_a_module_that_exits_imports_the_exact_exit() {
        for (import, expected) in [
            ("(import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32)))", true),
            ("(import \"wasi_snapshot_preview1\" \"sched_yield\" (func (result i32)))", false),
        ] {
            let module = wat::parse_str(format!(
                "(module {import} (memory (export \"memory\") 1) (func (export \"_start\")))"
            ));
            let module = module.unwrap();
            let exact = with_exact_exit(&module).unwrap();
            assert!(exact.windows(EXIT.1.len()).any(|at| at == EXIT.1.as_bytes()));
            let component = adapt(&module).unwrap();
            assert_eq!(component.windows(EXIT.1.len()).any(|at| at == EXIT.1.as_bytes()), expected);
            assert!(!names(&component).is_empty());
        }
    }

    #[test]
    fn the_rest_of_the_import_section_is_copied() {
        let module = wat::parse_str(
            r#"(module
              (import "wasi_snapshot_preview1" "fd_close" (func (param i32) (result i32)))
              (import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))
              (import "wasi_snapshot_preview1" "sched_yield" (func (result i32)))
              (memory (export "memory") 1)
              (func (export "_start") i32.const 7 call 1))"#,
        );
        let module = module.unwrap();
        let exact = with_exact_exit(&module).unwrap();
        let imports = outline(&exact).unwrap().imports;
        let expected = [(PREVIEW1, "fd_close"), EXIT, (PREVIEW1, "sched_yield")];
        let imports: Vec<_> = imports.iter().map(|(module, name)| (module.as_str(), name.as_str())).collect();
        assert_eq!(imports, expected);
    }
}
