//! The HIP runtime.

use super::hip_runtime;
use super::{ACTIVE, Backend, DeviceInfo, PER_THREAD};
use crate::process::cancel::Uncancelled;
use gpumem_abi::types::*;
use gpumem_wire::kinds::NodeKind;
use once_cell::race::OnceBool;
use std::cell::Cell;
use std::ptr::{null, null_mut};

pub(super) struct Hip;

/// Returns the number that stands for a device's context: the device's number plus one. HIP programs work with devices.
pub(crate) fn context_of(device: Device) -> u64 {
    device as u64 + 1
}

/// Returns the answer if HIP has the function and it succeeded.
fn ok<T>(status: Option<Status>, answer: T) -> Option<T> {
    (status == Some(SUCCESS)).then_some(answer)
}

/// `hipStreamCaptureModeRelaxed`.
const RELAXED: i32 = 2;

/// `hipDeviceAttributeIntegrated`.
const INTEGRATED: i32 = 16;

/// Maximum nesting of devices that [`enter`] leaves: to launch, to make an exec, to free memory for it.
const MOST_LEFT: usize = 8;

/// The devices that a thread has left and returns to, the last one first.
#[derive(Clone, Copy)]
struct LeftDevices {
    devices: [Device; MOST_LEFT],
    len: usize,
}

thread_local! {
    static LEFT: Cell<LeftDevices> = const { Cell::new(LeftDevices { devices: [0; MOST_LEFT], len: 0 }) };
}

/// Makes a device current; returns true if [`leave`] has to be called.
pub(super) fn enter(context: u64) -> bool {
    let Some(device) = Hip.current_device().filter(|&device| context_of(device) != context) else { return false };
    let mut left = LEFT.get();
    let Some(place) = left.devices.get_mut(left.len) else { return false };
    *place = device;
    left.len += 1;
    // SAFETY: hipSetDevice takes a number, which HIP checks. It changes this thread's device alone.
    let entered = unsafe { hip_runtime::hipSetDevice(context.wrapping_sub(1) as Device) == Some(SUCCESS) };
    if entered {
        LEFT.set(left);
    }
    entered
}

pub(super) fn leave() {
    let mut left = LEFT.get();
    let Some(len) = left.len.checked_sub(1) else { return };
    left.len = len;
    LEFT.set(left);
    // SAFETY: hipSetDevice takes a number: that of the device that was this thread's when `enter`
    // was called.
    let _ = unsafe { hip_runtime::hipSetDevice(left.devices[len]) };
}

/// Lets this thread make calls that a capture of it forbids; returns the previous mode.
pub(super) fn relax() -> i32 {
    exchange(RELAXED)
}

