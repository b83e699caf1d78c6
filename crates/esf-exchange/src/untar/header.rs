//! Headers of a tar archive with the records that override them, bounded in size.

use std::io::Read;

use esf_core::manifest::Mode;
use esf_core::time::FileTime;
use tar::{EntryType, Header};

use super::{broken, refused};
use crate::Error;

/// Most bytes of one extended header or long name.
const RECORDS_MAX: u64 = 1 << 20;

/// What extended headers said about the next entry.
#[derive(Default)]
pub(super) struct Head {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<FileTime>,
    xattrs: Xattrs,
}

/// One entry's header, with everything decided.
pub(super) struct Complete {
    pub(super) kind: EntryType,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) size: u64,
    pub(super) mode: Mode,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: FileTime,
    pub(super) xattrs: Xattrs,
}

/// Extended attributes, name and value.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;
/// Keyword and value.
type Record<'a> = (&'a [u8], &'a [u8]);
type Entry<'a, 'b> = tar::Entry<'a, &'b mut dyn Read>;

fn bounded(entry: &mut Entry<'_, '_>) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    entry.take(RECORDS_MAX + 1).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() as u64 > RECORDS_MAX {
        return Err(refused(b"", "an extended header of more than 1 MiB"));
    }
    Ok(bytes)
}

/// Reads past a header that would hold for all entries; nothing in it matters to a root.
pub(super) fn skip_global(entry: &mut Entry<'_, '_>) -> Result<(), Error> {
    let bytes = bounded(entry)?;
    for (keyword, _) in records(&bytes)? {
        if keyword != b"comment" {
            return Err(refused(b"", format!("a global record {:?}", String::from_utf8_lossy(keyword))));
        }
    }
    Ok(())
}

impl Head {
    pub(super) fn read_long_name(&mut self, entry: &mut Entry<'_, '_>) -> Result<(), Error> {
        self.path = Some(until_nul(&bounded(entry)?).to_vec());
        Ok(())
    }

    pub(super) fn read_long_link(&mut self, entry: &mut Entry<'_, '_>) -> Result<(), Error> {
        self.link = Some(until_nul(&bounded(entry)?).to_vec());
        Ok(())
    }

    pub(super) fn read_pax(&mut self, entry: &mut Entry<'_, '_>) -> Result<(), Error> {
        let bytes = bounded(entry)?;
        for (keyword, value) in records(&bytes)? {
            match keyword {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(decimal(value)?),
                b"uid" => self.uid = Some(decimal(value)?),
                b"gid" => self.gid = Some(decimal(value)?),
                b"mtime" => self.mtime = Some(time(value)?),
                keyword if keyword.starts_with(b"GNU.sparse.") => {
                    return Err(refused(b"", "a sparse file, which this build does not read"));
                }
                keyword => {
                    if let Some(name) = keyword.strip_prefix(b"SCHILY.xattr.") {
                        self.xattrs.push((unescape(name), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn complete(self, header: &Header) -> Result<Complete, Error> {
        let path = self.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let bad = |what: &str| refused(&path, format!("a header without a valid {what}"));
        let owner =
            |value: u64| u32::try_from(value).ok().filter(|id| *id != u32::MAX).ok_or_else(|| bad("owner"));
        let number = |record: Option<u64>, field: std::io::Result<u64>| match record {
            Some(value) => Ok(value),
            None => field.map_err(|_| bad("number")),
        };
        let size = number(self.size, header.entry_size())?;
        if i64::try_from(size).is_err() {
            return Err(bad("size"));
        }
        // The reader goes by the header's size: a record that says another would put it out of step.
        if self.size.is_some() && header.entry_size().ok() != self.size {
            return Err(refused(&path, "an entry with two different sizes"));
        }
        let mtime = match self.mtime {
            Some(time) => time,
            None => FileTime { seconds: header.mtime().map_err(|_| bad("time"))?.cast_signed(), nanos: 0 },
        };
        Ok(Complete {
            kind: header.entry_type(),
            link: self
                .link
                .unwrap_or_else(|| header.link_name_bytes().map_or(Vec::new(), |link| link.into_owned())),
            size,
            mode: Mode::of_stat(header.mode().map_err(|_| bad("mode"))?),
            uid: owner(number(self.uid, header.uid())?)?,
            gid: owner(number(self.gid, header.gid())?)?,
            mtime,
            xattrs: self.xattrs,
            path,
        })
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Splits `LENGTH KEYWORD=VALUE\n` records.
fn records(mut bytes: &[u8]) -> Result<Vec<Record<'_>>, Error> {
    let bad = || refused(b"", "a malformed extended header");
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let blank = bytes.iter().take(20).position(|&byte| byte == b' ').ok_or_else(bad)?;
        let length = usize::try_from(decimal(&bytes[..blank])?).map_err(|_| bad())?;
        let record = bytes.get(blank + 1..length).ok_or_else(bad)?;
        let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
        let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(bad)?;
        found.push((&record[..equals], &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Ok(found)
}

fn decimal(digits: &[u8]) -> Result<u64, Error> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| refused(b"", "a malformed number in an extended header"))
}

/// Reads seconds with a fraction, whose digits past nanoseconds are dropped; rounds downwards.
fn time(text: &[u8]) -> Result<FileTime, Error> {
    let bad = || refused(b"", "a malformed time in an extended header");
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = digits.splitn(2, |&byte| byte == b'.');
    let seconds = i64::try_from(decimal(parts.next().unwrap_or_default())?).map_err(|_| bad())?;
    let mut nanos = 0;
    if let Some(fraction) = parts.next() {
        decimal(fraction.get(..fraction.len().min(18)).unwrap_or_default())?;
        let padded = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        nanos = padded.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    }
    Ok(match (negative, nanos) {
        (false, nanos) => FileTime { seconds, nanos },
        (true, 0) => FileTime { seconds: -seconds, nanos: 0 },
        (true, nanos) => FileTime { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
    })
}

/// The inverse of GNU tar's escape of `=` and `%` in names of attributes.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, next) = match rest {
            [b'%', b'3', b'D', next @ ..] => (b'=', next),
            [b'%', b'2', b'5', next @ ..] => (b'%', next),
            _ => (first, after),
        };
        plain.push(byte);
        rest = next;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly_or_refused() {
        let table: [(&str, Option<(i64, u32)>); 9] = [
            ("5", Some((5, 0))),
            ("5.25", Some((5, 250_000_000))),
            ("-1.75", Some((-2, 250_000_000))),
            ("-3", Some((-3, 0))),
            ("1.1234567899", Some((1, 123_456_789))),
            ("", None),
            ("1.x", None),
            ("1e9", None),
            ("99999999999999999999", None),
        ];
        for (text, expected) in table {
            let found = time(text.as_bytes()).ok().map(|time| (time.seconds, time.nanos));
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn malformed_records_are_refused() {
        assert_eq!(records(b"8 a=b=c\n").unwrap(), [(&b"a"[..], &b"b=c"[..])]);
        for bad in [
            "x",
            "5 a=b",
            "99 a=b\n",
            "6 ab\n",
            "0 a=b\n",
            "2 a=b\n",
            "-6 a=b\n",
            "18446744073709551615 a=b\n",
        ] {
            assert!(records(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
