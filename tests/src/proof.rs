//! What gpumem claims, measured natively and under the preload.
//!
//! One row of [`CLAIMS`] is one claim, and one JSON line of `make proof`. A feature that claims
//! something adds its row here and a function that measures it beside the others.

pub mod cost;
pub mod demo;
pub mod flat;
pub mod graphs;
mod guard;
pub mod leaks;
pub mod pool;
pub mod pool_flat;
pub mod pool_gpu;
pub mod python;
pub mod record;
pub mod suspects;
mod tester;
pub mod totals;

use crate::stage::{Device, Stage};
use serde_json::{Value, json};
use std::cell::Cell;
use std::io::Write;
use std::path::PathBuf;

/// What has to be so for a claim to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Preloaded is what native is.
    Same,
    /// Preloaded is this.
    Exactly(f64),
    /// Preloaded is at most so much more than native.
    Added(f64),
    /// Preloaded is at most this.
    AtMost(f64),
    /// Preloaded is at most so many times native.
    Times(f64),
    /// Preloaded is at most native, this much more, and this share of native.
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
            Self::Beside(more, share) => write!(f, "preloaded <= native + {more} + {} %", share * 100.0),
        }
    }
}

/// Two figures in the claim's unit.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub native: f64,
    pub preloaded: f64,
    /// Median of the differences of pairs, where it was measured in pairs; it says more than the
    /// difference of the two medians.
    pub added: Option<f64>,
    /// Median of the ratios of pairs, likewise.
    pub ratio: Option<f64>,
    /// What else there is to say; what is wrong, when something is.
    pub note: String,
    /// Something besides the figures went wrong: the claim does not hold.
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

/// What a claim can be shown by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needs {
    Nothing,
    /// The simulator cannot show it.
    Gpu,
    /// Instructions are counted: those of an optimised build for x86-64.
    Optimised,
    /// A CPython whose frames are read.
    Python,
}

impl Needs {
    /// Why it is not measured here; `None` if it is.
    fn missing(self, device: &Device) -> Option<&'static str> {
        let missing = match self {
            Self::Nothing => false,
            Self::Gpu => matches!(device, Device::Simulator),
            Self::Optimised => cfg!(debug_assertions) || !cfg!(target_arch = "x86_64"),
            Self::Python => crate::python::interpreters().is_empty(),
        };
        let why = match self {
            Self::Nothing | Self::Optimised => "measured in optimised x86-64 builds",
            Self::Gpu => "not measured on the simulator",
            Self::Python => "measured where there is a python3 of 3.9 to 3.14 with ctypes",
        };
        missing.then_some(why)
    }
}

