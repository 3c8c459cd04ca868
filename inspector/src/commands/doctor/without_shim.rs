//! Checks of a running process without the shim: why it has none, and what stands in the way.

use super::finding::{Finding, Severity};
use crate::launch::elf::{PRIVILEGED, foreign};
use crate::source::process::Process;
use crate::source::standing::{Standing, command_line};
use crate::source::world::World;
use crate::text;
use gpumem_wire::settings::Settings;
use std::ffi::OsStr;

/// All findings about such a process.
pub(super) fn check(world: &World, process: &Process) -> Vec<Finding> {
    let standing = Standing::of(world, process.pid);
    let mut findings = vec![reach(world, process, &standing)];
    findings.extend(state(world, process, &standing));
    findings
}

/// Why it has no shim.
fn reach(world: &World, process: &Process, standing: &Standing) -> Finding {
    let who = text::clean(&process.name).into_owned();
    let finding = |severity, text: String| Finding::new("reach", severity, format!("{who} {text}")).of(process.pid);
    let beyond =
        |why: &str| finding(Severity::Error, format!("has no libgpumem.so: {why}")).fix("no preload reaches it");
    let exe = world.proc.join(process.pid.to_string()).join("exe");
    if let Some(why) = foreign(&exe) {
        return beyond(&why);
    }
    if standing.privileged {
        return beyond(PRIVILEGED);
    }
    if process.mapped(world).is_err() {
        return finding(Severity::Warning, format!("belongs to user {} and cannot be inspected", process.uid))
            .fix(crate::failure::as_root());
    }
    let environment = process.environment(world).unwrap_or_default();
    let preload = environment.get(OsStr::new("LD_PRELOAD")).map(|value| value.to_string_lossy().into_owned());
    match preload.filter(|preload| preload.contains("libgpumem.so")) {
        Some(preload) => finding(Severity::Error, format!("was started with LD_PRELOAD={preload} and has not loaded it"))
            .fix("is that path visible in its container and its namespace, and built for its glibc? Its stderr says what the loader said"),
        None => {
            let (_, complaints) = Settings::read(environment.into_iter());
            let variables = if complaints.is_empty() { "" } else { "; its GPUMEM_ variables have mistakes too" };
            let words: Vec<String> = command_line(world, process).iter().map(|word| text::shell_word(word)).collect();
            let command = if words.is_empty() { "COMMAND".to_owned() } else { words.join(" ") };
            let said = "was started without libgpumem.so, and gpumem does not attach to a running process";
            finding(Severity::Warning, format!("{said}{variables}"))
                .fix(format!("end it and start it again: gpumem run -- {command}"))
        }
    }
}

/// Whether it does anything at all.
fn state(world: &World, process: &Process, standing: &Standing) -> Option<Finding> {
    let finding = |text: String| Finding::new("state", Severity::Info, text).of(process.pid);
    let stopped = if standing.stopped { ", and is stopped" } else { "" };
    match standing.tracer {
        Some(tracer) => {
            let name = Process::of(world, tracer).map(|tracer| format!(" ({})", text::clean(&tracer.name)));
            let said = format!("it is traced by pid {tracer}{}{stopped}", name.unwrap_or_default());
            Some(finding(said).fix("a debugger or strace: it ends with that process, or when that lets it go"))
        }
        None if standing.stopped => {
            let fix = format!("kill -CONT {} continues it, as fg does in its shell", process.pid);
            Some(finding("it is stopped by a signal (SIGSTOP, Ctrl-Z)".into()).fix(fix))
        }
        None => None,
    }
}
