//! Device memory as the driver counts it, through NVML if that is installed.

use libloading::Library;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
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
type GetProcesses = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;

/// Calls a function of NVML, with the types of its arguments in nvml.h. `None` if it fails, or if this NVML lacks it.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr => $ty:ty),*)) => {
        // SAFETY: users of this macro name the function's types in nvml.h, a device that NVML gave, and pointers to locals
        // with room for the answer.
        unsafe {
            let get = $library.get::<unsafe extern "C" fn($($ty),*) -> c_int>(concat!(stringify!($name), "\0").as_bytes());
            get.ok().filter(|call| call($($argument),*) == OK).map(drop)
        }
    };
}

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
        call!(library, nvmlInit_v2()).ok_or("NVML finds no driver")?;
        Ok(Self { library })
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
        call!(self.library, nvmlDeviceGetCount_v2(&mut count => *mut c_uint))?;
        Some((0..count).filter_map(|index| self.uuid(index)).collect())
    }

    fn uuid(&self, index: c_uint) -> Option<String> {
        // NVML's limit, NVML_DEVICE_UUID_V2_BUFFER_SIZE.
        let (mut device, mut text) = (std::ptr::null_mut(), [0_u8; 96]);
        let (to, len) = (text.as_mut_ptr().cast(), text.len() as c_uint);
        call!(self.library, nvmlDeviceGetHandleByIndex_v2(index => c_uint, &mut device => *mut Device))?;
        call!(self.library, nvmlDeviceGetUUID(device => Device, to => *mut c_char, len => c_uint))?;
        CStr::from_bytes_until_nul(&text).ok()?.to_str().ok().map(str::to_owned)
    }

    fn division(&self, device: Device) -> Division {
        let (mut split, mut pending, mut kind) = (0, 0, 0);
        let (now, later) = (&mut split, &mut pending);
        let _ = call!(self.library, nvmlDeviceGetMigMode(device => Device, now => *mut c_uint, later => *mut c_uint));
        let _ = call!(self.library, nvmlDeviceGetVirtualizationMode(device => Device, &mut kind => *mut c_uint));
        let mps = self.processes(OF_MPS, device).unwrap_or_default();
        // NVML_GPU_VIRTUALIZATION_MODE_VGPU, HOST_VGPU and HOST_VSGA. 1 is a card that a virtual machine has whole.
        Division { split: split == 1, virtual_gpu: kind >= 2, mps: mps.iter().map(|entry| entry.pid).collect() }
    }

    fn memory(&self, device: Device) -> Option<Memory> {
        let mut memory = Memory::default();
        call!(self.library, nvmlDeviceGetMemoryInfo(device => Device, &mut memory => *mut Memory))?;
        Some(memory)
    }

    /// Returns the device with this name.
    fn device(&self, name: &str) -> Option<Device> {
        let (name, mut device) = (CString::new(name).ok()?, std::ptr::null_mut());
        let uuid = name.as_ptr();
        call!(self.library, nvmlDeviceGetHandleByUUID(uuid => *const c_char, &mut device => *mut Device))?;
        Some(device)
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
        // The end of what `open` began.
        let _ = call!(self.library, nvmlShutdown());
    }
}
