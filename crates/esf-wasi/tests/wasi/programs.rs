//! Small guests for tests: preview 1 modules, each one thing, written in the text format here and compiled
//! where they are installed. What each does is said by `contract::Programs`.

// Not every test program uses all of it.
#![allow(dead_code)]

use std::path::Path;

/// What all of them share. Memory: 0 scratch, 1024 pointers to arguments, 4096 arguments, 16384 pointers to
/// variables, 20480 variables, 65536 to 131071 a buffer.
const PRELUDE: &str = r#"
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $path_unlink (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 4)
  (func $arg (param $i i32) (result i32)
    (drop (call $args_sizes_get (i32.const 0) (i32.const 4)))
    (drop (call $args_get (i32.const 1024) (i32.const 4096)))
    (i32.load (i32.add (i32.const 1024) (i32.mul (local.get $i) (i32.const 4)))))
  (func $length (param $text i32) (result i32) (local $end i32)
    (local.set $end (local.get $text))
    (block $done (loop $next
      (br_if $done (i32.eqz (i32.load8_u (local.get $end))))
      (local.set $end (i32.add (local.get $end) (i32.const 1)))
      (br $next)))
    (i32.sub (local.get $end) (local.get $text)))
  (func $number (param $text i32) (result i64) (local $value i64)
    (block $done (loop $next
      (br_if $done (i32.eqz (i32.load8_u (local.get $text))))
      (local.set $value (i64.add
        (i64.mul (local.get $value) (i64.const 10))
        (i64.extend_i32_u (i32.sub (i32.load8_u (local.get $text)) (i32.const 48)))))
      (local.set $text (i32.add (local.get $text) (i32.const 1)))
      (br $next)))
    (local.get $value))
  ;; Writes all; the error's number, or 0.
  (func $put (param $fd i32) (param $from i32) (param $length i32) (result i32) (local $error i32)
    (block $done (loop $next
      (br_if $done (i32.eqz (local.get $length)))
      (i32.store (i32.const 16) (local.get $from))
      (i32.store (i32.const 20) (local.get $length))
      (local.set $error (call $fd_write (local.get $fd) (i32.const 16) (i32.const 1) (i32.const 24)))
      (br_if $done (local.get $error))
      (local.set $from (i32.add (local.get $from) (i32.load (i32.const 24))))
      (local.set $length (i32.sub (local.get $length) (i32.load (i32.const 24))))
      (br $next)))
    (local.get $error))
  (func $line (param $text i32)
    (drop (call $put (i32.const 1) (local.get $text) (call $length (local.get $text))))
    (i32.store8 (i32.const 65536) (i32.const 10))
    (drop (call $put (i32.const 1) (i32.const 65536) (i32.const 1))))
  ;; Opens below the working directory for writing, making it; ends with 9 when that fails.
  (func $open (param $path i32) (param $how i32) (param $flags i32) (result i32)
    (if (call $path_open (i32.const 4) (i32.const 1) (local.get $path) (call $length (local.get $path))
          (local.get $how) (i64.const 100) (i64.const 0) (local.get $flags) (i32.const 32))
      (then (call $exit (i32.const 9))))
    (i32.load (i32.const 32)))
  ;; Writes so many bytes of the buffer; the error's number, or 0.
  (func $pour (param $fd i32) (param $left i64) (result i32) (local $piece i32) (local $error i32)
    (block $done (loop $next
      (br_if $done (i64.eqz (local.get $left)))
      (local.set $piece (i32.const 65536))
      (if (i64.lt_u (local.get $left) (i64.const 65536))
        (then (local.set $piece (i32.wrap_i64 (local.get $left)))))
      (local.set $error (call $put (local.get $fd) (i32.const 65536) (local.get $piece)))
      (br_if $done (local.get $error))
      (local.set $left (i64.sub (local.get $left) (i64.extend_i32_u (local.get $piece))))
      (br $next)))
    (local.get $error))
"#;

