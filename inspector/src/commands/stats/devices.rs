//! The memory of devices: what explains it, and what does not.

use super::Report;
use crate::model::totals::{Device, OfProcess};
use crate::report::lines::line;
use crate::text::{clean, units};
use crate::view::table::{HEAD, paint};
use std::io::Write;

/// Every device, and what the driver says of this process.
pub(super) fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for device in &report.devices {
        print_device(out, device)?;
    }
    match &report.device_of_process {
        Some(of_process) => print_of_process(out, of_process, report.pool.idle_bytes),
        None => Ok(()),
    }
}

/// One device.
pub(super) fn print_device(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    let whose = if device.integrated { ", the machine's own memory" } else { "" };
    let (name, total) = (clean(&device.name), units::bytes(device.total_bytes));
    let title = format!("device {}: {name}, {total}{whose}", device.device);
    writeln!(out, "\n{}", paint(HEAD, title))?;
    print_explained(out, device)?;
    print_used(out, device)
}

/// What the records and estimates explain.
fn print_explained(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    line(out, &units::bytes(device.tracked_bytes), "recorded allocations", "")?;
    // Most programs have none of these.
    let print_some = |out: &mut dyn Write, rows: &[(u64, &str, &str)]| {
        let some = rows.iter().filter(|(bytes, ..)| *bytes > 0);
        some.clone().try_for_each(|(bytes, name, remark)| line(out, &units::bytes(*bytes), name, remark))
    };
    print_some(
        out,
        &[
            (device.managed_bytes, "managed memory, on the device or on the host", ""),
            (device.spilled_bytes, "spilled, outside of the device's memory", "gpumem allocs --spilled"),
            (device.idle_bytes, "idle in gpumem's pool", "kept for the next allocations"),
        ],
    )?;
    line(out, &units::bytes(device.graph_bytes), "graph execs", "estimated")?;
    print_some(
        out,
        &[
            (device.pool_idle_bytes, "idle in the driver's stream-ordered pool", "cudaMallocAsync reuses it"),
            (device.graph_memory_bytes, "memory nodes of graphs", "the driver keeps it until cudaDeviceGraphMemTrim"),
            (device.taken_bytes, "taken by the driver for itself", "gpumem events --kind driver-took"),
        ],
    )
}

/// What is used, and what of it is not explained.
fn print_used(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    if device.used_bytes == 0 {
        return line(out, "?", "used by all processes", "not measured yet");
    }
    let remark = match device.used_age_ns {
        age if age > 1_500_000_000 => format!("{} ago", units::span(age)),
        _ => String::new(),
    };
    line(out, &units::bytes(device.used_bytes), "used by all processes", &remark)?;
    let baseline = match device.baseline_bytes {
        0 => String::new(),
        baseline => format!("; {} were used when the first context was made", units::bytes(baseline)),
    };
    let (unexplained, remark) = match device.unexplained_bytes {
        Some(bytes) if device.integrated => (units::bytes(bytes), format!("all else on this machine{baseline}")),
        Some(bytes) => (units::bytes(bytes), format!("contexts, libraries, other processes{baseline}")),
        None if device.used_source == "driver" => {
            ("?".into(), "records and estimates add up to more than is used".into())
        }
        None => ("?".into(), "more was allocated since it was measured".into()),
    };
    line(out, &unexplained, "not explained", &remark)?;
    line(out, &units::bytes(device.peak_bytes), "peak of recorded allocations", "")
}

/// The same for this process alone, as the driver counts it.
fn print_of_process(out: &mut dyn Write, of_process: &OfProcess, idle: u64) -> std::io::Result<()> {
    writeln!(out, "\n{}", paint(HEAD, "device memory of this process, as the driver counts it"))?;
    line(out, &units::bytes(of_process.used_bytes), "used", "")?;
    let remark = match idle {
        0 => String::new(),
        idle => {
            format!("{} of it is idle in gpumem's pool: the driver counts it as used", units::bytes(idle))
        }
    };
    line(out, &units::bytes(of_process.explained_bytes), "explained by recorded calls", &remark)?;
    let remark = "contexts, and calls that the shim did not see";
    line(out, &units::bytes(of_process.unexplained_bytes), "not explained", remark)
}
