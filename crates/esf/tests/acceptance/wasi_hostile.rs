//! Guests that try to get out, past a right, or to more than there is (security 62, 63, 65-67; P25). Each
//! row is stopped where it should be, the host's memory stays bounded, and the worker lives.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::guests::*;
use crate::needs_guests;
use crate::support::*;

/// A tree beside which a secret lies, and links of every kind that lead to it.
struct Prison {
    lab: Lab,
    guests: Guests,
    node: String,
}

const SECRET: &str = "the host's own";

impl Prison {
    fn new(guests: Guests) -> Self {
        let lab = Lab::new();
        fs::create_dir(lab.path("outside")).unwrap();
        fs::write(lab.path("outside/secret"), SECRET).unwrap();
        let outside = lab.path("outside");
        let script = format!(
            "mkdir -p in/deep data; echo own > in/file; echo shared > data/file; echo other > other
             ln -s '{0}' absolute; ln -s '{0}/secret' in/absolute; ln -s /etc/passwd passwd; ln -s / root
             ln -s .. up; ln -s ../.. in/up; ln -s ../../../../../../../../../../../../etc etc
             ln -s ../other data/sibling; ln -s up/outside through; ln -s ../data/../../outside/secret in/long",
            outside.display()
        );
        let node = lab.group("g", &lab.tree("t", &script));
        Self { lab, guests, node }
    }

    /// Runs a script of `fsop` on a fresh view of the tree.
    #[track_caller]
    fn answers(&self, options: &[&str], arguments: &[&str]) -> String {
        let attempt = self.guests.wasi(&self.lab, &self.node, &["fsop"], options);
        let answers = self.lab.text(["exec", &attempt, "--", "fsop.wasm"].iter().chain(arguments));
        self.lab.release(&attempt);
        answers
    }

    /// Asserts that nothing of the host was told or changed.
    #[track_caller]
    fn intact(&self, answers: &str) {
        assert!(!answers.contains("own\\x20own") && !answers.contains("root:x"), "{answers}");
        assert!(!answers.contains(&SECRET.replace(' ', "\\x20")), "{answers}");
        let outside = self.lab.path("outside");
        assert_eq!(fs::read(outside.join("secret")).unwrap(), SECRET.as_bytes());
        assert_eq!(fs::read_dir(outside).unwrap().count(), 1, "nothing was made there");
    }
}

/// Whether an answer is one of a refusal that lets nothing through.
fn refused(line: &str) -> bool {
    ["EPERM", "ENOTCAPABLE"].iter().any(|error| line.ends_with(error))
}

#[test]
fn row62_p25_every_way_out_is_refused() {
    let prison = Prison::new(needs_guests!());
    let absolute = prison.lab.path("outside").display().to_string();
    let mut script = String::new();
    let mut ways = 0;
    for way in [
        "absolute",
        "in/absolute",
        "passwd",
        "root",
        "up",
        "in/up",
        "etc",
        "through",
        "in/long",
        "..",
        "../outside",
        "in/../..",
        "in/deep/../../../outside",
        "./..",
        absolute.as_str(),
        "/etc/passwd",
    ] {
        for path in [
            way.to_owned(),
            format!("{way}/"),
            format!("{way}/."),
            format!("{way}//secret"),
            format!("{way}/secret"),
        ] {
            script.push_str(&format!(
                "cat {path}\nstat {path}\nlist {path}\nopen 1 rd {path}\nwrite {path} gotcha\n"
            ));
            ways += 5;
        }
        let below = format!("{way}/made");
        script.push_str(&format!(
            "mkdir {below}\nnew {below} x\nsymlink x {below}\nlink in/file {below}\nrename in/file {below}\n\
             rename {below} in/taken\nlink {below} in/taken\nunlink {below}\nrmdir {below}\ntimes {below} 1 1\nreadlink {below}\n"
        ));
        ways += 11;
    }
    let answers = prison.answers(&[], &[&script]);
    prison.intact(&answers);
    assert_eq!(answers.lines().count(), ways);
    // The guest's own libc has no preopen for an absolute path, and says ENOENT without asking.
    let absolute =
        |line: &str| line.split(' ').any(|word| word.starts_with('/')) && line.ends_with(": ENOENT");
    let harmless = |line: &&str| {
        refused(line) || absolute(line) || line.ends_with(": EISDIR") || line.ends_with(": ENOTDIR")
    };
    let wrong: Vec<_> = answers.lines().filter(|line| !harmless(line)).collect();
    assert!(wrong.is_empty(), "not refused:\n{}", wrong.join("\n"));
    let made = prison.answers(&[], &["symlink /etc/passwd new\nsymlink ../../outside up2\ncat up2/secret\nlstat up\nreadlink passwd\nunlink up\nlist in"]);
    assert!(made.lines().next().is_some_and(refused), "an absolute target is not made: {made}");
    for good in ["lstat up: symlink 2 ok", "readlink passwd: 11 /etc/passwd ok", "unlink up: ok"] {
        assert!(made.lines().any(|line| line == good), "the links themselves are there: {made}");
    }
    prison.intact(&made);
}

