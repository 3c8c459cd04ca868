//! Decides if the shim may do more than record on this driver. In this order:
//!
//! 1. `GPUMEM_RECORD_ONLY`, if it is 0 or 1.
//! 2. A profiler or checker that is attached: record only.
//! 3. A driver whose version cannot be true: record only.
//! 4. The verdict that `gpumem selftest --rules` left for this driver, GPU and release ([`gpumem_wire::verdict`]): it
//!    may turn the pool or the graph cache off, and admits an untested driver.
//! 5. The driver's version: everything is on, unless the driver is of a newer major version than those that were tested
//!    ([`gpumem_abi::is_new_major`]): then gpumem only records. Additions of a newer minor version are left alone when
//!    they are met ([`crate::newer`]). HIP's functions are hooked one by one. A ROCm is known if the tables were
//!    checked against its major version ([`gpumem_abi::HIP_MAJORS`]). There are no verdicts on ROCm.
//!
//! The shim tries nothing out. It reads the verdict once, at the process's first GPU call. It never reads one in a
//! program that has more rights than its user, because the user's environment names the place of verdicts
//! ([`crate::gate::disabled`]).

use crate::backend;
use crate::ledger::Ledger;
use crate::process::elf;
use gpumem_wire::kinds::{Mode, Vendor};
use gpumem_wire::settings::{RecordOnly, Settings};
use gpumem_wire::tools::is_tool;
use gpumem_wire::units;
use gpumem_wire::verdict::{self, Found, Subject};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Facts about the CUDA driver, and what the verdict on it turned off.
#[derive(Default)]
pub(crate) struct Trust {
    /// The version as `cuDriverGetVersion` gives it. 0 until it was asked.
    driver: AtomicU32,
    no_pool: AtomicBool,
    no_graph_cache: AtomicBool,
    /// The version as `hipRuntimeGetVersion` gives it. 0 until it was asked.
    hip: AtomicU32,
    /// True if HIP's functions may have changed since the tables were made, so that they are only recorded.
    no_hip: AtomicBool,
}

impl Trust {
    /// True if the pool may be on.
    pub(crate) fn pool(&self, vendor: Vendor) -> bool {
        !self.turned_off(vendor, &self.no_pool)
    }

    /// True if the graph cache may be on.
    pub(crate) fn graph_cache(&self, vendor: Vendor) -> bool {
        !self.turned_off(vendor, &self.no_graph_cache)
    }

    /// True if a part is off for a vendor. `of_cuda` is the answer for CUDA.
    fn turned_off(&self, vendor: Vendor, of_cuda: &AtomicBool) -> bool {
        match vendor {
            Vendor::Cuda => of_cuda,
            Vendor::Hip => &self.no_hip,
        }
        .load(Relaxed)
    }
}

/// Possible answers of `cuDriverGetVersion`: those of CUDA 5 to 99.
const VERSIONS: std::ops::Range<u32> = 5000..100_000;

/// Returns why a version of the driver cannot be true. A version that is wrong in another way does no harm, because
/// unknown features of the driver are left alone whatever its version.
fn lie(version: u32) -> Option<String> {
    let is_one = VERSIONS.contains(&version);
    (!is_one).then(|| format!("the driver says that it is version {}, which there cannot be", version as i32))
}

/// Formats `13020` as "13.2", and HIP's `60304220` as "6.3".
fn words(version: u32) -> String {
    let (major, minor) = units::version(version);
    format!("{major}.{minor}")
}

impl Trust {
    /// Decides what can be decided without a driver.
    pub(crate) fn decide(&self, settings: &Settings, ledger: &Ledger) {
        match settings.record_only {
            RecordOnly::Always => {
                only_record(ledger, "GPUMEM_RECORD_ONLY=1");
                decided_by(ledger, "GPUMEM_RECORD_ONLY=1");
            }
            RecordOnly::Never => decided_by(ledger, "GPUMEM_RECORD_ONLY=0"),
            RecordOnly::Auto => {
                if let Some(tool) = tool() {
                    only_record(ledger, &tool);
                    decided_by(ledger, &format!("a tool: {tool}"));
                }
            }
        }
    }

    /// Asks the CUDA driver for its version, unless it is known or there is no driver. Decides by it what is undecided.
    /// Returns lines for the user.
    pub(crate) fn ask_driver(&self, settings: &Settings, ledger: &Ledger) -> Vec<String> {
        if self.driver.load(Relaxed) != 0 {
            return Vec::new();
        }
        let Some(version) = backend::of(Vendor::Cuda).version() else { return Vec::new() };
        self.driver.store(version, Relaxed);
        let header = ledger.header();
        header.driver_version().store(version, Relaxed);
        if settings.record_only == RecordOnly::Auto && header.mode().load(Relaxed) == Mode::Active as u32 {
            return self.decide_on(ledger, version);
        }
        Vec::new()
    }

    /// Asks the HIP runtime for its version, unless known. Decides by it what is undecided. Only called once the
    /// program has called HIP, since only the program may initialise it.
    pub(crate) fn ask_hip(&self, settings: &Settings, ledger: &Ledger) {
        if self.hip.load(Relaxed) != 0 {
            return;
        }
        let Some(version) = backend::of(Vendor::Hip).version() else { return };
        self.hip.store(version, Relaxed);
        let header = ledger.header();
        let beside_cuda = self.driver.load(Relaxed) != 0;
        if !beside_cuda {
            header.driver_version().store(version, Relaxed);
        }
        if gpumem_abi::HIP_MAJORS.contains(&units::version(version).0) || settings.record_only != RecordOnly::Auto {
            return;
        }
        self.no_hip.store(true, Relaxed);
        if header.mode().load(Relaxed) != Mode::Active as u32 {
            return;
        }
        let why = format!("ROCm {} is of a major version that was never tested", words(version));
        if beside_cuda {
            // CUDA's driver was judged for itself: only HIP's part is off.
            reason(ledger, &format!("{why}: HIP is only recorded"));
        } else {
            only_record(ledger, &why);
            decided_by(ledger, &format!("{why}: gpumem selftest, run on this machine, says what works there"));
        }
    }

