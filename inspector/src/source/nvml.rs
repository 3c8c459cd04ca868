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
    total: c_ulonglong,
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
type GetCount = unsafe extern "C" fn(*mut c_uint) -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type GetText = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_int;
type GetNumber = unsafe extern "C" fn(Device, *mut c_uint) -> c_int;
type GetPair = unsafe extern "C" fn(Device, *mut c_uint, *mut c_uint) -> c_int;
type NoArguments = unsafe extern "C" fn() -> c_int;

/// Names of NVML's lists of processes: those that compute, and of them the clients of MPS.
const COMPUTING: &[u8] = b"nvmlDeviceGetComputeRunningProcesses_v3\0";
const OF_MPS: &[u8] = b"nvmlDeviceGetMPSComputeRunningProcesses_v3\0";

/// The driver's count for a process on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Bytes(u64),
    /// The count is missing, for this reason.
    Unknown(&'static str),
}

/// The driver's counts on one card.
pub(crate) struct Card {
    /// Bytes of the card.
    pub total: u64,
    /// Bytes in use by all processes.
    pub used: u64,
    /// Bytes of each listed process; `None` if the driver does not tell.
    processes: HashMap<u32, Option<u64>>,
}

/// How a card is divided or watched, as far as the driver cannot park what runs on it then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Division {
    /// The card is split into instances (MIG).
    pub split: bool,
    /// The card is a virtual one (vGPU), or gives virtual ones.
    pub virtual_gpu: bool,
    /// Clients of MPS.
    pub mps: Vec<u32>,
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

    /// Returns the UUIDs of all cards, each with its kind before it: `GPU-…`.
    ///
    /// # Errors
    /// The reason why the cards are not known, in words.
    pub(crate) fn uuids(&self) -> Result<Vec<String>, &'static str> {
        let nvml = self.library.get_or_init(Nvml::open).as_ref().map_err(|why| *why)?;
        nvml.uuids().ok_or("NVML does not list its devices")
    }

    /// Returns how a card is divided; what the driver does not tell is taken as undivided.
    pub(crate) fn division(&self, uuid: &str) -> Division {
        let nvml = self.library.get_or_init(Nvml::open).as_ref().ok();
        nvml.and_then(|nvml| Some(nvml.division(nvml.named(uuid)?))).unwrap_or_default()
    }

    /// Forgets the counts, so that the next question gets new ones.
    pub(crate) fn look_again(&self) {
        self.cards.borrow_mut().clear();
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
        let device = self.named(uuid)?;
        let Memory { total, used, .. } = self.memory(device)?;
        let listed = self.processes(COMPUTING, device).unwrap_or_default();
        let bytes = |entry: &ProcessInfo| Some(entry.used).filter(|&used| used != NOT_AVAILABLE);
        Some(Card { total, used, processes: listed.iter().map(|entry| (entry.pid, bytes(entry))).collect() })
    }

    /// Returns the device with this UUID, which may have its kind before it.
    fn named(&self, uuid: &str) -> Option<Device> {
        match KINDS.iter().any(|kind| uuid.starts_with(kind)) {
            true => self.device(uuid),
            false => KINDS.iter().find_map(|kind| self.device(&format!("{kind}{uuid}"))),
        }
    }

    fn uuids(&self) -> Option<Vec<String>> {
        let mut count = 0;
        // SAFETY: the type is nvml.h's, and `count` is a local that takes the answer.
        let answer = unsafe { self.library.get::<GetCount>(b"nvmlDeviceGetCount_v2\0").ok()?(&mut count) };
        (answer == OK).then(|| (0..count).filter_map(|index| self.uuid(index)).collect())
    }

    fn uuid(&self, index: c_uint) -> Option<String> {
        let mut device = std::ptr::null_mut();
        // SAFETY: the type is nvml.h's, and `device` is a local that takes the handle.
        let answer =
            unsafe { self.library.get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2\0").ok()?(index, &mut device) };
        // NVML's limit, NVML_DEVICE_UUID_V2_BUFFER_SIZE.
        let mut text: [c_char; 96] = [0; 96];
        let get = (answer == OK).then(|| {
            // SAFETY: GetText is the type that nvml.h declares for this name.
            unsafe { self.library.get::<GetText>(b"nvmlDeviceGetUUID\0") }.ok()
        })??;
        // SAFETY: NVML gave `device`, and writes at most `text`'s length with the end.
        let answer = unsafe { get(device, text.as_mut_ptr(), text.len() as c_uint) };
        let bytes = text.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
        String::from_utf8(bytes).ok().filter(|_| answer == OK)
    }

    fn division(&self, device: Device) -> Division {
        let (mut split, mut pending, mut kind) = (0, 0, 0);
        // SAFETY: the types are nvml.h's, NVML gave `device`, and the locals take the answers.
        unsafe {
            if let Ok(get) = self.library.get::<GetPair>(b"nvmlDeviceGetMigMode\0") {
                get(device, &mut split, &mut pending);
            }
            if let Ok(get) = self.library.get::<GetNumber>(b"nvmlDeviceGetVirtualizationMode\0") {
                get(device, &mut kind);
            }
        }
        let mps = self.processes(OF_MPS, device).unwrap_or_default();
        // NVML_GPU_VIRTUALIZATION_MODE_VGPU, HOST_VGPU and HOST_VSGA. 1 is a card that a virtual machine has whole.
        Division { split: split == 1, virtual_gpu: kind >= 2, mps: mps.iter().map(|entry| entry.pid).collect() }
    }

    fn memory(&self, device: Device) -> Option<Memory> {
        let mut memory = Memory::default();
        // SAFETY: the type is nvml.h's. NVML gave `device`, and `memory` is a local with room for one
        // nvmlMemory_t.
        let answer = unsafe { self.library.get::<GetMemory>(b"nvmlDeviceGetMemoryInfo\0").ok()?(device, &mut memory) };
        (answer == OK).then_some(memory)
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

    fn processes(&self, list: &[u8], device: Device) -> Option<Vec<ProcessInfo>> {
        // SAFETY: GetProcesses is the type that nvml.h declares for both lists' names.
        let list = unsafe { self.library.get::<GetProcesses>(list) }.ok()?;
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
