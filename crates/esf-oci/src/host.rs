//! The `host` base: which of this machine's directories a sandbox sees, read-only, and the `/etc` that
//! is made for it. Invariant: the lists here are the whole of it; homes, keys, sockets and tokens are on
//! none of them, and nothing is added but what a user names with `--bind-ro`.

use std::fs;
use std::path::{Path, PathBuf};

/// System directories at the top, when this machine has them; links stay links.
pub const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// What programs need of `/etc` to find libraries, certificates and alternatives, when it is there.
pub const ETC: [&str; 11] = [
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/terminfo",
];

/// Files of `/etc` that are made: nothing of this machine's users, names or network is in them.
pub const MADE: [(&str, &str); 8] = [
    ("/etc/passwd", PASSWD),
    ("/etc/group", GROUP),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("/etc/hostname", "sandbox\n"),
    (
        "/etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    ),
    ("/etc/resolv.conf", ""),
    ("/etc/shells", "/bin/sh\n"),
    ("/etc/timezone", "Etc/UTC\n"),
];

/// The users inside.
pub const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n";
/// The groups inside.
pub const GROUP: &str = "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n";

/// What one listed path is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEntry {
    /// A directory, to be bound.
    Directory(PathBuf),
    /// A file, to be bound.
    File(PathBuf),
    /// A link, kept as one.
    Symlink(PathBuf, PathBuf),
}

/// Which of the listed paths this machine has, in the order of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The entries.
    pub entries: Vec<HostEntry>,
}

impl HostFacts {
    /// Looks at this machine.
    pub fn survey() -> Self {
        let entries = SYSTEM.iter().chain(&ETC).filter_map(|path| entry(Path::new(path))).collect();
        Self { entries }
    }
}

fn entry(path: &Path) -> Option<HostEntry> {
    let found = fs::symlink_metadata(path).ok()?;
    if found.is_dir() {
        return Some(HostEntry::Directory(path.to_owned()));
    }
    if found.is_file() {
        return Some(HostEntry::File(path.to_owned()));
    }
    // Only links: a socket, fifo or device is not what the list means.
    fs::read_link(path).ok().map(|target| HostEntry::Symlink(path.to_owned(), target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_name_no_secret() {
        let secret =
            ["shadow", "private", "ssh", "home", "root/", "secrets", "token", "sudo", "machine-id", "krb5"];
        for path in SYSTEM.iter().chain(&ETC).chain(MADE.iter().map(|(path, _)| path)) {
            assert!(!secret.iter().any(|word| path.contains(word)), "{path}");
        }
    }

    #[test]
    fn this_machine_has_what_a_shell_needs() {
        let facts = HostFacts::survey();
        assert!(facts.entries.contains(&HostEntry::Directory("/usr".into())), "{facts:?}");
    }
}