    fn decide_on(&self, ledger: &Ledger, version: u32) -> Vec<String> {
        if let Some(lie) = lie(version) {
            only_record(ledger, &lie);
            decided_by(ledger, &lie);
            return vec![format!("{lie}: gpumem only records")];
        }
        let verdicts = Verdicts::of(version);
        let known = !gpumem_abi::is_new_major(version);
        let driver = format!("driver {}", words(version));
        let decided = match verdicts.deciding() {
            Some(one) if if known { one.turns_off() } else { verdicts.of_all } => {
                self.follow(ledger, &verdicts, &format!("the verdict {}", one.path.display()))
            }
            _ if known => {
                let newest = words(gpumem_abi::NEWEST);
                format!("knowledge: {driver} is of no untested major version; what there is up to {newest} is known")
            }
            _ => {
                let why = format!("{driver} is of a major version that was never tested");
                only_record(ledger, &why);
                format!("{why}: gpumem selftest --rules, run once on this machine, tries it")
            }
        };
        let lines: Vec<&str> = [&decided].into_iter().chain(&verdicts.refused).map(String::as_str).collect();
        decided_by(ledger, &lines.join("\n"));
        verdicts.refused
    }

    /// Follows the verdicts. Returns a sentence about that, which begins with `whose`.
    fn follow(&self, ledger: &Ledger, verdicts: &Verdicts, whose: &str) -> String {
        let off = |on: fn(&Found) -> bool| !verdicts.found.iter().all(on);
        let (pool, graph_cache) = (off(|found| found.verdict.pool), off(|found| found.verdict.graph_cache));
        self.no_pool.store(pool, Relaxed);
        self.no_graph_cache.store(graph_cache, Relaxed);
        if pool && graph_cache {
            only_record(ledger, whose);
        }
        let what = match (pool, graph_cache) {
            (true, true) => "gpumem only records",
            (true, false) => "the pool is off",
            (false, true) => "the graph cache is off",
            (false, false) => "everything is on",
        };
        format!("{whose}: {what}")
    }
}

/// Notes in the ledger what decided.
fn decided_by(ledger: &Ledger, what: &str) {
    ledger.header().decided().store(ledger.texts.intern(what.as_bytes()), Relaxed);
}

/// Makes the shim only record.
fn only_record(ledger: &Ledger, why: &str) {
    reason(ledger, why);
    ledger.header().mode().store(Mode::RecordOnly as u32, Relaxed);
}

/// Notes why the shim does less than it could.
fn reason(ledger: &Ledger, why: &str) {
    ledger.header().mode_reason().store(ledger.texts.intern(why.as_bytes()), Relaxed);
}

/// The verdicts on the process's devices.
struct Verdicts {
    found: Vec<Found>,
    /// A line for each file that exists and is not a valid verdict.
    refused: Vec<String>,
    /// True if there is a verdict for each kind of GPU.
    of_all: bool,
}

impl Verdicts {
    /// Returns the selftest's verdicts on this driver for this process's devices.
    fn of(driver: u32) -> Self {
        let places = verdict::places();
        let mut all = Self { found: Vec::new(), refused: Vec::new(), of_all: false };
        if !places.iter().any(|place| Path::exists(place)) {
            return all;
        }
        // SAFETY: geteuid takes no arguments and cannot fail.
        let uid = unsafe { libc::geteuid() };
        let mut subjects: Vec<Subject> = Vec::new();
        for (name, capability) in backend::gpus() {
            let gpu = String::from_utf8_lossy(&name).into_owned();
            let subject = Subject { release: env!("CARGO_PKG_VERSION").to_owned(), driver, gpu, capability };
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        all.of_all = !subjects.is_empty();
        for subject in &subjects {
            let (found, refused) = verdict::find(&places, subject, uid);
            all.of_all &= found.is_some();
            all.found.extend(found);
            all.refused.extend(refused);
        }
        all
    }

    /// Returns the verdict to name: the first that turns something off, or else the first.
    fn deciding(&self) -> Option<&Found> {
        self.found.iter().find(|found| found.turns_off()).or(self.found.first())
    }
}

/// Returns the profiler or checker that is attached to this process, in words.
fn tool() -> Option<String> {
    let variables = [
        "CUDA_INJECTION64_PATH",
        "NVTX_INJECTION64_PATH",
        "ROCP_TOOL_LIB",
        "ROCP_TOOL_LIBRARIES",
        "ROCPROFILER_REGISTER_LIBRARY",
    ];
    let set = |variable: &&str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    if let Some(variable) = variables.iter().find(|variable| set(variable)) {
        return Some(format!("{variable} is set: a profiler or checker is attached"));
    }
    let objects = elf::Listing::new();
    let tool = objects.objects().find(|object| is_tool(object.file_name()));
    tool.map(|tool| format!("{} is loaded", String::from_utf8_lossy(tool.path())))
}
