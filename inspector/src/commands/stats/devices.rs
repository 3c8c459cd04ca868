//! The memory of devices: explained and unexplained parts.

use super::Report;
use crate::model::account::{How, Share};
use crate::model::devices::Device;
use crate::report::lines::{line, nonzero};
use crate::text::{clean, if_any, units};
use crate::view::table::{DIM, HEAD, paint};
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::location::Location;
use std::io::Write;

/// Prints every device.
pub(super) fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    report.overview.devices.iter().try_for_each(|device| print_device(out, device))
}

/// Prints one device.
pub(super) fn print_device(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    let whose = if device.integrated { ", the machine's own memory" } else { "" };
    let (name, total) = (clean(&device.name), units::bytes(device.total_bytes));
    let title = format!("device {}: {name}, {total}{whose}", device.device);
    writeln!(out, "\n{}", paint(HEAD, title))?;
    print_parts(out, device)?;
    print_used(out, device)
}

/// Prints the memory of this process, part by part.
fn print_parts(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    let account = &device.of_process;
    if let Some(counted) = account.counted_bytes {
        line(out, &units::bytes(counted), "this process, as the driver counts it", &account.why)?;
    }
    // For a program with two kinds the sum is asked for first.
    line(out, &units::bytes(device.tracked_bytes), "recorded allocations", &kinds(device))?;
    for part in account.parts.iter().filter(|part| !is_kind(part)) {
        let about = if part.how == How::Recorded { "" } else { "~" };
        line(out, &format!("{about}{}", units::bytes(part.bytes)), part.name, &part.remark)?;
    }
    let elsewhere = [
        (device.managed_bytes, "managed memory, on the device or on the host", ""),
        (device.spilled_bytes, "spilled, outside of the device's memory", "gpumem allocs --spilled"),
    ];
    nonzero(out, units::bytes, &elsewhere)?;
    if let Some(local) = &device.local {
        let (kernel, each) = (clean(&local.kernel), units::bytes(local.per_thread));
        let cure = "smaller arrays in the kernel, or __launch_bounds__ so that fewer registers spill";
        writeln!(out, "              {}", paint(DIM, format!("{kernel} has {each} of it a thread: {cure}")))?;
    }
    if account.left_out_bytes > 0 {
        let left = units::bytes(account.left_out_bytes);
        let why = "of code and stacks, as free memory fell, are left out: other programs took some of them";
        writeln!(out, "              {}", paint(DIM, format!("{left} {why}")))?;
    }
    match account.rest_bytes {
        Some(rest) => line(out, &units::bytes(rest), "not explained", "the driver's own, and calls that were not seen"),
        None if account.counted_bytes.is_none() => {
            line(out, "?", "this process, as the driver counts it", &account.why)
        }
        None => Ok(()),
    }
}

/// True for a part that is a kind of memory. Code is a kind too, but takes no memory of its own.
fn is_kind(part: &Share) -> bool {
    AllocKind::from_name(part.name).is_some_and(|kind| Location::usual(kind) != Location::Nowhere)
}

/// Returns the kinds of recorded allocations, if there are several.
fn kinds(device: &Device) -> String {
    let kinds: Vec<&Share> = device.of_process.parts.iter().filter(|part| is_kind(part)).collect();
    let words: Vec<_> = kinds.iter().map(|part| format!("{} {}", part.name, units::bytes(part.bytes))).collect();
    if kinds.len() > 1 { words.join(", ") } else { String::new() }
}

/// Prints the memory that all processes use.
fn print_used(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    if device.used_bytes == 0 {
        return line(out, "?", "used by all processes", "not measured yet");
    }
    let remark = match (device.used_age_ns, device.others_bytes) {
        (_, Some(others)) => format!("{} by others", units::bytes(others)),
        (age, None) if age > 1_500_000_000 && device.used_has_changes => {
            format!("measured {} ago; changes since then are this process's alone", units::span(age))
        }
        (age, None) if age > 1_500_000_000 => format!("{} ago", units::span(age)),
        _ => String::new(),
    };
    line(out, &units::bytes(device.used_bytes), "used by all processes", &remark)?;
    if device.of_process.counted_bytes.is_none() {
        print_unexplained(out, device)?;
    }
    line(out, &units::bytes(device.peak_bytes), "peak of recorded allocations", "")
}

/// Prints used memory that belongs to no part of this process, if the driver's count for the process is unknown.
fn print_unexplained(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    let baseline = if_any(device.baseline_bytes, |baseline| {
        format!("; {} were used when the first context was made", units::bytes(baseline))
    });
    let (unexplained, remark) = match device.unexplained_bytes {
        Some(bytes) if device.integrated => (units::bytes(bytes), format!("all else on this machine{baseline}")),
        Some(bytes) => (units::bytes(bytes), format!("contexts, libraries, other processes{baseline}")),
        None if device.used_is_older => ("?".into(), "more was allocated since it was measured".into()),
        None => ("?".into(), "records and estimates add up to more than is used".into()),
    };
    line(out, &unexplained, "not explained", &remark)
}
