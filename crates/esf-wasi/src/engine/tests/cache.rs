//! The artefact cache with real compilers: processes of this very test program.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::*;

/// The child of the tests below: this program again, told to run only this test. Its standard output, where
/// the test harness writes, is nowhere; the request comes over descriptor 0.
#[test]
fn serves_as_compiler() {
    if std::env::var_os("ESF_COMPILE_MEMORY").is_some() {
        compile_child();
    }
}

pub(super) fn compiler() -> Compiler {
    let arguments =
        ["--exact", "engine::tests::cache::serves_as_compiler", "--nocapture", "--test-threads=1"];
    Compiler { arguments: arguments.map(str::to_owned).to_vec(), ..Compiler::default() }
}

fn open(directory: &Path, limit: u64, compiler: Compiler) -> Cache {
    Cache::with_compiler(&directory.join("artefacts"), limit, compiler).expect("a cache")
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("write");
    file
}

/// A module that says `n`, so that each is another.
fn says(n: u32) -> Vec<u8> {
    wat::parse_str(module("", &format!("(call $proc_exit (i32.const {n}))"))).expect("valid text")
}

fn runs(artefact: Artefact, fuel: Option<u64>) -> GuestExit {
    let mut bench = Bench::new();
    bench.fuel = fuel;
    let stdio = GuestStdio { stdin: null(), stdout: null(), stderr: null() };
    ENGINES.run(bench.spec(artefact.file, artefact.key), stdio, &Cancel::new())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory.join("artefacts")).expect("the cache's directory");
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_artefact_is_made_once_and_runs_and_is_found_by_another_process_too() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path(), 1 << 30, compiler());
    let module = file(&says(9));
    let first = cache.artefact(&module, None, false).unwrap();
    assert_eq!(first.module, blake3::hash(&says(9)));
    let listed = names(directory.path());
    assert_eq!(listed.len(), 1);
    let kept = fs::metadata(directory.path().join("artefacts").join(&listed[0])).unwrap();
    assert_eq!(kept.permissions().mode() & 0o777, 0o400);
    assert_eq!(fs::metadata(directory.path().join("artefacts")).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(runs(first, None), GuestExit::Code(9));

    // No compiler could run now: it is not compiled again, by this cache or a new one.
    let none = Compiler { program: "/nowhere".into(), ..Compiler::default() };
    for cache in [cache, open(directory.path(), 1 << 30, none)] {
        let again = cache.artefact(&module, Some(blake3::hash(&says(9))), false).unwrap();
        assert_eq!(runs(again, None), GuestExit::Code(9));
    }
    assert_eq!(names(directory.path()), listed);
}

#[test]
fn with_fuel_it_is_another_artefact() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path(), 1 << 30, compiler());
    let plain = cache.artefact(&file(&says(3)), None, false).unwrap();
    let fuelled = cache.artefact(&file(&says(3)), None, true).unwrap();
    assert_ne!(plain.key, fuelled.key);
    assert_eq!(runs(plain, None), GuestExit::Code(3));
    assert_eq!(runs(fuelled, Some(1 << 20)), GuestExit::Code(3));
}

#[test]
fn a_damaged_artefact_is_made_again() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("a flipped bit", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }),
        ("cut short", |bytes| bytes.truncate(bytes.len() - 1)),
        ("empty", Vec::clear),
        ("longer", |bytes| bytes.push(0)),
    ];
    for (what, damage) in damages {
        let directory = tempfile::tempdir().unwrap();
        let module = file(&says(5));
        open(directory.path(), 1 << 30, compiler()).artefact(&module, None, false).unwrap();
        let path = directory.path().join("artefacts").join(&names(directory.path())[0]);
        let mut bytes = fs::read(&path).unwrap();
        let whole = bytes.len();
        damage(&mut bytes);
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        let again = open(directory.path(), 1 << 30, compiler()).artefact(&module, None, false).unwrap();
        assert_eq!(runs(again, None), GuestExit::Code(5), "{what}");
        assert_eq!(names(directory.path()).len(), 1, "{what}");
        assert_eq!(fs::read(&path).unwrap().len(), whole, "{what}");
    }
}