/// A listing through slashes and dots stays inside as well.
#[test]
fn row62_trailing_slashes_make_nothing_outside() {
    let prison = Prison::new(needs_guests!());
    let script = "mkdir a/\nsymlink ../outside link\nsymlink x link/\nmkdir link/x\nwrite link/. y\nwrite link//x y\n\
                  rename a/ link/\nrename a link/b\nrmdir link/\nunlink link/\nlink in/file link/\nlink in/file up/\n\
                  new up/ x\nnew link/ x\nlist .";
    let answers = prison.answers(&[], &[script]);
    prison.intact(&answers);
    assert!(answers.ends_with("through:symlink up:symlink ok\n"), "{answers}");
    let allowed = ["mkdir a/", "symlink ../outside link", "list ."];
    let succeeded: Vec<_> = answers
        .lines()
        .filter(|line| line.ends_with("ok"))
        .map(|line| line.rsplit_once(": ").unwrap().0)
        .collect();
    for line in succeeded {
        assert!(allowed.iter().any(|start| line.starts_with(start)), "{line} succeeded:\n{answers}");
    }
}

#[test]
fn row63_no_write_goes_through_a_read_only_preopen() {
    let prison = Prison::new(needs_guests!());
    let preopens = ["--preopen", "data:/ro:ro", "--preopen", "in:/rw:rw"];
    let script = "preopen 1 /ro\npreopen 2 /rw\nat 1\ncat file\nlist .\nstat file\nopen 3 r file\nread 3 100\n\
                  # nothing changes what is read-only\n\
                  open 4 rw file\nopen 4 w file\nopen 4 rt file\nopen 4 rc new\nopen 4 wct file\nopen 4 wa file\nput 3 x\nsize 3 0\npwrite 3 x 0\nftimes 3 1 1\n\
                  mkdir d\nrmdir d\nunlink file\nsymlink x new\ntimes file 1 1\nltimes sibling 1 1\n\
                  to 1\nlink file new\nrename file new\n\
                  # nor from one to the other\n\
                  to 2\nlink file hard\nrename file moved\nat 2\nto 1\nlink file hard\nrename file moved\n\
                  # nor through links that lead to what is not given\n\
                  at 1\ncat sibling\nwrite sibling x\nopen 5 rd ..\nlist ../in\ncat ../other\n\
                  # what is given for writing works\n\
                  at 2\nto 2\nwrite file changed\nlink file hard\nrename hard moved\nlist .";
    let attempt = prison.guests.wasi(&prison.lab, &prison.node, &["fsop"], &preopens);
    let answers = prison.lab.text(["exec", &attempt, "--", "fsop.wasm", script, "/ro"]);
    let line = |start: &str| {
        let found = answers.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("{start} is not in {answers}")).to_owned()
    };
    for works in [
        "cat file: 7 shared\\x0a",
        "open 3 r file",
        "read 3 100: 7 shared\\x0a",
        "stat file",
        "write file changed",
        "rename hard moved",
    ] {
        assert!(line(works).ends_with("ok"), "{works}: {answers}");
    }
    let operations: Vec<(usize, &str)> = answers.lines().enumerate().collect();
    let from = operations.iter().position(|(_, line)| line.starts_with("open 4 rw file")).unwrap();
    let until = operations.iter().position(|(_, line)| line.starts_with("write file changed")).unwrap();
    for (_, line) in &operations[from..until] {
        let steers = ["at ", "to "].iter().any(|start| line.starts_with(start));
        assert!(steers || !line.ends_with("ok"), "{line} succeeded:\n{answers}");
    }
    for line in &["link file hard: ", "rename file moved: "] {
        let first = answers.lines().filter(|found| found.starts_with(line)).take(2).all(refused);
        assert!(first, "across preopens: {answers}");
    }
    let sealed = prison.lab.suspend(&attempt);
    assert_eq!(prison.lab.cat(&sealed, "data/file"), b"shared\n");
    assert_eq!(prison.lab.cat(&sealed, "in/file"), b"changed");
    let names = |part: &str| prison.lab.dump(&sealed).lines().filter(|line| line.starts_with(part)).count();
    assert_eq!(names("/data/"), 2, "{}", prison.lab.dump(&sealed));
}

