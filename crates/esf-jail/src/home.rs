//! The cgroup home: the one group, in each hierarchy, that holds all jails of one owner.
//!
//! Invariant: the name is the owner's and stable, so that whoever comes after a crash finds the
//! same groups again and can empty them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::cgroup::{Controller, remove_tree, write};
use crate::error::Step;

pub(crate) const REMEDY: &str = "start it in a delegated scope (systemd-run --scope -p Delegate=yes \
    PROGRAM), or as root on a machine whose cgroup controllers memory, pids and cpu are enabled";

/// How long processes may take to die of SIGKILL.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long an answer of a zygote, slot or init may take when nothing else is answered meanwhile.
pub(crate) const ANSWER: Duration = Duration::from_secs(20);

/// Where the groups of all jails of one owner are.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct CgroupHome {
    name: String,
    /// Home in the unified tree.
    pub(crate) unified: PathBuf,
    /// Homes in v1 hierarchies.
    pub(crate) v1: Vec<(Controller, PathBuf)>,
    /// Controllers that the unified home gives to the groups beneath it.
    pub(crate) v2: Vec<Controller>,
    /// Top of each hierarchy, to search for what an owner in another group left.
    hierarchies: Vec<PathBuf>,
}

/// What [`reap_leftovers`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Processes killed.
    pub processes: usize,
    /// Groups removed, each hierarchy counted.
    pub groups: usize,
}

impl CgroupHome {
    /// Finds this process' place in the cgroup hierarchies and the home named `name` beneath it.
    ///
    /// On v1 and hybrid machines the home is nested under the caller's own groups. On v2 it is
    /// under the caller's group where that is delegated, else at the top of the tree.
    ///
    /// # Errors
    /// [`Error::Plan`] for a name that is not letters, digits, `-`, `_` or `.`;
    /// [`Error::Unsupported`] without a unified tree that may be written.
    pub fn discover(name: &str) -> Result<CgroupHome, Error> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(plain) {
            return Err(Error::Plan {
                field: "cgroup home name".into(),
                expected: "1 to 64 letters, digits, - _ .".into(),
                found: name.into(),
            });
        }
        let read = |path: &str| fs::read_to_string(path).step(|| format!("read {path}"));
        let layout = Layout::parse(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        let Some((top, own)) = layout.unified else {
            return Err(unsupported("no cgroup2 filesystem is mounted"));
        };
        let own = original_group(&own, name);
        let v1: Vec<_> = layout.v1.iter().map(|(kind, own)| (*kind, own.join(name))).collect();
        let rest: Vec<_> =
            Controller::ALL.into_iter().filter(|kind| !v1.iter().any(|(have, _)| have == kind)).collect();
        let (parent, v2) = delegated_parent(&top, &own, &rest, name)?;
        Ok(CgroupHome {
            name: name.into(),
            unified: parent.join(name),
            v1,
            v2,
            hierarchies: layout.hierarchies,
        })
    }

    /// The directories of the home.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.v1.iter().map(|(_, path)| path.as_path()).chain([self.unified.as_path()])
    }

    /// Makes the home where it is not there.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        for path in self.paths() {
            fs::create_dir_all(path).step(|| format!("mkdir {}", path.display()))?;
        }
        if !self.v2.is_empty() {
            enable(&self.unified, &self.v2)?;
        }
        Ok(())
    }
}

