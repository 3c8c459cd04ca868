//! Answers to questions about memory, as if there were no pool: an idle block counts as freed memory, and a live block
//! is as large as the program asked for.

use super::block::{Block, FRONTED, State};
use super::watcher::NewWatcher;
use super::{of, of_limited};
use crate::call::Call;
use crate::gate;
use crate::process::errno::KeepErrno;
use crate::records;
use gpumem_abi::types::{DevicePtr, Opaque};
use gpumem_wire::kinds::Vendor;
use std::ffi::c_int;

/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: a new number for each allocation.
const BUFFER_ID: c_int = 7;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`.
const RANGE_START: c_int = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`.
const RANGE_SIZE: c_int = 12;
/// An address at which there is never memory: the driver answers as for freed memory.
pub(crate) const NOWHERE: DevicePtr = 0x10;

/// The memory at an address, as the program sees it.
pub(crate) struct AskedMemory {
    /// The address to ask the real function about.
    pub ptr: DevicePtr,
    block: Option<&'static Block>,
}

/// Looks up the address of a question.
#[inline]
pub(crate) fn about(vendor: Vendor, ptr: DevicePtr) -> AskedMemory {
    let block = of(vendor).and_then(|pool| pool.releaser.blocks().around(ptr));
    match block {
        // The address is in freed memory, or beyond the end of the program's part.
        Some(block) if block.is(State::Idle) || (ptr != block.addr() && ptr - block.addr() >= block.asked()) => {
            AskedMemory { ptr: NOWHERE, block: None }
        }
        block => AskedMemory { ptr, block },
    }
}

impl AskedMemory {
    /// Returns the bytes of the allocation if the real answer would differ.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let block = self.block.filter(|block| block.is(State::Live))?;
        let asked = block.asked();
        (asked != block.bytes()).then_some(asked as usize)
    }

    /// Returns the start of the allocation for the program if the real answer would differ.
    pub(crate) fn start(&self) -> Option<DevicePtr> {
        let block = self.block.filter(|block| block.has(FRONTED))?;
        Some(block.addr())
    }

    /// Returns true if the program may not share the allocation with other processes. They would find what is
    /// in front of it.
    pub(crate) fn may_not_be_shown(&self) -> bool {
        self.start().is_some()
    }

    /// Corrects the real function's answer about one attribute.
    ///
    /// # Safety
    /// The real function has filled `data` for this attribute, and succeeded.
    pub(crate) unsafe fn answered(&self, attribute: c_int, data: Opaque) {
        match attribute {
            RANGE_SIZE => {
                if let (Some(bytes), false) = (self.bytes(), data.is_null()) {
                    // SAFETY: not null, and our caller vouches that the real function has filled
                    // `data` for this attribute. RANGE_SIZE is a `size_t`.
                    unsafe { data.cast::<usize>().write_unaligned(bytes) }
                }
            }
            RANGE_START => {
                if let (Some(start), false) = (self.start(), data.is_null()) {
                    // SAFETY: not null, and our caller vouches that the real function has filled `data` for this
                    // attribute. RANGE_START_ADDR is an address.
                    unsafe { data.cast::<DevicePtr>().write_unaligned(start) }
                }
            }
            // The program keeps data under this number, so the next allocation at the address needs another number.
            BUFFER_ID => {
                if let Some(block) = self.block {
                    block.pin();
                }
            }
            _ => {}
        }
    }
}

/// Returns free and total bytes for the program. Idle blocks that can go back now count as free, and the quota counts
/// as the size of the device.
pub(crate) fn memory_info(call: &Call, watcher: NewWatcher, free: &mut usize, total: &mut usize) {
    let Some(pool) = of_limited(call.vendor, watcher) else { return };
    gate::note(|shim| {
        let Some(context_pool) = pool.context_pool_of_thread(shim) else { return };
        let _errno = KeepErrno::new();
        let idle = pool.releaser.idle().to_be_had_on(context_pool.device);
        let stays = pool.idle_on(context_pool.device).saturating_sub(idle) as usize;
        let limit = pool.quota.limit() as usize;
        let watched = pool.releaser.watcher().map_or(0, |watcher| watcher.taken());
        *free = (*free + idle as usize + watched as usize).min(*total);
        if limit != 0 {
            let live = records::pooled::live_on(shim, call.vendor, context_pool.device) as usize;
            *total = (*total).min(limit);
            *free = (*free).min(limit.saturating_sub(live + stays));
        }
        if let (Some(group), Some(place)) = (&shim.group, records::grouped::place(shim, context_pool.record())) {
            let used = group.used(&place);
            let (all, limit) = (used.all.saturating_sub(idle) as usize, used.limit as usize);
            *total = (*total).min(limit);
            *free = (*free).min(limit.saturating_sub(all));
        }
    });
}