/// Every program: its name and the body of its `_start`, locals first.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "say",
        "(call $line (call $arg (i32.const 1)))
         (call $exit (i32.wrap_i64 (call $number (call $arg (i32.const 2)))))",
    ),
    (
        "variable",
        "(local $i i32) (local $name i32) (local $length i32) (local $at i32) (local $j i32)
         (local.set $name (call $arg (i32.const 1)))
         (local.set $length (call $length (local.get $name)))
         (drop (call $environ_sizes_get (i32.const 8) (i32.const 12)))
         (drop (call $environ_get (i32.const 16384) (i32.const 20480)))
         (block $none (loop $variable
           (br_if $none (i32.ge_u (local.get $i) (i32.load (i32.const 8))))
           (local.set $at (i32.load (i32.add (i32.const 16384) (i32.mul (local.get $i) (i32.const 4)))))
           (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (local.set $j (i32.const 0))
           (block $other (loop $letter
             (if (i32.eq (local.get $j) (local.get $length)) (then
               (br_if $other (i32.ne (i32.load8_u (i32.add (local.get $at) (local.get $j))) (i32.const 61)))
               (call $line (i32.add (i32.add (local.get $at) (local.get $length)) (i32.const 1)))
               (return)))
             (br_if $other (i32.ne
               (i32.load8_u (i32.add (local.get $at) (local.get $j)))
               (i32.load8_u (i32.add (local.get $name) (local.get $j)))))
             (local.set $j (i32.add (local.get $j) (i32.const 1)))
             (br $letter)))
           (br $variable)))
         (call $exit (i32.const 5))",
    ),
    (
        "sleep",
        // A clock of kind 1 (monotonic), relative, a minute.
        "(i64.store (i32.const 512) (i64.const 0))
         (i64.store (i32.const 520) (i64.const 0))
         (i32.store (i32.const 528) (i32.const 1))
         (i64.store (i32.const 536) (i64.const 60000000000))
         (i64.store (i32.const 544) (i64.const 0))
         (i64.store (i32.const 552) (i64.const 0))
         (drop (call $poll (i32.const 512) (i32.const 576) (i32.const 1) (i32.const 640)))",
    ),
    ("spin", "(loop $for_ever (br $for_ever))"),
    (
        "write",
        "(local $fd i32)
         (local.set $fd (call $open (call $arg (i32.const 1)) (i32.const 9) (i32.const 0)))
         (call $exit (call $put (local.get $fd)
           (call $arg (i32.const 2)) (call $length (call $arg (i32.const 2)))))",
    ),
    (
        "keep-writing",
        "(local $fd i32)
         (local.set $fd (call $open (call $arg (i32.const 1)) (i32.const 1) (i32.const 1)))
         (i32.store8 (i32.const 65536) (i32.const 120))
         (i32.store8 (i32.const 65537) (i32.const 10))
         (loop $for_ever
           (drop (call $put (local.get $fd) (i32.const 65536) (i32.const 2)))
           (br $for_ever))",
    ),
    (
        "copy",
        "(loop $next
           (i32.store (i32.const 40) (i32.const 65536))
           (i32.store (i32.const 44) (i32.const 65536))
           (if (call $fd_read (i32.const 0) (i32.const 40) (i32.const 1) (i32.const 48))
             (then (call $exit (i32.const 8))))
           (if (i32.load (i32.const 48)) (then
             (if (call $put (i32.const 1) (i32.const 65536) (i32.load (i32.const 48)))
               (then (call $exit (i32.const 7))))
             (br $next))))",
    ),
    (
        "flood",
        "(drop (call $pour (i32.const 1) (call $number (call $arg (i32.const 1)))))
         (call $exit (i32.wrap_i64 (call $number (call $arg (i32.const 2)))))",
    ),
    (
        "take-memory",
        "(local $pages i32) (local $at i32)
         (local.set $pages (i32.wrap_i64 (i64.div_u (call $number (call $arg (i32.const 1))) (i64.const 65536))))
         (local.set $at (i32.mul (memory.size) (i32.const 65536)))
         (if (i32.eq (memory.grow (local.get $pages)) (i32.const -1)) (then (call $exit (i32.const 4))))
         (block $done (loop $next
           (br_if $done (i32.eqz (local.get $pages)))
           (i32.store (local.get $at) (i32.const 1))
           (local.set $at (i32.add (local.get $at) (i32.const 65536)))
           (local.set $pages (i32.sub (local.get $pages) (i32.const 1)))
           (br $next)))",
    ),
    (
        "fill",
        "(local $fd i32)
         (local.set $fd (call $open (call $arg (i32.const 1)) (i32.const 9) (i32.const 0)))
         (if (call $pour (local.get $fd) (call $number (call $arg (i32.const 2))))
           (then (call $exit (i32.const 3))))",
    ),
    ("trap", "(unreachable)"),
    (
        "remove",
        "(local $path i32)
         (local.set $path (call $arg (i32.const 1)))
         (call $exit (call $path_unlink (i32.const 4) (local.get $path) (call $length (local.get $path))))",
    ),
];

/// The bytes of a program.
pub(crate) fn module(name: &str) -> Vec<u8> {
    let (_, body) = PROGRAMS.iter().find(|(known, _)| *known == name).expect("a program of this name");
    wat::parse_str(format!("(module {PRELUDE} (func (export \"_start\") {body}))")).expect("valid text")
}

/// Writes all programs into a directory, each as `NAME.wasm`.
pub(crate) fn install(directory: &Path) {
    for (name, _) in PROGRAMS {
        std::fs::write(directory.join(format!("{name}.wasm")), module(name)).expect("writes");
    }
}
