//! Checks of this machine and this shell.

use super::finding::{Finding, Severity, error, finding, info, ok, warning};
use super::subject::Machine;
use crate::failure::plain;
use crate::source::find::FoundProcess;
use crate::source::world::MOUNT;
use crate::text::{self, units};
use gpumem_wire::settings::{Alias, Complaint, Settings, aliases_in_force};
use rustix::fs::{Access, access, statvfs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(super) fn variables(_: &Machine) -> Vec<Finding> {
    let (_, complaints) = Settings::read(std::env::vars_os());
    let wrong = |complaint: &Complaint| warning(complaint.to_string()).fix("correct or unset the variable");
    let aliases = aliases_in_force(&std::env::vars_os().collect::<Vec<_>>());
    complaints.iter().map(wrong).chain(aliases.into_iter().map(alias)).collect()
}

/// Returns a finding about another project's variable that sets one of gpumem.
pub(super) fn alias(alias: &Alias) -> Finding {
    info(format!("{} is set; gpumem reads it as {}={}", alias.name, alias.setting, alias.value))
        .fix(format!("{} itself overrides it", alias.setting))
}

/// With less free space a ledger may be cut short.
const LITTLE_SPACE: u64 = 64 << 20;

pub(super) fn directory(of: &Machine) -> Finding {
    judged(&of.world.own_dir, of.world.uid, of.world.narrow)
}

/// Judges as the shim does: the default directory must belong to the user alone. A named one may be a link, another
/// user's, or shared, and must only be usable. Root may only want to read.
fn judged(dir: &Path, uid: u32, named: bool) -> Finding {
    let shown = dir.display();
    let another = "set GPUMEM_DIR to a directory that the program can write";
    let meta = if named { std::fs::metadata(dir) } else { std::fs::symlink_metadata(dir) };
    let meta = match meta {
        Ok(meta) => meta,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            return match nearest(dir).filter(|parent| writable(parent)) {
                Some(_) => ok(format!("{shown} will be made when a program first uses the GPU")),
                None => error(format!("{shown} does not exist and cannot be made")).fix(another),
            };
        }
        Err(why) => {
            return error(format!("{shown}: {}", plain(&why))).fix("set GPUMEM_DIR to another directory");
        }
    };
    if !meta.is_dir() {
        return error(format!("{shown} is not a directory")).fix("remove it, or set GPUMEM_DIR to another");
    }
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    let word = text::os_word(dir.as_os_str());
    if !named && owner != uid {
        return error(format!("{shown} belongs to user {owner}"))
            .fix("remove it as that user, or set GPUMEM_DIR to a directory of your own");
    }
    if !named && mode & 0o022 != 0 {
        return error(format!("{shown} can be written by others (mode {mode:o}): nothing is recorded"))
            .fix(format!("chmod 700 {word}"));
    }
    if !writable(dir) && uid != 0 {
        let fix = if owner == uid { format!("chmod u+wx {word}") } else { another.into() };
        return error(format!("{shown} cannot be written")).fix(fix);
    }
    let others = match mode & 0o022 {
        0 if uid == 0 || owner == uid || owner == 0 => None,
        0 => Some(format!("it belongs to user {owner}")),
        0o020 => Some(format!("members of group {} can write there (mode {mode:o})", meta.gid())),
        _ => Some(format!("anyone can write there (mode {mode:o})")),
    };
    if let Some(others) = others {
        let fix = match uid == 0 || owner == uid {
            true => format!("chmod go-w {word}, unless it is shared on purpose"),
            false => "set GPUMEM_DIR to a directory of your own, unless this one is shared on purpose".into(),
        };
        return warning(format!("{shown} works, but {others}")).fix(fix);
    }
    match free_bytes(dir) {
        Some(free) if free < LITTLE_SPACE => warning(format!("{shown} has {} of free space", units::bytes(free)))
            .fix("gpumem clean --all, or set GPUMEM_DIR to a directory with more"),
        free => ok(format!("{shown} is in order, {} free", free.map_or("?".into(), units::bytes))),
    }
}

