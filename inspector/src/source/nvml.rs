//! Device memory as the driver counts it, through NVML if that is installed.

use libloading::Library;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::raw::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::rc::Rc;

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

/// Prefixes of UUIDs in NVML's names: of a whole card, and of an instance of a split card.
const KINDS: [&str; 2] = ["GPU-", "MIG-"];

type Device = *mut c_void;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
type GetMemory = unsafe extern "C" fn(Device, *mut Memory) -> c_int;
type GetProcesses = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;
type NoArguments = unsafe extern "C" fn() -> c_int;

/// The driver's count for a process on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Bytes(u64),
    /// The count is missing, for this reason.
    Unknown(&'static str),
}

/// The driver's counts on one card.
pub(crate) struct Card {
    /// Bytes in use by all processes.
    pub used: u64,
    /// Bytes of each listed process; `None` if the driver does not tell.
    processes: HashMap<u32, Option<u64>>,
}

impl Card {
    /// True if the card has no other process.
    pub(crate) fn is_alone(&self, pid: u32) -> bool {
        self.processes.len() == 1 && self.processes.contains_key(&pid)
    }

    /// Returns the count for one process.
    pub(crate) fn of_process(&self, pid: u32) -> Count {
        match self.processes.get(&pid) {
            Some(Some(bytes)) => Count::Bytes(*bytes),
            Some(None) => Count::Unknown("the driver does not tell how much each process takes here"),
            None => Count::Unknown("the driver does not list this process: in a container it may have another number"),
        }
    }
}

/// The driver's counts. Each card is queried once, for all processes: a query takes milliseconds, behind a lock that
/// stalls every user of the card.
#[derive(Default)]
pub(crate) struct Books {
    library: OnceCell<Result<Nvml, &'static str>>,
    cards: RefCell<HashMap<String, Option<Rc<Card>>>>,
}

impl Books {
    /// Books that never open NVML, for commands that need no count.
    pub(crate) fn closed() -> Self {
        Self { library: OnceCell::from(Err("the driver was not asked")), cards: RefCell::default() }
    }

    /// Returns the card with this UUID.
    ///
    /// # Errors
    /// The reason why the card is not known, in words.
    pub(crate) fn card(&self, uuid: &str) -> Result<Rc<Card>, &'static str> {
        let nvml = self.library.get_or_init(Nvml::open).as_ref().map_err(|why| *why)?;
        let mut cards = self.cards.borrow_mut();
        let card = cards.entry(uuid.to_owned()).or_insert_with(|| nvml.card(uuid).map(Rc::new));
        card.clone().ok_or("NVML does not know this device")
    }
}

/// The NVML library, initialised.
struct Nvml {
    library: Library,
}

impl Nvml {
    /// Opens and initialises NVML.
    ///
    /// # Errors
    /// The reason why it cannot be used, in words.
    fn open() -> Result<Self, &'static str> {
        // A program linked statically to glibc can load only libraries linked to the same glibc release.
        if cfg!(target_feature = "crt-static") {
            return Err("this gpumem is linked statically and cannot load NVML");
        }
        // SAFETY: loading runs the initialisers of NVIDIA's library, which NVIDIA makes fit for any
        // program.
        let library =
            unsafe { Library::new("libnvidia-ml.so.1") }.map_err(|_| "NVML (libnvidia-ml.so.1) is not here")?;
        // SAFETY: nvml.h declares `nvmlReturn_t nvmlInit_v2(void)`, and `library` is open.
        let answer = unsafe { library.get::<NoArguments>(b"nvmlInit_v2\0").map_err(|_| "this NVML is too old")?() };
        if answer == OK { Ok(Self { library }) } else { Err("NVML finds no driver") }
    }

    /// Queries the counts of the card with this UUID.
    fn card(&self, uuid: &str) -> Option<Card> {
        let device = KINDS.iter().find_map(|kind| self.device(&format!("{kind}{uuid}")))?;
        let used = self.device_used(device)?;
        let listed = self.processes(device).unwrap_or_default();
        let bytes = |entry: &ProcessInfo| Some(entry.used).filter(|&used| used != NOT_AVAILABLE);
        Some(Card { used, processes: listed.iter().map(|entry| (entry.pid, bytes(entry))).collect() })
    }

    fn device_used(&self, device: Device) -> Option<u64> {
        let mut memory = Memory::default();
        // SAFETY: the type is nvml.h's. NVML gave `device`, and `memory` is a local with room for one
        // nvmlMemory_t.
        let answer = unsafe { self.library.get::<GetMemory>(b"nvmlDeviceGetMemoryInfo\0").ok()?(device, &mut memory) };
        (answer == OK).then_some(memory.used)
    }

    /// Returns the device with this name.
    fn device(&self, name: &str) -> Option<Device> {
        let name = CString::new(name).ok()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: the type is nvml.h's. `name` is a CString that lives until the call returns, and
        // `device` is a local that takes the handle.
        let answer =
            unsafe { self.library.get::<ByUuid>(b"nvmlDeviceGetHandleByUUID\0").ok()?(name.as_ptr(), &mut device) };
        (answer == OK).then_some(device)
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
