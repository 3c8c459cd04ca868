//! Measures what gpumem claims, natively and under the preload.
//!
//! One row of [`CLAIMS`] is one claim, and one JSON line of `make proof`. A new claim needs a row there, and a function
//! that measures it in a file beside.

mod claims;
pub mod cost;
pub mod flat;
pub mod graphs;
mod guard;
mod held;
mod kernels;
pub mod leaks;
pub mod pool;
pub mod pool_flat;
pub mod pool_gpu;
pub mod python;
pub mod record;
pub mod suspects;
mod tester;
pub mod totals;

pub use claims::CLAIMS;

use crate::stage::{Device, Stage};
use serde_json::{Value, json};
use std::cell::Cell;
use std::io::Write;
use std::path::PathBuf;

/// The condition under which a claim holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The preloaded figure equals the native one.
    Same,
    /// The preloaded figure is this.
    Exactly(f64),
    /// The preloaded figure is at most this much above the native one.
    Added(f64),
    /// The preloaded figure is at most this.
    AtMost(f64),
    /// The preloaded figure is at most this many times the native one.
    Times(f64),
    /// The preloaded figure is at least this many times the native one.
    NotBelow(f64),
    /// The preloaded figure is at most the native one, plus this much, plus this share of the native one.
    Beside(f64, f64),
}

impl Limit {
    fn holds(self, measured: &Measured) -> bool {
        match self {
            Self::Same => measured.preloaded == measured.native,
            Self::Exactly(wanted) => measured.preloaded == wanted,
            Self::Added(most) => measured.added() <= most,
            Self::AtMost(most) => measured.preloaded <= most,
            Self::Times(most) => measured.ratio() <= most,
            Self::NotBelow(least) => measured.ratio() >= least,
            Self::Beside(more, share) => measured.preloaded <= measured.native * (1.0 + share) + more,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => f.write_str("preloaded = native"),
            Self::Exactly(wanted) => write!(f, "preloaded = {wanted}"),
            Self::Added(most) => write!(f, "preloaded - native <= {most}"),
            Self::AtMost(most) => write!(f, "preloaded <= {most}"),
            Self::Times(most) => write!(f, "preloaded <= {most} x native"),
            Self::NotBelow(least) => write!(f, "preloaded >= {least} x native"),
            Self::Beside(more, share) => write!(f, "preloaded <= native + {more} + {} %", share * 100.0),
        }
    }
}

/// The native and the preloaded figure, in the claim's unit.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub native: f64,
    pub preloaded: f64,
    /// Median of the differences of pairs, if the measurement was made in pairs. It says more than the difference of
    /// the two medians.
    pub added: Option<f64>,
    /// Median of the ratios of pairs, if the measurement was made in pairs.
    pub ratio: Option<f64>,
    /// A note: what is wrong, or what else there is to say.
    pub note: String,
    /// Something besides the figures was wrong, so the claim does not hold.
    pub broken: bool,
}

impl Measured {
    fn added(&self) -> f64 {
        self.added.unwrap_or(self.preloaded - self.native)
    }

    fn ratio(&self) -> f64 {
        self.ratio.unwrap_or(self.preloaded / self.native)
    }
}

/// Requirement for the measurement of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needs {
    Nothing,
    /// The simulator cannot show it.
    Gpu,
    /// Instructions are counted: those of an optimised build for x86-64.
    Optimised,
    /// A CPython whose frames gpumem can read.
    Python,
    /// A GPU, and PyTorch in python3.
    Torch,
}

impl Needs {
    /// Why the claim cannot be measured here. `None` if it can.
    fn missing(self, device: &Device) -> Option<&'static str> {
        let missing = match self {
            Self::Nothing => false,
            Self::Gpu => matches!(device, Device::Simulator),
            Self::Optimised => cfg!(debug_assertions) || !cfg!(target_arch = "x86_64"),
            Self::Python => crate::python::interpreters().is_empty(),
            Self::Torch => matches!(device, Device::Simulator) || !kernels::has_torch(),
        };
        let why = match self {
            Self::Nothing | Self::Optimised => "measured in optimised x86-64 builds",
            Self::Gpu => "not measured on the simulator",
            Self::Python => "measured where there is a python3 of 3.9 to 3.14 with ctypes",
            Self::Torch => "measured on a GPU with a python3 that has PyTorch",
        };
        missing.then_some(why)
    }
}

/// One claim.
pub struct Claim {
    pub name: &'static str,
    /// The claim in words.
    pub says: &'static str,
    pub unit: &'static str,
    pub limit: Limit,
    pub needs: Needs,
    pub measure: fn(&Bench<'_>) -> Result<Measured, String>,
}

/// Seed and number of random programs.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    /// That of the first one; the others follow.
    pub seed: u64,
    /// How many of them; `None`: as many as each claim takes.
    pub programs: Option<u64>,
}

/// Environment of a measurement.
pub struct Bench<'a> {
    pub stage: &'a Stage,
    pub chance: Chance,
    /// Scratch; each claim has its own directory in it.
    work: PathBuf,
    claim: &'static str,
    runs: Cell<u32>,
}

impl Bench<'_> {
    /// A directory for the ledgers of one run.
    pub fn ledgers(&self) -> PathBuf {
        self.runs.set(self.runs.get() + 1);
        self.work.join(self.claim).join(self.runs.get().to_string())
    }

    /// Reports progress on stderr.
    pub fn step(&self, what: &str) {
        eprintln!("proof: {}: {what}", self.claim);
    }
}

