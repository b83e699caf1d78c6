//! Carries out the mounts of a plan.
//!
//! Invariants: a target is resolved beneath the new root without following any symlink and then
//! used by descriptor; no text of a plan ever enters an option string (layers are named by
//! numbered links); files and directories are made on tmpfs only, never through an overlay.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use crate::error::Step;
use crate::plan::{Mount, Overlay, Plan, Root, inside_path, layer_path};
use crate::sys::{self, attr};
use crate::{Error, builtin};

const SAFE: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
const OVERLAY_OPTIONS: &str = "volatile,metacopy=off,redirect_dir=nofollow,index=off,xino=off";
/// Bytes of a host base's skeleton.
const SKELETON_BYTES: u64 = 64 << 20;

/// The hidden place where a jail's mounts are put together. It covers the host's `/dev` in this
/// namespace, so that one unmount of the old root takes it along.
pub(crate) struct Scratch {
    top: OwnedFd,
    layers: OwnedFd,
    proc: OwnedFd,
    dev: OwnedFd,
}

impl Scratch {
    /// Makes ahead what depends on no plan.
    pub(crate) fn prepare(layers_dir: &Path) -> Result<Scratch, Error> {
        let layers =
            clone_tree(CWD, layers_dir).step(|| format!("clone the mount of {}", layers_dir.display()))?;
        let top = tmpfs(&[("mode", "0700"), ("size", "1m")], SAFE)?;
        attach(top.as_fd(), CWD, c"/dev")?;
        for name in [c"layers", c"root", c"proc", c"dev", c"nothing"] {
            rustix::fs::mkdirat(&top, name, Mode::from_raw_mode(0o755)).step(|| format!("mkdir {name:?}"))?;
        }
        let dev = builtin::dev(&top)?;
        let proc = builtin::proc(&top, &dev)?;
        Ok(Scratch { top, layers, proc, dev })
    }
}

/// Puts the plan's filesystem together and returns its root.
pub(crate) fn build(
    scratch: &Scratch,
    plan: &Plan,
    layers_dir: &Path,
    userns: &OwnedFd,
) -> Result<OwnedFd, Error> {
    idmap_layers(scratch, layers_dir, userns)?;
    attach(scratch.layers.as_fd(), scratch.top.as_fd(), c"layers")?;
    let place =
        open_path(&scratch.top, "root", OFlags::DIRECTORY).step(|| "open the place of the root".into())?;
    let mut builder = Builder { scratch, layers_dir, userns, root: place, overlays: 0 };
    match &plan.root {
        Root::Overlay(overlay) => builder.overlay(overlay, builder.root.as_fd().as_raw_fd())?,
        Root::Host => {
            let size = SKELETON_BYTES.to_string();
            let skeleton = tmpfs(&[("mode", "0755"), ("size", &size)], SAFE)?;
            attach(skeleton.as_fd(), builder.root.as_fd(), c"")?;
        }
    }
    builder.root = open_path(&scratch.top, "root", OFlags::DIRECTORY).step(|| "open the new root".into())?;
    if plan.root == Root::Host {
        for name in ["proc", "dev"] {
            builder.directory(Path::new(name), 0o755)?;
        }
    }
    for (name, tree) in [("proc", &scratch.proc), ("dev", &scratch.dev)] {
        let target = builder.existing(Path::new(name))?;
        attach(tree.as_fd(), target.as_fd(), c"")?;
    }
    for mount in &plan.mounts {
        builder.carry_out(mount)?;
    }
    if plan.root == Root::Host {
        sys::mount_setattr(builder.root.as_fd(), attr::RDONLY, None)
            .step(|| "make the skeleton read-only".into())?;
    }
    Ok(builder.root)
}

fn idmap_layers(scratch: &Scratch, layers_dir: &Path, userns: &OwnedFd) -> Result<(), Error> {
    match sys::mount_setattr(scratch.layers.as_fd(), 0, Some(userns.as_fd())) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(Error::Unsupported {
            what: "an id-mapped mount of the layers".into(),
            found: format!("the filesystem of {} refuses it", layers_dir.display()),
            remedy: "keep them on ext4, xfs or btrfs, or on tmpfs from Linux 6.3".into(),
        }),
        other => other.step(|| format!("id-map {}", layers_dir.display())),
    }
}

struct Builder<'a> {
    scratch: &'a Scratch,
    layers_dir: &'a Path,
    userns: &'a OwnedFd,
    root: OwnedFd,
    overlays: usize,
}

