//! The proven unmount, and the independent probe.
//!
//! A jail's overlay may be the root of its mount namespace, and letting the namespace go unmounts
//! lazily, which proves nothing. So a helper enters it, pivots onto an empty tmpfs and unmounts
//! every overlay plainly: EBUSY if anything, anywhere, still holds a file of it. What else is
//! mounted holds no work of the jail and goes with the namespace. Invariant: no overlay is ever
//! unmounted lazily.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{FsOpenFlags, MountAttrFlags, UnmountFlags};
use rustix::thread::LinkNameSpaceType;
use serde::{Deserialize, Serialize};

use crate::error::{Report, Step as _};
use crate::{Error, mounts, sys, wire};

/// How long a file may stay open after its last process died: the kernel closes some late.
const LATE_CLOSE: Duration = Duration::from_millis(250);

/// What the helper found.
#[derive(Serialize, Deserialize)]
pub(crate) enum Outcome {
    Unmounted,
    Busy(PathBuf),
    Failed(Report),
}

/// Runs in a helper process: unmounts, answers, ends.
pub(crate) fn answer(namespace: &OwnedFd, asker: &OwnedFd) -> ! {
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let outcome = unmount_all(namespace).unwrap_or_else(|error| Outcome::Failed(error.into()));
        let text = serde_json::to_vec(&outcome).expect("an outcome has a JSON form");
        // Without an asker there is nobody to tell.
        let _ = wire::send(asker, &text, &[]);
    }));
    sys::exit_now(if code.is_ok() { 0 } else { 70 })
}

fn unmount_all(namespace: &OwnedFd) -> Result<Outcome, Error> {
    let proc = mounts::open_path(CWD, "/proc", OFlags::DIRECTORY).step(|| "open /proc".into())?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        .step(|| "enter the jail's mount namespace".into())?;
    let floor = mounts::new_filesystem(c"tmpfs", &[("size", "4k")], MountAttrFlags::empty())?;
    mounts::attach(floor.as_fd(), CWD, c"/")?;
    rustix::process::fchdir(&floor).step(|| "enter the floor".into())?;
    rustix::fs::mkdirat(&floor, c"old", Mode::from_raw_mode(0o700)).step(|| "mkdir old".into())?;
    rustix::process::pivot_root(c".", c"old").step(|| "pivot to the floor".into())?;
    rustix::process::chdir(c"/").step(|| "enter the floor".into())?;
    let deadline = Instant::now() + LATE_CLOSE;
    for step in order(&mounts_below(&proc)?) {
        match step {
            Step::Detach(at) => rustix::mount::unmount(at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
                .step(|| format!("detach {}", at.display()))?,
            Step::Prove(at) => {
                if !unmount_plainly(at, deadline)? {
                    let inside = at.strip_prefix("/old").unwrap_or(at);
                    return Ok(Outcome::Busy(Path::new("/").join(inside)));
                }
            }
        }
    }
    Ok(Outcome::Unmounted)
}

/// Whether a mount could be unmounted; `false` if something still holds it at the deadline.
fn unmount_plainly(at: &Path, deadline: Instant) -> Result<bool, Error> {
    loop {
        match rustix::mount::unmount(at, UnmountFlags::NOFOLLOW) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::BUSY) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(rustix::io::Errno::BUSY) => return Ok(false),
            Err(error) => return Err(Error::kernel(format!("unmount {}", at.display()), error)),
        }
    }
}

/// One line of mountinfo.
#[derive(Debug, PartialEq)]
struct Line {
    id: u32,
    parent: u32,
    at: PathBuf,
    overlay: bool,
}

/// Mounts at or below `/old`, as this process' mount namespace has them.
fn mounts_below(proc: &OwnedFd) -> Result<Vec<Line>, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(proc, c"self/mountinfo", flags, Mode::empty()).step(|| "open mountinfo".into())?;
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut text).step(|| "read mountinfo".into())?;
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let overlay = fields.windows(2).any(|pair| pair == [b"-" as &[u8], b"overlay"]);
        let number = |index: usize| std::str::from_utf8(fields.get(index)?).ok()?.parse().ok();
        let at = unescape(fields.get(4)?);
        Some(Line { id: number(0)?, parent: number(1)?, at, overlay })
    });
    Ok(lines.filter(|line| line.at.starts_with("/old")).collect())
}

