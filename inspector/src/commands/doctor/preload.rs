//! Checks of the preload: libgpumem.so exists, and the loader accepts it. For a running process without the shim: the
//! reason, and obstacles to a preload.

use super::finding::{Finding, error, info, ok, warning};
use super::subject::{Machine, WithoutShim};
use crate::failure::plain;
use crate::launch::elf::{MACHINE, PRIVILEGED, foreign, program};
use crate::launch::{library, needs};
use crate::source::process::Process;
use crate::source::standing::{Standing, command_line};
use crate::source::world::{MOUNT, World};
use crate::text::{self, file_name};
use gpumem_wire::settings::Settings;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Reports the library that `gpumem run` preloads.
pub(super) fn library(of: &Machine) -> Finding {
    let named = std::env::var_os("GPUMEM_LIB").map(PathBuf::from);
    match library::find(named.as_deref()) {
        Err(failure) => error(failure.what).fix(failure.fix.unwrap_or_default()),
        Ok(lib) => match of.world.lacks_proc().ok_or_else(|| loads(&lib)) {
            Ok(why) => info(format!("{} was not tried: {why}", lib.display())).fix(MOUNT),
            Err(Ok(())) => ok(format!("{} loads", lib.display())),
            Err(Err(why)) => error(format!("{} does not load: {why}", lib.display()))
                .fix("use the libgpumem.so of this release, built for this machine and its glibc"),
        },
    }
}

/// Reports the libraries in this shell's LD_PRELOAD. The loader reports that it cannot preload one, but not why.
pub(super) fn named(of: &Machine) -> Vec<Finding> {
    in_list(of.world, &std::env::var("LD_PRELOAD").unwrap_or_default())
}

fn in_list(world: &World, list: &str) -> Vec<Finding> {
    let named: Vec<_> = list.split([' ', ':']).filter(|entry| file_name(entry) == "libgpumem.so").collect();
    if named.is_empty() {
        return vec![ok("LD_PRELOAD of this shell names no libgpumem.so")];
    }
    named.into_iter().map(|entry| judge(world, entry)).collect()
}

fn judge(world: &World, entry: &str) -> Finding {
    let wrong = |why: &str| error(format!("LD_PRELOAD names {entry}: {why}"));
    let right = match library::find(None) {
        Ok(lib) => format!("name {} there", lib.display()),
        Err(_) => "name the libgpumem.so of this release there by its whole path, or unset LD_PRELOAD".into(),
    };
    let path = Path::new(entry);
    // For a bare name, $LIB and the like the loader has its own rules.
    if entry.contains('/') && !entry.contains('$') {
        if !path.exists() {
            return wrong("there is no such file").fix(right);
        }
        match program(path) {
            None => return wrong("it is no library, or this user may not read it").fix(right),
            Some(elf) if elf.bits != 64 => return wrong("it is a 32-bit library").fix(right),
            Some(elf) if elf.machine != MACHINE => return wrong("it is built for another processor").fix(right),
            Some(_) => {}
        }
    }
    if let Some(why) = world.lacks_proc() {
        return info(format!("{entry} of LD_PRELOAD was not tried: {why}")).fix(MOUNT);
    }
    match loads(path) {
        Err(why) => wrong(&why).fix(right),
        Ok(()) if entry.contains('/') && !path.is_absolute() => {
            warning(format!("LD_PRELOAD names {entry}, which is found only from this directory")).fix(right)
        }
        Ok(()) => ok(format!("{entry} of LD_PRELOAD loads")),
    }
}

/// The loader's messages for a library that it skips, and for one that makes it end the program.
const REFUSALS: [&str; 2] = ["cannot be preloaded", "not found (required by"];

/// Starts this program under the preload, and returns the loader's complaint.
fn loads(lib: &Path) -> Result<(), String> {
    if let Some(feature) = needs::lacking_feature(lib) {
        return Err(format!("it was built to use {feature}, which this processor does not have"));
    }
    let exe = std::env::current_exe().map_err(|error| plain(&error))?;
    let mut command = Command::new(exe);
    command.arg("--version").env("LD_PRELOAD", lib).env("GPUMEM_LOG", "quiet").stdin(Stdio::null());
    let output = command.output().map_err(|error| plain(&error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match said.lines().find(|line| REFUSALS.iter().any(|refusal| line.contains(refusal))) {
        Some(line) => Err(line.trim_start_matches("ERROR: ld.so: ").to_owned()),
        None if output.status.success() => Ok(()),
        None => Err(format!("a program under it ends with {}", output.status)),
    }
}

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

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn what_is_preloaded_exists_and_loads() {
        let temp = tempfile::tempdir().unwrap();
        let lib = temp.path().join("libgpumem.so");
        let list = format!("/lib/other.so:{}", lib.display());
        let world = World::here(Some(temp.path().to_owned()));
        let check = |said: &str| {
            let [found] = &in_list(&world, &list)[..] else { panic!("one library is ours") };
            assert_eq!(found.severity, Severity::Error);
            assert!(found.finding.contains(said), "{}", found.finding);
            assert!(!found.fix.is_empty());
        };
        check("there is no such file");
        std::fs::write(&lib, "not an ELF file").unwrap();
        check("it is no library");
        let mut head = [0; 64];
        head[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        std::fs::write(&lib, head).unwrap();
        check("it is a 32-bit library");
        head[4] = 2;
        std::fs::write(&lib, head).unwrap();
        check("it is built for another processor");
        head[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
        std::fs::write(&lib, head).unwrap();
        check("cannot be preloaded");
        let severity = |list: &str| in_list(&world, list).iter().map(|found| found.severity).collect::<Vec<_>>();
        assert_eq!(severity("/lib/other.so /lib/one.so"), [Severity::Ok]);
        assert_eq!(
            severity("libgpumem.so:/a/libgpumem.so"),
            [Severity::Error; 2],
            "a bare name is the loader's to find"
        );
    }

    #[test]
    fn a_library_that_is_none_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let lib = temp.path().join("libgpumem.so");
        std::fs::write(&lib, "not an ELF file").unwrap();
        // The test binary takes --version for a filter and succeeds. Only the loader's messages count.
        assert!(loads(&lib).unwrap_err().contains("cannot be preloaded"));
    }
}
