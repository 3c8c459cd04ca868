//! The head of every view: which process, and how it is recorded.

use super::{Ledger, last_words};
use crate::source::liveness::{Life, real_ns};
use gpumem_wire::counters;
use gpumem_wire::kinds::{Interception, Mode, State};
use gpumem_wire::layout::Door;
use std::path::PathBuf;

/// The head of every view: the process, and how it is recorded.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Head {
    pub pid: u32,
    pub name: String,
    pub exe: String,
    pub(super) cmdline: String,
    pub uid: u32,
    pub life: Life,
    /// Time since the process ended or was asked to be parked, or the age of the dump.
    pub ago_ns: u64,
    /// Device bytes that are on the host; 0 unless the process is parked.
    pub parked_bytes: u64,
    /// Time that the process was parked before.
    pub(super) parked_total_ns: u64,
    /// Time that the ledger covers.
    pub recorded_ns: u64,
    /// Start of the recording, nanoseconds since 1970.
    pub(super) started_unix_ns: u64,
    #[serde(serialize_with = "crate::text::serialize_path")]
    pub ledger: PathBuf,
    pub interception: &'static str,
    pub interception_reason: String,
    pub mode: &'static str,
    pub mode_reason: String,
    /// The setting or finding that decided the mode.
    pub decided: String,
    /// Selftest verdicts that were refused, with the reason.
    pub refused_verdicts: Vec<String>,
    /// Driver features that the process used and the shim does not know.
    pub unknown: Vec<String>,
    /// The Python interpreter in the process. Empty: none was found.
    pub python: String,
    /// The reason why its frames are not read. Empty: they are read.
    pub python_refused: String,
    pub state: &'static str,
    pub(super) doors: Vec<&'static str>,
    pub driver_version: String,
    pub shim_version: String,
    /// For a process that ended soon after it ran out of memory: the refused request and its caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<String>,
    /// Records that were dropped for lack of room.
    pub(super) dropped_records: u64,
    /// Slots that were half-written when they were read.
    pub(super) torn_slots: u64,
    /// Full size of the file in bytes, if it is cut short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) whole_bytes: Option<u64>,
    /// Refused and unknown settings.
    pub complaints: Vec<String>,
}

/// 13000 as "13.0", and HIP's 60304220 as "6.3"; empty if unknown.
fn driver_version(number: u32) -> String {
    let (major, minor) = gpumem_wire::units::version(number);
    if number == 0 { String::new() } else { format!("{major}.{minor}") }
}

impl Head {
    /// Returns the head: which process, and how it is recorded.
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let header = &ledger.snapshot.header;
        let text = |at| ledger.snapshot.text(at).into_owned();
        Self {
            pid: ledger.pid(),
            name: ledger.name(),
            exe: text(header.exe),
            cmdline: text(header.cmdline),
            uid: header.uid,
            life: ledger.status.life,
            ago_ns: ledger.status.ago_ns,
            parked_bytes: if ledger.status.is_parked() { header.parked_bytes } else { 0 },
            parked_total_ns: header.parked_total_ns,
            recorded_ns: ledger.age(header.created_ns),
            started_unix_ns: real_ns(header, header.created_ns),
            ledger: ledger.path.clone(),
            interception: Interception::name_of(header.interception),
            interception_reason: text(header.interception_reason),
            mode: Mode::name_of(header.mode),
            mode_reason: text(header.mode_reason),
            decided: text(header.decided).lines().next().unwrap_or_default().to_owned(),
            refused_verdicts: text(header.decided).lines().skip(1).map(str::to_owned).collect(),
            unknown: text(header.unknown).lines().map(str::to_owned).collect(),
            python: text(header.python).lines().next().unwrap_or_default().to_owned(),
            python_refused: text(header.python).lines().nth(1).unwrap_or_default().to_owned(),
            state: State::name_of(header.state),
            doors: Door::ALL
                .iter()
                .filter(|(door, _)| header.doors & *door as u32 != 0)
                .map(|&(_, name)| name)
                .collect(),
            driver_version: driver_version(header.driver_version),
            shim_version: text(header.shim_version),
            out_of_memory: last_words::out_of_memory(ledger),
            dropped_records: ledger.snapshot.counter(counters::DROPPED_RECORDS),
            torn_slots: ledger.snapshot.torn,
            whole_bytes: ledger.snapshot.cut,
            complaints: text(header.complaints).lines().map(str::to_owned).collect(),
        }
    }

    /// Returns the warnings that a reader needs before the numbers.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.out_of_memory.clone().into_iter().collect();
        if self.interception == Interception::Partial.name() {
            warnings.push(format!("interception is partial: {}", self.interception_reason));
        }
        if self.dropped_records > 0 {
            warnings.push(format!(
                "{} did not fit and are missing: raise GPUMEM_LEDGER_MAX",
                crate::text::count(self.dropped_records, "record")
            ));
        }
        if self.state == State::Stopped.name() {
            warnings.push("recording has stopped; gpumem events says why".into());
        }
        // In a running process some slots are always being changed.
        if self.torn_slots > 0 && !self.life.is_here() {
            warnings.push(format!("{} half-written and left out", crate::text::count(self.torn_slots, "slot")));
        }
        warnings
    }
}