/// Kills and removes every group of the home, wherever an earlier owner made it.
///
/// The caller holds the owner's lock: nobody else uses the home.
///
/// # Errors
/// [`Error::Unkillable`] if a process outlives SIGKILL; whatever the kernel refuses.
pub fn reap_leftovers(home: &CgroupHome) -> Result<Reaped, Error> {
    let mut reaped = Reaped::default();
    let mut found: Vec<PathBuf> = Vec::new();
    for hierarchy in &home.hierarchies {
        find_named(hierarchy, &home.name, 16, &mut found);
    }
    for path in &found {
        reaped.processes += count(path, &|group| {
            fs::read_to_string(group.join("cgroup.procs")).map_or(0, |text| text.lines().count())
        });
        crate::cgroup::write_if_there(&path.join("cgroup.kill"), "1")?;
    }
    // One process is counted once for each hierarchy it is in.
    reaped.processes = reaped.processes.div_ceil(found.len().max(1));
    for path in &found {
        wait_no_processes(path)?;
        reaped.groups += count(path, &|_| 1);
        remove_tree(path)?;
    }
    Ok(reaped)
}

fn wait_no_processes(path: &Path) -> Result<(), Error> {
    let step = Duration::from_millis(2);
    let mut waited = Duration::ZERO;
    let busy =
        |group: &Path| fs::read_to_string(group.join("cgroup.procs")).map_or(0, |text| text.lines().count());
    while count(path, &busy) > 0 {
        if waited > PATIENCE {
            let millis = waited.as_millis() as u64;
            return Err(Error::Unkillable { group: path.into(), millis });
        }
        std::thread::sleep(step);
        waited += step;
    }
    Ok(())
}

/// Sums a figure over a group and those beneath it.
fn count(path: &Path, figure: &dyn Fn(&Path) -> usize) -> usize {
    let beneath: usize = directories(path).map(|group| count(&group, figure)).sum();
    figure(path) + beneath
}

fn find_named(path: &Path, name: &str, depth: usize, found: &mut Vec<PathBuf>) {
    for group in directories(path) {
        if group.file_name().is_some_and(|last| last == name) {
            found.push(group);
        } else if depth > 0 {
            find_named(&group, name, depth - 1, found);
        }
    }
}

fn directories(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path())
}

/// A group that gives the wanted v2 controllers to its children, and which of them it gives.
fn delegated_parent(
    top: &Path,
    own: &Path,
    wanted: &[Controller],
    name: &str,
) -> Result<(PathBuf, Vec<Controller>), Error> {
    let offered = fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
    let wanted: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|kind| offered.split_whitespace().any(|offer| offer == kind.name()))
        .collect();
    if wanted.is_empty() {
        return Ok((own.into(), wanted));
    }
    if enable(own, &wanted).is_ok() {
        return Ok((own.into(), wanted));
    }
    if alone_in(own) {
        let leaf = own.join(owner_leaf(name));
        fs::create_dir_all(&leaf).step(|| format!("mkdir {}", leaf.display()))?;
        write(&leaf.join("cgroup.procs"), "0")?;
        enable(own, &wanted)?;
        return Ok((own.into(), wanted));
    }
    match enable(top, &wanted) {
        Ok(()) => Ok((top.into(), wanted)),
        Err(error) => Err(unsupported(&error.to_string())),
    }
}

/// Where an owner moves, so that its own group may give controllers to its children.
fn owner_leaf(name: &str) -> String {
    format!("{name}.owner")
}

/// The group an owner was in before it moved to its leaf.
fn original_group(own: &Path, name: &str) -> PathBuf {
    match (own.file_name(), own.parent()) {
        (Some(last), Some(parent)) if last == owner_leaf(name).as_str() => parent.into(),
        _ => own.into(),
    }
}

fn enable(group: &Path, controllers: &[Controller]) -> Result<(), Error> {
    let path = group.join("cgroup.subtree_control");
    let have = fs::read_to_string(&path).step(|| format!("read {}", path.display()))?;
    let have: BTreeSet<&str> = have.split_whitespace().collect();
    let missing: Vec<String> = controllers
        .iter()
        .filter(|kind| !have.contains(kind.name()))
        .map(|kind| format!("+{}", kind.name()))
        .collect();
    if missing.is_empty() { Ok(()) } else { write(&path, &missing.join(" ")) }
}

fn alone_in(group: &Path) -> bool {
    let own = std::process::id().to_string();
    fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|text| text.lines().all(|pid| pid == own))
}

