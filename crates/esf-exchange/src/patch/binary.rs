//! `GIT binary patch` literals: zlib, then base 85 in lines of at most 52 bytes, streamed.

use std::io::{self, Read, Write};

use flate2::{Compression, write::ZlibEncoder};
use sha1::{Digest as _, Sha1};

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
const LINE: usize = 52;

/// Writes one literal of exactly `size` bytes; returns how many bytes `content` really had.
pub(super) fn write_literal(out: &mut dyn Write, size: u64, content: &mut dyn Read) -> io::Result<u64> {
    writeln!(out, "literal {size}")?;
    let mut encoder =
        ZlibEncoder::new(Base85Lines { out, line: Vec::with_capacity(LINE) }, Compression::default());
    let found = io::copy(content, &mut encoder)?;
    encoder.finish()?.finish()?;
    Ok(found)
}

/// The id git gives to a blob of `size` bytes; also returns how many bytes there really were.
pub(super) fn blob_name(size: u64, content: &mut dyn Read) -> io::Result<(String, u64)> {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {size}\0"));
    let mut buffer = vec![0; 64 << 10];
    let mut found = 0;
    loop {
        let count = match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..count]);
        found += count as u64;
    }
    let name = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((name, found))
}

struct Base85Lines<'a> {
    out: &'a mut dyn Write,
    line: Vec<u8>,
}

impl Base85Lines<'_> {
    fn write_line(&mut self) -> io::Result<()> {
        let length = self.line.len() as u8;
        let mut text = vec![if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 }];
        for group in self.line.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            let mut value = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(value % 85) as usize];
                value /= 85;
            }
            text.extend_from_slice(&digits);
        }
        text.push(b'\n');
        self.line.clear();
        self.out.write_all(&text)
    }

    fn finish(mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            self.write_line()?;
        }
        self.out.write_all(b"\n")
    }
}

impl Write for Base85Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(LINE - self.line.len());
        self.line.extend_from_slice(&bytes[..taken]);
        if self.line.len() == LINE {
            self.write_line()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_named_like_git() {
        let (name, found) = blob_name(6, &mut &b"hello\n"[..]).unwrap();
        assert_eq!((name.as_str(), found), ("ce013625030ba8dba906f756967f9e9ca394464a", 6));
    }

    #[test]
    fn lines_hold_at_most_52_bytes_and_begin_with_their_length() {
        let mut out = Vec::new();
        let mut lines = Base85Lines { out: &mut out, line: Vec::new() };
        lines.write_all(&[0; 52 + 26]).unwrap();
        lines.finish().unwrap();
        let expected = format!("z{}\nZ{}\n\n", "0".repeat(65), "0".repeat(35));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
