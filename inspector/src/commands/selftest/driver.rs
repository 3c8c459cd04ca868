//! The CUDA driver's version and devices, queried in a process of its own.

use super::suite::{command, watch};
use crate::failure::{Failure, Result, plain};
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_int, c_uint};

/// A device, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) capability: (u32, u32),
}

/// The driver's description of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Driver {
    pub(super) version: u32,
    pub(super) gpus: Vec<Gpu>,
}

/// Queries the driver in a process of its own.
pub(super) fn asked() -> std::result::Result<Driver, String> {
    let exe = std::env::current_exe().map_err(|error| plain(&error))?;
    let mut asking = command(&exe, None);
    asking.args(["selftest", "--ask-driver"]);
    let mut answer = None;
    let ended = watch(asking, None, |line| answer = serde_json::from_str(&line).ok().or(answer.take()))?;
    answer.ok_or_else(|| {
        let said = ended.last_words().trim_start_matches("gpumem:").trim();
        format!("the CUDA driver: {}", if said.is_empty() { ended.words() } else { said.to_owned() })
    })
}

/// Runs the hidden form of the command: one JSON line about the driver.
///
/// # Errors
/// Code 2 if there is no driver or no device.
pub(super) fn tell() -> Result<()> {
    let driver = ask().map_err(Failure::usage)?;
    let line = serde_json::to_string(&driver).map_err(|error| Failure::error(error.to_string()))?;
    println!("{line}");
    Ok(())
}

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

fn ask() -> std::result::Result<Driver, String> {
    // SAFETY: loading runs the initialisers of NVIDIA's driver, which NVIDIA makes fit for any
    // program.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    let library = library.map_err(|_| "there is no libcuda.so.1: no driver is installed here")?;
    let lacks = |name: &str| format!("libcuda.so.1 lacks {name}");
    macro_rules! function {
        ($name:literal, fn($($ty:ty),*)) => {
            // SAFETY: since CUDA 2 cuda.h has given each function that is asked for below the type
            // that is named with it.
            unsafe { library.get::<unsafe extern "C" fn($($ty),*) -> c_int>($name) }.map_err(|_| lacks($name))?
        };
    }
    let init = function!("cuInit", fn(c_uint));
    let version_of = function!("cuDriverGetVersion", fn(*mut c_int));
    let count_of = function!("cuDeviceGetCount", fn(*mut c_int));
    let name_of = function!("cuDeviceGetName", fn(*mut c_char, c_int, c_int));
    let attribute_of = function!("cuDeviceGetAttribute", fn(*mut c_int, c_int, c_int));
    let ok = |name: &str, status: c_int| (status == 0).then_some(()).ok_or_else(|| format!("{name} gives {status}"));
    let (mut version, mut count) = (0, 0);
    // SAFETY: the types are cuda.h's, the library stays open, and the out-parameters are locals of
    // those types.
    unsafe {
        ok("cuInit", init(0))?;
        ok("cuDriverGetVersion", version_of(&mut version))?;
        ok("cuDeviceGetCount", count_of(&mut count))?;
    }
    let mut gpus = Vec::new();
    for device in 0..count {
        let (mut name, mut capability) = ([0_u8; 256], [0; 2]);
        // SAFETY: the types are cuda.h's, and cuInit succeeded. The driver writes at most
        // `name.len()` bytes of the name, and each value is one element of `capability`.
        unsafe {
            ok("cuDeviceGetName", name_of(name.as_mut_ptr().cast(), name.len() as c_int, device))?;
            for (value, attribute) in capability.iter_mut().zip(CAPABILITY) {
                ok("cuDeviceGetAttribute", attribute_of(value, attribute, device))?;
            }
        }
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..len]).into_owned();
        gpus.push(Gpu { name, capability: (capability[0] as u32, capability[1] as u32) });
    }
    Ok(Driver { version: version as u32, gpus })
}
