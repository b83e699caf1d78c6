//! The cases themselves. What no case needs to try: an upload borrows its sandbox, so none is under way
//! when the sandbox is brought to rest.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use esf_core::environment::{Base, Bind, Environment, Limits, Network};
use esf_worker::executor::{ExecSpec, Executor, ExecutorError, Exit, Extra, Sandbox, SpawnError};

use super::{Ground, PATIENCE, eventually, ready, run, run_ok, start, start_spec};

/// A case by name.
pub(crate) type Case = (&'static str, fn(&dyn Executor, &Ground));

/// Every case.
pub(crate) const CASES: &[Case] = &[
    ("commands_end_as_they_end", commands_end_as_they_end),
    ("what_cannot_start_is_typed", what_cannot_start_is_typed),
    ("variables_arrive", variables_arrive),
    ("killing_one_leaves_the_other", killing_one_leaves_the_other),
    ("a_loop_can_be_killed", a_loop_can_be_killed),
    ("a_writer_without_a_reader_can_be_killed", a_writer_without_a_reader_can_be_killed),
    ("a_flood_arrives_whole", a_flood_arrives_whole),
    ("input_arrives_whole_and_ends", input_arrives_whole_and_ends),
    ("files_go_in_and_out", files_go_in_and_out),
    ("paths_stay_inside", paths_stay_inside),
    ("an_upload_that_is_dropped_leaves_nothing", an_upload_that_is_dropped_leaves_nothing),
    ("writes_are_in_the_upper_after_quiesce", writes_are_in_the_upper_after_quiesce),
    ("nothing_is_written_after_it_came_to_rest", nothing_is_written_after_rest),
    ("release_ends_all_and_is_no_death_before", release_ends_all),
    ("what_is_said_to_be_unsupported_is_refused", what_is_unsupported_is_refused),
    ("the_limits_it_claims_hold", the_limits_it_claims_hold),
    ("the_signals_it_claims_arrive", the_signals_it_claims_arrive),
    ("recovery_with_nothing_to_do_does_nothing", recovery_does_nothing),
];

fn commands_end_as_they_end(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor);
    let programs = &ground.programs;
    for code in [0, 1, 7, 42, 101, 255] {
        assert_eq!(run(&*sandbox, &(programs.say)("hello", code)), (Exit::Code(code), "hello\n".to_owned()));
    }
    let slow = start(&*sandbox, &(programs.sleep)()).unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!slow.is_over(), "it runs");
    slow.running.signal(9).expect("signals");
    assert_eq!(slow.exit(), Exit::Signal(9));
    assert_eq!(slow.exit(), Exit::Signal(9), "the same again");
    assert!(sandbox.stats().is_ok());
    sandbox.release().expect("releases");
}

fn what_cannot_start_is_typed(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor);
    let say = (ground.programs.say)("x", 0);
    let code = |program: String| start(&*sandbox, &vec![program]).err().and_then(|error| error.exit_code());
    assert_eq!(code("no-such-program".to_owned()), Some(127));
    let path = ground.inside(ground.programs.no_program).to_string_lossy().into_owned();
    assert_eq!(code(path), Some(126));
    let argv: Vec<OsString> = say.iter().map(OsString::from).collect();
    for cwd in ["/nowhere", "a"] {
        let spec = ExecSpec { argv: argv.clone(), cwd: Some(cwd.into()), ..ExecSpec::default() };
        let refused = start_spec(&*sandbox, spec).err();
        assert!(matches!(refused, Some(SpawnError::BadCwd(_))), "{cwd}: {refused:?}");
    }
    let spec = ExecSpec { argv: vec![argv[0].clone(), "a\0b".into()], ..ExecSpec::default() };
    let refused = start_spec(&*sandbox, spec).err();
    assert!(matches!(refused, Some(SpawnError::BadArguments(_))), "{refused:?}");
    assert_eq!(run_ok(&*sandbox, &say), "x\n", "none of that harmed it");
    sandbox.release().expect("releases");
}