#[test]
fn the_least_recently_used_go_when_it_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let modules: Vec<_> = (0..4).map(|n| file(&says(n))).collect();
    let cache = open(directory.path(), 1 << 30, compiler());
    let size = |artefact: &Artefact| rustix::fs::fstat(&artefact.file).unwrap().st_size as u64;
    let first = cache.artefact(&modules[0], None, false).unwrap();
    let limit = size(&first) * 5 / 2;
    drop(cache);
    let cache = open(directory.path(), limit, compiler());
    let tick = || std::thread::sleep(Duration::from_millis(20));
    let keys: Vec<_> = modules[..2]
        .iter()
        .map(|module| (cache.artefact(module, None, false).unwrap().key, tick()))
        .collect();
    // The first is used again, so the second goes when the third comes.
    cache.artefact(&modules[0], None, false).unwrap();
    tick();
    cache.artefact(&modules[2], None, false).unwrap();
    let listed = names(directory.path());
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert!(listed.iter().any(|name| name.starts_with(&keys[0].0)));
    assert!(!listed.iter().any(|name| name.starts_with(&keys[1].0)));
    // What was evicted is made again, and what a guest still runs from stays open.
    assert_eq!(runs(cache.artefact(&modules[1], None, false).unwrap(), None), GuestExit::Code(1));
    assert_eq!(runs(first, None), GuestExit::Code(0));
}

#[test]
fn one_larger_than_the_limit_still_runs() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path(), 1, compiler());
    for n in 1..3 {
        assert_eq!(
            runs(cache.artefact(&file(&says(n)), None, false).unwrap(), None),
            GuestExit::Code(n as i32)
        );
        assert_eq!(names(directory.path()).len(), 1);
    }
}

#[test]
fn many_threads_ask_for_one_module_and_it_is_compiled_once() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path(), 1 << 30, compiler());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| cache.artefact(&file(&says(1)), None, false).unwrap());
        }
    });
    assert_eq!(cache.compilations(), 1);
    assert_eq!(names(directory.path()).len(), 1);
}

#[test]
fn refusals_cross_the_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path(), 1 << 30, compiler());
    let refused = |bytes: &[u8]| match cache.artefact(&file(bytes), None, false) {
        Err(Error::Module(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(b""), ModuleError::NotWasm { .. }));
    assert!(matches!(refused(&vec![7; 100 << 20]), ModuleError::NotWasm { .. }));
    let odd = "\u{1b}]0;title\u{7}\nsecond line".to_owned() + &"x".repeat(10_000);
    let escapes =
        wat::parse_str(format!("(module (import {odd:?} \"f\" (func)) (func (export \"_start\")))"));
    let said = refused(&escapes.unwrap()).to_string();
    assert!(said.contains("title") && said.len() < 1000 && !said.contains(char::is_control), "{said}");
    let reactor = wat::parse_str("(module (func (export \"_initialize\")))").unwrap();
    assert!(matches!(refused(&reactor), ModuleError::MissingExport { .. }));
    let huge = tempfile::tempfile().unwrap();
    huge.set_len((256 << 20) + 1).unwrap();
    assert!(matches!(
        cache.artefact(&huge, None, false),
        Err(Error::Module(ModuleError::TooLarge { limit: 0x1000_0000, found: 0x1000_0001 }))
    ));
    assert_eq!(names(directory.path()), [] as [&str; 0], "nothing is left of a refusal");
}