/// The same through the interface of WASI 0.2 itself, where the flags are said in so many words.
#[test]
fn row63_no_flag_opens_a_way_around_a_read_only_preopen() {
    let prison = Prison::new(needs_guests!());
    let script = r#"
from wit_world.imports import preopens, types
from componentize_py_types import Err
given = {path: fd for fd, path in preopens.get_directories()}
ro, rw = given["/ro"], given["/rw"]
F, O, P = types.DescriptorFlags, types.OpenFlags, types.PathFlags
none = O(0)
def attempt(what, call):
    try:
        result = call()
    except Err as error:
        print(what, error.value)
    else:
        print(what, "SUCCEEDED", result)
for flags in [F.WRITE, F.READ | F.WRITE, F.MUTATE_DIRECTORY, F.READ | F.MUTATE_DIRECTORY | F.WRITE]:
    attempt(f"open {flags!r}", lambda: ro.open_at(P(0), "file", none, flags))
for how in [O.CREATE, O.TRUNCATE, O.CREATE | O.EXCLUSIVE, O.CREATE | O.TRUNCATE]:
    attempt(f"open {how!r}", lambda: ro.open_at(P(0), "new" if O.EXCLUSIVE in how else "file", how, F.READ))
for flags in [F.MUTATE_DIRECTORY, F.READ | F.MUTATE_DIRECTORY]:
    attempt(f"directory {flags!r}", lambda: ro.open_at(P(0), ".", O.DIRECTORY, flags))
file = ro.open_at(P(0), "file", none, F.READ)
attempt("set-size", lambda: file.set_size(0))
attempt("write", lambda: file.write(b"x", 0))
attempt("write-via-stream", lambda: file.write_via_stream(0))
inner = ro.open_at(P(0), ".", O.DIRECTORY, F.READ)
for name, directory in [("preopen", ro), ("reopened", inner)]:
    attempt(f"{name} create", lambda: directory.create_directory_at("d"))
    attempt(f"{name} unlink", lambda: directory.unlink_file_at("file"))
    attempt(f"{name} symlink", lambda: directory.symlink_at("x", "new"))
    attempt(f"{name} link out", lambda: directory.link_at(P(0), "file", rw, "hard"))
    attempt(f"{name} link in", lambda: rw.link_at(P(0), "file", directory, "hard"))
    attempt(f"{name} rename out", lambda: directory.rename_at("file", rw, "moved"))
    attempt(f"{name} rename in", lambda: rw.rename_at("file", directory, "moved"))
for path in ["..", "../other", "/etc/passwd", "sibling", "a\0b", "file\0"]:
    attempt(f"path {path!r}", lambda: ro.open_at(P.SYMLINK_FOLLOW, path, none, F.READ))
print("read", bytes(file.read(100, 0)[0]))
"#;
    let preopens = ["--preopen", "data:/ro:ro", "--preopen", "in:/rw:rw"];
    let attempt = prison.guests.wasi(&prison.lab, &prison.node, &["python"], &preopens);
    let answers = prison.lab.text(["exec", &attempt, "--", "python.wasm", "-c", script]);
    assert!(!answers.contains("SUCCEEDED"), "{answers}");
    assert!(answers.contains("read b'shared\\n'"), "{answers}");
    assert!(answers.lines().count() >= 30, "{answers}");
    let before = prison.lab.dump(&prison.node);
    assert_eq!(timeless(&prison.lab.dump(&prison.lab.suspend(&attempt))), timeless(&before));
    prison.intact(&answers);
}

