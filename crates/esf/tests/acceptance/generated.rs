//! Trees and scripts of operations drawn from a seed, for comparing executors.
//! Invariant: the same seed gives the same tree and script; scripts never block (no fifo is opened), never
//! name anything outside the tree, and ask only what two right filesystems answer alike.

use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Names that scripts use again and again, so that operations meet what is there. The first are names of
/// directories, mostly; the others never are.
const DIRECTORIES: [&str; 4] = ["d1", "d2", "d 3", "dé"];
const FILES: [&str; 5] = ["f1", "f2", "f\n3", "-f", "f\\4"];

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// True once in `in_how_many`.
    fn once(&mut self, in_how_many: usize) -> bool {
        self.below(in_how_many) == 0
    }
}

/// Makes directories full of everything a root can hold.
pub(crate) struct Trees {
    random: Random,
    hard_links: bool,
}

impl Trees {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Random(seed), hard_links: true }
    }

    pub(crate) fn without_hard_links(mut self) -> Self {
        self.hard_links = false;
        self
    }

    /// A new directory `top` with `count` trees `0`, `1` ... in it.
    pub(crate) fn make(mut self, top: &Path, count: usize) {
        fs::create_dir(top).unwrap();
        for at in 0..count {
            let tree = top.join(at.to_string());
            fs::create_dir(&tree).unwrap();
            self.fill(&tree, 0);
        }
    }

    fn fill(&mut self, directory: &Path, depth: usize) {
        for name in FILES {
            if self.random.once(3) {
                self.leaf(&directory.join(name));
            }
        }
        for name in DIRECTORIES {
            if self.random.once(3 + 2 * depth) {
                let below = directory.join(name);
                fs::create_dir(&below).unwrap();
                self.fill(&below, depth + 1);
            } else if self.random.once(10) {
                self.leaf(&directory.join(name));
            }
        }
        if self.random.once(4) {
            self.oddity(directory);
        }
        let mode = self.random.pick(&[0o755, 0o755, 0o700, 0o777, 0o1777, 0o500]);
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        self.age(directory);
    }

    /// A file or a link, under a name that scripts know.
    fn leaf(&mut self, path: &Path) {
        if self.random.once(4) {
            let target = self.random.pick(&["f1", "f2", "d1", "d1/f1", "nowhere", ".", "d2/../f1", "-"]);
            return symlink(target, path).unwrap();
        }
        let size = self.random.pick(&[0, 0, 1, 7, 100, 1024, 4096, 5000, 70_000]);
        let start = self.random.below(256);
        let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + start) as u8).collect();
        fs::write(path, bytes).unwrap();
        let mode = self.random.pick(&[0o644, 0o644, 0o600, 0o755, 0o444, 0o000, 0o4755]);
        // A write clears a set-id bit or does not, as the writer's privilege is: scripts meet none.
        fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o777)).unwrap();
        self.age(path);
    }

    /// What no script touches: special bits, long and strange names, hard links, a fifo.
    fn oddity(&mut self, directory: &Path) {
        let long = "long".repeat(60);
        let name = self.random.pick(&[
            "new\nline",
            "tab\there",
            "\u{1f388}",
            "back\\slash",
            ".wh.not",
            "a=b,c",
            &long,
        ]);
        let path = directory.join(name);
        match self.random.below(5) {
            0 => {
                rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o640.into(), 0)
                    .unwrap();
            }
            1 => symlink("../".repeat(3) + "else where/\u{e9}", &path).unwrap(),
            2 => {
                fs::create_dir(&path).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o2775)).unwrap();
            }
            _ => {
                fs::write(&path, name.as_bytes()).unwrap();
                let mode = self.random.pick(&[0o4755, 0o2711, 0o1644, 0o400]);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                self.age(&path);
                if self.hard_links {
                    fs::hard_link(&path, directory.join("hard link")).unwrap();
                }
            }
        }
    }

    /// Some moment of the past, with nanoseconds.
    fn age(&mut self, path: &Path) {
        let moment =
            Duration::new(self.random.next() % 1_700_000_000, (self.random.next() % 1_000_000_000) as u32);
        fs::File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH + moment).unwrap();
    }
}

/// Writes scripts for `fsop`.
pub(crate) struct Scripts {
    random: Random,
    /// How many trees there are, and how many of them one script touches.
    trees: (usize, usize),
    moved_directories: bool,
    hard_links: bool,
}

impl Scripts {
    pub(crate) fn new(seed: u64, trees: usize, touched: usize) -> Self {
        Self { random: Random(!seed), trees: (trees, touched), moved_directories: true, hard_links: true }
    }

    /// Everything; two executors may answer a few of these differently.
    pub(crate) fn mixed(&mut self, operations: usize) -> String {
        (self.moved_directories, self.hard_links) = (true, true);
        self.script(operations)
    }

    /// overlayfs refuses to move a directory of a lower layer (EXDEV).
    pub(crate) fn without_moved_directories(&mut self, operations: usize) -> String {
        (self.moved_directories, self.hard_links) = (false, true);
        self.script(operations)
    }

