//! Large artifacts: stored, read back, checked and collected piece by piece.

mod support;

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};

use esf_core::BlobId;
use esf_layerstack::LayerStack;
use support::Store;

/// Bytes that do not compress and are nowhere in memory.
struct Noise {
    state: u64,
    left: u64,
}

impl Noise {
    fn of(bytes: u64) -> Self {
        Self { state: 7, left: bytes }
    }
}

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.left.min(buffer.len() as u64) as usize;
        for byte in &mut buffer[..most] {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (self.state >> 33) as u8;
        }
        self.left -= most as u64;
        Ok(most)
    }
}

fn digest_of(mut input: impl Read) -> BlobId {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut input).expect("read");
    BlobId::new(esf_core::Digest::from_bytes(*hasher.finalize().as_bytes()))
}

/// The most memory that this process had since it was last asked, in bytes.
fn peak() -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("read");
    let line = text.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    let kilobytes: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    fs::write("/proc/self/clear_refs", "5").expect("reset the peak");
    kilobytes << 10
}

#[test]
fn sixty_megabytes_take_a_few_of_memory() {
    const SIZE: u64 = 60 << 20;
    let store = Store::new();
    let expected = digest_of(Noise::of(SIZE));
    peak();
    let before = peak();
    let stored = store.stack.store_artifact(&mut Noise::of(SIZE)).expect("store");
    assert_eq!((stored.blob(), stored.bytes()), (expected, SIZE));
    // While it is held no collection runs.
    let lock = fs::File::open(store.stack.directory().join("store.lock")).expect("open");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect_err("held");
    drop(stored);
    let reader = store.stack.open_artifact(expected).expect("open");
    assert_eq!(reader.size(), SIZE);
    assert_eq!(digest_of(reader), expected);
    // A file to be handed on, from another handle of the store.
    let other = LayerStack::open(store.stack.directory()).expect("open");
    let file = other.artifact_file(expected).expect("file");
    assert_eq!(file.metadata().expect("inspect").len(), SIZE);
    assert_eq!(digest_of(&file), expected);
    assert_eq!(store.stack.fsck(&()).expect("fsck").damage, [""; 0]);
    let grown = peak() - before;
    assert!(grown < 12 << 20, "{grown} bytes more at the peak");

    // Stored twice it is there once; collected when nothing names it.
    let packs = || fs::read_dir(store.stack.directory().join("packs")).expect("list").count();
    let all = packs();
    store.stack.store_artifact(&mut Noise::of(SIZE)).expect("again");
    assert_eq!(packs(), all);
    let collect = |live: &[BlobId]| {
        let lock = store.stack.lock_exclusive().expect("lock");
        let plan = store.stack.plan_gc(&lock, &[], &[], live).expect("plan");
        store.stack.run_gc(&lock, plan).expect("collect");
    };
    collect(&[expected]);
    assert_eq!(store.stack.open_artifact(expected).expect("kept").size(), SIZE);
    collect(&[]);
    assert_eq!(store.stack.open_artifact(expected).expect_err("gone").problem().code, "path_not_found");
    store.check_accounts();
}

#[test]
fn what_is_damaged_or_too_large_is_told() {
    let store = Store::new();
    let stored = store.stack.store_artifact(&mut Noise::of(5 << 20)).expect("store").blob();
    assert_eq!(store.stack.get_artifact(stored).expect("whole").len(), 5 << 20);
    let mut small = Vec::new();
    Noise::of(5 << 20).read_to_end(&mut small).expect("read");
    assert_eq!(store.stack.put_artifact(&small).expect("the same"), stored);
    let pack = fs::read_dir(store.stack.directory().join("packs")).expect("list").next().expect("one");
    let pack = pack.expect("list").path();
    fs::set_permissions(&pack, fs::Permissions::from_mode(0o600)).expect("chmod");
    let file = fs::File::options().write(true).open(&pack).expect("open");
    file.write_at(b"x", 4 << 20).expect("damage");
    let mut reader = store.stack.open_artifact(stored).expect("open");
    let error = io::copy(&mut reader, &mut io::sink()).expect_err("damaged");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(store.stack.artifact_file(stored).expect_err("damaged").problem().code, "damaged");
    assert_eq!(store.stack.fsck(&()).expect("fsck").damage.len(), 2);
    let huge = store.stack.store_artifact(&mut Noise::of((256 << 20) + 1)).expect_err("huge").problem();
    assert_eq!(huge.code, "artifact_too_large");
    let mut broken = Noise::of(1 << 20).chain(Broken);
    assert_eq!(store.stack.store_artifact(&mut broken).expect_err("broken").problem().code, "io_error");
    // Nothing is left of either.
    assert_eq!(fs::read_dir(store.stack.directory().join("packs")).expect("list").count(), 1);
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("the line is cut"))
    }
}
