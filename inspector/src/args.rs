//! Arguments that several commands share.
//!
//! * [`candidates`]: shell completion for them.

pub(crate) mod candidates;

use crate::model::ledger::frames::StackMode;
use crate::model::marks::Since;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueHint};
use gpumem_wire::settings::{parse_size, parse_time};
use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// Options of every command.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Answer in JSON: one object with schema_version, exact bytes and nanoseconds
    #[arg(long, global = true)]
    pub json: bool,
    /// When to colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// Directory of the ledgers, instead of the one that GPUMEM_DIR names
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Say more on stderr; twice for debugging
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Parses a time span on the command line: seconds, with an optional fraction, or a time in the variables' form,
/// `500ms`.
///
/// # Errors
/// Says what is allowed.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    // A longer time does not fit in nanoseconds.
    parse_time(text)
        .map(Duration::from_nanos)
        .filter(|span| span.as_secs() < 1_000_000_000)
        .ok_or_else(|| "allowed: seconds, or a time such as 500ms, 1s or 2m".into())
}

/// Parses a moment on the command line: a span ago, or the name of a mark.
///
/// # Errors
/// Says what is allowed.
pub(crate) fn since(text: &str) -> Result<Since, String> {
    match span(text) {
        Ok(span) => Ok(Since::Span(span)),
        Err(_) if text.trim().is_empty() => Err("allowed: a time such as 5m, or the name of a mark".into()),
        Err(_) => Ok(Since::Mark(text.to_owned())),
    }
}

/// Parses a size on the command line.
///
/// # Errors
/// Says what is allowed.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| {
        "allowed: bytes, or a number with K, M, G, T or KiB … TiB (powers of 1024), or kB … TB (powers of 1000)".into()
    })
}

/// Parses a rate on the command line: a size per minute or per another time, `1MiB/min`. Returns bytes per minute.
///
/// # Errors
/// Says what is allowed.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (size, over) = text.split_once('/').unwrap_or((text, "min"));
    let minutes = match over.trim() {
        "s" | "sec" | "second" => 1.0 / 60.0,
        "m" | "min" | "minute" => 1.0,
        "h" | "hour" => 60.0,
        _ => return Err("allowed: a size a second, minute or hour, such as 1MiB/min".into()),
    };
    self::size(size).map(|bytes| bytes as f64 / minutes)
}

/// Parses a number on the command line that is not below 0.
///
/// # Errors
/// Says what is allowed.
pub(crate) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = text.trim().parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
    let most =
        8_u32.checked_mul(size_of::<T>() as u32).and_then(|bits| u64::MAX.checked_shr(64 - bits)).unwrap_or(u64::MAX);
    number.ok_or_else(|| format!("allowed: a number from 0 to {most}"))
}

/// Parses a number in a range.
pub(crate) fn number_in<T: Copy + PartialOrd + TryFrom<u64> + Display>(
    least: T,
    most: T,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = number(text).ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("allowed: a number from {least} to {most}"))
    }
}

/// Parses the time between two looks. A shorter one would keep a core busy, a longer one would show nothing.
pub(crate) fn interval(most: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let interval = span(text)?;
        match (Duration::from_millis(50)..=most).contains(&interval) {
            true => Ok(interval),
            false => Err(format!("allowed: 0.05 to {} seconds", most.as_secs())),
        }
    }
}

/// Parses one of these values by its name.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names: PossibleValuesParser = all.iter().map(|&value| name(value)).collect::<Vec<_>>().into();
    names.try_map(move |given| all.iter().copied().find(|&value| name(value) == given).ok_or("no such name"))
}

/// Returns the name of an option's value on the command line.
pub(crate) fn name_of(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    Always,
    Never,
}

/// Which process or file.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Target {
    /// A pid, a process name, or the path of a dump or a ledger; not needed if only one process fits
    #[arg(value_name = "PID|NAME|FILE", add = candidates::offer([candidates::recorded, candidates::files]))]
    pub target: Option<OsString>,
    /// The path of a dump or a ledger
    #[arg(long, value_name = "FILE", conflicts_with = "target", value_hint = ValueHint::FilePath)]
    pub file: Option<OsString>,
    /// Do not look up symbols: show modules and offsets
    #[arg(long)]
    pub no_symbols: bool,
    /// Which frames to show, if a call stack has native frames and frames of Python
    #[arg(long, value_enum, value_name = "FRAMES", default_value = "mixed")]
    pub stack: StackMode,
}

/// Which running process is asked.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Asked {
    /// A pid, a process name, or the path of a ledger; not needed if only one process runs
    #[arg(value_name = "PID|NAME|FILE", add = candidates::offer([candidates::running]))]
    target: Option<OsString>,
}

impl Asked {
    pub(crate) fn target(&self) -> Target {
        Target { target: self.target.clone(), ..Target::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_seconds_or_times() {
        for (text, ms) in [("0", 0), ("1.5", 1500), ("75", 75_000), ("1s", 1000), ("500ms", 500), ("2m", 120_000)] {
            assert_eq!(span(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "-1", "nan", "inf", "1e10", "1d", "s"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_moment_is_a_time_or_a_mark() {
        assert_eq!(since("5m"), Ok(Since::Span(Duration::from_secs(300))));
        assert_eq!(since("warm up"), Ok(Since::Mark("warm up".into())));
        assert!(since(" ").is_err());
    }

    #[test]
    fn rates_are_sizes_over_times() {
        assert_eq!((rate("1MiB/min"), rate("1K"), rate("60/h")), (Ok(1048576.0), Ok(1024.0), Ok(1.0)));
        assert_eq!(rate("2 K / s"), Ok(122880.0));
        assert!(rate("1MiB/day").is_err() && rate("x/min").is_err());
    }
}
