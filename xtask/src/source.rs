//! Rust text without its comments and literals, so that a word in a sentence is not taken for code.
//! Lines stay where they are. Good enough for searching; no parser.

/// Replaces comments, string and character literals by blanks.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match literal_end(bytes, at) {
            Some(end) => end,
            None => {
                code.push(bytes[at]);
                at += 1;
                continue;
            }
        };
        code.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
        at = end;
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// The code of a file up to its unit tests.
pub(crate) fn before_tests(code: &str) -> &str {
    code.find("#[cfg(test)]").map_or(code, |at| &code[..at])
}

/// Where the comment or literal that begins at `at` ends, if one does.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(block_comment_end(bytes, at));
    }
    match rest[0] {
        b'"' => Some(quoted_end(bytes, at + 1)),
        b'r' if !continues_word(bytes, at) => raw_string_end(bytes, at + 1),
        b'\'' => character_end(bytes, at),
        _ => None,
    }
}

/// Whether the byte before `at` makes it part of a longer word (`br` is a prefix of its own).
fn continues_word(bytes: &[u8], at: usize) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    at > 0 && word(bytes[at - 1]) && !(bytes[at - 1] == b'b' && (at == 1 || !word(bytes[at - 2])))
}

fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let (mut depth, mut at) = (0, at);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn quoted_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = at + hashes + 1;
    let length = bytes[body..].windows(close.len()).position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| body + length + close.len()))
}

/// A character literal, unless it is a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes.get(at + 3..)?.iter().position(|&byte| byte == b'\'')?;
        return Some(at + 3 + close + 1);
    }
    let longest = bytes.len().min(at + 6);
    let close = (at + 2..longest).find(|&end| bytes[end] == b'\'')?;
    let one = std::str::from_utf8(&bytes[at + 1..close]).is_ok_and(|text| text.chars().count() == 1);
    one.then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_blanks() {
        for (text, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("unsafe \" x") g"#, "f(             ) g"),
            (r##"f(r#"un"safe"#) g"##, "f(            ) g"),
            (r#"f(br"x") g"#, "f(b    ) g"),
            ("if c == '\"' { d }", "if c ==     { d }"),
            (r"if c == '\'' { d }", "if c ==      { d }"),
            ("fn f<'a>(b: &'a str)", "fn f<'a>(b: &'a str)"),
            ("for_r\"x\"", "for_r   "),
            ("var r = r + 1", "var r = r + 1"),
        ] {
            assert_eq!(code_only(text), code, "{text}");
        }
    }

    #[test]
    fn an_open_literal_ends_with_the_text() {
        for text in ["\"abc", "r#\"abc\"", "/* abc", "'", "'\\", "// abc", "\"\\"] {
            assert_eq!(code_only(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn unit_tests_are_cut_off() {
        assert_eq!(before_tests("a\n#[cfg(test)]\nb"), "a\n");
        assert_eq!(before_tests("a"), "a");
    }
}