/// A module of functions that are each a long chain of arithmetic: costly to compile, quick to read.
fn heavy(functions: u32, steps: u32) -> Vec<u8> {
    use wasm_encoder::*;
    let (mut types, mut declared, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    types.ty().function([ValType::I32], [ValType::I32]);
    declared.function(0);
    code.function(Function::new([]).instruction(&Instruction::End));
    for _ in 0..functions {
        declared.function(1);
        let mut body = Function::new([]);
        for step in 0..steps {
            body.instruction(&Instruction::LocalGet(0)).instruction(&Instruction::I32Const(step as i32));
            body.instruction(&Instruction::I32Mul).instruction(&Instruction::LocalGet(0));
            body.instruction(&Instruction::I32Rotl).instruction(&Instruction::LocalSet(0));
        }
        code.function(body.instruction(&Instruction::LocalGet(0)).instruction(&Instruction::End));
    }
    let (mut memories, mut exports) = (MemorySection::new(), ExportSection::new());
    memories.memory(MemoryType {
        minimum: 1,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    exports.export("_start", ExportKind::Func, 0).export("memory", ExportKind::Memory, 0);
    let mut module = Module::new();
    module.section(&types).section(&declared).section(&memories).section(&exports).section(&code);
    module.finish()
}

#[test]
fn a_compiler_over_its_memory_is_ended_and_the_module_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let compiler = Compiler { memory: 256 << 20, ..compiler() };
    let cache = open(directory.path(), 1 << 30, compiler.clone());
    match cache.artefact(&file(&heavy(2, 400_000)), None, false) {
        Err(Error::Module(ModuleError::Memory { limit })) => assert_eq!(limit, compiler.memory),
        other => panic!("{other:?}"),
    }
    assert_eq!(runs(cache.artefact(&file(&says(1)), None, false).unwrap(), None), GuestExit::Code(1));
}

#[test]
fn a_compiler_over_its_time_is_ended_and_the_module_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let compiler = Compiler { time: Duration::from_millis(300), ..compiler() };
    let cache = open(directory.path(), 1 << 30, compiler);
    let module = file(&heavy(4, 200_000));
    let before = std::time::Instant::now();
    match cache.artefact(&module, None, false) {
        Err(Error::Module(ModuleError::Time { limit_ms: 300 })) => {}
        other => panic!("{other:?}"),
    }
    assert!(before.elapsed() < Duration::from_secs(3), "{:?}", before.elapsed());
}

#[test]
fn a_compiler_that_is_none_is_an_error_of_this_machine_or_of_the_module_never_an_artefact() {
    let directory = tempfile::tempdir().unwrap();
    for (program, arguments) in [
        ("/nowhere", vec![]),
        ("/bin/true", vec![]),
        ("/bin/cat", vec!["/dev/zero".to_owned()]),
        ("/bin/sh", vec!["-c".to_owned(), "echo nonsense of some length >&0; exec sleep 100".to_owned()]),
        (
            "/bin/sh",
            vec![
                "-c".to_owned(),
                "printf 'ESFWASM1\\0\\377\\377\\377\\377\\377\\377\\377\\377' >&0".to_owned(),
            ],
        ),
        (
            "/bin/sh",
            vec!["-c".to_owned(), "printf 'ESFWASM1\\0\\20\\0\\0\\0\\0\\0\\0\\0short' >&0".to_owned()],
        ),
    ] {
        let compiler = Compiler {
            program: program.into(),
            arguments,
            time: Duration::from_secs(2),
            ..Compiler::default()
        };
        let cache = open(directory.path(), 1 << 30, compiler);
        cache.artefact(&file(&says(1)), None, false).expect_err(program);
        assert_eq!(names(directory.path()), [] as [&str; 0]);
    }
}

/// Between hashing a module and sending it, a guest might change it: the artefact must not get the other's
/// name.
#[test]
fn a_module_that_changes_meanwhile_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path(), 1 << 30, compiler());
    let other = blake3::hash(b"what was hashed before");
    match cache.artefact(&file(&says(1)), Some(other), false) {
        Err(Error::Module(ModuleError::Broken { reason })) => assert!(reason.contains("changed"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(names(directory.path()), [] as [&str; 0]);
}

#[test]
fn the_directory_must_be_ours_alone_and_is_cleaned_of_what_the_dead_left() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("artefacts");
    fs::create_dir(&place).unwrap();
    for mode in [0o755, 0o770, 0o707] {
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        let refused = Cache::with_compiler(&place, 1, compiler());
        assert!(matches!(refused, Err(Error::Io { .. })), "{mode:o}");
    }
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    let mut dead = Command::new("/bin/true").stdout(Stdio::null()).spawn().unwrap();
    let pid = dead.id();
    dead.wait().unwrap();
    fs::write(place.join(format!("new-{pid}-0")), "half").unwrap();
    let ours = format!("new-{}-77", std::process::id());
    fs::write(place.join(&ours), "half").unwrap();
    open(directory.path(), 1, compiler());
    assert_eq!(names(directory.path()), [ours]);
}

/// The walls around a compiler, seen from inside one.
#[test]
fn a_compiler_can_open_nothing() {
    if std::env::var_os("ESF_TEST_CONFINED").is_some() {
        compile::confine(1 << 30, 10);
        let refused = File::open("/etc/hostname").map(drop).map_err(|error| error.kind());
        let status = match refused {
            Err(std::io::ErrorKind::PermissionDenied) => 0,
            _ => 1,
        };
        std::process::exit(status);
    }
    let status = Command::new("/proc/self/exe")
        .args(["--exact", "engine::tests::cache::a_compiler_can_open_nothing", "--nocapture"])
        .env("ESF_TEST_CONFINED", "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
