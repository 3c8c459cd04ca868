//! Finds a GPU, and a CUDA runtime that programs can use on it.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A GPU and the libraries for it.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub name: String,
    /// As `cuDriverGetVersion` says it: 13000.
    pub driver: u32,
    pub libcuda: PathBuf,
    /// The newest libcudart.so.12 or .13 that this driver can serve.
    pub cudart: PathBuf,
}

impl Gpu {
    /// The first GPU.
    ///
    /// # Errors
    /// Says why there is none that the programs can use.
    pub fn find() -> Result<Self, String> {
        let (name, driver, libcuda) = first_device()?;
        // A driver serves the runtimes of its own major version and those before.
        let mut found: Vec<(u32, PathBuf)> =
            runtimes().into_iter().filter(|(major, _)| *major <= driver / 1000).collect();
        found.sort();
        let cudart = found.pop().map(|(_, path)| path).ok_or_else(|| {
            format!(
                "{name} is here (driver {}.{}), but no libcudart.so.12 (12.8 or later) or .13 for it was found; \
                 CUDA_HOME or LD_LIBRARY_PATH may name one",
                driver / 1000,
                driver % 1000 / 10
            )
        })?;
        Ok(Self { name, driver, libcuda, cudart })
    }
}

fn first_device() -> Result<(String, u32, PathBuf), String> {
    // SAFETY: the name is a literal that ends in NUL. NVIDIA makes libcuda's initialisers fit for
    // any program.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if driver.is_null() {
        return Err("no NVIDIA driver: libcuda.so.1 cannot be loaded".into());
    }
    let symbol = |name: &CStr| -> Result<*mut c_void, String> {
        // SAFETY: `driver` is a handle of dlopen that is never closed, and `name` is a C string.
        let address = unsafe { libc::dlsym(driver, name.as_ptr()) };
        if address.is_null() { Err(format!("libcuda.so.1 has no {}", name.to_string_lossy())) } else { Ok(address) }
    };
    let (init, count) = (symbol(c"cuInit")?, symbol(c"cuDeviceGetCount")?);
    let (version, name) = (symbol(c"cuDriverGetVersion")?, symbol(c"cuDeviceGetName")?);
    // SAFETY: cuda.h declares these types for the four names that were looked up.
    let (init, count, version, get_name) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> c_int>(init),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(count),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(version),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>(name),
        )
    };
    let (mut devices, mut driver_version) = (0, 0);
    let mut text = [0_u8; 128];
    // SAFETY: outputs are locals of the declared types, and the driver writes at most 127 of the
    // 128 bytes of `text`.
    let codes = unsafe {
        [init(0), count(&raw mut devices), version(&raw mut driver_version), get_name(text.as_mut_ptr().cast(), 127, 0)]
    };
    match codes {
        [0, 0, 0, 0] if devices > 0 => {}
        [0, 0, ..] if devices == 0 => return Err("libcuda.so.1 is installed, but it sees no device".into()),
        [code, ..] if code != 0 => return Err(format!("libcuda.so.1 is installed, but cuInit gives {code}")),
        codes => return Err(format!("libcuda.so.1 is installed, but its calls give {codes:?}")),
    }
    let name =
        CStr::from_bytes_until_nul(&text).map_or_else(|_| "GPU".into(), |name| name.to_string_lossy().into_owned());
    Ok((name, u32::try_from(driver_version).unwrap_or(0), mapped("libcuda.so")?))
}

/// The file of a library that this process has loaded.
fn mapped(begin: &str) -> Result<PathBuf, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let mut ours = paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin)));
    let path = ours.next().ok_or_else(|| format!("{begin} is loaded from no file"))?;
    // Programs link to the driver by its SONAME, which is another name in the same directory.
    let linked = path.with_file_name("libcuda.so.1");
    Ok(if linked.is_file() { linked } else { path.to_owned() })
}

/// libcudart 12 and 13, with their major versions, wherever CUDA installs them.
fn runtimes() -> BTreeSet<(u32, PathBuf)> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    if let Some(home) = std::env::var_os("CUDA_HOME") {
        dirs.push(Path::new(&home).join("lib64"));
    }
    dirs.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    let homes = std::fs::read_dir("/usr/local").into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    dirs.extend(homes.filter(|path| path.to_string_lossy().contains("/cuda")).map(|path| path.join("lib64")));
    dirs.extend(lines_of("ldconfig", &["-p"]).iter().filter_map(|line| {
        let path = Path::new(line.split_once("=> ")?.1);
        path.file_name()?.to_string_lossy().starts_with("libcudart.so").then(|| path.parent().map(Path::to_owned))?
    }));
    // Python packages of CUDA: nvidia/cuda_runtime/lib, nvidia/cu13/lib.
    let site = "import site, sysconfig; print(sysconfig.get_paths()['purelib'], site.getusersitepackages(), sep='\\n')";
    for packages in lines_of("python3", &["-c", site]) {
        let vendors = std::fs::read_dir(Path::new(&packages).join("nvidia")).into_iter().flatten();
        dirs.extend(vendors.filter_map(Result::ok).map(|entry| entry.path().join("lib")));
    }
    let named = dirs.iter().flat_map(|dir| [12, 13].map(|major| (major, dir.join(format!("libcudart.so.{major}")))));
    // The programs load their kernels through cudaLibrary*, which 12.8 brought.
    named.filter(|(_, path)| path.is_file() && holds(path, b"cudaLibraryLoadData\0")).collect()
}

fn lines_of(program: &str, args: &[&str]) -> Vec<String> {
    let done = Command::new(program).args(args).env_remove("LD_PRELOAD").output();
    done.map_or(Vec::new(), |done| String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect())
}

fn holds(path: &Path, text: &[u8]) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text))
}
