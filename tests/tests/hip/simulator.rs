//! The simulated libamdhip64 has the functions, the versions and the habits of the real one.

use super::programs::HOOKED;
use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::hip::{hip, program};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};

macro_rules! asked {
    ($($name:ident ($($arg:ident: $ty:ty),*);)*) => {
        const ASKED: &[&str] = &[$(stringify!($name)),*];
    };
}
gpumem_abi::hip_calls!(asked);

/// The simulated library has every function that the shim hooks or calls, at the versions that
/// ROCm gives them.
#[test]
fn the_simulator_has_every_function_at_its_version() {
    let path = hip().stage.join("libamdhip64.so.6").into_os_string().into_encoded_bytes();
    let path = CString::new(path).expect("a path");
    // SAFETY: `path` is a CString. The simulator has no constructors that expect anything, and the
    // library stays loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{path:?} can be loaded");
    let find = |name: &str, version: Option<&str>| -> *mut c_void {
        let name = CString::new(name).expect("a name");
        let version = version.map(|version| CString::new(version).expect("a version"));
        // SAFETY: `library` is open and is never closed. `name` and `version` are CStrings that
        // live until the call returns.
        unsafe {
            match version {
                Some(version) => libc::dlvsym(library, name.as_ptr(), version.as_ptr()),
                None => libc::dlsym(library, name.as_ptr()),
            }
        }
    };
    for name in HOOKED.iter().chain(ASKED) {
        assert!(!find(name, None).is_null(), "{name}");
    }
    for (name, version) in [
        ("hipMalloc", "hip_4.2"),
        ("hipArrayDestroy", "hip_4.3"),
        ("hipGraphInstantiate", "hip_4.3"),
        ("hipGraphInstantiateWithFlags", "hip_4.5"),
        ("hipMallocAsync", "hip_5.1"),
        ("hipMemcpy_spt", "hip_5.2"),
        ("hipGraphLaunch_spt", "hip_5.3"),
        ("hipGetProcAddress", "hip_6.1"),
        ("hipGetDriverEntryPoint", "hip_7.1"),
        ("hipLibraryUnload", "hip_7.2"),
    ] {
        let found = find(name, Some(version));
        assert!(!found.is_null() && found == find(name, None), "{name}@{version}");
        assert!(find(name, Some("hip_9.9")).is_null());
    }
}

/// Each version of hip.map is the one that the libraries of ROCm's releases have.
#[test]
fn the_simulators_versions_are_those_of_the_libraries() {
    let map = std::fs::read_to_string(repository().join("tests/sim/hip/hip.map")).expect("the map");
    let real: BTreeMap<&str, &str> = gpumem_abi::KNOWN_HIP
        .lines()
        .filter_map(|line| line.strip_prefix("fn ")?.split_once(' '))
        .filter_map(|(name, said)| Some((name, said.split(' ').next().filter(|version| *version != "-")?)))
        .collect();
    let (mut version, mut checked) = ("", 0);
    for line in map.lines().map(str::trim) {
        if let Some(begun) = line.strip_suffix(" {") {
            version = begun;
        }
        let Some(name) = line.strip_suffix(';').filter(|name| name.starts_with("hip")) else { continue };
        match real.get(name) {
            Some(known) => assert_eq!(*known, version, "{name}"),
            // Only ROCm 6.3 has it.
            None => assert_eq!(name, "hipExtHostAlloc"),
        }
        checked += 1;
    }
    assert!(checked > 200, "{checked}");
}

/// The simulated library calls its own exported names, as the real one does. The library that comes first in the
/// global scope gets those calls.
#[test]
fn the_simulator_calls_itself_by_name() {
    assert_eq!(program("reenter").native().ok().out, "0: 1 1 1 1\n");
}
