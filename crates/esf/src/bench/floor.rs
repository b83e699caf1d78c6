//! The floors: the barest form of the same work, and the peers where they are installed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use esf_core::Problem;
use serde_json::{Value, json};

use super::{Measured, failed, timed};

/// Spawns the binary on the host and waits for it.
pub(super) fn spawn(program: &Path) -> Measured {
    timed(|| {
        let status =
            Command::new(program).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.map_err(|error| failed("spawn", error))
    })
}

/// Runs a command line to its end; fails when it does.
pub(super) fn command(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<(), Problem> {
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(program, status)),
        Err(error) => Err(failed(program, error)),
    }
}

pub(super) fn installed(program: &str) -> bool {
    let found = |directory: &str| Path::new(directory).join(program).exists();
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"].into_iter().any(found)
}

/// `crun` with a bundle that sees this machine's `/usr`, driven through a shell that hides the
/// cgroup v2 mount of a hybrid layout, which crun refuses.
pub(super) struct Crun {
    shell: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    count: u64,
    live: bool,
}

const DRIVER: &str = "PLACE=$1; if grep -q ' /sys/fs/cgroup/unified ' /proc/mounts; then umount /sys/fs/cgroup/unified; fi\n\
while read -r line; do eval \"crun --root \\\"$PLACE/state\\\" $line\" </dev/null >/dev/null 2>\"$PLACE/stderr\"; echo $?; done";

impl Crun {
    /// Prepares a bundle in `place`; nothing when crun is not installed.
    pub(super) fn start(place: &Path) -> Result<Option<Self>, Problem> {
        if !installed("crun") || !installed("unshare") {
            eprintln!("  (crun is not installed: its rows are left out)");
            return Ok(None);
        }
        let bundle = place.join("crun");
        bundle_files(&bundle)?;
        let shell = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", DRIVER, "sh"])
            .arg(&bundle)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut shell = shell.map_err(|error| failed("unshare", error))?;
        let (Some(input), Some(output)) = (shell.stdin.take(), shell.stdout.take()) else {
            return Err(failed("unshare", "no pipes"));
        };
        let mut crun = Self { shell, input, output: BufReader::new(output), count: 0, live: false };
        match crun.run() {
            Ok(_) => Ok(Some(crun)),
            Err(problem) => {
                let said = fs::read_to_string(bundle.join("stderr")).unwrap_or_default();
                eprintln!(
                    "  (crun does not run here, its rows are left out: {} {})",
                    problem.message,
                    said.trim()
                );
                Ok(None)
            }
        }
    }

    fn ask(&mut self, line: &str) -> Measured {
        let begun = Instant::now();
        writeln!(self.input, "{line}").map_err(|error| failed("crun", error))?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|error| failed("crun", error))?;
        match answer.trim() {
            "0" => Ok(begun.elapsed()),
            code => Err(failed("crun", format!("`{line}` ended with {code}"))),
        }
    }

    /// `crun run` of `true`: make, run, remove.
    pub(super) fn run(&mut self) -> Measured {
        self.count += 1;
        let line = format!("run --bundle \"$PLACE/once\" esf-bench-{}-{}", std::process::id(), self.count);
        self.ask(&line)
    }

    /// `crun exec` of `true` in a live container.
    pub(super) fn exec(&mut self) -> Measured {
        let name = format!("esf-bench-live-{}", std::process::id());
        if !self.live {
            self.ask(&format!("run --detach --bundle \"$PLACE/live\" {name}"))?;
            self.live = true;
        }
        self.ask(&format!("exec {name} /usr/bin/true"))
    }
}

impl Drop for Crun {
    fn drop(&mut self) {
        if self.live {
            // What cannot be deleted here is named by the leak check that follows a test run.
            let _ = self.ask(&format!("delete --force esf-bench-live-{}", std::process::id()));
        }
        // The shell ends when its input does; a kill makes sure of it.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn bundle_files(bundle: &Path) -> Result<(), Problem> {
    for (name, arguments) in [("once", vec!["/usr/bin/true"]), ("live", vec!["/usr/bin/sleep", "3600"])] {
        let place = bundle.join(name);
        let root = place.join("rootfs");
        let make = || -> std::io::Result<()> {
            for directory in ["proc", "dev", "sys", "usr", "tmp"] {
                fs::create_dir_all(root.join(directory))?;
            }
            for link in ["bin", "lib", "lib64", "sbin"] {
                std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link))?;
            }
            Ok(())
        };
        make().map_err(|error| failed("bundle", error))?;
        let status = Command::new("crun").arg("spec").current_dir(&place).status();
        status.map_err(|error| failed("crun spec", error))?;
        let path = place.join("config.json");
        let text = fs::read(&path).map_err(|error| failed("crun spec", error))?;
        let mut config: Value = serde_json::from_slice(&text).map_err(|error| failed("crun spec", error))?;
        config["process"]["terminal"] = false.into();
        config["process"]["args"] = json!(arguments);
        let usr =
            json!({ "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] });
        if let Some(mounts) = config["mounts"].as_array_mut() {
            mounts.push(usr);
        }
        fs::write(&path, config.to_string()).map_err(|error| failed("bundle", error))?;
    }
    Ok(())
}

/// Walks, hashes, makes durable and renames: what a seal of these files costs at the least.
pub(super) fn bare_seal(upper: &Path, to: &Path) -> Measured {
    timed(|| bare(upper, to).map_err(|error| failed("floor of the seal", error)))
}

fn bare(upper: &Path, to: &Path) -> std::io::Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut waiting = vec![upper.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { waiting.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    let few = files.len() <= 16;
    for path in &files {
        let bytes = fs::read(path)?;
        std::hint::black_box(blake3_of(&bytes));
        if few {
            fs::File::open(path)?.sync_all()?;
        }
    }
    if !few {
        rustix::fs::syncfs(fs::File::open(upper)?)?;
    }
    fs::rename(upper, to)?;
    fs::File::open(to.parent().unwrap_or(to))?.sync_all()
}

fn blake3_of(bytes: &[u8]) -> esf_core::BlobId {
    esf_core::BlobId::of(bytes)
}