#[test]
fn row65_links_and_listings_end_as_on_a_plain_directory() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let chain: String = (0..60).map(|at| format!("ln -s l{} l{at};", at + 1)).collect();
    let tree = "mkdir d e; echo x > d/f; ln -s loop loop; ln -s b a; ln -s a b; ln -s nowhere dangling; ln -s d link;";
    let script = "stat loop\ncat a\nwrite b x\nlist loop/x\nstat l0\nstat l19\nstat l59\nlstat l0\ncat dangling\nstat dangling\nlstat dangling\n\
                  mkdir dangling\nwrite dangling made\ncat nowhere\nlist link\nlist link/\nrmdir link\nunlink d\nrename link d\n\
                  rename d e\nlist e\nrename e e/inside\nrename dangling dangling2\nlstat dangling2\n\
                  unlink loop\nunlink l0\nlist e\nrename nowhere nowhere\ncat nowhere";
    let source = lab.tree("t", &format!("{tree}{chain} echo end > l60"));
    let node = lab.group("g", &source);
    let (answers, sealed) = guests.step(&lab, On::Wasi, &node, script);
    // The oracle is the same program on the same tree in a plain directory.
    assert_eq!(answers, guests.plain(&source, script));
    let expected = lab.group("expected", &source);
    same("sealed", &timeless(&lab.dump(&sealed)), &timeless(&lab.dump(&expected)));
    let over = "rename d .\nrename . x\nrename d d/..\nrmdir .\nunlink .\nlist .";
    let answers = guests.step(&lab, On::Wasi, &lab.group("h", &lab.tree("u", "mkdir d")), over).0;
    assert_eq!(failed(&answers).len(), 5, "{answers}");
    assert!(answers.ends_with("list .: d:directory ok\n"), "{answers}");
}

#[test]
fn row65_a_listing_goes_on_while_its_directory_changes() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", ": > f"));
    let attempt = guests.wasi(&lab, &node, &["hostile"], &[]);
    let said = lab.text(["exec", &attempt, "--", "hostile.wasm", "changing"]);
    assert_eq!(said, "ended after some rounds, saw each that stayed\n");
}

/// What a hostile program said, its exit code, and that the worker answers afterwards.
struct Stopped {
    exit: i32,
    said: String,
    errors: String,
    took: Duration,
}

