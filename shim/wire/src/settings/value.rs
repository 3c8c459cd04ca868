//! Allowed values of a variable, and their parsing.

use super::Id;
use super::group_limit::GroupLimit;
use super::parse::{parse_bool, parse_size, parse_time};
use crate::share;
use std::ffi::{OsStr, OsString};
use std::fmt;

/// Kind of a variable's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 0/1, no/yes, false/true, off/on.
    Bool,
    /// Any UTF-8 text.
    Text,
    /// An absolute path.
    Path,
    /// A number within these bounds.
    Count { min: u64, max: u64 },
    /// Bytes within these bounds, optionally with a unit: see [`parse_size`].
    Size { min: u64, max: u64 },
    /// A time with its unit: see [`parse_time`].
    Time,
    /// The name of a group and its limit: see [`GroupLimit`].
    Group,
    /// The name of a service: see [`share::is_name`].
    Name,
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
                "NAME:SIZE, such as team-a:24GiB (NAME: letters, digits, '.', '_' and '-', or an absolute path; SIZE: \
                 1MiB or more)",
            ),
            Self::Name => write!(f, "1 to {} letters, digits, '.', '_' and '-'", share::MAX_NAME),
            Self::Choice(words) => f.write_str(&words.join(", ")),
        }
    }
}

/// When a variable is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Once, when the process starts.
    Start,
    /// At the start, and by `gpumem set` while the process runs.
    Live,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub id: Id,
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

/// One line about a variable with a wrong name or value.
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
    /// Parses this text.
    ///
    /// # Errors
    /// A [`Complaint`] if the text is not allowed for this setting.
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
            Kind::Group => GroupLimit::parse(text).map(|_| Value::Text(text.trim().to_owned())),
            Kind::Name => share::is_name(text).then(|| Value::Text(text.to_owned())),
            Kind::Count { min, max } => within(text.trim().parse().ok()?, min, max),
            Kind::Size { min, max } => within(parse_size(text)?, min, max),
            Kind::Time => parse_time(text).map(Value::Number),
            Kind::Choice(words) => {
                words.iter().position(|word| word.eq_ignore_ascii_case(text.trim())).map(Value::Choice)
            }
        }
    }
}

/// Bytes in the largest unit that divides them, as [`parse_size`] reads them back.
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
