//! Checkpoints of processes.

use crate::abi::{In, Out};
use gpumem_sim_engine::checkpoint::Request;
use gpumem_sim_engine::checkpoint::client::ask;

/// The beginning of `CUcheckpointLockArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LockArgs {
    /// 0 is for ever.
    timeout_ms: u32,
}

cu! {
    Init cuCheckpointProcessLock [cuCheckpointProcessLock 12080] [] (c, pid: i32, args: In<LockArgs>) {
        let limit = if args.is_null() { 0 } else { args.get()?.timeout_ms };
        ask(pid, Request::Lock(limit)).map(drop)
    }
    Init cuCheckpointProcessCheckpoint [cuCheckpointProcessCheckpoint 12080] [] (c, pid: i32, args: usize) {
        let _ = args;
        ask(pid, Request::Checkpoint).map(drop)
    }
    Init cuCheckpointProcessRestore [cuCheckpointProcessRestore 12080] [] (c, pid: i32, args: usize) {
        let _ = args;
        ask(pid, Request::Restore).map(drop)
    }
    Init cuCheckpointProcessUnlock [cuCheckpointProcessUnlock 12080] [] (c, pid: i32, args: usize) {
        let _ = args;
        ask(pid, Request::Unlock).map(drop)
    }
    Init cuCheckpointProcessGetState [cuCheckpointProcessGetState 12080] [] (c, pid: i32, out: Out<i32>) {
        out.need()?;
        out.set(ask(pid, Request::State)?)
    }
    Init cuCheckpointProcessGetRestoreThreadId [cuCheckpointProcessGetRestoreThreadId 12080] [] (c, pid: i32, out: Out<i32>) {
        out.need()?;
        out.set(ask(pid, Request::RestoreThread)?)
    }
}
