//! Checks of one process: does the shim do more than record, what decided that, and which features it does not know.

use super::finding::{Finding, info, ok, warning};
use super::subject::Subject;
use gpumem_wire::kinds::{Mode, Vendor};
use gpumem_wire::units;

/// Returns the deciding setting or finding in the first line, then the refused ones.
fn decided(of: &Subject) -> String {
    of.summary.text(of.summary.header.decided).into_owned()
}

/// Reports if the shim does more than record.
pub(super) fn mode(of: &Subject) -> Finding {
    let all = decided(of);
    let decided = all.lines().next().unwrap_or_default();
    let reason = of.summary.text(of.summary.header.mode_reason);
    let active = of.summary.header.mode != Mode::RecordOnly as u32;
    if active && reason.is_empty() {
        let by = if decided.is_empty() { String::new() } else { format!("; decided by {decided}") };
        return ok(format!("active{by}"));
    }
    let said = if decided.contains(&*reason) { decided } else { &*reason };
    let said = if active { format!("active, but {said}") } else { format!("record-only: {said}") };
    info(said).fix("GPUMEM_RECORD_ONLY=0 overrides it")
}

/// Reports selftest verdicts that were refused.
pub(super) fn verdict(of: &Subject) -> Vec<Finding> {
    let refused = |line: &str| warning(line).fix("remove the file; gpumem selftest --rules writes another");
    decided(of).lines().skip(1).map(refused).collect()
}

/// Reports the ROCm of a process without CUDA. It is reported beside the mode, because a newer minor version is still
/// served.
pub(super) fn rocm(of: &Subject) -> Option<Finding> {
    let number = of.summary.header.driver_version;
    let is_hips = of.summary.contexts.values().any(|context| context.vendor == Vendor::Hip as u8);
    let ((major, minor), newest) = (units::version(number), units::NEWEST_ROCM);
    // CUDA's version numbers are smaller.
    if !is_hips || number < 1_000_000 {
        return None;
    }
    let compared = format!("the newest compared is {}.{}", newest.0, newest.1);
    if (major, minor) <= newest {
        return ok(format!("ROCm {major}.{minor}; {compared}")).into();
    }
    info(format!("ROCm {major}.{minor} was not compared with gpumem's tables; {compared}"))
        .fix("a newer release of gpumem may know it; gpumem selftest says what works here")
        .into()
}

/// Features that the process used and that the shim has no tables for.
pub(super) fn unknown(of: &Subject) -> Option<Finding> {
    let met = of.summary.text(of.summary.header.unknown);
    let met: Vec<&str> = met.lines().collect();
    if met.is_empty() {
        return None;
    }
    info(format!("newer than this gpumem, and left to the driver: {}", met.join(", ")))
        .fix("a newer release of gpumem may know it")
        .into()
}
