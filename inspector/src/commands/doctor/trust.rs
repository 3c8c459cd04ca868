//! Checks of one process: whether the shim does more than record, what decided that, and what it does not know.

use super::finding::{Finding, Severity};
use gpumem_wire::kinds::{Mode, Vendor};
use gpumem_wire::read::Snapshot;
use gpumem_wire::units;

pub(super) fn check(summary: &Snapshot) -> Vec<Finding> {
    let decided = summary.text(summary.header.decided);
    let mut lines = decided.lines();
    let mut findings = vec![mode(summary, lines.next().unwrap_or_default())];
    let fix = "remove the file; gpumem selftest --rules writes another";
    let refused = |line: &str| Finding::new("verdict", Severity::Warning, line).fix(fix);
    findings.extend(lines.map(refused));
    findings.extend(rocm(summary));
    findings.extend(unknown(summary));
    findings
}

/// The ROCm of a process without CUDA. It is told beside the mode: a newer minor version is served all the same.
fn rocm(summary: &Snapshot) -> Option<Finding> {
    let number = summary.header.driver_version;
    let is_hips = summary.contexts.values().any(|context| context.vendor == Vendor::Hip as u8);
    let ((major, minor), newest) = (units::version(number), units::NEWEST_ROCM);
    // Numbers of CUDA are smaller.
    if !is_hips || number < 1_000_000 {
        return None;
    }
    let compared = format!("the newest compared is {}.{}", newest.0, newest.1);
    Some(match (major, minor) > newest {
        false => Finding::new("rocm", Severity::Ok, format!("ROCm {major}.{minor}; {compared}")),
        true => {
            let said = format!("ROCm {major}.{minor} was not compared with gpumem's tables; {compared}");
            Finding::new("rocm", Severity::Info, said)
                .fix("a newer release of gpumem may know it; gpumem selftest says what works here")
        }
    })
}

fn mode(summary: &Snapshot, decided: &str) -> Finding {
    let by = if decided.is_empty() { String::new() } else { format!("; decided by {decided}") };
    let reason = summary.text(summary.header.mode_reason);
    let active = summary.header.mode != Mode::RecordOnly as u32;
    if active && reason.is_empty() {
        return Finding::new("mode", Severity::Ok, format!("active{by}"));
    }
    let said = if decided.contains(&*reason) { decided } else { &*reason };
    let said = if active { format!("active, but {said}") } else { format!("record-only: {said}") };
    Finding::new("mode", Severity::Info, said).fix("GPUMEM_RECORD_ONLY=0 overrides it")
}

/// What the process met that the shim has no tables for.
fn unknown(summary: &Snapshot) -> Option<Finding> {
    let met = summary.text(summary.header.unknown);
    let met: Vec<&str> = met.lines().collect();
    let finding = |met: &str| {
        Finding::new("unknown", Severity::Info, format!("newer than this gpumem, and left to the driver: {met}"))
            .fix("a newer release of gpumem may know it")
    };
    (!met.is_empty()).then(|| finding(&met.join(", ")))
}
