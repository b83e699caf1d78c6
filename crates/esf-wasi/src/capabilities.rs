//! What this executor can do, what it needs, and what becomes of a tree's metadata under it: the tables of
//! `docs/executors.md`, which are written from here. Invariant: what is claimed here is what the contract
//! suite tries, and what is not claimed is refused, typed.

use esf_worker::executor::{Capabilities, Requirement};

/// What this executor can do.
pub fn capabilities() -> Capabilities {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Capabilities {
        programs: words(&["wasm"]),
        privilege: "none".to_owned(),
        systems: words(&["linux"]),
        bases: words(&["root"]),
        networks: words(&["none", "host"]),
        limits: words(&["memory", "pids", "disk"]),
        fuel: true,
        terminals: false,
        signals: words(&["KILL"]),
        users: false,
        processes: false,
        binds: false,
        preopens: true,
        evaluator: words(&["hide"]),
        names: "utf-8".to_owned(),
    }
}

/// What this executor needs of the machine: nothing that a machine may lack. What makes it stronger is told.
pub fn requirements() -> Vec<Requirement> {
    let engine = Requirement {
        name: "wasi engine".to_owned(),
        ok: true,
        found: crate::engine_identity(),
        remedy: String::new(),
    };
    vec![engine, landlock()]
}

#[cfg(target_os = "linux")]
fn landlock() -> Requirement {
    let found = match std::fs::read_to_string("/sys/kernel/security/lsm") {
        Ok(list) if list.split(',').any(|name| name.trim() == "landlock") => "hosts are confined by it",
        Ok(_) => "not switched on: the engine and the filter of system calls hold guests",
        Err(_) => "cannot be told: `esf activate` warns in the worker's log when it is missing",
    };
    Requirement {
        name: "wasi landlock".to_owned(),
        ok: true,
        found: found.to_owned(),
        remedy: "boot with lsm=landlock,… for a second wall around guests".to_owned(),
    }
}

#[cfg(not(target_os = "linux"))]
fn landlock() -> Requirement {
    Requirement {
        name: "wasi landlock".to_owned(),
        ok: true,
        found: "only on Linux: the engine alone holds guests".to_owned(),
        remedy: String::new(),
    }
}

/// What becomes of one kind of metadata under this executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub what: &'static str,
    /// `visible`: guests see it and, where they can at all, change it. `preserved`: guests see nothing of it, the
    /// checkpoint has it. `emulated`: guests see something in its place. `unsupported`: there is none.
    pub class: &'static str,
    /// What that means.
    pub detail: &'static str,
}

/// Every kind, in the order of the table.
pub fn metadata() -> Vec<Metadata> {
    let row = |&(what, class, detail)| Metadata { what, class, detail };
    METADATA.iter().map(row).collect()
}

#[rustfmt::skip]
const METADATA: &[(&str, &str, &str)] = &[
    ("bytes of files", "visible", "also past the end of what is open and without a name"),
    ("types: file, directory, link", "visible", ""),
    ("size", "visible", ""),
    ("modification time, nanoseconds", "visible", "`set-times`; kept by copy-up"),
    ("access time", "emulated", "what the disk says; no checkpoint has it"),
    ("change time", "emulated", "what the disk says; no checkpoint has it"),
    ("mode bits", "preserved", "also through changes of the file; new files are 0644, new directories 0755; there is no chmod"),
    ("owner and group", "preserved", "what a guest makes is 0:0; there is no chown"),
    ("set-id bits", "preserved", "and inert, as with the other executor; dropped when the file is written, as a kernel does"),
    ("extended attributes, ACLs", "preserved", "also through changes of the file"),
    ("file capabilities", "preserved", "dropped when the file is written, as a kernel does"),
    ("hard links", "visible", "a guest makes them and sees their number; changing one name of a file beneath parts it from its other names"),
    ("symbolic links", "visible", "followed inside their preopen only"),
    ("links with an absolute target", "preserved", "read as they are; to follow one is not permitted"),
    ("fifos", "preserved", "listed, never opened"),
    ("sockets", "unsupported", "listed while they are there, never opened; no checkpoint has them"),
    ("devices", "unsupported", "no root has any"),
    ("names that are UTF-8", "visible", ""),
    ("names that are not UTF-8", "preserved", "listed under a stand-in, every use of which is `illegal-byte-sequence`; the rest of the directory works"),
    ("sparse files", "visible", "as zeros; `set-size` makes a hole; the quota counts what the disk allocates"),
    ("identity of files", "visible", "`metadata-hash` and `is-same-object`; stays through renames and copy-up, but for names that part"),
    ("file locks", "unsupported", "WASI has none"),
    ("memory maps of files", "unsupported", "a C library may read the file instead"),
    ("free space", "unsupported", "WASI has no such call; a full quota is `insufficient-space`"),
    ("change notices", "unsupported", "WASI has none"),
    ("open files", "visible", "preview 1 programs have about 120 at once, components 16384"),
    ("arguments and variables", "visible", "UTF-8, at most 2 MiB together; others are refused before the start"),
    ("clocks, random numbers", "visible", "this machine's; a guest cannot set them"),
    ("processes, threads, signals", "unsupported", "each command is one guest with one thread"),
    ("terminals, users", "unsupported", "refused before the start"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_of_a_class_and_has_a_name_of_its_own() {
        let rows = metadata();
        for (index, row) in rows.iter().enumerate() {
            assert!(["visible", "preserved", "emulated", "unsupported"].contains(&row.class), "{row:?}");
            assert!(!rows[..index].iter().any(|other| other.what == row.what), "{row:?}");
        }
    }
}