    /// A union breaks the hard links of a lower layer; a plain directory does not.
    pub(crate) fn without_hard_links(&mut self, operations: usize) -> String {
        (self.moved_directories, self.hard_links) = (true, false);
        self.script(operations)
    }

    fn script(&mut self, operations: usize) -> String {
        let mut script = String::new();
        let trees: Vec<usize> = (0..self.trees.1).map(|_| self.random.below(self.trees.0)).collect();
        for _ in 0..operations {
            let tree = self.random.pick(&trees);
            self.operation(&mut script, tree);
        }
        script
    }

    /// A path below a tree whose last name is one of files, or of directories.
    fn path(&mut self, tree: usize, last: &[&str]) -> String {
        let mut path = tree.to_string();
        for _ in 0..self.random.pick(&[0, 0, 1, 1, 2]) {
            path = format!("{path}/{}", escaped(self.random.pick(&DIRECTORIES)));
        }
        format!("{path}/{}", escaped(self.random.pick(last)))
    }

    fn any(&mut self, tree: usize) -> String {
        if self.random.once(3) { self.path(tree, &DIRECTORIES) } else { self.path(tree, &FILES) }
    }

    fn operation(&mut self, script: &mut String, tree: usize) {
        let (file, directory) = (self.path(tree, &FILES), self.path(tree, &DIRECTORIES));
        let (any, other) = (self.any(tree), self.path(tree, &FILES));
        let number = self.random.pick(&[0, 1, 5, 4095, 4096, 10_000]);
        let line = match self.random.below(20) {
            0 | 1 => format!("write {any} text{number}"),
            2 => format!("append {any} more{number}"),
            3 => format!("new {any} new{number}"),
            4 | 5 => format!("mkdir {directory}"),
            6 => format!("rmdir {directory}"),
            7 | 8 => format!("unlink {any}"),
            9 => format!("symlink {} {any}", self.random.pick(&["f1", "d1/f2", "d2", "nowhere", "f2"])),
            10 => format!("rename {file} {other}"),
            11 => format!("rename {file} {any}"),
            12 if self.moved_directories => {
                let to = self.path(tree, &DIRECTORIES);
                format!("rename {directory} {to}")
            }
            12 | 13 if self.hard_links => format!("link {file} {other}"),
            12 | 13 => format!("fill {file} {number}"),
            14 => format!("truncate {file} {number}"),
            15 => format!("cat {file}"),
            16 => format!("list {directory}"),
            17 => format!("lstat {any}\nreadlink {file}\nstat {other}"),
            18 => self.emptied(&directory),
            _ => format!("open 1 rw {file}\nput 1 through-{number}\nunlink {file}\nput 1 still\nclose 1"),
        };
        writeln!(script, "{line}").expect("writing to a string does not fail");
    }

    /// Removes what scripts may have put into a directory, then itself; often something else takes its place.
    fn emptied(&mut self, directory: &str) -> String {
        let mut script = String::new();
        for name in FILES.iter().chain(&DIRECTORIES) {
            writeln!(script, "unlink {directory}/{}", escaped(name))
                .expect("writing to a string does not fail");
        }
        for name in DIRECTORIES {
            writeln!(script, "rmdir {directory}/{}", escaped(name))
                .expect("writing to a string does not fail");
        }
        write!(script, "rmdir {directory}").expect("writing to a string does not fail");
        script
            + &self
                .random
                .pick(&["\nmkdir DIR", "\nwrite DIR x", "\nsymlink f1 DIR", ""])
                .replace("DIR", directory)
    }
}

/// A name as a word of a script.
fn escaped(name: &str) -> String {
    let mut word = String::new();
    for byte in std::ffi::OsStr::new(name).as_bytes() {
        match byte {
            b'\\' | ..=b' ' | 0x7f.. => {
                write!(word, "\\x{byte:02x}").expect("writing to a string does not fail")
            }
            byte => word.push(char::from(*byte)),
        }
    }
    word
}

#[test]
fn a_seed_gives_one_tree_and_one_script() {
    let scripts = || {
        let mut scripts = Scripts::new(7, 9, 3);
        (scripts.mixed(100), scripts.without_hard_links(100))
    };
    assert_eq!(scripts(), scripts());
    assert!(!scripts().1.contains("\nlink ") && scripts().0 != scripts().1);
    let directory = tempfile::tempdir().unwrap();
    let listed = |name: &str| {
        let top = directory.path().join(name);
        Trees::new(7).make(&top, 5);
        let listing = std::process::Command::new("ls")
            .args(["-lRn", "--time-style=full-iso"])
            .current_dir(&top)
            .output();
        let text = String::from_utf8_lossy(&listing.unwrap().stdout).into_owned();
        // Links and specials keep the time of their making.
        let kept = text.lines().filter(|line| line.starts_with('-'));
        kept.map(str::to_owned).collect::<Vec<_>>()
    };
    let (one, two) = (listed("one"), listed("two"));
    assert!(one == two && one.len() > 20, "{} {}", one.len(), two.len());
}
