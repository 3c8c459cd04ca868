//! A request for device memory that ran out: the service may park an idle member and so free memory.

use super::ask;
use crate::backend;
use crate::gate;
use crate::progress::queries;
use gpumem_abi::types::{Device, OUT_OF_MEMORY, Status};
use gpumem_wire::kinds::Vendor;
use gpumem_wire::share::{Answer, Ask};

/// Maximum number of times that one request asks for memory of others.
const ROUNDS: u32 = 8;

/// Repeats a call that had no memory as long as the service frees some for it. `device`: where the memory is to lie;
/// `None`: on the device of this thread's context. `bytes`: 0 if unknown. Returns the call's last answer.
pub(crate) fn with_memory_of_others(
    vendor: Vendor,
    device: Option<Device>,
    bytes: u64,
    mut status: Status,
    real: &mut dyn FnMut() -> Status,
) -> Status {
    let mut rounds = 0..ROUNDS;
    while status == OUT_OF_MEMORY && rounds.next().is_some() && is_freed(vendor, device, bytes) {
        status = real();
    }
    status
}

/// Returns true if the service has freed memory. A thread that captures, or whose process does, does not wait: other
/// work would wait for the capture.
fn is_freed(vendor: Vendor, device: Option<Device>, bytes: u64) -> bool {
    let Some(shim) = gate::shim().filter(|shim| shim.settings.share.is_some() && vendor == Vendor::Cuda) else {
        return false;
    };
    let backend = backend::of(vendor);
    let Some(device) = device.or_else(|| backend.current_device()).filter(|_| !queries::capturing()) else {
        return false;
    };
    let short = Ask::Short { pid: std::process::id(), uuid: backend.device_info(device).uuid, bytes };
    ask(shim, short, &|| false) == Some(Answer::Again)
}
