//! What is said of a file that cannot run, one case for each way it may be wrong; all of it before anything
//! is compiled.

use super::*;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

fn refused(bytes: Vec<u8>) -> ModuleError {
    compile::build(bytes, false, u64::MAX).map(drop).expect_err("a module that cannot run")
}

fn text(text: &str) -> Vec<u8> {
    wat::parse_str(text).expect("valid text")
}

#[track_caller]
fn not_wasm(bytes: &[u8], what: &str) {
    match refused(bytes.to_vec()) {
        ModuleError::NotWasm { found } if found.contains(what) => {}
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn what_is_no_webassembly_is_named() {
    not_wasm(b"", "empty");
    not_wasm(b"\x7fELF\x02\x01\x01\0\0\0", "ELF");
    not_wasm(b"#!/bin/sh\n", "script");
    not_wasm(b"(module)", "text format");
    not_wasm(b"\n  ;; comment\n  (component)", "text format");
    not_wasm(b"\0as", "truncated");
    not_wasm(b"\0asm\x01\0", "truncated");
    not_wasm(b"garbage of some length", "something else");
}

#[test]
fn a_hundred_megabytes_of_garbage_are_refused_at_once() {
    let before = std::time::Instant::now();
    let mut garbage = vec![0xa5; 100 << 20];
    assert!(matches!(refused(garbage.clone()), ModuleError::NotWasm { .. }));
    for header in [b"\0asm\x01\0\0\0", b"\0asm\x0d\0\x01\0"] {
        garbage[..8].copy_from_slice(header);
        assert!(matches!(refused(garbage.clone()), ModuleError::Broken { .. }));
    }
    assert!(before.elapsed() < std::time::Duration::from_secs(5), "{:?}", before.elapsed());
}

#[test]
fn other_versions_are_named() {
    for (bytes, found) in [
        (b"\0asm\x02\0\0\0".to_vec(), "version 2, layer 0"),
        (b"\0asm\x0c\0\x01\0".to_vec(), "version 12, layer 1"),
        (
            text(r#"(module (import "wasi_unstable" "fd_write" (func)) (func (export "_start")))"#),
            "preview 0 (wasi_unstable.fd_write)",
        ),
        (
            text(r#"(component (import "wasi:cli/environment@0.3.0" (instance)))"#),
            "wasi:cli/environment@0.3.0",
        ),
        (
            text(r#"(component (import "wasi:io/poll@0.2.0-rc-2023-11-10" (instance)))"#),
            "0.2.0-rc-2023-11-10",
        ),
        (
            text(r#"(component (instance $i) (export "wasi:cli/run@0.3.0" (instance $i)))"#),
            "wasi:cli/run@0.3.0",
        ),
    ] {
        match refused(bytes) {
            ModuleError::OtherVersion { found: said, .. } if said.contains(found) => {}
            other => panic!("{found}: {other:?}"),
        }
    }
}

#[test]
fn a_missing_entry_point_is_named_with_what_there_is() {
    let fd_close = r#"(import "wasi_snapshot_preview1" "fd_close" (func (param i32) (result i32)))"#;
    for (bytes, expected, found) in [
        (text("(component)"), "wasi:cli/run", "no exports"),
        (text(r#"(module (func (export "main")))"#), "_start", "main"),
        (text(r#"(module (func (export "_initialize")) (func (export "add")))"#), "_start", "reactor"),
        (text(r#"(module (memory (export "_start") 1))"#), "_start", "_start"),
        (text(&format!(r#"(module {fd_close} (func (export "_start")))"#)), "memory", "_start"),
        (text(r#"(module (memory 1) (func (export "_start")))"#), "memory", "_start"),
    ] {
        match refused(bytes) {
            ModuleError::MissingExport { expected: one, found: other }
                if one.contains(expected) && other.contains(found) => {}
            other => panic!("{expected}, {found}: {other:?}"),
        }
    }
}

#[test]
fn unknown_imports_are_named() {
    let start = r#"(func (export "_start"))"#;
    for (bytes, expected) in [
        (text(&format!(r#"(module (import "env" "foo" (func)) {start})"#)), "env.foo"),
        (
            text(&format!(r#"(module (import "wasi_snapshot_preview1" "fd_shout" (func)) {start})"#)),
            "wasi_snapshot_preview1.fd_shout",
        ),
        (text(r#"(component (import "wasi:http/types@0.2.3" (instance)))"#), "wasi:http/types@0.2.3"),
        (text(r#"(component (import "mine:own/thing" (instance)))"#), "mine:own/thing"),
        (text(r#"(component (import "plain" (func)))"#), "plain"),
    ] {
        match refused(bytes) {
            ModuleError::UnknownImport { names } if names == [expected] => {}
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn many_unknown_imports_are_told_in_part() {
    let imports: String = (0..1000).map(|n| format!("(import \"env\" \"f{n}\" (func))")).collect();
    let ModuleError::UnknownImport { names } =
        refused(text(&format!("(module {imports} (func (export \"_start\")))")))
    else {
        panic!("names")
    };
    assert_eq!(names.len(), 8);
}

#[test]
fn a_truncated_module_is_broken_wherever_it_is_cut() {
    let whole = text(&module("", "(call $proc_exit (i32.const 1))"));
    assert!(compile::build(whole.clone(), false, u64::MAX).is_ok());
    let mut whole_again = 0;
    for cut in 8..whole.len() {
        match compile::build(whole[..cut].to_vec(), false, u64::MAX) {
            // A cut between two sections leaves a module that lacks the later ones; the last is only of
            // names.
            Err(ModuleError::Broken { .. } | ModuleError::MissingExport { .. }) => {}
            Err(other) => panic!("cut at {cut}: {other:?}"),
            Ok(_) => whole_again += 1,
        }
    }
    assert!(whole_again <= 1);
}

#[test]
fn no_byte_changed_makes_the_reader_panic() {
    let whole = text(&module("", "(call $proc_exit (i32.const 1))"));
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        // Either outcome is right; what counts is that there is one.
        let _ = module::component(bytes);
    }
}

#[test]
fn an_import_of_the_right_name_and_another_type_is_refused_before_it_is_kept() {
    let bytes = text(
        r#"(component
          (type $t (instance (export "exit" (func (param "status" string)))))
          (import "wasi:cli/exit@0.2.3" (instance (type $t)))
          (core module $m (func (export "run") (result i32) i32.const 0))
          (core instance $i (instantiate $m))
          (func $run (result (result)) (canon lift (core func $i "run")))
          (instance $r (export "run" (func $run)))
          (export "wasi:cli/run@0.2.3" (instance $r)))"#,
    );
    let ModuleError::Broken { reason } = refused(bytes) else { panic!("another type") };
    assert!(reason.contains("wasi:cli/exit@0.2.3"), "{reason}");
}

/// Proposals that are off: each would be a wider surface for nothing that guests here need.
#[test]
fn proposals_that_are_off_are_refused() {
    let memory = r#"(memory (export "memory") 1)"#;
    for body in [
        &format!("{memory} (memory 1)"),
        r#"(memory (export "memory") i64 1)"#,
        r#"(memory (export "memory") 1 1 shared)"#,
        &format!("{memory} (type (struct))"),
        &format!("{memory} (tag)"),
    ] {
        let bytes = text(&format!("(module {body} (func (export \"_start\")))"));
        assert!(matches!(refused(bytes), ModuleError::Broken { .. }), "{body}");
    }
}

/// The same component relabelled with other releases of 0.2 runs the same.
#[test]
fn every_release_of_0_2_runs_and_a_failing_run_is_1() {
    for version in ["0.2.0", "0.2.12", "0.2.13"] {
        for (result, code) in [(0, 0), (1, 1)] {
            let wit = format!(
                "package test:guest; world guest {{ export wasi:cli/run@{version}; }}
                 package wasi:cli@{version} {{ interface run {{ run: func() -> result; }} }}"
            );
            let core = format!(
                r#"(module (func (export "wasi:cli/run@{version}#run") (result i32) i32.const {result}))"#
            );
            let outcome = Bench::new().run_bytes(component(&wit, &core));
            assert_eq!(outcome.exit, GuestExit::Code(code), "{version}: {}", outcome.stderr);
        }
    }
}

/// A component of a core module in the text format and the world it is written for.
pub(super) fn component(wit: &str, core: &str) -> Vec<u8> {
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_str("test.wit", wit).expect("valid WIT");
    let world = resolve.select_world(&[package], None).expect("one world");
    let mut bytes = wat::parse_str(core).expect("valid text");
    embed_component_metadata(&mut bytes, &resolve, world, StringEncoding::UTF8).expect("metadata");
    ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .and_then(|mut one| one.encode())
        .expect("a component")
}
