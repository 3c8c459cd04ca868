//! Memory of other processes.

use crate::abi::{H, Out};
use gpumem_sim_engine::{Error, ipc, lock};

/// Passed by value: 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle([u8; 64]);

cu! {
    Init cuIpcGetMemHandle [cuIpcGetMemHandle 4010] [] (c, out: Out<Handle>, ptr: u64) {
        out.need()?;
        out.set(Handle(ipc::export(ptr)?))
    }
    Ctx cuIpcOpenMemHandle [cuIpcOpenMemHandle_v2 11000, cuIpcOpenMemHandle 4010] [] (c, out: Out<u64>, key: Handle, flags: u32) {
        if flags != 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        out.set(ipc::open(c.ctx, key.0)?)
    }
    Ctx cuIpcCloseMemHandle [cuIpcCloseMemHandle 4010] [] (c, ptr: u64) { ipc::close(ptr) }
    /// Events do not cross processes here.
    Init cuIpcGetEventHandle [cuIpcGetEventHandle 4010] [] (c, out: Out<Handle>, h: H) {
        let _ = out.is_null();
        lock().event(h)?;
        Err(Error::NOT_SUPPORTED)
    }
}
