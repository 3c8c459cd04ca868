//! Which libgpumem.so is preloaded, and what LD_PRELOAD then holds.

use super::elf;
use crate::failure::{Failure, Result};
use crate::text::file_name;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// libgpumem.so: where the user says, else near this binary, else where systems keep libraries.
///
/// # Errors
/// Lists where it was looked for.
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
        // Beside it in a build directory, in lib/ next to bin/ where it is installed.
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

/// Ours first, then what was to be preloaded anyway. Before ours comes what the program is linked with and has to
/// come before all others.
pub(crate) fn preload(lib: &Path, program: Option<&Path>) -> Result<OsString> {
    let text = lib.to_string_lossy();
    // The loader splits at spaces and colons and knows no quoting.
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
    // By its name: the loader looks for it where it will for the program.
    let linked = program.and_then(elf::first_of);
    if first.is_empty() {
        first.extend(linked.as_deref());
    }
    Ok(first.into_iter().chain([&*text]).chain(behind).collect::<Vec<_>>().join(":").into())
}