/// One unmount by path.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    /// A mount on an overlay, holding none itself.
    Detach(&'a Path),
    /// An overlay.
    Prove(&'a Path),
}

/// The unmounts that free every overlay, in an order in which each works by path: what lies on a
/// mount before it, and what covers a place before what it covers.
fn order(lines: &[Line]) -> Vec<Step<'_>> {
    fn holds_overlay(lines: &[Line], line: &Line) -> bool {
        let mut children = lines.iter().filter(|child| child.parent == line.id);
        line.overlay || children.any(|child| holds_overlay(lines, child))
    }
    fn visit<'a>(lines: &'a [Line], line: &'a Line, on_overlay: bool, order: &mut Vec<Step<'a>>) {
        if !holds_overlay(lines, line) {
            if on_overlay {
                order.push(Step::Detach(&line.at));
            }
            return;
        }
        let mut children: Vec<_> = lines.iter().filter(|child| child.parent == line.id).collect();
        children.sort_by_key(|child| child.at.components().count());
        for child in children {
            visit(lines, child, on_overlay || line.overlay, order);
        }
        if line.overlay || on_overlay {
            order.push(Step::Prove(&line.at));
        }
    }
    let mut order = Vec::new();
    for line in lines.iter().filter(|line| !lines.iter().any(|other| other.id == line.parent)) {
        visit(lines, line, false, &mut order);
    }
    order
}

/// Undoes mountinfo's octal escapes.
fn unescape(field: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let escape = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = escape.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, value) {
            (b'\\', Some(value)) => {
                bytes.push(value);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Whether an overlay with this upper directory is still alive anywhere on the machine.
///
/// Asks the kernel to make another overlay of the same upper with `index=on`, which it refuses with
/// EBUSY while the first one lives. The attempt is made to fail in any case (the upper is named as
/// lower as well, which is refused later than being in use), so the upper is not touched. `scratch`
/// is a directory on the same mount as `upper`; nothing stays in it.
///
/// # Errors
/// [`Error::Kernel`] if the kernel says neither of the two.
pub fn upper_in_use(upper: &Path, scratch: &Path) -> Result<bool, Error> {
    let work = scratch.join(format!("probe-{}", std::process::id()));
    rustix::fs::mkdir(&work, Mode::from_raw_mode(0o700)).step(|| format!("mkdir {}", work.display()))?;
    let answer = probe(upper, &work);
    for leftover in ["work", "index"] {
        let path = work.join(leftover);
        match rustix::fs::unlinkat(CWD, &path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            other => other.step(|| format!("rmdir {}", path.display()))?,
        }
    }
    rustix::fs::unlinkat(CWD, &work, AtFlags::REMOVEDIR).step(|| format!("rmdir {}", work.display()))?;
    match answer? {
        rustix::io::Errno::BUSY => Ok(true),
        rustix::io::Errno::LOOP => Ok(false),
        other => Err(Error::kernel(format!("probe {}", upper.display()), other)),
    }
}

fn probe(upper: &Path, work: &Path) -> Result<rustix::io::Errno, Error> {
    let open = |path: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).step(|| format!("open {}", path.display()))
    };
    let (upper, work) = (open(upper)?, open(work)?);
    let name = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let context = rustix::mount::fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .step(|| "probe with an overlay".into())?;
    let options = [
        ("lowerdir", name(&upper)),
        ("upperdir", name(&upper)),
        ("workdir", name(&work)),
        ("index", "on".into()),
    ];
    for (key, value) in &options {
        match rustix::mount::fsconfig_set_string(&context, *key, value.as_str()) {
            Ok(()) => {}
            Err(error) => return Err(Error::kernel(format!("probe option {key}"), error)),
        }
    }
    match rustix::mount::fsconfig_create(&context) {
        Ok(()) => Ok(rustix::io::Errno::EXIST),
        Err(error) => Ok(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlays_are_freed_from_the_top() {
        let line = |id, parent, at: &str, overlay| Line { id, parent, at: at.into(), overlay };
        // The root came last; /x was covered after /x/y was mounted on it.
        let lines = [
            line(2, 9, "/old/proc", false),
            line(3, 2, "/old/proc/kcore", false),
            line(4, 9, "/old/x", false),
            line(5, 4, "/old/x/y", true),
            line(6, 4, "/old/x", true),
            line(7, 6, "/old/x/z", false),
            line(9, 1, "/old", true),
        ];
        let at = Path::new;
        let whole = [
            Step::Detach(at("/old/proc")),
            Step::Detach(at("/old/x/z")),
            Step::Prove(at("/old/x")),
            Step::Prove(at("/old/x/y")),
            Step::Prove(at("/old/x")),
            Step::Prove(at("/old")),
        ];
        // Children are sorted by depth alone, so /proc and /x keep their order.
        assert_eq!(order(&lines), whole);
        let mut skeleton = lines;
        skeleton[6].overlay = false;
        let part = [Step::Detach(at("/old/x/z")), Step::Prove(at("/old/x")), Step::Prove(at("/old/x/y"))];
        assert_eq!(order(&skeleton), part);
    }

    #[test]
    fn mount_points_are_unescaped() {
        let cases: [(&[u8], &str); 4] = [
            (b"/old/a\\040b", "/old/a b"),
            (b"/old/\\134x", "/old/\\x"),
            (b"/old", "/old"),
            (b"/old/\\0", "/old/\\0"),
        ];
        for (field, path) in cases {
            assert_eq!(unescape(field), Path::new(path));
        }
    }
}