#[track_caller]
fn stopped(lab: &Lab, attempt: &str, options: &[&str], words: &[&str]) -> Stopped {
    let began = Instant::now();
    let output =
        lab.output(["exec", attempt].iter().chain(options).chain(&["--", "hostile.wasm"]).chain(words));
    let took = began.elapsed();
    let [said, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let exit = output.status.code().unwrap_or_else(|| panic!("{words:?}: {}", crate::support::said(&output)));
    Stopped { exit, said, errors, took }
}

fn hostile_lab(guests: &Guests, options: &[&str]) -> (Lab, String) {
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", ": > f"));
    let attempt = guests.wasi(&lab, &node, &["hostile", "basic"], options);
    (lab, attempt)
}

#[test]
fn row66_what_never_ends_is_ended() {
    let guests = needs_guests!();
    let (lab, attempt) = hostile_lab(&guests, &[]);
    for words in [&["spin"][..], &["storm"]] {
        let stopped = stopped(&lab, &attempt, &["--timeout", "1s"], words);
        assert_eq!(stopped.exit, 124, "{words:?}: {}", stopped.errors);
        assert!(stopped.took < Duration::from_secs(4), "{words:?} took {:?}", stopped.took);
    }
    let spin = Running::start(lab.esf(["exec", &attempt, "--", "hostile.wasm", "spin"]));
    let began = Instant::now();
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n", "another runs beside it");
    assert!(began.elapsed() < Duration::from_secs(5));
    lab.json(["kill", &attempt, "--signal", "KILL"]);
    assert_eq!(spin.wait().status.code(), Some(137));
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n");
}

#[test]
fn row66_fuel_ends_what_never_ends() {
    let guests = needs_guests!();
    let (lab, attempt) = hostile_lab(&guests, &["--fuel", "100000000"]);
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n");
    let stopped = stopped(&lab, &attempt, &["--timeout", "60s"], &["spin"]);
    assert_eq!(stopped.exit, 128 + 24, "{}", stopped.errors);
}

#[test]
fn row66_traps_end_the_guest_alone() {
    let guests = needs_guests!();
    let (lab, attempt) = hostile_lab(&guests, &[]);
    for (words, why) in [
        (&["trap"][..], "unreachable"),
        (&["outside"], "out of bounds"),
        (&["divide"], "divide by zero"),
        (&["recurse"], ""),
        (&["pointers"], ""),
    ] {
        let stopped = stopped(&lab, &attempt, &["--timeout", "30s"], words);
        assert_eq!(stopped.exit, 128 + 6, "{words:?}: {} {}", stopped.said, stopped.errors);
        assert!(stopped.errors.contains(why), "{words:?}: {}", stopped.errors);
        assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n");
    }
}

#[test]
fn row66_memory_is_bounded() {
    let guests = needs_guests!();
    let (lab, attempt) = hostile_lab(&guests, &["--memory", "64m"]);
    let grown = stopped(&lab, &attempt, &["--timeout", "60s"], &["grow"]);
    assert_eq!(grown.exit, 0, "{}", grown.errors);
    let mib: u64 = grown.said.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!((32..=64).contains(&mib), "{}", grown.said);
    // Requests that need more than there is are refused by the guest's own allocator.
    for words in [&["poll", "10000000"][..], &["random", "1073741824"], &["path", "1073741824"]] {
        let stopped = stopped(&lab, &attempt, &["--timeout", "60s"], words);
        assert_eq!(
            (stopped.exit, stopped.said.starts_with("no memory for")),
            (0, true),
            "{words:?}: {} {}",
            stopped.said,
            stopped.errors
        );
    }
    assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n");
}

/// Large requests in a large memory: the host's own memory stays small beside the guest's.
#[test]
fn row66_large_requests_cost_the_host_little() {
    let guests = needs_guests!();
    let (lab, attempt) = hostile_lab(&guests, &[]);
    let worker = lab.worker().expect("a worker runs");
    let resident = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("VmHWM: 0");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident(worker);
    for (words, expected) in [
        (&["random", "268435456"][..], "random 268435456 ok\n"),
        (&["path", "1048576"], "ENAMETOOLONG"),
        (&["path", "536870912"], "ENAMETOOLONG"),
        (&["poll", "100000"], "events "),
        (&["poll", "1000000"], "events "),
        (&["descriptors", "1000000"], "ENOMEM\nafterwards 1 ok\n"),
        (&["renumber"], ""),
    ] {
        let stopped = stopped(&lab, &attempt, &["--timeout", "60s"], words);
        // A trap is a way to refuse, too, so long as it comes soon and ends this guest alone.
        let refused = stopped.exit == 128 + 6;
        assert!(
            refused || (stopped.exit == 0 && stopped.said.contains(expected)),
            "{words:?}: {} {} {}",
            stopped.exit,
            stopped.said,
            stopped.errors
        );
        assert!(stopped.took < Duration::from_secs(60), "{words:?} took {:?}", stopped.took);
        assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n", "after {words:?}");
    }
    let grown = resident(worker).saturating_sub(before);
    assert!(grown < 16 << 10, "the worker grew by {grown} KiB");
    for host in lab.processes().into_iter().filter(|process| process.arguments.starts_with("esf-wasi-host")) {
        // The largest guest above asks for half a gibibyte twice; the rest is the host's.
        assert!(resident(host.pid) < 2 << 20, "the host had {} KiB", resident(host.pid));
    }
}

/// Handles of the 0.2 interface: a million are refused or traps, and the attempt goes on.
#[test]
fn row66_a_million_resources_are_refused() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", ": > f"));
    let attempt = guests.wasi(&lab, &node, &["python", "basic"], &["--memory", "1g"]);
    let script = "
from wit_world.imports import monotonic_clock, preopens, types
kept = []
try:
    WHAT
finally:
    print('kept', len(kept), flush=True)
";
    for what in [
        "for i in range(1_000_000): kept.append(monotonic_clock.subscribe_duration(3_600_000_000_000))",
        "top = preopens.get_directories()[0][0]
    for i in range(1_000_000): kept.append(top.open_at(types.PathFlags(0), '.', types.OpenFlags.DIRECTORY, types.DescriptorFlags.READ))",
    ] {
        let script = script.replace("WHAT", what);
        let words = ["exec", &attempt, "--timeout", "120s", "--", "python.wasm", "-c", &script];
        let output = lab.output(words);
        assert!([Some(1), Some(128 + 6)].contains(&output.status.code()), "{}", said(&output));
        assert_eq!(lab.text(["exec", &attempt, "--", "basic.wasm"]), "hello\n");
    }
}