impl Builder<'_> {
    fn carry_out(&mut self, mount: &Mount) -> Result<(), Error> {
        let at = inside_path(mount.at())?;
        match mount {
            Mount::Overlay { overlay, .. } => {
                let target = self.mount_point(at, FileType::Directory)?;
                self.overlay(overlay, target.as_raw_fd())
            }
            Mount::BindReadOnly { source, idmapped, .. } => self.bind(source, at, *idmapped),
            Mount::Pin { .. } => {
                let target = self.existing(at)?;
                let tree = clone_tree(&target, Path::new(""))
                    .step(|| format!("clone the mount of {}", at.display()))?;
                attach(tree.as_fd(), target.as_fd(), c"")
            }
            Mount::Tmpfs { size_bytes, mode, .. } => {
                let target = self.mount_point(at, FileType::Directory)?;
                let (mode, size) = (format!("{mode:04o}"), size_bytes.to_string());
                let tree = tmpfs(&[("mode", &mode), ("size", &size)], SAFE)?;
                attach(tree.as_fd(), target.as_fd(), c"")
            }
            Mount::File { content, mode, .. } => self.file(at, content, *mode),
            Mount::Symlink { target, .. } => self.symlink(at, target),
            Mount::Directory { mode, .. } => self.directory(at, *mode),
        }
    }

    /// Mounts an overlay on the descriptor `target`.
    fn overlay(&mut self, overlay: &Overlay, target: i32) -> Result<(), Error> {
        let number = self.overlays;
        self.overlays += 1;
        let mut lowers = Vec::new();
        for (index, lower) in overlay.lowers.iter().enumerate() {
            lowers.push(self.link_layer(lower, &format!("{number}.{index}"))?);
        }
        let upper = self.link_layer(&overlay.upper, &format!("{number}u"))?;
        let work = self.link_layer(&overlay.work, &format!("{number}w"))?;
        let options =
            format!("lowerdir={},upperdir={upper},workdir={work},{OVERLAY_OPTIONS}", lowers.join(":"));
        rustix::process::fchdir(&self.scratch.top).step(|| "enter the scratch".into())?;
        let target = CString::new(format!("/proc/self/fd/{target}")).expect("no NUL in a number");
        let options = CString::new(options).expect("no NUL in numbered links");
        sys::mount(c"overlay", &target, libc::MS_NOSUID | libc::MS_NODEV, &options)
            .step(|| format!("mount the overlay with upper {}", overlay.upper.display()))
    }

    /// Gives a layer a short name that needs no quoting, after looking that it is a directory.
    fn link_layer(&self, layer: &Path, name: &str) -> Result<String, Error> {
        let relative = layer_path(self.layers_dir, layer)?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let layers = &self.scratch.layers;
        rustix::fs::openat2(layers, relative, flags, Mode::empty(), resolve)
            .step(|| format!("open layer {}", layer.display()))?;
        rustix::fs::symlinkat(Path::new("layers").join(relative), &self.scratch.top, name)
            .step(|| format!("link layer {}", layer.display()))?;
        Ok(name.into())
    }

    fn bind(&self, source: &Path, at: &Path, idmapped: bool) -> Result<(), Error> {
        let step = || format!("bind {}", source.display());
        let tree = clone_tree(CWD, source).step(step)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&tree).step(step)?.st_mode);
        let set = attr::RDONLY | attr::NOSUID | attr::NODEV;
        sys::mount_setattr(tree.as_fd(), set, None).step(step)?;
        if idmapped {
            match sys::mount_setattr(tree.as_fd(), 0, Some(self.userns.as_fd())) {
                // The filesystem cannot; owners show as nobody and nothing else changes.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                other => other.step(step)?,
            }
        }
        let target = self.mount_point(at, kind)?;
        attach(tree.as_fd(), target.as_fd(), c"")
    }

    /// The target of a mount; made first where it lies on a tmpfs of ours.
    fn mount_point(&self, at: &Path, kind: FileType) -> Result<OwnedFd, Error> {
        match self.target(at, kind) {
            Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
                if kind == FileType::Directory {
                    self.directory(at, 0o755)?;
                } else {
                    self.file(at, b"", 0o644)?;
                }
                self.target(at, kind)
            }
            other => other,
        }
    }

    /// A directory that a layer must bring along.
    fn existing(&self, at: &Path) -> Result<OwnedFd, Error> {
        match self.target(at, FileType::Directory) {
            Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
                Err(image(at, "a directory in some layer (a skeleton as the last lower)", "nothing"))
            }
            other => other,
        }
    }

    /// Opens an existing path as a target, refusing symlinks on the way and other kinds.
    fn target(&self, at: &Path, kind: FileType) -> Result<OwnedFd, Error> {
        let target = self.resolve(at)?;
        let stat = rustix::fs::fstat(&target).step(|| format!("stat {}", at.display()))?;
        let found = FileType::from_raw_mode(stat.st_mode);
        let same = (found == FileType::Directory) == (kind == FileType::Directory);
        if !same || found == FileType::Symlink {
            let expected = if kind == FileType::Directory { "a directory" } else { "a file" };
            return Err(image(at, expected, &format!("{found:?}")));
        }
        Ok(target)
    }

    fn resolve(&self, at: &Path) -> Result<OwnedFd, Error> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.root, at, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::LOOP) => Err(image(at, "no symlink on the way", "a symlink")),
            Err(rustix::io::Errno::NOTDIR) => Err(image(at, "directories on the way", "a file")),
            other => other.step(|| format!("open {} in the root", at.display())),
        }
    }

    /// Opens the directory that will hold `at`, making it and its parents on a tmpfs.
    fn parent(&self, at: &Path) -> Result<OwnedFd, Error> {
        let parent = match at.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => match self.resolve(parent) {
                Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
                    self.directory(parent, 0o755)?;
                    self.resolve(parent)?
                }
                other => other?,
            },
            _ => self.root.try_clone().step(|| "duplicate the root".into())?,
        };
        const TMPFS_MAGIC: i64 = 0x0102_1994;
        let fs = rustix::fs::fstatfs(&parent).step(|| format!("statfs of {}", at.display()))?;
        if fs.f_type as i64 != TMPFS_MAGIC {
            let found = "nothing there, and nothing is ever made through an overlay";
            return Err(image(at, "a path that exists in a layer or lies on a tmpfs", found));
        }
        Ok(parent)
    }

    fn directory(&self, at: &Path, mode: u32) -> Result<(), Error> {
        let parent = self.parent(at)?;
        let name = last(at);
        match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            other => other.step(|| format!("mkdir {}", at.display()))?,
        }
        let made = self.target(at, FileType::Directory)?;
        chmod(&made, mode).step(|| format!("chmod {}", at.display()))
    }

    fn file(&self, at: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
        let step = || format!("write {}", at.display());
        let parent = self.parent(at)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, last(at), flags, Mode::from_raw_mode(mode)).step(step)?;
        let mut rest = content;
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&file, rest).step(step)?..];
        }
        Ok(())
    }

    fn symlink(&self, at: &Path, target: &Path) -> Result<(), Error> {
        let parent = self.parent(at)?;
        rustix::fs::symlinkat(target, &parent, last(at)).step(|| format!("symlink {}", at.display()))
    }
}

