//! What the privileged tests share: stores in temporary directories, overlays that are really
//! mounted, and dumps by which two trees are equal when their texts are.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "the module is private to each test binary")]

use std::path::{Path, PathBuf};
use std::process::Command;

use esf_core::AttemptId;
use esf_core::digest::{Digest, RequestDigest};
use esf_core::manifest::{RootPin, dump_line, walk};
use esf_core::policy::Durability;
use esf_layerstack::{Changes, ImportOptions, LayerStack, PreparedSeal, SealRequest, Usage, Workspace};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

/// True when overlays can be mounted; says why not otherwise.
pub fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: mounting an overlay needs root");
    }
    root
}

/// A store in a temporary directory.
pub struct Store {
    pub stack: LayerStack,
    pub dir: tempfile::TempDir,
    attempts: std::cell::Cell<u32>,
}

impl Store {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("esf-test-").tempdir().expect("temporary directory");
        let stack = LayerStack::create(&dir.path().join("store")).expect("create a store");
        Self { stack, dir, attempts: 0.into() }
    }

    /// The store `store` that somebody made in `dir`.
    pub fn within(dir: tempfile::TempDir) -> Self {
        let stack = LayerStack::open(&dir.path().join("store")).expect("open the store");
        Self { stack, dir, attempts: 1000.into() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn attempt(&self) -> AttemptId {
        self.attempts.set(self.attempts.get() + 1);
        AttemptId::from_bytes(u128::from(self.attempts.get()).to_be_bytes())
    }

    /// Runs a shell script in a new directory and imports it.
    pub fn import_script(&self, script: &str) -> RootPin {
        let source = tempfile::tempdir_in(self.dir.path()).expect("temporary directory");
        shell(source.path(), script);
        self.import(source.path())
    }

    pub fn import(&self, source: &Path) -> RootPin {
        *import(&self.stack, source).sealed.pin()
    }

    /// Runs a shell script in an overlay over `base` and seals what it did.
    pub fn run(&self, base: &RootPin, script: &str) -> (RootPin, Changes) {
        self.run_with(base, |merged| shell(merged, script))
    }

    pub fn run_with(&self, base: &RootPin, change: impl FnOnce(&Path)) -> (RootPin, Changes) {
        let attempt = self.attempt();
        let workspace = self.stack.open_workspace(base, attempt).expect("open a workspace");
        let mounted = mount(&workspace, &self.path("merged"));
        change(&mounted.path);
        drop(mounted);
        let prepared = self.seal(attempt, base);
        let (pin, changes) = (*prepared.sealed().pin(), prepared.changes().clone());
        self.stack.settle_seal(prepared, true).expect("settle");
        self.check_accounts();
        (pin, changes)
    }

    pub fn seal(&self, attempt: AttemptId, base: &RootPin) -> PreparedSeal {
        self.stack.seal(&request(attempt, base), &()).expect("seal")
    }

    /// The root by what an overlay of its carriers shows, taken in anew by an import.
    pub fn view(&self, pin: &RootPin) -> RootPin {
        let attempt = self.attempt();
        let workspace = self.stack.open_workspace(pin, attempt).expect("open a workspace");
        let mounted = mount(&workspace, &self.path("view"));
        let scratch = Store::new();
        let seen = scratch.import(&mounted.path);
        if seen != *pin {
            let (expected, found) = (self.dump(pin), scratch.dump(&seen));
            similar_lines(&expected, &found);
        }
        drop(mounted);
        self.stack.discard_workspace(attempt).expect("discard");
        seen
    }

    pub fn dump(&self, pin: &RootPin) -> Vec<String> {
        dump(&self.stack, pin)
    }

    /// The ledger agrees with the disk to the byte, once nothing is being removed.
    pub fn check_accounts(&self) {
        assert_eq!(self.stack.empty_trash(), 0);
        let counts = || {
            let (usage, recount) =
                (self.stack.usage().expect("usage"), self.stack.recount().expect("recount"));
            (usage, recount, du(self.stack.directory()))
        };
        // The databases' own files may grow a block when the kernel writes them back: look again then.
        let agree = |(usage, recount, total): &(Usage, Usage, u64)| usage == recount && usage.total == *total;
        let found = (0..5).map(|_| counts()).find(agree).unwrap_or_else(counts);
        assert_eq!(found.0, found.1, "the ledger and the disk disagree");
        assert_eq!(found.0.total, found.2, "{:?} and du disagree", found.0);
    }
}

/// The ledger says what the disk says. The databases' own files may grow a block between the two looks, when
/// the kernel writes them back: looks again then.
pub fn check_ledger(stack: &LayerStack, at: &str) {
    let counts = || (stack.usage().expect("usage"), stack.recount().expect("recount"));
    let (usage, recount) =
        (0..5).map(|_| counts()).find(|(usage, disk)| usage == disk).unwrap_or_else(counts);
    assert_eq!(usage, recount, "{at}: the ledger and the disk disagree");
}

/// An ordinary user's number.
pub const NOBODY: u32 = 65534;

/// Runs the test `child` of this binary as an ordinary user, who owns `dir`. It finds `dir` and `role` in
/// its environment and leaves its findings in `dir`.
pub fn as_nobody(dir: &Path, role: &str) -> std::process::ExitStatus {
    use std::os::unix::process::CommandExt;
    // By this link no directory on the way to the binary must be open to that user.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "child", "--nocapture"]).env("ESF_CHILD_DIR", dir).env("ESF_CHILD_ROLE", role);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    command.stdout(std::process::Stdio::null()).status().expect("run the child")
}

/// What the child is to do; none when this is an ordinary run of all tests.
pub fn child_role() -> Option<(PathBuf, String)> {
    let dir = std::env::var_os("ESF_CHILD_DIR")?;
    Some((dir.into(), std::env::var("ESF_CHILD_ROLE").expect("set together")))
}

/// A temporary directory that belongs to the ordinary user, if this one can give it away.
pub fn nobodys_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("esf-user-").tempdir().expect("temporary directory");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    dir
}

