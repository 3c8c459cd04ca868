//! The HIP runtime.

use super::answer::{done, told};
use super::both::{answers, exchange};
use super::hip_runtime;
use super::{ACTIVE, Backend, DeviceInfo, PER_THREAD, buffer};
use crate::process::cancel::Uncancelled;
use gpumem_abi::types::*;
use gpumem_wire::kinds::NodeKind;
use once_cell::race::OnceBool;
use std::cell::Cell;
use std::ptr::{null, null_mut};

pub(super) struct Hip;

exchange!(hip_runtime::hipThreadExchangeStreamCaptureMode);

/// Returns the number that stands for a device's context: the device's number plus one. HIP programs work with devices.
pub(crate) fn context_of(device: Device) -> u64 {
    device as u64 + 1
}

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

/// Returns the kind of a `hipGraphNodeType` of this release.
fn kind_of(number: i32) -> NodeKind {
    kind_numbered(number, counts_from_one())
}

impl Backend for Hip {
    // 16: `hipDeviceAttributeIntegrated`.
    answers!(
        hip_runtime: hipGetDevice, hipDeviceGetName, hipDeviceGetUuid, hipDeviceTotalMem, hipDeviceGetAttribute(16),
        hipMemGetAddressRange, hipStreamGetCaptureInfo_v2, hipRuntimeGetVersion, hipGraphGetNodes, hipGraphNodeGetType,
        hipGraphChildGraphNodeGetGraph; kind_of
    );

    fn current_context(&self) -> Option<u64> {
        self.current_device().map(context_of)
    }

    // No `memory_info`: HIP's answer to it synchronises on some releases, so only the program's own queries are used.
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
