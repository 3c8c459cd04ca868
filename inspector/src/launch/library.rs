//! Finds libgpumem.so, and makes the value of LD_PRELOAD.

use super::elf;
use crate::failure::{Failure, Result};
use crate::text::file_name;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Finds libgpumem.so: at the user's path, else near this binary, else in the system's library directories.
///
/// # Errors
/// Lists the paths that were searched.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named.filter(|named| !named.as_os_str().is_empty()) {
        return std::path::absolute(named)
            .ok()
            .filter(|path| path.is_file())
            .ok_or_else(|| Failure::error(format!("there is no library {}", named.display())));
    }
    let places = places();
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let dirs: Vec<_> =
            places.iter().filter_map(|path| path.parent()).map(|dir| dir.display().to_string()).collect();
        Failure::error(format!("libgpumem.so was not found in {}", dirs.join(", ")))
            .fix("name it with --lib or GPUMEM_LIB")
    })
}

fn places() -> Vec<PathBuf> {
    let exe = std::env::current_exe().ok();
    let bin = exe.as_deref().and_then(Path::parent);
    let near = bin.into_iter().flat_map(|bin| {
        let up = bin.parent().unwrap_or(bin);
        // Beside this binary in a build directory, or in lib/ next to bin/ when installed.
        [
            bin.join("libgpumem.so"),
            up.join("lib/libgpumem.so"),
            up.join("lib64/libgpumem.so"),
            up.join("lib/gpumem/libgpumem.so"),
        ]
    });
    let arch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let system = ["/usr/local/lib", "/usr/lib64", "/usr/lib", &arch].map(|dir| Path::new(dir).join("libgpumem.so"));
    near.chain(system).collect()
}

/// Returns the value of LD_PRELOAD: this library, then the earlier value. A library that the program is linked to and
/// that must come before all others comes first.
pub(crate) fn preload(lib: &Path, program: Option<&Path>) -> Result<OsString> {
    let text = lib.to_string_lossy();
    // The loader splits at spaces and colons, and has no quoting.
    if text.contains([' ', ':', '$']) {
        return Err(Failure::error(format!(
            "LD_PRELOAD cannot hold the path {text}: it has a space, a colon or a dollar"
        ))
        .fix("copy libgpumem.so to a path without them, and name that path with --lib"));
    }
    let others = std::env::var_os("LD_PRELOAD").unwrap_or_default().to_string_lossy().into_owned();
    let ours = |other: &str| other == text || file_name(other) == "libgpumem.so";
    let kept = others.split([' ', ':']).filter(|other| !other.is_empty() && !ours(other));
    let (mut first, behind): (Vec<&str>, Vec<&str>) = kept.partition(|other| elf::comes_first(other));
    // By its name, so that the loader searches for it as for the program.
    let linked = program.and_then(elf::first_of);
    if first.is_empty() {
        first.extend(linked.as_deref());
    }
    Ok(first.into_iter().chain([&*text]).chain(behind).collect::<Vec<_>>().join(":").into())
}