fn variables_arrive(executor: &dyn Executor, ground: &Ground) {
    let mut environment = ground.programs.environment.clone();
    environment.env.insert("ONE".to_owned(), "first".to_owned());
    environment.env.insert("TWO".to_owned(), "second".to_owned());
    let (_, sandbox) = ground.live_with(executor, &environment);
    assert_eq!(run_ok(&*sandbox, &(ground.programs.variable)("ONE")), "first\n");
    let spec = ExecSpec {
        argv: (ground.programs.variable)("TWO").iter().map(OsString::from).collect(),
        env: vec![("TWO".into(), "other".into())],
        ..ExecSpec::default()
    };
    let mut started = start_spec(&*sandbox, spec).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(started.exit(), Exit::Code(0));
    assert_eq!(started.read_all().join().expect("reads").1, b"other\n", "a command's own come last");
    sandbox.release().expect("releases");
}

fn killing_one_leaves_the_other(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor);
    let [one, two] = [(); 2]
        .map(|()| start(&*sandbox, &(ground.programs.sleep)()).unwrap_or_else(|error| panic!("{error}")));
    one.running.kill_tree().expect("kills");
    assert_eq!(one.exit(), Exit::Signal(9));
    assert!(!ready(two.running.exited(), Duration::from_millis(100)), "untouched");
    sandbox.release().expect("releases");
    assert!(ready(two.running.exited(), PATIENCE), "dead with its sandbox");
}

fn a_loop_can_be_killed(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor);
    let spinning = start(&*sandbox, &(ground.programs.spin)()).unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(run_ok(&*sandbox, &(ground.programs.say)("beside", 0)), "beside\n");
    let begun = Instant::now();
    spinning.running.kill_tree().expect("kills");
    assert_eq!(spinning.exit(), Exit::Signal(9));
    assert!(begun.elapsed() < Duration::from_secs(2), "took {:?}", begun.elapsed());
    sandbox.release().expect("releases");
}

fn a_writer_without_a_reader_can_be_killed(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor);
    // More than a pipe holds, and nobody reads.
    let argv = (ground.programs.flood)(16 << 20, 0);
    let writer = start(&*sandbox, &argv).unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!writer.is_over());
    writer.running.kill_tree().expect("kills");
    assert_eq!(writer.exit(), Exit::Signal(9));
    // Nor does one that waits for input that never comes.
    let reader = start(&*sandbox, &(ground.programs.copy)()).unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!reader.is_over());
    reader.running.kill_tree().expect("kills");
    assert_eq!(reader.exit(), Exit::Signal(9));
    sandbox.release().expect("releases");
}

fn a_flood_arrives_whole(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor);
    let argv = (ground.programs.flood)(50_000_000, 7);
    let mut started = start(&*sandbox, &argv).unwrap_or_else(|error| panic!("{error}"));
    let read = started.read_all();
    assert_eq!(started.exit(), Exit::Code(7));
    assert_eq!(read.join().expect("reads").0, 50_000_000);
    sandbox.release().expect("releases");
}

fn input_arrives_whole_and_ends(executor: &dyn Executor, ground: &Ground) {
    const SIZE: usize = 10_000_000;
    let (_, sandbox) = ground.live(executor);
    let mut started = start(&*sandbox, &(ground.programs.copy)()).unwrap_or_else(|error| panic!("{error}"));
    let read = started.read_all();
    let mut stdin = started.stdin.take().expect("open");
    let piece: Vec<u8> = (0..=255).cycle().take(1 << 16).collect();
    let mut left = SIZE;
    while left > 0 {
        let length = left.min(piece.len());
        stdin.write_all(&piece[..length]).expect("writes");
        left -= length;
    }
    drop(stdin);
    assert_eq!(started.exit(), Exit::Code(0));
    let (total, first) = read.join().expect("reads");
    assert_eq!((total, first), (SIZE as u64, piece));
    sandbox.release().expect("releases");
}

fn read(sandbox: &dyn Sandbox, path: &Path) -> io::Result<(u32, String)> {
    let opened = sandbox.files().open(path)?;
    let mut text = String::new();
    File::from(opened.content).read_to_string(&mut text)?;
    Ok((opened.mode, text))
}

fn put(sandbox: &dyn Sandbox, path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut upload = sandbox.files().create(path)?;
    upload.write(text.as_bytes())?;
    upload.publish(mode)
}

fn names(sandbox: &dyn Sandbox, path: &Path) -> io::Result<Vec<(String, String, u64, u32)>> {
    let mut found = Vec::new();
    sandbox.files().list(path, &mut |entry| {
        found.push((entry.name, entry.kind, entry.size, entry.mode));
        Ok(())
    })?;
    found.sort();
    Ok(found)
}

