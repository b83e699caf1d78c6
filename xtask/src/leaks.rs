//! What a test run left on the machine: a ledger written before, compared after.
//! Nothing of ours may stay: mounts, loop devices, cgroups, network namespaces, processes, files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;

/// Teardown of a network namespace and of what lies in trash is done in the background.
const PATIENCE: Duration = Duration::from_secs(15);

/// Names that only we give: cgroups, temporary files, runtime directories, processes.
const OUR_NAMES: &[&str] = &["esf", "jail"];

/// Directories in which we may make files: temporary, runtime and default store.
const OUR_PLACES: &[&str] = &["/tmp", "/var/tmp", "/run", "/dev/shm", "/var/lib"];

/// Writes what is there now.
pub(crate) fn record(file: &Path) -> Result<bool, Failure> {
    let lines: Vec<String> = take().into_iter().collect();
    fs::write(file, lines.join("\n"))?;
    println!("leak ledger: {} lines before", lines.len());
    Ok(true)
}

/// Compares with what was there; true when nothing was added. Waits a little for the background.
pub(crate) fn compare(file: &Path) -> Result<bool, Failure> {
    let before = fs::read_to_string(file)?;
    let before: BTreeSet<String> = before.lines().map(str::to_owned).collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let added: Vec<String> = take().difference(&before).cloned().collect();
        if added.is_empty() {
            println!("leak ledger: nothing left behind");
            return Ok(true);
        }
        if Instant::now() > deadline {
            for line in &added {
                eprintln!("leaked: {line}");
            }
            println!("leak ledger: {} things left behind", added.len());
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Everything of ours that can be seen, one line for each thing.
fn take() -> BTreeSet<String> {
    let mut ledger = BTreeSet::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    ledger.extend(mounts.lines().filter_map(mount_line));
    for entry in entries("/sys/block") {
        if entry.starts_with("loop")
            && Path::new("/sys/block").join(&entry).join("loop/backing_file").exists()
        {
            ledger.insert(format!("loop device {entry}"));
        }
    }
    cgroups(Path::new("/sys/fs/cgroup"), &mut ledger);
    for place in OUR_PLACES {
        let ours = entries(place).into_iter().filter(|name| is_ours(name));
        ledger.extend(ours.map(|name| format!("file {place}/{name}")));
    }
    processes(&mut ledger);
    ledger
}

/// A mount by what it is and where; its numbers change from one reading to the next.
fn mount_line(line: &str) -> Option<String> {
    let (left, right) = line.split_once(" - ")?;
    let target = left.split(' ').nth(4)?;
    let mut source = right.split(' ');
    Some(format!("mount {} at {target}", source.next()?))
}

fn is_ours(name: &str) -> bool {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    parts.into_iter().any(|part| OUR_NAMES.contains(&part))
}

fn cgroups(directory: &Path, ledger: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if is_ours(&entry.file_name().to_string_lossy()) {
                ledger.insert(format!("cgroup {}", entry.path().display()));
            }
            cgroups(&entry.path(), ledger);
        }
    }
}

/// Our processes, by the name of what they run, and every network namespace but the first.
fn processes(ledger: &mut BTreeSet<String>) {
    let own = fs::read_link("/proc/self/ns/net").ok();
    for pid in entries("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        let directory = Path::new("/proc").join(&pid);
        let arguments = fs::read(directory.join("cmdline")).unwrap_or_default();
        let words: Vec<_> = arguments.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
        if is_ours(program) {
            ledger.insert(format!("process {pid} {}", words.join(" ").trim_end()));
        }
        if let Ok(namespace) = fs::read_link(directory.join("ns/net"))
            && Some(&namespace) != own.as_ref()
        {
            ledger.insert(format!("namespace {}", namespace.display()));
        }
    }
}

fn entries(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_names_are_whole_words() {
        for (name, ours) in [
            ("esf", true),
            ("esf.Ab3", true),
            ("esf-1f", true),
            ("x_esf", true),
            ("yesfoo", false),
            ("ls", false),
        ] {
            assert_eq!(is_ours(name), ours, "{name}");
        }
    }

    #[test]
    fn a_mount_is_known_by_kind_and_place() {
        let line = "36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(mount_line(line).as_deref(), Some("mount ext3 at /mnt"));
        assert_eq!(mount_line("nonsense"), None);
    }

    #[test]
    fn a_leak_is_seen() {
        let name = format!("esf-xtask-{}", std::process::id());
        let place = Path::new("/tmp").join(&name);
        assert!(!take().contains(&format!("file /tmp/{name}")));
        fs::write(&place, "").unwrap();
        let seen = take().contains(&format!("file /tmp/{name}"));
        fs::remove_file(&place).unwrap();
        assert!(seen);
    }
}
