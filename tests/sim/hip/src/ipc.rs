//! Memory of other processes. That of other APIs, and of their pools, is not
//! simulated: as on a device that cannot share it, those calls answer 801.

use crate::abi::{H, Out};
use gpumem_sim_engine::{Error, ipc, lock};

/// Passed by value: 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle([u8; 64]);

hip! {
    Ctx hipIpcGetMemHandle [] (c, out: Out<Handle>, ptr: u64) {
        out.need()?;
        out.set(Handle(ipc::export(ptr)?))
    }
    Ctx hipIpcOpenMemHandle [] (c, out: Out<u64>, key: Handle, flags: u32) {
        if flags != 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(ipc::open(c.ctx, key.0)?)
    }
    Ctx hipIpcCloseMemHandle [] (c, ptr: u64) { ipc::close(ptr) }
    Ctx hipMemPoolExportPointer [] (c, out: Out<[u64; 8]>, ptr: u64) {
        out.need()?;
        out.set(gpumem_sim_engine::pool::export_pointer(ptr)?)
    }
    Ctx hipMemPoolImportPointer [] (c, out: Out<u64>, pool: H, data: usize) {
        out.need()?;
        lock().pool(pool)?;
        if data == 0 { Err(Error::INVALID_VALUE) } else { Err(Error::NOT_SUPPORTED) }
    }
    Ctx hipImportExternalMemory [] (c, out: Out<H>, desc: usize) {
        out.need()?;
        if desc == 0 { Err(Error::INVALID_VALUE) } else { Err(Error::NOT_SUPPORTED) }
    }
    /// No such handle exists that could be released or queried.
    Ctx hipDestroyExternalMemory [] (c, h: H) {
        let _ = h;
        Err(Error::INVALID_VALUE)
    }
    Ctx hipExternalMemoryGetMappedBuffer [] (c, out: Out<u64>, h: H, desc: usize) {
        let _ = (out, h, desc);
        Err(Error::INVALID_VALUE)
    }
}