/// Returns the closest existing directory above.
fn nearest(dir: &Path) -> Option<&Path> {
    dir.ancestors().skip(1).find(|parent| parent.is_dir())
}

fn writable(dir: &Path) -> bool {
    access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

fn free_bytes(dir: &Path) -> Option<u64> {
    statvfs(dir).ok().map(|of| of.f_bavail.saturating_mul(of.f_frsize))
}

/// Returns approximately the loader's directories: LD_LIBRARY_PATH and the usual ones.
fn library_dirs() -> Vec<PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH");
    let arch = std::env::consts::ARCH;
    let usual = [
        format!("/usr/lib/{arch}-linux-gnu"),
        format!("/lib/{arch}-linux-gnu"),
        "/usr/lib64".into(),
        "/usr/lib".into(),
        "/usr/local/lib".into(),
        "/usr/local/cuda/lib64".into(),
        "/usr/local/cuda/compat".into(),
        "/usr/lib/wsl/lib".into(),
        "/usr/local/nvidia/lib64".into(),
        "/opt/rocm/lib".into(),
        "/run/opengl-driver/lib".into(),
    ];
    let named: Vec<_> = named.iter().flat_map(std::env::split_paths).collect();
    named.into_iter().chain(usual.map(PathBuf::from)).collect()
}

