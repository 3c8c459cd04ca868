//! The driver's own books on device memory, through NVML where it is installed.

use libloading::Library;
use std::ffi::CString;
use std::os::raw::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// `nvmlProcessInfo_t` of the `_v3` functions.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    _gpu_instance: c_uint,
    _compute_instance: c_uint,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    _total: c_ulonglong,
    _free: c_ulonglong,
    used: c_ulonglong,
}

const OK: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;
/// `NVML_VALUE_NOT_AVAILABLE`: the driver does not tell (WDDM, some containers).
const NOT_AVAILABLE: u64 = u64::MAX;

/// What stands before a UUID in NVML's names: of a whole card, and of an instance of a card that is split.
const KINDS: [&str; 2] = ["GPU-", "MIG-"];

type Device = *mut c_void;
type GetCount = unsafe extern "C" fn(*mut c_uint) -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
type GetMemory = unsafe extern "C" fn(Device, *mut Memory) -> c_int;
type GetProcesses = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;
type NoArguments = unsafe extern "C" fn() -> c_int;

/// The library, initialised.
pub(crate) struct Nvml {
    library: Library,
}

impl Nvml {
    /// Opens it; `None` where there is no NVIDIA driver.
    pub(crate) fn open() -> Option<Self> {
        // Linked statically to glibc, a program can load only libraries that were linked to that very release of it.
        if cfg!(target_feature = "crt-static") {
            return None;
        }
        // SAFETY: loading runs the initialisers of NVIDIA's library, which NVIDIA makes fit for any
        // program.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: nvml.h declares `nvmlReturn_t nvmlInit_v2(void)`, and `library` is open.
        let answer = unsafe { library.get::<NoArguments>(b"nvmlInit_v2\0").ok()?() };
        (answer == OK).then_some(Self { library })
    }

    /// Device bytes that the driver attributes to a process, summed over devices; `None` where it
    /// does not know the pid, or does not tell.
    pub(crate) fn used_by(&self, pid: u32) -> Option<u64> {
        let mut total: Option<u64> = None;
        for device in self.devices()? {
            let processes = self.processes(device).unwrap_or_default();
            for entry in processes.iter().filter(|entry| entry.pid == pid && entry.used != NOT_AVAILABLE) {
                total = Some(total.unwrap_or(0).saturating_add(entry.used));
            }
        }
        total
    }

    /// Bytes in use on the device with this UUID, by everybody.
    pub(crate) fn device_used(&self, uuid: &str) -> Option<u64> {
        let device = KINDS.iter().find_map(|kind| self.device(&format!("{kind}{uuid}")))?;
        let mut memory = Memory::default();
        // SAFETY: the type is nvml.h's. NVML gave `device`, and `memory` is a local with room for one
        // nvmlMemory_t.
        let answer = unsafe { self.library.get::<GetMemory>(b"nvmlDeviceGetMemoryInfo\0").ok()?(device, &mut memory) };
        (answer == OK).then_some(memory.used)
    }

    /// The device of this name.
    fn device(&self, name: &str) -> Option<Device> {
        let name = CString::new(name).ok()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: the type is nvml.h's. `name` is a CString that lives until the call returns, and
        // `device` is a local that takes the handle.
        let answer =
            unsafe { self.library.get::<ByUuid>(b"nvmlDeviceGetHandleByUUID\0").ok()?(name.as_ptr(), &mut device) };
        (answer == OK).then_some(device)
    }

    fn devices(&self) -> Option<Vec<Device>> {
        let mut count = 0;
        // SAFETY: the type is nvml.h's, and `count` is a local that takes the number.
        if unsafe { self.library.get::<GetCount>(b"nvmlDeviceGetCount_v2\0").ok()?(&mut count) } != OK {
            return None;
        }
        // SAFETY: ByIndex is the type that nvml.h declares for this name.
        let by_index = unsafe { self.library.get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2\0") }.ok()?;
        let device = |index| {
            let mut device = std::ptr::null_mut();
            // SAFETY: the library is open, NVML checks the index, and `device` is a local that
            // takes the handle.
            (unsafe { by_index(index, &mut device) } == OK).then_some(device)
        };
        Some((0..count.min(64)).filter_map(device).collect())
    }

    fn processes(&self, device: Device) -> Option<Vec<ProcessInfo>> {
        // SAFETY: GetProcesses is the type that nvml.h declares for this name.
        let list = unsafe { self.library.get::<GetProcesses>(b"nvmlDeviceGetComputeRunningProcesses_v3\0") }.ok()?;
        let none = ProcessInfo { pid: 0, used: 0, _gpu_instance: 0, _compute_instance: 0 };
        let mut entries = vec![none; 256];
        let mut len = entries.len() as c_uint;
        // SAFETY: NVML gave `device`. `entries` has room for `len` entries, and NVML writes at most
        // `len`.
        let mut answer = unsafe { list(device, &mut len, entries.as_mut_ptr()) };
        if answer == INSUFFICIENT_SIZE && len < 1 << 16 {
            entries.resize(len as usize, none);
            // SAFETY: the line above made `entries` as long as the first call wants, and `len`
            // still says that length.
            answer = unsafe { list(device, &mut len, entries.as_mut_ptr()) };
        }
        entries.truncate(len as usize);
        (answer == OK).then_some(entries)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: nvml.h declares `nvmlReturn_t nvmlShutdown(void)`, and `self.library` is open.
        if let Ok(shutdown) = unsafe { self.library.get::<NoArguments>(b"nvmlShutdown\0") } {
            // SAFETY: `open` called nvmlInit once, and this is the one shutdown that ends it:
            // `drop` runs once.
            unsafe { shutdown() };
        }
    }
}
