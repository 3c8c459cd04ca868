//! Records memory that processes share: allocations exported here, and allocations of other processes opened here.
//!
//! A row names its allocation by a hash of the handle, which a reader compares with the rows of other ledgers. The
//! handle itself opens the memory, so it is written nowhere.
//!
//! Exporting an allocation twice gives the same handle, byte for byte (`tests/programs/ipc.c` checks it on GPUs and on
//! the simulator), also by an address inside of it (an H200 with driver 580, docs/decisions/drivers.md). PyTorch relies
//! on the first: it looks up what it has opened by the bytes of the handle (`ipcMemHandle_to_devptr` in
//! c10/cuda/CUDACachingAllocator.cpp). So an allocation usually has one row, and the hash covers exactly the bytes that
//! the other process passes in. A block of the pool is one driver allocation, and has that allocation's handle.
//!
//! Frees pay nothing for it. A row has the serial of the allocation's record. If that record is gone, the exported
//! allocation was freed.

use super::allocations::{self, Request};
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::process::lock::lock;
use crate::records::registry::live::Class;
use crate::records::registry::shared::{Row, Shared};
use crate::shim::Shim;
use gpumem_abi::types::{IpcMemHandle, Status};
use gpumem_wire::kinds::SharedKind;
use gpumem_wire::layout::{AllocSlot, ContextRef, SharedSlot};
use sha2::{Digest, Sha256};

/// Returns the allocation's name for other processes: half of SHA-256 of its handle.
fn hash(handle: &IpcMemHandle) -> [u8; 16] {
    let all = Sha256::digest(handle.reserved);
    std::array::from_fn(|at| all[at])
}

/// Records the export of the allocation at `record`. `around`: its beginning and length, as the driver has them.
pub(crate) fn exported(shim: &Shim, handle: &IpcMemHandle, record: u32, around: Option<(u64, u64)>) {
    add(shim, SharedKind::Exported, hash(handle), record, around.map(|(_, bytes)| bytes));
}

/// Records that another process's memory was opened at an address. If another thread has closed it meanwhile, it gets
/// no record.
pub(crate) fn imported(shim: &Shim, handle: &IpcMemHandle, class: Class, addr: u64) {
    if let Some(entry) = shim.registry.allocations.get(class, addr) {
        add(shim, SharedKind::Imported, hash(handle), entry.slot, None);
    }
}

fn add(shim: &Shim, kind: SharedKind, hash: [u8; 16], record: u32, bytes: Option<u64>) {
    if record == NO_SLOT {
        return;
    }
    let Some(of) = shim.ledger.allocs.read_if_whole(record) else { return };
    let AllocSlot { addr, serial, stack, context, .. } = of;
    let mut inner = lock(&shim.registry.shared);
    if inner.rows.iter().any(|row| (row.kind, row.serial, row.hash) == (kind, serial, hash)) {
        return;
    }
    make_room(shim, &mut inner);
    let (time_ns, kind_number) = (clock::now_ns(), kind as u8);
    let bytes = bytes.unwrap_or(of.bytes);
    let slot =
        SharedSlot { stack, hash, addr, bytes, time_ns, serial, context, kind: kind_number, ..Default::default() };
    let place = shim.place(&shim.ledger.shared, slot);
    if place != NO_SLOT {
        inner.rows.push(Row { place, kind, hash, addr, context, record, serial });
    }
}

/// Makes room for a row in a full table: removes closed rows, then the older half of freed ones.
#[inline]
fn make_room(shim: &Shim, inner: &mut Shared) {
    if (inner.rows.len() as u64) < shim.ledger.shared.capacity() {
        return;
    }
    retain(shim, inner, |row| row.kind == SharedKind::Exported || is_live(shim, row));
    if inner.rows.len() as u64 >= shim.ledger.shared.capacity() {
        let freed = inner.rows.iter().filter(|row| !is_live(shim, row)).count();
        let mut leave = freed.div_ceil(2);
        retain(shim, inner, |row| {
            let goes = leave > 0 && !is_live(shim, row);
            leave -= usize::from(goes);
            !goes
        });
    }
}

/// True if a row's allocation has not ended.
fn is_live(shim: &Shim, row: &Row) -> bool {
    shim.ledger.allocs.read_if_whole(row.record).is_some_and(|of| of.serial == row.serial)
}

/// Ends all rows for which `stays` is false.
fn retain(shim: &Shim, inner: &mut Shared, mut stays: impl FnMut(&Row) -> bool) {
    inner.rows.retain(|row| {
        let stays = stays(row);
        if !stays {
            shim.ledger.shared.clear(row.place);
        }
        stays
    });
}

/// Records another process's memory that the program opened. If it is open already, the driver gives the same address
/// and counts how often; it stays one import.
pub(crate) fn opened(shim: &'static Shim, call: &Call, request: &Request, addr: u64) {
    let mut inner = lock(&shim.registry.shared);
    if shim.registry.allocations.get(Class::Import, addr).is_some() {
        *inner.opens.entry(addr).or_default() += 1;
    } else {
        inner.opens.remove(&addr);
        allocations::made(shim, call, request, addr);
    }
}

/// Called before the program closes memory at an address. Returns true if the memory is open more than once, so that it
/// stays open.
pub(crate) fn stays_open(shim: &Shim, addr: u64) -> bool {
    let mut inner = lock(&shim.registry.shared);
    let Some(opens) = inner.opens.get_mut(&addr) else { return false };
    *opens -= 1;
    if *opens == 0 {
        inner.opens.remove(&addr);
    }
    true
}

/// Records that the driver refused to close memory that was to stay open.
pub(crate) fn close_failed(shim: &Shim, addr: u64, status: Status) {
    *lock(&shim.registry.shared).opens.entry(addr).or_default() += 1;
    allocations::free_failed(shim, Class::Import, addr, None, status);
}

/// Records that the program closed memory at an address.
pub(crate) fn closed(shim: &Shim, addr: u64) {
    let mut inner = lock(&shim.registry.shared);
    retain(shim, &mut inner, |row| row.kind != SharedKind::Imported || row.addr != addr || is_live(shim, row));
}

/// Records that a context has ended: its memory can no longer be opened.
pub(crate) fn end_with(shim: &Shim, context: ContextRef) {
    let mut inner = lock(&shim.registry.shared);
    retain(shim, &mut inner, |row| row.context != context);
}
