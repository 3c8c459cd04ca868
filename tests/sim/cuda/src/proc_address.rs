//! Start-up: versions, error texts, and cuGetProcAddress.

use crate::abi::{Out, Row, Text};
use gpumem_sim_engine::config::{Checkpoints, config};
use gpumem_sim_engine::error::NAMES;
use gpumem_sim_engine::{Error, Result, lifecycle};

const FOUND: u32 = 0;
const NO_SYMBOL: u32 = 1;
const NEEDS_NEWER: u32 = 2;
const PER_THREAD_FLAG: u64 = 2;

/// The newest symbol of that name that the version knows; with flag 2 its
/// per-thread twin if it has one.
fn lookup(base: &str, version: u32, flags: u64) -> std::result::Result<&'static Row, u32> {
    let best = |per_thread: bool| {
        let rows = crate::tables().filter(|r| r.base == base && r.per_thread == per_thread);
        rows.filter(|r| r.since <= version).max_by_key(|r| r.since)
    };
    let twin = if flags & PER_THREAD_FLAG != 0 { best(true) } else { None };
    match twin.or_else(|| best(false)) {
        Some(row) => Ok(row),
        None if crate::tables().any(|r| r.base == base) => Err(NEEDS_NEWER),
        None => Err(NO_SYMBOL),
    }
}

fn answer(symbol: Text, out: Out<usize>, version: i32, flags: u64, status: Out<u32>) -> Result {
    let name = symbol.get()?;
    out.need()?;
    // Not found is no error; a version newer than the driver's is.
    if flags & !3 != 0 || version > config().driver_version as i32 {
        return Err(Error::INVALID_VALUE);
    }
    let found = match config().checkpoints {
        Checkpoints::Absent if name.starts_with("cuCheckpoint") => Err(NO_SYMBOL),
        _ => lookup(&name, version.max(0) as u32, flags),
    };
    match found {
        Ok(row) => {
            status.put(FOUND);
            out.set((row.address)())
        }
        Err(why) => {
            status.put(why);
            out.set(0)
        }
    }
}

fn name_of(code: u32) -> Result<usize> {
    let found = NAMES.iter().find(|(c, _)| *c == code);
    found.map(|(_, n)| n.as_ptr() as usize).ok_or(Error::INVALID_VALUE)
}

cu! {
    Any cuInit [cuInit 2000] [] (c, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        lifecycle::init()
    }
    Any cuDriverGetVersion [cuDriverGetVersion 2020] [] (c, out: Out<i32>) {
        out.set(config().driver_version as i32)
    }
    Any cuGetProcAddress [cuGetProcAddress_v2 12000] []
    (c, symbol: Text, out: Out<usize>, version: i32, flags: u64, status: Out<u32>) {
        answer(symbol, out, version, flags, status)
    }
    Any cuGetProcAddress [cuGetProcAddress 11030] []
    (c, symbol: Text, out: Out<usize>, version: i32, flags: u64) {
        answer(symbol, out, version, flags, Out::at(0))
    }
    /// Private tables are not simulated.
    Any cuGetExportTable [cuGetExportTable 3000] [] (c, out: Out<usize>, id: usize) {
        let _ = id;
        out.put(0);
        Err(Error::NOT_FOUND)
    }
    Any cuGetErrorName [cuGetErrorName 6000] [] (c, code: u32, out: Out<usize>) {
        out.put(0);
        out.set(name_of(code)?)
    }
    Any cuGetErrorString [cuGetErrorString 6000] [] (c, code: u32, out: Out<usize>) {
        out.put(0);
        out.set(name_of(code)?)
    }
    Any cuProfilerStart [cuProfilerStart 4000] [] (c) { Ok(()) }
    Any cuProfilerStop [cuProfilerStop 4000] [] (c) { Ok(()) }
}
