//! Checks of a running process without the shim: the reason, and obstacles to a preload.

use super::finding::{Finding, error, info, warning};
use super::subject::WithoutShim;
use crate::launch::elf::{PRIVILEGED, foreign};
use crate::source::process::Process;
use crate::source::standing::{Standing, command_line};
use crate::text;
use gpumem_wire::settings::Settings;
use std::ffi::OsStr;

/// Reports the reason why it has no shim.
pub(super) fn reach(&WithoutShim { world, process }: &WithoutShim) -> Finding {
    let who = text::clean(&process.name).into_owned();
    let beyond = |why: &str| error(format!("{who} has no libgpumem.so: {why}")).fix("no preload reaches it");
    let exe = world.proc.join(process.pid.to_string()).join("exe");
    if let Some(why) = foreign(&exe) {
        return beyond(&why);
    }
    if Standing::of(world, process.pid).privileged {
        return beyond(PRIVILEGED);
    }
    if process.mapped(world).is_err() {
        let said = format!("{who} belongs to user {} and cannot be inspected", process.uid);
        return warning(said).fix(crate::failure::as_root());
    }
    let environment = process.environment(world).unwrap_or_default();
    let preload = environment.get(OsStr::new("LD_PRELOAD")).map(|value| value.to_string_lossy().into_owned());
    if let Some(preload) = preload.filter(|preload| preload.contains("libgpumem.so")) {
        let fix = "is that path visible in its container and its namespace, and built for its glibc? Its stderr says what \
                   the loader said";
        return error(format!("{who} was started with LD_PRELOAD={preload} and has not loaded it")).fix(fix);
    }
    let (_, complaints) = Settings::read(environment.into_iter());
    let variables = if complaints.is_empty() { "" } else { "; its GPUMEM_ variables have mistakes too" };
    let words: Vec<String> = command_line(world, process).iter().map(|word| text::shell_word(word)).collect();
    let command = if words.is_empty() { "COMMAND".to_owned() } else { words.join(" ") };
    let said = "was started without libgpumem.so, and gpumem does not attach to a running process";
    warning(format!("{who} {said}{variables}")).fix(format!("end it and start it again: gpumem run -- {command}"))
}

/// Reports if it is stopped or traced.
pub(super) fn state(&WithoutShim { world, process }: &WithoutShim) -> Option<Finding> {
    let standing = Standing::of(world, process.pid);
    if let Some(tracer) = standing.tracer {
        let stopped = if standing.stopped { ", and is stopped" } else { "" };
        let name = Process::of(world, tracer).map(|tracer| format!(" ({})", text::clean(&tracer.name)));
        return info(format!("it is traced by pid {tracer}{}{stopped}", name.unwrap_or_default()))
            .fix("that is a debugger or strace: tracing ends when it detaches or ends")
            .into();
    }
    if !standing.stopped {
        return None;
    }
    info("it is stopped by a signal (SIGSTOP, Ctrl-Z)")
        .fix(format!("kill -CONT {} continues it, as fg does in its shell", process.pid))
        .into()
}
