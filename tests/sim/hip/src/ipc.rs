//! Memory of other processes.

use crate::abi::Out;
use gpumem_sim_engine::{Error, ipc};

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
}