/// Returns files with this prefix in those directories, links resolved, each once.
fn installed(start: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = library_dirs()
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .filter_map(|entry| entry.path().canonicalize().ok())
        .collect();
    found.sort();
    found.dedup();
    found
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

pub(super) fn driver(_: &Machine) -> Finding {
    let kernel = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let kernel = kernel.as_deref().and_then(|text| text.lines().next()).map(str::trim);
    let cuda = installed("libcuda.so");
    match (kernel, cuda.is_empty(), Path::new("/sys/module/amdgpu").exists()) {
        (Some(kernel), false, _) => ok(format!("{kernel}; {}", list(&cuda))),
        (Some(kernel), true, _) => warning(format!("the kernel has {kernel}, but no libcuda.so was found"))
            .fix("install the driver's user-space libraries, or start the container with them"),
        (None, false, amd) => {
            let severity = if amd { Severity::Ok } else { Severity::Info };
            finding(severity, format!("{} is installed, and the NVIDIA kernel driver is not loaded", list(&cuda)))
        }
        (None, true, true) => ok("the amdgpu kernel driver is loaded"),
        (None, true, false) => info("no GPU driver is installed here"),
    }
}

pub(super) fn runtimes(_: &Machine) -> Finding {
    let found: Vec<_> = ["libcudart.so", "libamdhip64.so"].iter().flat_map(|start| installed(start)).collect();
    match found.is_empty() {
        true => ok("no CUDA or HIP runtime in the system's directories: programs bring their own"),
        false => ok(list(&found)),
    }
}

pub(super) fn devices(_: &Machine) -> Vec<Finding> {
    let is_closed = |node: &&str| access(*node, Access::READ_OK | Access::WRITE_OK).is_err();
    let nodes = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/kfd"].into_iter();
    let closed = nodes.filter(|node| Path::new(node).exists()).filter(is_closed);
    let found = closed.map(|node| {
        warning(format!("{node} cannot be opened by this user"))
            .fix(format!("add the user to the group that owns it (ls -l {node})"))
    });
    found.collect()
}

pub(super) fn nvml(_: &Machine) -> Option<Finding> {
    match installed("libnvidia-ml.so").is_empty() {
        true => ok("no libnvidia-ml.so: gpumem stats cannot show what the driver counts for a process").into(),
        false => None,
    }
}

pub(super) fn proc(of: &Machine) -> Option<Finding> {
    let mounts = std::fs::read_to_string(of.world.proc.join("self/mountinfo")).unwrap_or_default();
    let hidden = mounts.lines().any(|line| {
        line.contains(" /proc ") && ["hidepid=1", "hidepid=2", "hidepid=inv"].iter().any(|option| line.contains(option))
    });
    if let Some(why) = of.world.lacks_proc() {
        return error(why).fix(MOUNT).into();
    }
    match (of.survey.warnings.first(), hidden && of.world.uid != 0) {
        (Some(said), _) => warning(said).fix("run gpumem as the user of that process, or as root").into(),
        (None, true) => info("/proc hides the processes of other users (hidepid)")
            .fix("run gpumem as the user of the process, or as root")
            .into(),
        (None, false) => None,
    }
}

/// Reports one line for readable ledgers, and one for those of other versions: each update of gpumem leaves some
/// behind.
pub(super) fn stale(of: &Machine) -> Vec<Finding> {
    let all = |is: fn(&FoundProcess) -> bool, whose: &str, fix: &str| {
        let ledgers: Vec<&FoundProcess> = of.survey.found.iter().filter(|found| is(found)).collect();
        let (count, bytes) = (text::count(ledgers.len() as u64, "ledger"), bytes_of(&ledgers));
        (!ledgers.is_empty()).then(|| info(format!("{count} of ended processes{whose}, {bytes}")).fix(fix))
    };
    let known = |found: &FoundProcess| found.status().is_some() && !found.is_live();
    let known = all(
        known,
        "",
        "look at them with gpumem allocs PID; gpumem clean removes those older than a day, \
                     gpumem clean --all removes all",
    );
    let fix = "gpumem clean removes those older than a day, gpumem clean --all removes all";
    let others = all(FoundProcess::is_dead_of_other_version, ", written by other versions of gpumem", fix);
    known.into_iter().chain(others).collect()
}

/// Returns the size of their files, in words. Blocks, not length: ledgers are sparse.
fn bytes_of(ledgers: &[&FoundProcess]) -> String {
    let metas = ledgers.iter().filter_map(|found| std::fs::symlink_metadata(found.path()?).ok());
    units::bytes(metas.map(|meta| meta.blocks() * 512).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn directories_are_judged() {
        let temp = tempfile::tempdir().unwrap();
        let uid = std::fs::metadata(temp.path()).unwrap().uid();
        let dir = temp.path().join("ledgers");
        let mode = |mode| std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
        let both = |uid| [false, true].map(|named| judged(&dir, uid, named).severity);
        assert_eq!(both(uid), [Severity::Ok; 2], "it can be made");
        std::fs::create_dir(&dir).unwrap();
        mode(0o700);
        assert!(both(uid).iter().all(|&severity| severity < Severity::Error));
        // The shim records in another user's directory only if it was named.
        let severity = if uid == 0 { Severity::Ok } else { Severity::Warning };
        assert_eq!(both(uid + 1), [Severity::Error, severity], "root may leave a directory to others");
        assert_eq!(judged(&dir, 0, true).severity, Severity::Ok, "root looks at another's");
        for (bits, said) in [(0o1777, "anyone can write there (mode 1777)"), (0o2770, "can write there (mode 2770)")] {
            mode(bits);
            assert_eq!(both(uid), [Severity::Error, Severity::Warning], "{bits:o}");
            assert_eq!(both(uid + 1), [Severity::Error, Severity::Warning], "{bits:o}");
            assert!(judged(&dir, uid, false).fix.starts_with("chmod 700 "));
            let shared = judged(&dir, uid, true);
            assert!(shared.finding.contains(said) && shared.fix.ends_with("unless it is shared on purpose"));
        }
        // A link may be named; in the default place it may be an attack.
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert_eq!([false, true].map(|named| judged(&link, uid, named).severity), [Severity::Error, Severity::Warning]);
        let file = temp.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!([false, true].map(|named| judged(&file, uid, named).severity), [Severity::Error; 2]);
    }
}