#[test]
fn row66_a_delta_over_its_budget_is_refused_inside() {
    let guests = needs_guests!();
    let (lab, attempt) = hostile_lab(&guests, &["--disk", "8m"]);
    let filled = stopped(&lab, &attempt, &["--timeout", "60s"], &["fill", "100000000"]);
    let bytes: u64 = filled.said.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(filled.said.contains("ENOSPC") || filled.said.contains("EDQUOT"), "{}", filled.said);
    assert!((4 << 20..=8 << 20).contains(&bytes), "{}", filled.said);
    let sealed = lab.suspend(&attempt);
    // The write that was refused may have taken a part, which its error hides.
    let kept = lab.cat(&sealed, "filling").len() as u64;
    assert!(
        (bytes..bytes + (64 << 10)).contains(&kept) && kept <= 8 << 20,
        "{kept} bytes of {bytes} are kept"
    );
}

/// As after a panic of the host: its attempt is lost, typed; the worker and the other attempt live.
#[test]
fn row67_a_host_that_dies_takes_its_own_attempt_only() {
    let guests = needs_guests!();
    let (lab, first) = hostile_lab(&guests, &[]);
    let hosts = || {
        let ours = |process: &Process| process.arguments.starts_with("esf-wasi-host");
        lab.processes().into_iter().filter(ours).map(|process| process.pid).collect::<Vec<_>>()
    };
    wait_until("the attempt has a host", || !hosts().is_empty());
    let node = id(&lab.inspect(&first)["attempt"], "node_id");
    let base = lab.inspect(&node)["node"]["parents"][0].as_str().unwrap().to_owned();
    let second = guests.wasi(&lab, &base, &["basic"], &[]);
    let worker = lab.worker();
    // A spare may wait; the host of an attempt holds that attempt's directory.
    let holds = |pid: &u32, attempt: &str| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        targets
            .into_iter()
            .any(|target| target.to_string_lossy().contains(attempt.trim_start_matches("att_")))
    };
    let of_first: Vec<u32> = hosts().into_iter().filter(|pid| holds(pid, &first)).collect();
    assert_eq!(of_first.len(), 1, "one process for each attempt");
    let spin = Running::start(lab.esf(["-o", "json", "exec", &first, "--", "hostile.wasm", "spin"]));
    std::thread::sleep(Duration::from_millis(300));
    kill(of_first[0]);
    let output = spin.wait();
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert_eq!(lab.text(["exec", &second, "--", "basic.wasm"]), "hello\n");
    assert_eq!(lab.worker(), worker, "the worker lives");
    let later = lab.output(["exec", &first, "--", "basic.wasm"]);
    assert_ne!(later.status.code(), Some(0), "{}", said(&later));
    assert!(Path::new(&format!("/proc/{}", worker.unwrap())).exists());
}

/// Work that this executor cannot do is refused before it starts, by name.
#[test]
fn what_wasi_cannot_do_is_refused() {
    let guests = needs_guests!();
    let lab = Lab::new();
    let node = lab.group("g", &lab.tree("t", ": > f"));
    let module = guests.module("basic");
    for options in [
        &["--base", "host"][..],
        &["--user", "1000"],
        &["--cpus", "1"],
        &["--bind-ro", "/usr"],
        &["--network", "allow:example.org"],
    ] {
        let words = ["activate", &node, "--executor", "wasi", "--module", &module];
        let refused = lab.refused(words.iter().chain(options));
        assert_eq!((refused.exit, refused.code()), (5, "not_supported"), "{options:?}: {refused:?}");
    }
    let attempt = guests.wasi(&lab, &node, &["basic"], &[]);
    for options in [&["-t"][..], &["-u", "1000"]] {
        let words = ["exec", &attempt].into_iter().chain(options.iter().copied()).chain(["--", "basic.wasm"]);
        let refused = lab.refused(words);
        assert_eq!(refused.code(), "not_supported", "{options:?}: {refused:?}");
    }
    let missing = lab.path("missing.wasm").display().to_string();
    let refused = lab.refused(["activate", &node, "--executor", "wasi", "--module", &missing]);
    assert!(refused.text().contains(&missing), "{refused:?}");
    for preopen in ["no-such:/x", "../out:/x", "f:/x"] {
        let words = ["activate", &node, "--executor", "wasi", "--module", &module, "--preopen", preopen];
        let output = lab.output(words);
        assert_ne!(output.status.code(), Some(0), "{preopen}: {}", said(&output));
    }
}
