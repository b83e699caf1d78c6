//! Durations and sizes as people type them: `500ms 30s 10m 2h`, `64k 512m 2g` (the command line's
//! contract). A number without a unit is refused for durations and is bytes for sizes.

/// A duration or size that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {what}: expected {expected}, found {found:?}")]
pub struct ParseUnitError {
    /// `duration` or `size`.
    pub what: &'static str,
    /// The accepted forms.
    pub expected: &'static str,
    /// The refused text.
    pub found: String,
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Reads a duration into milliseconds.
///
/// # Errors
/// `ParseUnitError` for anything but a whole number and one of `ms s m h d`.
pub fn parse_duration_ms(text: &str) -> Result<u64, ParseUnitError> {
    let scale = |unit| match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    split(text).and_then(|(number, unit)| number.checked_mul(scale(unit)?)).ok_or_else(|| ParseUnitError {
        what: "duration",
        expected: "a whole number and one of ms, s, m, h, d, such as 30s",
        found: text.to_owned(),
    })
}

/// Reads a size into bytes; units are binary.
///
/// # Errors
/// `ParseUnitError` for anything but a whole number and nothing or one of `k m g t`.
pub fn parse_size(text: &str) -> Result<u64, ParseUnitError> {
    let scale = |unit: &str| match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        "t" | "tib" => Some(1 << 40),
        _ => None,
    };
    split(text).and_then(|(number, unit)| number.checked_mul(scale(unit)?)).ok_or_else(|| ParseUnitError {
        what: "size",
        expected: "a whole number of bytes, or with one of k, m, g, t, such as 512m",
        found: text.to_owned(),
    })
}

/// A size for people: `1.5 MiB`; exact bytes below 1 KiB.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration_ms("500ms"), Ok(500));
        assert_eq!(parse_duration_ms("2h"), Ok(7_200_000));
        for bad in ["", "5", "s", "-1s", "1.5s", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse_duration_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_binary_and_shown_short() {
        assert_eq!(parse_size("64k"), Ok(65_536));
        assert_eq!(parse_size("7"), Ok(7));
        assert!(parse_size("1x").is_err());
        assert_eq!(show_size(1023), "1023 B");
        assert_eq!(show_size(1_572_864), "1.5 MiB");
        assert_eq!(show_size(1_048_575), "1.0 MiB");
    }
}