/// Sets a thread's mode; returns the previous one.
pub(super) fn exchange(mut mode: i32) -> i32 {
    // SAFETY: rule of answers: `mode` is read and written. The call changes this thread's mode
    // alone.
    let _ = unsafe { hip_runtime::hipThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}

/// The first release whose node kinds begin with 0, as a number of hipRuntimeGetVersion.
const KINDS_FROM_ZERO: u32 = 50_300_000;

/// True if this release's node kinds begin with 1: those up to ROCm 5.2 do.
fn counts_from_one() -> bool {
    static FROM_ONE: OnceBool = OnceBool::new();
    FROM_ONE.get_or_init(|| Hip.version().is_some_and(|version| version < KINDS_FROM_ZERO))
}

/// Returns the kind of a `hipGraphNodeType`. HIP's numbers are CUDA's up to the event nodes; behind them they differ.
fn kind_numbered(number: i32, from_one: bool) -> NodeKind {
    match number - i32::from(from_one) {
        number @ 0..=7 => NodeKind::from_u8(number as u8).unwrap_or(NodeKind::Other),
        // Behind the events ROCm 5.2 has only one-dimensional copies, and copies from and to a symbol.
        8..=10 if from_one => NodeKind::Memcpy,
        _ if from_one => NodeKind::Other,
        8 => NodeKind::SemaphoreSignal,
        9 => NodeKind::SemaphoreWait,
        10 => NodeKind::MemAlloc,
        11 => NodeKind::MemFree,
        // From and to a symbol.
        12 | 13 => NodeKind::Memcpy,
        14 => NodeKind::BatchMemOp,
        _ => NodeKind::Other,
    }
}

impl Backend for Hip {
    fn current_context(&self) -> Option<u64> {
        self.current_device().map(context_of)
    }

    fn current_device(&self) -> Option<Device> {
        let _uncancelled = Uncancelled::new();
        let mut device = 0;
        // SAFETY: rule of answers: `device` takes the ordinal.
        let status = unsafe { hip_runtime::hipGetDevice(&mut device) };
        ok(status, device)
    }

    fn primary_active(&self, _: Device) -> Option<bool> {
        None
    }

    fn device_info(&self, device: Device) -> DeviceInfo {
        let _uncancelled = Uncancelled::new();
        let mut info = DeviceInfo::default();
        let mut name = [0_u8; 256];
        let (mut total, mut integrated) = (0, 0);
        // SAFETY: rule of answers: the name's length is passed with it, and the other locals have
        // the types of their answers. HIP checks the device.
        unsafe {
            if hip_runtime::hipDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device) == Some(SUCCESS) {
                info.name = name.iter().copied().take_while(|&byte| byte != 0).collect();
            }
            let _ = hip_runtime::hipDeviceGetUuid(&mut info.uuid, device);
            let _ = hip_runtime::hipDeviceTotalMem(&mut total, device);
            let _ = hip_runtime::hipDeviceGetAttribute(&mut integrated, INTEGRATED, device);
        }
        info.total_bytes = total as u64;
        info.integrated = integrated != 0;
        info
    }

    /// Returns nothing: HIP's answer to this synchronises on some releases, so only the program's own queries are used.
    fn memory_info(&self) -> Option<(u64, u64)> {
        None
    }

    fn kept_by_pool(&self, _: Device) -> Option<u64> {
        None
    }

    fn kept_for_graphs(&self, _: Device) -> Option<u64> {
        None
    }

    fn allocation_around(&self, ptr: DevicePtr) -> Option<(u64, u64)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: rule of answers: `base` and `bytes` take the numbers. HIP answers for addresses
        // that it does not know.
        let status = unsafe { hip_runtime::hipMemGetAddressRange(&mut base, &mut bytes, ptr) };
        ok(status, (base, bytes as u64))
    }

    fn captures_into(&self, stream: Stream) -> Option<Graph> {
        let stream = if stream.is_null() { PER_THREAD as Stream } else { stream };
        let (mut status, mut id, mut graph, mut deps, mut len) = (0, 0, null_mut(), null(), 0);
        // SAFETY: rule of answers: each local has the type of its answer. Rule of the program's handles: the stream is
        // alive.
        let asked = unsafe {
            hip_runtime::hipStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut deps, &mut len)
        };
        ok(asked, graph).filter(|graph| status == ACTIVE && !graph.is_null())
    }

    fn version(&self) -> Option<u32> {
        let mut version = 0;
        // SAFETY: rule of answers: `version` takes the number.
        let status = unsafe { hip_runtime::hipRuntimeGetVersion(&mut version) };
        ok(status, version as u32)
    }

    fn node_count(&self, graph: Graph) -> Option<usize> {
        let mut len = 0;
        // SAFETY: rule of answers: with a null array only `len` is written. Rule of the program's
        // handles: the graph is alive.
        let status = unsafe { hip_runtime::hipGraphGetNodes(graph, null_mut(), &mut len) };
        ok(status, len)
    }

    fn nodes(&self, graph: Graph, nodes: &mut [GraphNode]) -> Option<usize> {
        let mut len = nodes.len();
        // SAFETY: rule of answers: `len` is the length of `nodes`, and no more handles than that
        // are written. Rule of the program's handles: the graph is alive.
        let status = unsafe { hip_runtime::hipGraphGetNodes(graph, nodes.as_mut_ptr(), &mut len) };
        ok(status, len.min(nodes.len()))
    }

    fn node_kind(&self, node: GraphNode) -> Option<(NodeKind, Option<Graph>)> {
        let mut kind = 0;
        // SAFETY: rule of answers: `kind` takes the number. The node is one of a graph that is
        // alive, as the caller has just listed it.
        ok(unsafe { hip_runtime::hipGraphNodeGetType(node, &mut kind) }, ())?;
        let kind = kind_numbered(kind, counts_from_one());
        let mut child: Graph = null_mut();
        let inside = match kind {
            NodeKind::Child => {
                // SAFETY: rule of answers: `child` takes the handle. HIP has just said that the
                // node is a child graph node.
                ok(unsafe { hip_runtime::hipGraphChildGraphNodeGetGraph(node, &mut child) }, ()).map(|()| child)
            }
            _ => None,
        };
        Some((kind, inside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each `hipGraphNodeType…` of each release that `known_hip.txt` has.
    #[test]
    fn kinds_of_nodes_are_those_of_the_headers() {
        let kinds = [
            ("Kernel", NodeKind::Kernel),
            ("Memcpy", NodeKind::Memcpy),
            ("Memset", NodeKind::Memset),
            ("Host", NodeKind::Host),
            ("Graph", NodeKind::Child),
            ("Empty", NodeKind::Empty),
            ("WaitEvent", NodeKind::EventWait),
            ("EventRecord", NodeKind::EventRecord),
            ("ExtSemaphoreSignal", NodeKind::SemaphoreSignal),
            ("ExtSemaphoreWait", NodeKind::SemaphoreWait),
            ("MemAlloc", NodeKind::MemAlloc),
            ("MemFree", NodeKind::MemFree),
            ("Memcpy1D", NodeKind::Memcpy),
            ("MemcpyFromSymbol", NodeKind::Memcpy),
            ("MemcpyToSymbol", NodeKind::Memcpy),
            ("BatchMemOp", NodeKind::BatchMemOp),
        ];
        const KIND: &str = "value hipGraphNodeType";
        let mut seen = 0;
        for line in gpumem_abi::KNOWN_HIP.lines().filter(|line| line.starts_with(KIND)) {
            // The count of kinds, which no node has.
            if line.starts_with("value hipGraphNodeTypeCount ") {
                continue;
            }
            let (said, releases) = line.split_once(" : ").expect("the releases");
            let mut words = said.split(' ').skip(1);
            let name = words.next().and_then(|name| name.strip_prefix("hipGraphNodeType")).expect("a name");
            let number = words.next().and_then(|number| number.parse().ok()).expect("a number");
            let kind = kinds.iter().find(|kind| kind.0 == name).unwrap_or_else(|| panic!("a kind for {name}")).1;
            for release in releases.split(' ') {
                assert_eq!(kind_numbered(number, release == "5.2"), kind, "{name} of {release}");
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen}");
    }
}