fn last(at: &Path) -> &std::ffi::OsStr {
    at.file_name().expect("inside paths end in a name")
}

fn image(at: &Path, expected: &str, found: &str) -> Error {
    Error::Image { path: PathBuf::from("/").join(at), expected: expected.into(), found: found.into() }
}

fn chmod(file: &OwnedFd, mode: u32) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())
}

/// Opens a path for use as a place only.
pub(crate) fn open_path(at: impl AsFd, path: &str, more: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, path, OFlags::PATH | OFlags::CLOEXEC | more, Mode::empty())
}

/// Clones the mount at a path, without what is mounted below it.
pub(crate) fn clone_tree(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if path.as_os_str().as_bytes().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    rustix::mount::open_tree(at, path, flags)
}

/// Attaches a mount to a path, or to the descriptor itself when the path is empty.
pub(crate) fn attach(tree: BorrowedFd<'_>, at: BorrowedFd<'_>, path: &CStr) -> Result<(), Error> {
    let mut flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if path.is_empty() {
        flags |= MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    }
    rustix::mount::move_mount(tree, c"", at, path, flags).step(|| format!("attach a mount at {path:?}"))
}

/// Makes a filesystem instance that is attached nowhere yet.
pub(crate) fn new_filesystem(
    kind: &CStr,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Error> {
    let step = || format!("make a {}", kind.to_string_lossy());
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)
            .step(|| format!("{} option {key}={value}", kind.to_string_lossy()))?;
    }
    rustix::mount::fsconfig_create(&context).step(step)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(step)
}

fn tmpfs(options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Error> {
    new_filesystem(c"tmpfs", options, attributes)
}