fn unsupported(found: &str) -> Error {
    Error::Unsupported { what: "a cgroup home".into(), found: found.into(), remedy: REMEDY.into() }
}

/// The hierarchies as this process sees them.
#[derive(Debug, Default, PartialEq)]
struct Layout {
    /// Top of the unified tree, and this process' own group in it.
    unified: Option<(PathBuf, PathBuf)>,
    /// This process' own group for each v1 controller.
    v1: Vec<(Controller, PathBuf)>,
    hierarchies: Vec<PathBuf>,
}

impl Layout {
    /// Parses `/proc/self/mountinfo` and `/proc/self/cgroup`.
    fn parse(mountinfo: &str, own: &str) -> Layout {
        let mut layout = Layout::default();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let fields: Vec<&str> = left.split(' ').collect();
            let mut kind = right.split(' ');
            let (Some(root), Some(at), Some(fstype)) = (fields.get(3), fields.get(4), kind.next()) else {
                continue;
            };
            let options: Vec<&str> = kind.nth(1).unwrap_or_default().split(',').collect();
            let place = |controllers: &str| {
                let inside = own_group(own, controllers)?;
                // A group outside what is mounted here is out of reach: take the top instead.
                let beneath = Path::new(inside).strip_prefix(root).unwrap_or(Path::new(""));
                Some(Path::new(at).join(beneath))
            };
            if fstype == "cgroup2" && layout.unified.is_none() {
                let group = place("").unwrap_or_else(|| at.into());
                layout.unified = Some((at.into(), group));
                layout.hierarchies.push(at.into());
            } else if fstype == "cgroup" {
                for controller in Controller::ALL {
                    let known = layout.v1.iter().any(|(have, _)| *have == controller);
                    if !known && options.contains(&controller.name()) {
                        layout.v1.extend(place(controller.name()).map(|path| (controller, path)));
                        if !layout.hierarchies.iter().any(|have| have == Path::new(at)) {
                            layout.hierarchies.push(at.into());
                        }
                    }
                }
            }
        }
        layout
    }
}

/// The path of the line of `/proc/self/cgroup` that names a controller, or of the unified one.
fn own_group<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_and_unified_layouts_are_understood() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            36 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "8:pids:/\n4:memory:/box/7\n2:cpu,cpuacct:/\n0::/u\n";
        let layout = Layout::parse(hybrid, own);
        let base = Path::new("/sys/fs/cgroup");
        assert_eq!(layout.unified, Some((base.join("unified"), base.join("unified/u"))));
        assert_eq!(
            layout.v1,
            vec![
                (Controller::Cpu, base.join("cpu,cpuacct")),
                (Controller::Memory, base.join("memory/box/7")),
                (Controller::Pids, base.join("pids")),
            ]
        );

        let pure = "31 23 0:28 /slice /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let layout = Layout::parse(pure, "0::/slice/scope\n");
        assert_eq!(layout.unified, Some((base.into(), base.join("scope"))));
        assert!(layout.v1.is_empty());
        let outside = Layout::parse(pure, "0::/../other\n");
        assert_eq!(outside.unified, Some((base.into(), base.into())));
    }

    #[test]
    fn an_owner_that_moved_finds_its_first_group() {
        assert_eq!(original_group(Path::new("/c/scope/a.owner"), "a"), Path::new("/c/scope"));
        assert_eq!(original_group(Path::new("/c/scope/b.owner"), "a"), Path::new("/c/scope/b.owner"));
        assert_eq!(original_group(Path::new("/"), "a"), Path::new("/"));
    }

    #[test]
    fn names_that_could_leave_the_home_are_refused() {
        for name in ["", ".", "..", "a/b", "a b", "\n"] {
            assert!(matches!(CgroupHome::discover(name), Err(Error::Plan { .. })), "{name:?}");
        }
    }
}
