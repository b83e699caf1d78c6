//! What is mounted, what lands on disk, and what an image may try.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use esf_jail::{Error, ExecSpec, ExitStatus, Mode, Mount, OFlags, Root, create_skeleton, upper_in_use};

use crate::support::*;

pub(crate) const TESTS: &[crate::Test] = &[
    ("files::writes_land_in_the_upper_with_ids_of_the_disk", ids_of_the_disk),
    ("files::the_overlay_follows_a_plain_directory", follows_a_plain_directory),
    ("files::a_single_static_program_is_a_root", static_root),
    ("files::an_image_cannot_redirect_mounts", hostile_images),
    ("files::nothing_is_made_through_an_overlay", nothing_through_an_overlay),
    ("files::host_base_is_read_only_and_bare", host_base),
    ("files::binds_pins_and_tmpfs", binds_pins_and_tmpfs),
    ("files::open_rename_unlink_stay_inside", open_stays_inside),
    ("files::many_and_odd_layers", many_layers),
    ("files::layers_outside_are_refused", layers_outside),
];

/// A static x86-64 program of a few bytes: creates `/made` with mode 0644 and exits with 7.
fn static_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    let code: &[u8] = &[
        0xb8, 2, 0, 0, 0, // mov eax, open
        0xbf, 0xac, 0, 0x40, 0, // mov edi, path
        0xbe, 0x41, 0, 0, 0, // mov esi, O_CREAT|O_WRONLY
        0xba, 0xa4, 1, 0, 0, // mov edx, 0644
        0x0f, 0x05, // syscall
        0xb8, 60, 0, 0, 0, // mov eax, exit
        0xbf, 7, 0, 0, 0, // mov edi, 7
        0x0f, 0x05, // syscall
    ];
    let path = b"/made\0";
    let size = 0xac + path.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2u16.to_le_bytes(), 62u16.to_le_bytes()].concat());
    elf.extend(1u32.to_le_bytes());
    elf.extend([BASE + 0x78, 0x40, 0].map(u64::to_le_bytes).concat());
    elf.extend(0u32.to_le_bytes());
    elf.extend([64u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    elf.extend([1u32, 5].map(u32::to_le_bytes).concat());
    elf.extend([0, BASE, BASE, size, size, 0x1000].map(u64::to_le_bytes).concat());
    assert_eq!(elf.len(), 0x78);
    elf.extend(code);
    elf.resize(0xac, 0);
    elf.extend(path);
    elf
}

/// Every path beneath a directory with kind, mode and owner, sorted.
fn dump(top: &Path) -> Vec<String> {
    fn walk(top: &Path, path: &Path, lines: &mut Vec<String>) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let kind = meta.file_type();
            let what = if kind.is_dir() {
                walk(top, &path, lines);
                "dir".into()
            } else if kind.is_symlink() {
                format!("link {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_char_device() {
                format!("char {}", meta.rdev())
            } else if kind.is_fifo() {
                "fifo".into()
            } else {
                format!("file {:?}", fs::read_to_string(&path).unwrap())
            };
            let name = path.strip_prefix(top).unwrap().display().to_string();
            let mode = if kind.is_char_device() { 0 } else { meta.mode() & 0o7777 };
            lines.push(format!("{name} {what} {mode:o} {}:{}", meta.uid(), meta.gid()));
        }
    }
    let mut lines = Vec::new();
    walk(top, top, &mut lines);
    lines.sort();
    lines
}

