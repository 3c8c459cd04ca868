//! Parses texts written by people: yes and no, bytes, times.

/// Parses 0/1, no/yes, false/true, off/on; nothing else.
pub fn parse_bool(text: &str) -> Option<bool> {
    let text = text.trim();
    let is = |words: [&str; 4]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if is(["1", "yes", "true", "on"]) {
        Some(true)
    } else if is(["0", "no", "false", "off"]) {
        Some(false)
    } else {
        None
    }
}

/// Parses a number before its unit, optionally with a fraction, and multiplies it by that unit; a remainder is cut off.
/// `None` if it is not a number, has a fraction of the smallest unit, or exceeds 64 bits.
fn times(number: &str, unit: u64) -> Option<u64> {
    /// Digits of a fraction that count.
    const DIGITS: usize = 9;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || number.contains('.') && unit == 1 {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(DIGITS)];
    let parts = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
    let all = u128::from(whole.parse::<u64>().ok()?) * u128::from(unit) + parts;
    u64::try_from(all).ok()
}

/// Returns the index of the unit behind a number.
fn unit_at(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len())
}

/// Parses bytes: a number, then a unit as in GNU coreutils: none or B; K, M, G, T and KiB, MiB, GiB, TiB, powers of
/// 1024; kB, MB, GB, TB, powers of 1000; in upper or lower case. `None` for anything else, and for values over 64 bits.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = unit_at(text);
    let unit = match text[unit_at..].trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    times(&text[..unit_at], unit)
}

/// Parses nanoseconds: a number, then ns, us, ms, s, m or h; seconds without a unit. `None` for anything else, and for
/// values over 64 bits.
pub fn parse_time(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = unit_at(text);
    let unit = match text[unit_at..].trim_start().to_ascii_lowercase().as_str() {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    times(&text[..unit_at], unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_refused() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("1k", 1024), ("3 MiB", 3 << 20), ("2G", 2 << 30), ("7B", 7)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for (text, bytes) in [
            ("1kB", 1000),
            ("300MB", 300_000_000),
            ("1gb", 1_000_000_000),
            ("2 TB", 2_000_000_000_000),
            ("1gib", 1 << 30),
            ("1.5G", 3 << 29),
            ("0.5kB", 500),
            ("1.0000000001K", 1024),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "-1",
            "1.5",
            "1.5B",
            ".5G",
            "1.G",
            "1.5.5G",
            "1KBi",
            "GiB",
            "1 2",
            "99999999999999999999",
            "16777216T",
            "1\u{661}",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        let ms = 1_000_000;
        for (text, ns) in [
            ("0", 0),
            ("2", 2000 * ms),
            ("0.25", 250 * ms),
            ("500ms", 500 * ms),
            ("1s", 1000 * ms),
            ("1.5s", 1500 * ms),
            ("2 m", 120_000 * ms),
            ("3us", 3000),
        ] {
            assert_eq!(parse_time(text), Some(ns), "{text}");
        }
        for text in ["", "-1s", "1.5ns", "s", "1 2", "1d", "99999999999h", "1e3"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