fn similar_lines(expected: &[String], found: &[String]) {
    for line in expected.iter().filter(|line| !found.contains(line)) {
        eprintln!("only in the root: {line}");
    }
    for line in found.iter().filter(|line| !expected.contains(line)) {
        eprintln!("only in the view: {line}");
    }
}

/// An independent count of a directory's allocated bytes.
pub fn du(dir: &Path) -> u64 {
    let output = Command::new("du").args(["-s", "--block-size=1"]).arg(dir).output().expect("run du");
    let text = String::from_utf8(output.stdout).expect("du prints text");
    text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("du prints a number")
}

pub fn import(stack: &LayerStack, source: &Path) -> esf_layerstack::Imported {
    let options = ImportOptions { preserve_owners: true, ..ImportOptions::default() };
    stack.import_directory(source, &options, &()).expect("import")
}

pub fn request(attempt: AttemptId, base: &RootPin) -> SealRequest {
    SealRequest {
        attempt,
        base: *base,
        request_digest: RequestDigest::new(Digest::of(b"body")),
        key: format!("seal {attempt}"),
        durability: Durability::Full,
    }
}

pub fn dump(stack: &LayerStack, pin: &RootPin) -> Vec<String> {
    walk(stack.objects(), pin).map(|entry| dump_line(&entry.expect("walk"))).collect()
}

pub fn shell(dir: &Path, script: &str) {
    let status = Command::new("sh").args(["-euc", script]).current_dir(dir).status().expect("run sh");
    assert!(status.success(), "{script}");
}

/// An overlay that is mounted until dropped.
pub struct Mounted {
    pub path: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.path, UnmountFlags::empty()).expect("plain unmount");
        std::fs::remove_dir(&self.path).expect("remove the mount point");
    }
}

/// Mounts a workspace as executors do, but for the id maps.
pub fn mount(workspace: &Workspace, at: &Path) -> Mounted {
    std::fs::create_dir(at).expect("make the mount point");
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).expect("fsopen");
    let set = |key: &str, value: &str| {
        fsconfig_set_string(&context, key, value).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
    };
    for lower in &workspace.lowers {
        set("lowerdir+", lower.to_str().expect("text"));
    }
    set("upperdir", workspace.upper.to_str().expect("text"));
    set("workdir", workspace.work.to_str().expect("text"));
    for (key, value) in [("metacopy", "off"), ("redirect_dir", "nofollow"), ("index", "off"), ("xino", "off")]
    {
        set(key, value);
    }
    fsconfig_set_flag(&context, "volatile").expect("volatile");
    fsconfig_create(&context).expect("create the overlay");
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).expect("fsmount");
    move_mount(&mount, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).expect("attach");
    Mounted { path: at.to_owned() }
}

/// A small filesystem of its own, unmounted when dropped.
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub fn new(options: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("esf-disk-").tempdir().expect("temporary directory");
        let image = dir.path().join("image");
        std::fs::File::create(&image).expect("create").set_len(64 << 20).expect("grow");
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).args(options).arg(&image));
        std::fs::create_dir(dir.path().join("mnt")).expect("mkdir");
        let disk = Self { dir };
        disk.mount();
        disk
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// A path on the ordinary disk.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Cuts the power: what was not synced is gone. Mounts what is left.
    pub fn cut_power(&self) {
        // EXT4_IOC_SHUTDOWN without flushing the journal.
        let ioctl = "open(F, '<', $ARGV[0]) or die; my $f = pack('L', 2); ioctl(F, 0x8004587d, $f) or die $!";
        run(Command::new("perl").args(["-e", ioctl]).arg(self.path()));
        unmount(self.path(), UnmountFlags::empty()).expect("unmount");
        // A mount namespace that another test made meanwhile may hold the dead filesystem: mount a copy.
        let (image, copy) = (self.beside("image"), self.beside("copy"));
        run(Command::new("cp").arg("--sparse=always").args([&image, &copy]));
        std::fs::rename(copy, image).expect("rename");
        self.mount();
    }

    fn mount(&self) {
        // The loop device goes by itself with the mount.
        run(Command::new("mount").args(["-o", "loop"]).arg(self.beside("image")).arg(self.path()));
    }

    /// Fills the disk to the last block.
    pub fn fill(&self) -> PathBuf {
        let filler = self.path().join("filler");
        let mut file = std::fs::File::create(&filler).expect("create");
        for size in [1 << 20, 4096, 1] {
            while std::io::Write::write_all(&mut file, &vec![b'x'; size])
                .and_then(|()| file.sync_data())
                .is_ok()
            {}
        }
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(self.path(), UnmountFlags::empty()).expect("unmount");
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