fn ids_of_the_disk() {
    let world = World::new();
    let lower = world.layer("lower");
    fs::create_dir(lower.join("d")).unwrap();
    fs::write(lower.join("d/gone"), "x").unwrap();
    fs::write(lower.join("kept"), "x").unwrap();
    std::os::unix::fs::chown(lower.join("kept"), Some(5), Some(6)).unwrap();
    let overlay = world.overlay("a", &[&lower]);
    let upper = overlay.upper.clone();
    let mut plan = world.host_plan("b");
    *plan.mounts.last_mut().unwrap() = Mount::Overlay { at: "/workspace".into(), overlay };
    let jail = world.launch(&plan);
    assert_eq!(script(&jail, "stat -c '%u:%g' kept d ."), "5:6\n0:0\n0:0\n");
    script(
        &jail,
        "echo new > new; touch www; chown 33:34 www; mkdir -m 2750 dir; rm d/gone; \
         echo y >> kept; ln -s /etc/passwd link; mkfifo -m 600 fifo",
    );
    let user = ExecSpec { uid: 1000, gid: 1001, ..sh("touch /workspace/dir/no; exit $?") };
    assert_eq!(run(&jail, &user).status, ExitStatus::Code(1));
    rest(jail);
    let expected = [
        "d dir 755 0:0",
        "d/gone char 0 0 0:0",
        "dir dir 2750 0:0",
        "fifo fifo 600 0:0",
        "kept file \"xy\\n\" 644 5:6",
        "link link /etc/passwd 777 0:0",
        "new file \"new\\n\" 644 0:0",
        "www file \"\" 644 33:34",
    ];
    assert_eq!(dump(&upper), expected);
    assert_eq!(dump(&lower)[1], "d/gone file \"x\" 644 0:0");
}

/// The same scripts in a jail and on a plain directory leave the same tree.
fn follows_a_plain_directory() {
    let world = World::new();
    let prepare = "mkdir -p d/b; echo a > d/a; echo c > d/b/c; echo f > f; ln f g; mkfifo p";
    let scripts = [
        "rm -r d; mkdir d; touch d/new",
        "cp -r d e; rm -r d",
        "rm f; mkdir f",
        "rm -r d; ln -s x d",
        "mv f d/f; rm p; echo p > p",
        "rm -r d f g p",
        "chmod 700 d; touch d/a; mv d/b/c d/c",
    ];
    for (index, text) in scripts.iter().enumerate() {
        let plain = world.dir.path().join(format!("plain{index}"));
        let lower = world.layer(&format!("lower{index}"));
        for place in [&plain, &lower] {
            fs::create_dir_all(place).unwrap();
            let prepare = format!("umask 022; {prepare}");
            let done = std::process::Command::new("sh").args(["-c", &prepare]).current_dir(place).status();
            assert!(done.unwrap().success());
        }
        let plainly = std::process::Command::new("sh").args(["-c", text]).current_dir(&plain).status();
        assert!(plainly.unwrap().success());
        let overlay = world.overlay(&format!("o{index}"), &[&lower]);
        let mut plan = world.host_plan(&format!("h{index}"));
        *plan.mounts.last_mut().unwrap() =
            Mount::Overlay { at: "/workspace".into(), overlay: overlay.clone() };
        let jail = world.launch(&plan);
        script(&jail, text);
        let list = "find . -mindepth 1 -printf '%p %y %m %l\\n' | sort; \
                    find . -type f -exec cat {} + | sort";
        let inside = script(&jail, list);
        rest(jail);
        let outside = std::process::Command::new("sh").args(["-c", list]).current_dir(&plain).output();
        assert_eq!(inside, String::from_utf8(outside.unwrap().stdout).unwrap(), "{text}");
        // A grandchild that makes the old names again sees nothing old.
        let mut plan = world.host_plan(&format!("g{index}"));
        let overlay = world.overlay(&format!("oo{index}"), &[&overlay.upper, &lower]);
        *plan.mounts.last_mut().unwrap() = Mount::Overlay { at: "/workspace".into(), overlay };
        let jail = world.launch(&plan);
        assert_eq!(script(&jail, list), inside, "{text}");
        script(&jail, "rm -rf d f g p e; mkdir d f; test -z \"$(ls d f | grep -v :)\"");
    }
}

fn static_root() {
    let world = World::new();
    let (image, skeleton) = (world.layer("image"), world.dir.path().join("skeleton"));
    create_skeleton(&skeleton).unwrap();
    create_skeleton(&skeleton).unwrap();
    fs::write(image.join("only"), static_program()).unwrap();
    fs::set_permissions(image.join("only"), fs::Permissions::from_mode(0o755)).unwrap();
    let overlay = world.overlay("a", &[&image, &skeleton]);
    let upper = overlay.upper.clone();
    let jail = world.launch(&plan(Root::Overlay(overlay)));
    assert_eq!(run(&jail, &spec(&["/only"])).status, ExitStatus::Code(7));
    let path = ExecSpec { env: vec![("PATH".into(), "/".into())], ..spec(&["only"]) };
    assert_eq!(run(&jail, &path).status, ExitStatus::Code(7));
    let missing = jail.exec(&spec(&["sh"]), quiet()).map(drop).unwrap_err();
    assert_eq!(missing.exit_code(), Some(127));
    let file = jail.open(Path::new("/made"), OFlags::RDONLY, Mode::empty()).unwrap();
    drop(file);
    rest(jail);
    assert_eq!(dump(&upper), ["made file \"\" 644 0:0"], "nothing of ours is in the upper");
    let marks = xattrs(&upper);
    assert!(marks.iter().all(|name| name.starts_with("trusted.overlay.")), "{marks:?}");
}