fn files_go_in_and_out(executor: &dyn Executor, ground: &Ground) {
    let (workspace, sandbox) = ground.live(executor);
    let tree = |path: &str| ground.inside(path);
    run_ok(&*sandbox, &(ground.programs.write)("d/made", "by a command"));
    assert_eq!(read(&*sandbox, &tree("d/made")).expect("reads").1, "by a command");
    put(&*sandbox, &tree("d/put"), 0o750, "put in").expect("writes");
    assert_eq!(read(&*sandbox, &tree("d/put")).expect("reads"), (0o750, "put in".to_owned()));
    put(&*sandbox, &tree("d/put"), 0o600, "again").expect("over what is there");
    let found = names(&*sandbox, &tree("d")).expect("lists");
    let name = |index: usize| (found[index].0.as_str(), found[index].1.as_str(), found[index].2);
    assert_eq!((name(0), name(1), found.len()), (("made", "file", 12), ("put", "file", 5), 2), "{found:?}");
    assert_eq!(found[1].3, 0o600);
    sandbox.files().remove(&tree("d/made")).expect("removes");
    assert!(read(&*sandbox, &tree("d/made")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    let kind = |path: &Path| read(&*sandbox, path).expect_err("refused").kind();
    assert_eq!(kind(&tree("d")), io::ErrorKind::IsADirectory);
    assert_eq!(kind(&tree("a/below")), io::ErrorKind::NotADirectory);
    sandbox.quiesce().expect("comes to rest");
    assert_eq!(std::fs::read_to_string(workspace.upper.join("d/put")).expect("reads"), "again");
    assert!(!workspace.upper.join("d/made").exists());
}

/// Whatever a path says, no file of this machine is read or changed.
fn paths_stay_inside(executor: &dyn Executor, ground: &Ground) {
    if !ground.programs.isolates {
        return;
    }
    let (_, sandbox) = ground.live(executor);
    let mut outside = tempfile::NamedTempFile::new().expect("a file");
    outside.write_all(b"secret").expect("writes");
    let path = outside.path().to_str().expect("text");
    let ways = [path.to_owned(), format!("../../../../../../..{path}"), format!("d/../../../../../..{path}")];
    for way in ways.iter().flat_map(|way| [ground.inside(way), PathBuf::from(way)]) {
        let found = read(&*sandbox, &way).ok().map(|(_, text)| text);
        assert_ne!(found.as_deref(), Some("secret"), "{way:?}");
        // Some of them name a place inside, where this is allowed.
        let _ = sandbox.files().remove(&way);
        let _ = put(&*sandbox, &way, 0o644, "changed");
        let _ = names(&*sandbox, way.parent().expect("a file's"));
    }
    assert_eq!(std::fs::read(outside.path()).expect("still there"), b"secret");
    sandbox.release().expect("releases");
}

fn an_upload_that_is_dropped_leaves_nothing(executor: &dyn Executor, ground: &Ground) {
    let (_, sandbox) = ground.live(executor);
    let mut upload = sandbox.files().create(&ground.inside("d/half")).expect("begins");
    upload.write(b"half").expect("writes");
    drop(upload);
    assert_eq!(names(&*sandbox, &ground.inside("d")).expect("lists"), []);
    assert!(sandbox.files().create(Path::new("/")).is_err(), "it names no file");
    sandbox.release().expect("releases");
}

fn writes_are_in_the_upper_after_quiesce(executor: &dyn Executor, ground: &Ground) {
    let (workspace, sandbox) = ground.live(executor);
    run_ok(&*sandbox, &(ground.programs.write)("b", "new"));
    let argv = (ground.programs.keep_writing)("busy");
    let writer = start(&*sandbox, &argv).unwrap_or_else(|error| panic!("{error}"));
    let busy = ground.inside("busy");
    eventually("it writes", || read(&*sandbox, &busy).is_ok_and(|(_, text)| !text.is_empty()));
    sandbox.quiesce().expect("comes to rest");
    assert!(ready(writer.running.exited(), PATIENCE));
    assert!(!executor.in_use(&workspace).expect("probes"));
    assert_eq!(std::fs::read_to_string(workspace.upper.join("b")).expect("reads"), "new");
    let size = || std::fs::metadata(workspace.upper.join("busy")).expect("there").len();
    let before = size();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(size(), before, "nobody writes any more");
}

/// Who holds a file open either keeps the sandbox from its rest, or cannot write any more.
fn nothing_is_written_after_rest(executor: &dyn Executor, ground: &Ground) {
    let (workspace, sandbox) = ground.live(executor);
    run_ok(&*sandbox, &(ground.programs.write)("b", "new"));
    let held = sandbox.files().open(&ground.inside("b")).expect("opens");
    let rest = sandbox.quiesce();
    if rest.is_ok() {
        assert!(!executor.in_use(&workspace).expect("probes"));
        let written = rustix::io::write(&held.content, b"late");
        assert!(written.is_err(), "what was given out for reading cannot write");
        assert_eq!(std::fs::read_to_string(workspace.upper.join("b")).expect("reads"), "new");
    }
    drop(held);
    eventually("nobody uses it", || !executor.in_use(&workspace).expect("probes"));
}

fn release_ends_all(executor: &dyn Executor, ground: &Ground) {
    let (workspace, sandbox) = ground.live(executor);
    let slow = start(&*sandbox, &(ground.programs.sleep)()).unwrap_or_else(|error| panic!("{error}"));
    assert!(!ready(sandbox.died(), Duration::from_millis(20)), "it lives");
    sandbox.release().expect("releases");
    assert!(ready(slow.running.exited(), PATIENCE));
    assert!(workspace.upper.is_dir(), "the upper is the caller's");
}

/// What the report leaves out is refused before anything starts; what it names is accepted.
fn what_is_unsupported_is_refused(executor: &dyn Executor, ground: &Ground) {
    let plain = || ground.programs.environment.clone();
    let has = |list: &[String], word: &str| list.iter().any(|entry| entry == word);
    let claims = executor.capabilities();
    let check = |claimed: bool, environment: &Environment, extra: &Extra| {
        let found = executor.check(environment, extra);
        if claimed {
            assert!(found.is_ok(), "{environment:?} {extra:?}: {found:?}");
        } else {
            let typed = matches!(found, Err(ExecutorError::Unsupported { .. }));
            assert!(typed, "{environment:?} {extra:?}: {found:?}");
        }
    };
    let none = Extra::default();
    check(true, &plain(), &none);
    for (name, network) in [
        ("none", Network::None),
        ("host", Network::Host),
        ("allow", Network::Allow { hosts: vec!["example.org:443".to_owned()] }),
    ] {
        check(has(&claims.networks, name), &Environment { network, ..plain() }, &none);
    }
    let limits = [
        ("cpu", Limits { cpu_milli: Some(500), ..Limits::default() }),
        ("memory", Limits { memory: Some(64 << 20), ..Limits::default() }),
        ("pids", Limits { pids: Some(8), ..Limits::default() }),
        ("disk", Limits { disk: Some(64 << 20), ..Limits::default() }),
    ];
    for (name, limits) in limits {
        check(has(&claims.limits, name), &ground.limited(limits), &none);
    }
    let bases = [("host", Base::Host), ("root", Base::Root), ("image", Base::Image(ground.base))];
    for (name, base) in bases {
        check(has(&claims.bases, name), &Environment { base, ..plain() }, &none);
    }
    check(claims.users, &Environment { user: Some("1000".to_owned()), ..plain() }, &none);
    let bind = Bind { source: "/usr".to_owned(), at: "/mnt".to_owned() };
    check(claims.binds, &Environment { binds: vec![bind], ..plain() }, &none);
    check(false, &Environment { secrets_policy: "all".to_owned(), ..plain() }, &none);
    let extras = [
        ("hide", Extra { hide: vec![b"a".to_vec()], ..Extra::default() }),
        ("files", Extra { files: Some("/usr/include".into()), ..Extra::default() }),
        ("result", Extra { result_channel: true, ..Extra::default() }),
    ];
    for (name, extra) in extras {
        check(has(&claims.evaluator, name), &plain(), &extra);
    }
    let (_, sandbox) = ground.live(executor);
    let spec = ExecSpec {
        argv: (ground.programs.say)("x", 0).iter().map(OsString::from).collect(),
        user: Some("1000".to_owned()),
        ..ExecSpec::default()
    };
    let started = start_spec(&*sandbox, spec);
    let refused = matches!(started, Err(SpawnError::Sandbox(ExecutorError::Unsupported { .. })));
    assert_eq!(refused, !claims.users);
    drop(started);
    sandbox.release().expect("releases");
}

fn the_limits_it_claims_hold(executor: &dyn Executor, ground: &Ground) {
    let claims = executor.capabilities();
    let programs = &ground.programs;
    for limit in &claims.limits {
        match limit.as_str() {
            "memory" => {
                let limits = Limits { memory: Some(64 << 20), ..Limits::default() };
                let (_, sandbox) = ground.live_with(executor, &ground.limited(limits));
                assert_eq!(run(&*sandbox, &(programs.take_memory)(8 << 20)).0, Exit::Code(0));
                assert_eq!(sandbox.stats().expect("stats").oom_kills, 0);
                assert_ne!(run(&*sandbox, &(programs.take_memory)(256 << 20)).0, Exit::Code(0));
                assert_ne!(sandbox.stats().expect("stats").oom_kills, 0);
                assert_eq!(run_ok(&*sandbox, &(programs.say)("alive", 0)), "alive\n");
                sandbox.release().expect("releases");
            }
            "pids" => {
                // What the executor itself needs of them is its own matter.
                let limits = Limits { pids: Some(8), ..Limits::default() };
                let (_, sandbox) = ground.live_with(executor, &ground.limited(limits));
                let mut held = Vec::new();
                let refused = loop {
                    match start(&*sandbox, &(programs.sleep)()) {
                        Ok(started) => held.push(started),
                        Err(error) => break error,
                    }
                    assert!(held.len() <= 8, "more than the limit");
                };
                assert!(matches!(refused, SpawnError::PidsLimit), "{refused:?}");
                assert!(!held.is_empty());
                let one = held.pop().expect("some");
                one.running.kill_tree().expect("kills");
                one.exit();
                run_ok(&*sandbox, &(programs.say)("room again", 0));
                sandbox.release().expect("releases");
            }
            "disk" => {
                let limits = Limits { disk: Some(4 << 20), ..Limits::default() };
                let (_, sandbox) = ground.live_with(executor, &ground.limited(limits));
                run_ok(&*sandbox, &(programs.fill)("small", 1 << 20));
                assert_eq!(run(&*sandbox, &(programs.fill)("large", 8 << 20)).0, Exit::Code(3));
                let mut upload = sandbox.files().create(&ground.inside("put")).expect("begins");
                let full = (0..64).try_for_each(|_| upload.write(&[1; 128 << 10])).expect_err("no room");
                let kinds = [io::ErrorKind::QuotaExceeded, io::ErrorKind::StorageFull];
                assert!(kinds.contains(&full.kind()), "{full:?}");
                drop(upload);
                sandbox.files().remove(&ground.inside("large")).expect("removes");
                run_ok(&*sandbox, &(programs.fill)("again", 1 << 20));
                sandbox.release().expect("releases");
            }
            // How much of a processor is taken is measured, not asserted, on a machine that is shared.
            "cpu" => {}
            other => panic!("no case for the limit {other}"),
        }
    }
}

fn the_signals_it_claims_arrive(executor: &dyn Executor, ground: &Ground) {
    let claims = executor.capabilities();
    let all = claims.signals == ["all"];
    let (_, sandbox) = ground.live(executor);
    for (name, number) in [("TERM", 15), ("INT", 2), ("USR1", 10), ("KILL", 9)] {
        let slow = start(&*sandbox, &(ground.programs.sleep)()).unwrap_or_else(|error| panic!("{error}"));
        if all || claims.signals.iter().any(|signal| signal == name) {
            slow.running.signal(number).expect("signals");
            assert_eq!(slow.exit(), Exit::Signal(number));
        } else {
            let refused = slow.running.signal(number);
            assert!(matches!(refused, Err(ExecutorError::Unsupported { .. })), "{name}: {refused:?}");
            std::thread::sleep(Duration::from_millis(20));
            assert!(!slow.is_over(), "a refused signal does nothing");
        }
    }
    sandbox.release().expect("releases");
}

fn recovery_does_nothing(executor: &dyn Executor, _: &Ground) {
    executor.recover().expect("recovers");
    assert_eq!(executor.recover().expect("recovers"), Vec::<String>::new());
}
