//! Users and groups as the sandbox itself names them: `USER[:GROUP]`, by name or number.
//! Invariants: only bytes that were read with a bound are parsed (a passwd file of 1 GiB is refused,
//! not read); every id that comes out exists inside the sandbox's own range.

use std::path::PathBuf;

/// Longest passwd or group file that is looked at, in bytes.
pub const MAX_FILE: usize = 1 << 20;
/// Ids inside a sandbox are below this.
pub const ID_COUNT: u32 = 65536;

/// Who a command runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Supplementary group ids inside.
    pub groups: Vec<u32>,
    /// Login name, when the passwd file knows it.
    pub name: Option<String>,
    /// Home directory, when the passwd file knows it.
    pub home: Option<PathBuf>,
}

impl Identity {
    /// The root user inside.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), name: Some("root".to_owned()), home: None }
    }
}

/// A text that names nobody inside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {reason}")]
pub struct UnknownUser {
    /// The text.
    pub text: String,
    /// Why.
    pub reason: String,
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

fn passwd(text: &str) -> impl Iterator<Item = PasswdEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (_comment, home) = (fields.next()?, fields.next()?);
        Some(PasswdEntry { name, uid, gid, home })
    })
}

fn group(text: &str) -> impl Iterator<Item = GroupEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let gid = fields.next()?.parse().ok()?;
        Some(GroupEntry { name, gid, members: fields.next().unwrap_or("") })
    })
}

/// Finds out who `text` is, given the sandbox's own passwd and group files (empty when it has none).
///
/// # Errors
/// `UnknownUser` for a name that is not there, or an id the sandbox does not have.
pub fn resolve(text: &str, passwd_file: &[u8], group_file: &[u8]) -> Result<Identity, UnknownUser> {
    let unknown = |reason: String| UnknownUser { text: text.to_owned(), reason };
    let (users, groups) = (String::from_utf8_lossy(passwd_file), String::from_utf8_lossy(group_file));
    let (user, wanted_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let number = user.parse::<u32>().ok();
    let known = passwd(&users).find(|entry| entry.name == user || Some(entry.uid) == number);
    let (uid, gid) = match (&known, number) {
        (Some(entry), None) => (entry.uid, entry.gid),
        (Some(entry), Some(number)) => (number, entry.gid),
        (None, Some(number)) => (number, 0),
        (None, None) => return Err(unknown("no such user in the sandbox's /etc/passwd".to_owned())),
    };
    let member = |entry: &GroupEntry<'_>| {
        known.as_ref().is_some_and(|user| entry.members.split(',').any(|name| name.trim() == user.name))
    };
    let (gid, extra) = match wanted_group {
        Some(wanted) => (named_group(&groups, wanted).map_err(unknown)?, Vec::new()),
        None => (gid, group(&groups).filter(member).map(|entry| entry.gid).take(1024).collect()),
    };
    if let Some(id) = [uid, gid].iter().chain(&extra).find(|id| **id >= ID_COUNT) {
        return Err(unknown(format!("id {id} is outside 0..{}, the sandbox's own range", ID_COUNT - 1)));
    }
    let name = known.as_ref().map(|entry| entry.name.to_owned());
    let home = known.filter(|entry| entry.home.starts_with('/')).map(|entry| PathBuf::from(entry.home));
    Ok(Identity { uid, gid, groups: extra, name, home })
}

fn named_group(groups: &str, wanted: &str) -> Result<u32, String> {
    match group(groups).find(|entry| entry.name == wanted) {
        Some(entry) => Ok(entry.gid),
        None => wanted.parse().map_err(|_| "no such group in the sandbox's /etc/group".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\nbroken\n\xff\xfe:x:1\nwww:x:33:34::/var/www:\nbig:x:70000:1::/:\n";
    const GROUP: &[u8] = b"root:x:0:\nwww:x:34:\nweb:x:50:root, www\nhuge:x:99999:www2\n";

    #[test]
    fn names_and_numbers_are_found() {
        let of = |text: &str| resolve(text, PASSWD, GROUP).map(|id| (id.uid, id.gid, id.groups));
        let cases = [
            ("root", (0, 0, vec![50])),
            ("www", (33, 34, vec![50])),
            ("33", (33, 34, vec![50])),
            ("1234", (1234, 0, vec![])),
            ("www:web", (33, 50, vec![])),
            ("www:7", (33, 7, vec![])),
            ("5:6", (5, 6, vec![])),
        ];
        for (text, expected) in cases {
            assert_eq!(of(text), Ok(expected), "{text}");
        }
        let www = resolve("www", PASSWD, GROUP).expect("known");
        assert_eq!(www.home, Some(PathBuf::from("/var/www")));
    }

    #[test]
    fn nobody_and_ids_outside_are_refused() {
        for text in ["nobody", "", "www:", "www:none", "big", "65536", "1:65536", "-1", "4294967296"] {
            assert!(resolve(text, PASSWD, GROUP).is_err(), "{text}");
        }
        assert!(resolve("0", b"", b"").is_ok(), "a number needs no file");
    }
}