fn xattrs(path: &Path) -> Vec<String> {
    let mut names = [0u8; 4096];
    let length = rustix::fs::listxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn hostile_images() {
    let world = World::new();
    let skeleton = world.dir.path().join("skeleton");
    create_skeleton(&skeleton).unwrap();
    let outside = world.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let outside_before = dump(&outside);
    type Change<'a> = Box<dyn Fn(&Path) + 'a>;
    let changes: Vec<(&str, Change)> = vec![
        ("dev-link", Box::new(|image| symlink(&outside, image.join("dev")).unwrap())),
        ("dev-relative", Box::new(|image| symlink("../../..", image.join("dev")).unwrap())),
        ("proc-link", Box::new(|image| symlink(&outside, image.join("proc")).unwrap())),
        ("dev-file", Box::new(|image| fs::write(image.join("dev"), "x").unwrap())),
        ("proc-file", Box::new(|image| fs::write(image.join("proc"), "x").unwrap())),
        ("sys-link", Box::new(|image| symlink("/proc", image.join("sys")).unwrap())),
        ("sys-above", Box::new(|image| symlink("..", image.join("sys")).unwrap())),
        ("way-link", Box::new(|image| symlink("/dev", image.join("way")).unwrap())),
    ];
    for (name, change) in changes {
        let image = world.layer(name);
        change(&image);
        let overlay = world.overlay(&format!("o-{name}"), &[&image, &skeleton]);
        let upper = overlay.upper.clone();
        let mut plan = plan(Root::Overlay(overlay));
        if name.starts_with("sys") {
            plan.mounts = vec![Mount::Tmpfs { at: "/sys".into(), size_bytes: 4096, mode: 0o755 }];
        }
        if name.starts_with("way") {
            plan.mounts = vec![Mount::Tmpfs { at: "/way/shm".into(), size_bytes: 4096, mode: 0o755 }];
        }
        match world.zygote.launch(&plan) {
            Err(Error::Image { .. }) => {}
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(dump(&upper), Vec::<String>::new(), "{name}");
    }
    assert_eq!(dump(&outside), outside_before);
    // A device name of the image is covered by our own /dev, whatever it is.
    let image = world.layer("covered");
    fs::create_dir(image.join("dev")).unwrap();
    symlink("/proc/sys/kernel/core_pattern", image.join("dev/null")).unwrap();
    fs::write(image.join("only"), static_program()).unwrap();
    fs::set_permissions(image.join("only"), fs::Permissions::from_mode(0o755)).unwrap();
    let jail = world.launch(&plan(Root::Overlay(world.overlay("oc", &[&image, &skeleton]))));
    assert_eq!(run(&jail, &spec(&["/only"])).status, ExitStatus::Code(7));
    assert_eq!(world.groups(), 2, "one jail and one warm slot");
}

fn nothing_through_an_overlay() {
    let world = World::new();
    let (image, skeleton) = (world.layer("image"), world.dir.path().join("skeleton"));
    create_skeleton(&skeleton).unwrap();
    fs::create_dir(image.join("there")).unwrap();
    let source = world.dir.path().join("source");
    fs::write(&source, "s").unwrap();
    let mounts = [
        Mount::Tmpfs { at: "/missing".into(), size_bytes: 4096, mode: 0o755 },
        Mount::Tmpfs { at: "/there/deep".into(), size_bytes: 4096, mode: 0o755 },
        Mount::File { at: "/there/file".into(), content: vec![1], mode: 0o644 },
        Mount::Symlink { at: "/link".into(), target: "x".into() },
        Mount::Directory { at: "/there/d".into(), mode: 0o755 },
        Mount::BindReadOnly { source, at: "/there/bind".into(), idmapped: true },
        Mount::Pin { at: "/nowhere".into() },
    ];
    for (index, mount) in mounts.into_iter().enumerate() {
        let overlay = world.overlay(&format!("o{index}"), &[&image, &skeleton]);
        let upper = overlay.upper.clone();
        let mut plan = plan(Root::Overlay(overlay));
        plan.mounts = vec![mount];
        assert!(world.zygote.launch(&plan).is_err(), "{index}");
        assert_eq!(dump(&upper), Vec::<String>::new(), "{index}");
    }
    let overlay = world.overlay("o", &[&image]);
    match world.zygote.launch(&plan(Root::Overlay(overlay))) {
        Err(Error::Image { path, .. }) => assert_eq!(path, PathBuf::from("/proc")),
        other => panic!("without a skeleton: {other:?}"),
    }
}

fn host_base() {
    let world = World::new();
    let jail = world.host_jail("a");
    let refused = |text: &str| {
        let outcome = run(&jail, &sh(text));
        assert_ne!(outcome.status, ExitStatus::Code(0), "{text}: {outcome:?}");
    };
    for text in [
        "touch /x",
        "echo x > /usr/x",
        "echo x >> /etc/passwd",
        "rm /bin/sh",
        "chmod 777 /usr/bin/true",
        "echo x > /dev/x",
        "rm /dev/null",
        "mknod /tmp/null c 1 3",
        "mknod /workspace/sda b 8 0",
        "mknod /workspace/white c 0 0",
    ] {
        refused(text);
    }
    let listed = script(&jail, "ls / | tr '\\n' ' '");
    assert_eq!(listed, "bin dev etc lib lib64 probe proc sbin tmp usr workspace ");
    assert_eq!(script(&jail, "stat -c %u /usr/bin/true /probe"), "0\n0\n");
    assert_eq!(
        script(&jail, "ls /dev | tr '\\n' ' '"),
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "
    );
    script(&jail, "echo x > /dev/null; head -c 1 /dev/zero; echo y > /dev/shm/y; echo t > /tmp/t");
    let mounts = script(&jail, "cat /proc/self/mountinfo");
    let dir = world.dir.path().to_str().unwrap();
    assert!(!mounts.contains(dir), "no host path shows:\n{mounts}");
    assert!(mounts.contains("lowerdir=0.0,upperdir=0u,workdir=0w"), "{mounts}");
    for line in mounts.lines() {
        assert!(line.contains("nosuid"), "{line}");
    }
}

fn binds_pins_and_tmpfs() {
    let world = World::new();
    let lower = world.layer("lower");
    fs::create_dir(lower.join("tests")).unwrap();
    fs::write(lower.join("tests/case"), "planted").unwrap();
    let source = world.dir.path().join("source");
    fs::write(&source, "real").unwrap();
    let overlay = world.overlay("a", &[&lower]);
    let upper = overlay.upper.clone();
    let mut plan = world.host_plan("b");
    *plan.mounts.last_mut().unwrap() = Mount::Overlay { at: "/workspace".into(), overlay };
    plan.mounts.extend([
        Mount::Pin { at: "/workspace/tests".into() },
        Mount::BindReadOnly { source, at: "/workspace/tests/case".into(), idmapped: true },
        Mount::Tmpfs { at: "/run/result".into(), size_bytes: 1 << 16, mode: 0o700 },
        Mount::File { at: "/run/result/note".into(), content: b"n".to_vec(), mode: 0o600 },
        Mount::Directory { at: "/run/result/sub".into(), mode: 0o1777 },
    ]);
    let jail = world.launch(&plan);
    assert_eq!(script(&jail, "cat tests/case; cat /run/result/note"), "realn");
    for text in ["mv tests t", "rm tests/case", "echo x > tests/case", "rm -r tests"] {
        assert_ne!(run(&jail, &sh(text)).status, ExitStatus::Code(0), "{text}");
    }
    assert_eq!(
        script(&jail, "cat tests/case; stat -c '%a %u' /run/result /run/result/sub"),
        "real700 0\n1777 0\n"
    );
    script(&jail, "echo ok > tests/other; ! head -c 100000 /dev/zero > /run/result/big");
    rest(jail);
    assert_eq!(dump(&upper), ["tests dir 755 0:0", "tests/other file \"ok\\n\" 644 0:0"]);
}

fn open_stays_inside() {
    let world = World::new();
    fs::write(world.dir.path().join("secret"), "secret").unwrap();
    let secret = world.dir.path().join("secret");
    let jail = world.host_jail("a");
    script(
        &jail,
        &format!(
            "echo in > file; ln -s {0} abs; ln -s ../../../../..{0} up; ln -s /workspace/file ok; \
             mkfifo fifo; ln -s /proc/1/root/etc magic; mkdir d; ln -s /nowhere hang",
            secret.display()
        ),
    );
    let open = |path: &str, flags| jail.open(Path::new(path), flags, Mode::empty());
    let read = |path: &str| {
        let file = fs::File::from(open(path, OFlags::RDONLY)?);
        Ok::<_, Error>(std::io::read_to_string(file).unwrap())
    };
    assert_eq!(read("/workspace/ok").unwrap(), "in\n");
    assert_eq!(read("/workspace/../workspace/file").unwrap(), "in\n");
    for path in ["/workspace/abs", "/workspace/up", "/../../../../../../secret", "/workspace/hang"] {
        assert_eq!(read(path).unwrap_err().raw_os_error(), Some(libc::ENOENT), "{path}");
    }
    for path in ["/workspace/fifo", "/dev/null", "/proc/1/status", "/proc/self/stat", "/proc"] {
        let error = open(path, OFlags::RDONLY).unwrap_err();
        assert!(matches!(error, Error::NotServed { .. }), "{path}: {error}");
    }
    assert!(read("/workspace/magic/passwd").is_err());
    assert!(open("/workspace/fifo", OFlags::WRONLY).is_err());
    let directory = open("/workspace/d", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    drop(directory);

    let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mode = Mode::from_raw_mode(0o666);
    let file = jail.open(Path::new("/workspace/.new"), create, mode).unwrap();
    std::io::Write::write_all(&mut fs::File::from(file), b"whole").unwrap();
    jail.rename(Path::new("/workspace/.new"), Path::new("/workspace/file")).unwrap();
    assert_eq!(script(&jail, "cat file; stat -c ' %a %u' file"), "whole 666 0\n");
    jail.rename(Path::new("/workspace/file"), Path::new("/workspace/abs")).unwrap();
    assert_eq!(script(&jail, "test ! -L abs; cat abs"), "whole");
    jail.unlink(Path::new("/workspace/up")).unwrap();
    jail.unlink(Path::new("/workspace/d")).unwrap();
    assert_eq!(jail.unlink(Path::new("/workspace/d")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    assert!(jail.unlink(Path::new("/")).is_err());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    rest(jail);
}

fn many_layers() {
    let world = World::new();
    let names: Vec<String> = (0..128).map(|index| format!("l,{index}:\\ =\n{}", "n".repeat(60))).collect();
    let layers: Vec<PathBuf> = names.iter().map(|name| world.layer(name)).collect();
    for (index, layer) in layers.iter().enumerate() {
        fs::write(layer.join(format!("f{index}")), "").unwrap();
        fs::write(layer.join("same"), index.to_string()).unwrap();
    }
    let all: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
    let mut plan = world.host_plan("b");
    *plan.mounts.last_mut().unwrap() =
        Mount::Overlay { at: "/workspace".into(), overlay: world.overlay("a,:", &all) };
    let jail = world.launch(&plan);
    assert_eq!(script(&jail, "cat same; ls | wc -l"), "0129\n");
    rest(jail);
}

fn layers_outside() {
    let world = World::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let inside = world.layer("lower");
    symlink(elsewhere.path(), world.dir.path().join("link")).unwrap();
    for lower in [elsewhere.path().into(), PathBuf::from("link"), "lower/../lower".into()] {
        let mut overlay = world.overlay("a", &[&inside]);
        overlay.lowers = vec![lower.clone()];
        let mut plan = world.host_plan("b");
        *plan.mounts.last_mut().unwrap() = Mount::Overlay { at: "/workspace".into(), overlay };
        assert!(world.zygote.launch(&plan).is_err(), "{}", lower.display());
    }
    let overlay = world.overlay("c", &[&inside]);
    assert!(!upper_in_use(&overlay.upper, &overlay.work).unwrap());
}
