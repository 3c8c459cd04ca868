//! What a variable may hold, and how a text becomes such a value.

use std::ffi::{OsStr, OsString};
use std::fmt;

/// What a variable may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 0/1, no/yes, false/true, off/on.
    Bool,
    /// Any text that is UTF-8.
    Text,
    /// An absolute path.
    Path,
    /// A number in these bounds.
    Count { min: u64, max: u64 },
    /// Bytes in these bounds, with a unit if wanted: see [`parse_size`].
    Size { min: u64, max: u64 },
    /// A time with its unit: see [`parse_time`].
    Time,
    /// The name of a group and its limit: see [`crate::group::Spec`].
    Group,
    /// One of these words.
    Choice(&'static [&'static str]),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bool => f.write_str("0 or 1"),
            Self::Text => f.write_str("text in UTF-8"),
            Self::Path => f.write_str("an absolute path"),
            Self::Count { min, max: u64::MAX } => write!(f, "a number, {min} or more"),
            Self::Count { min, max } => write!(f, "a number from {min} to {max}"),
            Self::Size { min: 0, max: u64::MAX } => f.write_str("bytes, such as 4096, 64KiB, 256MiB or 1.5G"),
            Self::Size { min, max: u64::MAX } => {
                write!(f, "{} or more: bytes with a unit, such as 256MiB or 1.5G", Bytes(min))
            }
            Self::Size { min, max } => {
                write!(f, "{} to {}: bytes with a unit, such as 256MiB or 1.5G", Bytes(min), Bytes(max))
            }
            Self::Time => f.write_str("seconds, or a time such as 500ms, 1.5s or 2m"),
            Self::Group => f.write_str(
                "NAME:SIZE, such as team-a:24GiB: a name of letters, digits, '.', '_' and '-', or an absolute path, and 1MiB \
                 or more",
            ),
            Self::Choice(words) => f.write_str(&words.join(", ")),
        }
    }
}

/// When a variable is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Once, when the process starts.
    Start,
    /// `gpumem set` changes it while the process runs, too.
    Live,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub kind: Kind,
    /// As it would be written; empty: unset.
    pub default: &'static str,
    pub when: When,
    pub doc: &'static str,
}

/// A value that fits its [`Kind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    Text(String),
    Path(OsString),
    /// A count, bytes, or nanoseconds.
    Number(u64),
    /// Index into [`Kind::Choice`].
    Choice(usize),
}

/// One line about a variable that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// The value does not fit; the default is in force.
    Refused { setting: &'static str, value: String, allowed: String, default: &'static str },
    /// No such variable; it does nothing.
    Unknown { name: String, meant: Option<&'static str> },
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { setting, value, allowed, default: "" } => {
                write!(f, "{setting}={value:?} is refused: allowed is {allowed}; the variable counts as unset")
            }
            Self::Refused { setting, value, allowed, default } => {
                write!(f, "{setting}={value:?} is refused: allowed is {allowed}; {default} is used")
            }
            Self::Unknown { name, meant: Some(meant) } => {
                write!(f, "unknown variable {name} ignored; did you mean {meant}?")
            }
            Self::Unknown { name, meant: None } => write!(f, "unknown variable {name} ignored"),
        }
    }
}

impl Setting {
    /// The value of this text.
    ///
    /// # Errors
    /// A [`Complaint`] when the text is not what this setting allows.
    pub fn parse(&self, raw: &OsStr) -> Result<Value, Complaint> {
        self.value(raw).ok_or_else(|| Complaint::Refused {
            setting: self.name,
            value: raw.to_string_lossy().into_owned(),
            allowed: self.kind.to_string(),
            default: self.default,
        })
    }

    fn value(&self, raw: &OsStr) -> Option<Value> {
        if self.kind == Kind::Path {
            return std::path::Path::new(raw).is_absolute().then(|| Value::Path(raw.to_owned()));
        }
        let text = raw.to_str()?;
        let within = |n: u64, min, max| (min..=max).contains(&n).then_some(Value::Number(n));
        match self.kind {
            Kind::Bool => parse_bool(text).map(Value::Bool),
            Kind::Text => Some(Value::Text(text.to_owned())),
            Kind::Path => None,
            Kind::Group => crate::group::Spec::parse(text).map(|_| Value::Text(text.trim().to_owned())),
            Kind::Count { min, max } => within(text.trim().parse().ok()?, min, max),
            Kind::Size { min, max } => within(parse_size(text)?, min, max),
            Kind::Time => parse_time(text).map(Value::Number),
            Kind::Choice(words) => {
                words.iter().position(|word| word.eq_ignore_ascii_case(text.trim())).map(Value::Choice)
            }
        }
    }
}

/// 0/1, no/yes, false/true, off/on; nothing else.
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

/// A number before its unit, with a fraction if wanted, times that unit: what the unit does not divide is cut off. `None`
/// for what is no number, has a fraction of the smallest unit, or is over 64 bits.
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

/// Where the unit begins behind a number.
fn unit_at(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len())
}

/// Bytes: a number, then a unit as GNU coreutils have them: none or B; K, M, G, T and KiB, MiB, GiB, TiB, powers
/// of 1024; kB, MB, GB, TB, powers of 1000; in upper or lower case. `None` for anything else, and for what is
/// over 64 bits.
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

/// Nanoseconds: a number, then ns, us, ms, s, m or h; without a unit seconds. `None` for anything else, and for what is
/// over 64 bits.
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

/// Bytes as [`parse_size`] reads them back, in the largest unit that divides them.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
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