/// One claim.
pub struct Claim {
    pub name: &'static str,
    /// What it says, for people.
    pub says: &'static str,
    pub unit: &'static str,
    pub limit: Limit,
    pub needs: Needs,
    pub measure: fn(&Bench<'_>) -> Result<Measured, String>,
}

/// Every claim, in the order of the report.
pub const CLAIMS: &[Claim] = &[
    Claim {
        name: "record.results_equal",
        says: "programs end with the same status, output and messages",
        unit: "programs whose results are the native ones",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: record::results_equal,
    },
    Claim {
        name: "record.counts_equal",
        says: "the ledger counts what the program counted for itself",
        unit: "allocations, frees, bytes, graphs, execs, launches, updates and captures of all programs",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: record::counts_equal,
    },
    Claim {
        name: "record.balance_zero",
        says: "nothing is left in the ledger of a program that gave all back",
        unit: "allocations, bytes, graphs and execs left over",
        limit: Limit::Exactly(0.0),
        needs: Needs::Nothing,
        measure: record::balance_zero,
    },
    Claim {
        name: "record.dead_process_readable",
        says: "the ledger of a process killed by SIGKILL shows what it held",
        unit: "live bytes at death",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: record::dead_process_readable,
    },
    Claim {
        name: "stats.totals_equal",
        says: "every total that gpumem prints is the sum of its parts, the same in all views, and what program and driver count",
        unit: "totals of random states; those that are equal",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: totals::equal,
    },
    Claim {
        name: "cost.call",
        says: "a call that passes through: the one that gets slowest",
        unit: "ns a call",
        limit: Limit::Added(15.0),
        needs: Needs::Gpu,
        measure: cost::call,
    },
    Claim {
        name: "cost.record",
        says: "a recorded allocation and its free, without call stacks",
        unit: "ns a pair",
        limit: Limit::Added(150.0),
        needs: Needs::Gpu,
        measure: cost::record,
    },
    Claim {
        name: "cost.record_stacks",
        says: "a recorded allocation and its free, with stacks of 32 frames",
        unit: "ns a pair",
        limit: Limit::Added(400.0),
        needs: Needs::Gpu,
        measure: cost::record_stacks,
    },
    Claim {
        name: "cost.cold_launch",
        says: "a launch that finds nothing of ours in the processor's caches",
        unit: "lines of 64 bytes of our code",
        limit: Limit::AtMost(14.0),
        needs: Needs::Optimised,
        measure: cost::cold_launch,
    },
    Claim {
        name: "graphs.results_equal",
        says: "random graph programs end with the same memory, codes and order",
        unit: "random graph programs at caps of 1, 2 and 8",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: graphs::results_equal,
    },
    Claim {
        name: "graphs.execs_bounded",
        says: "a program that never evicts has no more real execs than the cap",
        unit: "execs at the most",
        limit: Limit::AtMost(graphs::CAP),
        needs: Needs::Nothing,
        measure: graphs::execs_bounded,
    },
    Claim {
        name: "graphs.host_growth",
        says: "200 graphs of 1000 nodes at a cap of 16: what the process grows by",
        unit: "MB",
        limit: Limit::AtMost(130.0),
        needs: Needs::Gpu,
        measure: graphs::host_growth,
    },
    Claim {
        name: "graphs.device_growth",
        says: "200 graphs of 1000 nodes at a cap of 16: what the device memory in use grows by",
        unit: "MiB",
        limit: Limit::AtMost(40.0),
        needs: Needs::Gpu,
        measure: graphs::device_growth,
    },
    Claim {
        name: "graphs.instantiate_ratio",
        says: "an instantiate of a class that is known, 1000 nodes",
        unit: "us an instantiate",
        limit: Limit::Times(0.136),
        needs: Needs::Gpu,
        measure: graphs::instantiate_ratio,
    },
    Claim {
        name: "graphs.launch_ratio",
        says: "a launch of an exec that is resident, 1000 nodes",
        unit: "ns a call",
        limit: Limit::Added(50.0),
        needs: Needs::Gpu,
        measure: graphs::launch_ratio,
    },
    Claim {
        name: "flat.host_growth",
        says: "host memory of programs that do the same over and over, where it is furthest above the native run's",
        unit: "MiB",
        limit: Limit::Beside(flat::SLACK_MIB, flat::SLACK_SHARE),
        needs: Needs::Nothing,
        measure: flat::host_growth,
    },
    Claim {
        name: "flat.graphs_device_growth",
        says: "used device memory of these, without what the pool keeps idle",
        unit: "MiB",
        limit: Limit::Beside(flat::SLACK_MIB, flat::SLACK_SHARE),
        needs: Needs::Nothing,
        measure: flat::device_growth,
    },
    Claim {
        name: "pool.results_equal",
        says: "random programs of allocation end with the same codes, answers and contents",
        unit: "random programs in all settings of the pool",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: pool::results_equal,
    },
    Claim {
        name: "pool.reuse_violations",
        says: "no memory is given out under work, no free returns before its barrier",
        unit: "rules broken and programs gone wrong",
        limit: Limit::Exactly(0.0),
        needs: Needs::Nothing,
        measure: pool::reuse_violations,
    },
    Claim {
        name: "flat.device_growth",
        says: "device memory above 1.02 of native at the worst: in use while it works, and after 15 s of rest",
        unit: "MiB, after 2 000 and 40 000 operations, and the growth of the later half",
        limit: Limit::AtMost(4.0),
        needs: Needs::Nothing,
        measure: pool_flat::device_growth,
    },
    Claim {
        name: "pool.pair_ratio",
        says: "an allocation and its free, 64 KiB to 4 MiB mixed, by the driver's names, one thread",
        unit: "ns a pair",
        // 60 ns; the driver's own take 46 to 84 µs.
        limit: Limit::Times(0.0013),
        needs: Needs::Gpu,
        measure: pool_gpu::pair_ratio,
    },
    Claim {
        name: "pool.threads_ratio",
        says: "the same by 16 threads at once",
        unit: "ns a pair, of all",
        limit: Limit::Times(0.00033),
        needs: Needs::Gpu,
        measure: pool_gpu::threads_ratio,
    },
    Claim {
        name: "pool.given_back",
        says: "what is still kept 15 s after a burst of 32 GiB was freed, the device idle",
        unit: "MiB",
        limit: Limit::Exactly(0.0),
        needs: Needs::Gpu,
        measure: pool_gpu::given_back,
    },
    Claim {
        name: "oom.matrix",
        says: "what does not fit goes where the four combinations of llama.cpp's names send it",
        unit: "combinations, by each name",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: pool::matrix,
    },
    Claim {
        name: "quota.enforced",
        says: "the most that a program gets under GPUMEM_LIMIT=256MiB, in any way",
        unit: "MiB",
        limit: Limit::AtMost(pool::QUOTA_MIB),
        needs: Needs::Nothing,
        measure: pool::quota,
    },
    Claim {
        name: "stranded.press_safe",
        says: "programs that do not retry, that capture or keep graphs end as natively under press",
        unit: "programs that end well",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: pool::press_safe,
    },
    Claim {
        name: "stranded.press_peak",
        says: "a pool that strands its older blocks and retries: the most that is live under press",
        unit: "MiB",
        // Its newest block, those that it outgrew since the last refusal, and what else it works with.
        limit: Limit::Times(0.2),
        needs: Needs::Gpu,
        measure: pool::press_peak,
    },
    Claim {
        name: "stranded.spill_finishes",
        says: "one that does not retry ends well in a quota of a quarter of its peak, under spill",
        unit: "programs that end well",
        limit: Limit::Same,
        needs: Needs::Gpu,
        measure: pool::spill_finishes,
    },
    Claim {
        name: "leaks.verdicts",
        says: "a thousand call sites with planted growth, and the heaps of their programs: wrong verdicts",
        unit: "planted call sites, and wrong verdicts",
        limit: Limit::AtMost(leaks::WRONG),
        needs: Needs::Nothing,
        measure: leaks::verdicts,
    },
    Claim {
        name: "scan.recall",
        says: "blocks whose address programs lost, which do not rank before 95 of 100 that are referred to",
        unit: "lost blocks of 20 random programs, and those that do not rank first",
        limit: Limit::AtMost(suspects::MISSED),
        needs: Needs::Nothing,
        measure: suspects::recall,
    },
    Claim {
        name: "scan.false_alarms",
        says: "blocks that variables, the heap, stacks, mapped and pinned memory or graphs refer to, and that are called lost",
        unit: "blocks of 20 random programs that are referred to, and those that are called lost",
        limit: Limit::AtMost(suspects::ALARMS),
        needs: Needs::Nothing,
        measure: suspects::false_alarms,
    },
    Claim {
        name: "python.frames_equal",
        says: "the frames of Python of a thousand allocations in random call shapes are those that the interpreter tells",
        unit: "allocations, and those whose frames in the ledger are equal",
        limit: Limit::Same,
        needs: Needs::Python,
        measure: python::frames_equal,
    },
    Claim {
        name: "guard.finds",
        says: "planted writes behind, in front of and after the free of allocations are found, and nothing is in clean programs",
        unit: "programs, and those that the guard judges rightly",
        limit: Limit::Same,
        needs: Needs::Nothing,
        measure: guard::finds,
    },
];

/// What a measurement works with.
pub struct Bench<'a> {
    pub stage: &'a Stage,
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

    /// Says on stderr what is being done.
    pub fn step(&self, what: &str) {
        eprintln!("proof: {}: {what}", self.claim);
    }
}

/// The line of a claim.
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
pub fn prove(stage: &Stage, chosen: &[String]) -> Result<bool, String> {
    let work = stage.kit.join(format!("proof-work.{}", std::process::id()));
    std::fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let mut all_hold = true;
    for claim in CLAIMS {
        if !chosen.is_empty() && !chosen.iter().any(|name| claim.name.starts_with(name.as_str())) {
            continue;
        }
        let bench = Bench { stage, work: work.clone(), claim: claim.name, runs: Cell::new(0) };
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