/// The JSON line of a claim, and how it failed.
fn line(claim: &Claim, device: &Device, result: &Result<Measured, String>) -> (String, Option<bool>) {
    let value = |value: &Value| value.to_string();
    let number = |number: f64| match number {
        n if n.fract() == 0.0 && n.abs() < 9e15 => json!(n as i64),
        n => json!((n * 10.0).round() / 10.0),
    };
    let missing = claim.needs.missing(device).map(str::to_owned);
    let (native, preloaded, (added, ratio), holds, note) = match result {
        _ if missing.is_some() => (Value::Null, Value::Null, (None, None), None, missing.unwrap_or_default()),
        Err(why) => (Value::Null, Value::Null, (None, None), Some(false), why.clone()),
        Ok(measured) => (
            number(measured.native),
            number(measured.preloaded),
            (measured.added, measured.ratio),
            Some(!measured.broken && claim.limit.holds(measured)),
            measured.note.clone(),
        ),
    };
    let mut members = vec![
        ("claim", json!(claim.name)),
        ("native", native),
        ("preloaded", preloaded),
        ("unit", json!(claim.unit)),
        ("limit", json!(claim.limit.to_string())),
        ("holds", json!(holds)),
        ("device", json!(device.to_string())),
    ];
    members.extend(added.map(|added| ("added", number(added))));
    members.extend(ratio.map(|ratio| ("ratio", json!((ratio * 1e4).round() / 1e4))));
    if !note.is_empty() {
        members.push(("note", json!(note)));
    }
    let members: Vec<String> = members.iter().map(|(name, of)| format!("{}:{}", json!(name), value(of))).collect();
    (format!("{{{}}}", members.join(",")), holds)
}

/// Measures the claims whose names begin with one of `chosen` (all, if there is none), prints a line
/// for each, and says whether all hold.
///
/// # Errors
/// When the scratch directory cannot be made or stdout is closed.
pub fn prove(stage: &Stage, chance: Chance, chosen: &[String]) -> Result<bool, String> {
    let work = stage.kit.join(format!("proof-work.{}", std::process::id()));
    std::fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let mut all_hold = true;
    for claim in CLAIMS {
        if !chosen.is_empty() && !chosen.iter().any(|name| claim.name.starts_with(name.as_str())) {
            continue;
        }
        let bench = Bench { stage, chance, work: work.clone(), claim: claim.name, runs: Cell::new(0) };
        let missing = claim.needs.missing(&stage.device);
        bench.step(missing.unwrap_or(claim.says));
        let result = if missing.is_none() { (claim.measure)(&bench) } else { Ok(Measured::default()) };
        let (text, holds) = line(claim, &stage.device, &result);
        writeln!(std::io::stdout(), "{text}").map_err(|error| format!("stdout: {error}"))?;
        all_hold &= holds != Some(false);
    }
    if all_hold {
        let _ = std::fs::remove_dir_all(&work);
    } else {
        eprintln!("proof: not every claim holds; the ledgers are kept in {}", work.display());
    }
    Ok(all_hold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_decide() {
        let measured = |native, preloaded, added| Measured { native, preloaded, added, ..Measured::default() };
        for (limit, of, holds) in [
            (Limit::Same, measured(3.0, 3.0, None), true),
            (Limit::Same, measured(3.0, 4.0, None), false),
            (Limit::Exactly(0.0), measured(1.0, 0.0, None), true),
            (Limit::Exactly(0.0), measured(0.0, 1.0, None), false),
            (Limit::Added(15.0), measured(100.0, 115.0, None), true),
            (Limit::Added(15.0), measured(100.0, 116.0, None), false),
            (Limit::Added(15.0), measured(100.0, 130.0, Some(14.0)), true),
            (Limit::AtMost(8.0), measured(120.0, 8.0, None), true),
            (Limit::AtMost(8.0), measured(120.0, 9.0, None), false),
            (Limit::Times(1.02), measured(100.0, 102.0, None), true),
            (Limit::Times(1.02), measured(100.0, 103.0, None), false),
            (Limit::NotBelow(0.5), measured(100.0, 50.0, None), true),
            (Limit::NotBelow(0.5), measured(100.0, 49.0, None), false),
            (Limit::Beside(4.0, 0.02), measured(100.0, 106.0, None), true),
            (Limit::Beside(4.0, 0.02), measured(100.0, 106.1, None), false),
            (Limit::Times(1.02), Measured { ratio: Some(1.01), ..measured(100.0, 110.0, None) }, true),
        ] {
            assert_eq!(limit.holds(&of), holds, "{limit} {of:?}");
        }
    }

    #[test]
    fn a_line_says_what_holds_and_what_was_not_measured() {
        let (record, cost) = (&CLAIMS[0], CLAIMS.iter().find(|claim| claim.needs == Needs::Gpu).unwrap());
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let good = Measured { native: 14.0, preloaded: 14.0, ..Measured::default() };
        let (text, holds) = line(record, &Device::Simulator, &Ok(good.clone()));
        assert_eq!((parse(&text)["native"].clone(), holds), (json!(14), Some(true)));
        let broken = Measured { broken: true, note: "exit status".into(), ..good };
        assert_eq!(line(record, &Device::Simulator, &Ok(broken)).1, Some(false));
        let (text, holds) = line(record, &Device::Simulator, &Err("no such program".into()));
        assert_eq!((parse(&text)["holds"].clone(), holds), (json!(false), Some(false)));
        let (text, holds) = line(cost, &Device::Simulator, &Ok(Measured::default()));
        assert_eq!((parse(&text)["holds"].clone(), holds), (Value::Null, None));
        assert_eq!(parse(&text)["note"], "not measured on the simulator");
    }

    #[test]
    fn names_are_unique() {
        for (index, claim) in CLAIMS.iter().enumerate() {
            assert!(CLAIMS[..index].iter().all(|other| other.name != claim.name), "{}", claim.name);
        }
    }
}
