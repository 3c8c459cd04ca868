//! A simulated `libcuda.so.1`: the driver's ABI over `gpumem-sim-engine`.
//!
//! One table row per function (see [`abi`]): the exported symbol, what
//! cuGetProcAddress answers, call counting and fault injection all come from
//! it. Bodies are safe code; pointers from the program are read and written by
//! [`abi`]'s types alone.

#[macro_use]
mod abi;
mod structs;

mod arrays;
mod contexts;
mod copies;
mod devices;
mod events;
mod exec;
mod graphs;
mod ipc;
mod launches;
mod memory;
mod modules;
mod newer;
mod nodes;
mod pools;
mod proc_address;
mod ranges;
mod streams;
mod vmm;

/// Whoever finds no memory here is the simulator, and says so.
#[global_allocator]
static HEAP: gpumem_sim_engine::heap::Heap = gpumem_sim_engine::heap::Heap;

/// All rows, by noun.
fn tables() -> impl Iterator<Item = &'static abi::Row> {
    [
        arrays::ROWS,
        contexts::ROWS,
        copies::ROWS,
        devices::ROWS,
        events::ROWS,
        exec::ROWS,
        graphs::ROWS,
        ipc::ROWS,
        launches::ROWS,
        memory::ROWS,
        modules::ROWS,
        newer::ROWS,
        nodes::ROWS,
        pools::ROWS,
        proc_address::ROWS,
        ranges::ROWS,
        streams::ROWS,
        vmm::ROWS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// For tests: how many violations there were in this process.
#[unsafe(no_mangle)]
pub extern "C" fn sim_violations() -> u64 {
    gpumem_sim_engine::report::violations()
}

/// For tests: a number by name. The name of a driver function gives its calls
/// (`cuMemAlloc_v2`), others are listed in the engine's `machine::stat`;
/// unknown names give 0.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sim_stat(name: *const std::ffi::c_char) -> u64 {
    let Ok(name) = abi::Text(name).get() else {
        return 0;
    };
    if let Some(row) = tables().find(|r| r.name == name) {
        return row.calls();
    }
    if name == "driver_calls" {
        return tables().map(|r| r.calls()).sum();
    }
    use gpumem_sim_engine::{machine, report};
    machine::stat(&name).unwrap_or_else(|| report::counted(&name))
}

/// For tests: an allocation of the program has returned. See the engine's `note`.
#[unsafe(no_mangle)]
pub extern "C" fn sim_note_alloc(ptr: u64, bytes: u64) {
    gpumem_sim_engine::note::alloc(ptr, bytes);
}

/// For tests: the program is about to free this.
#[unsafe(no_mangle)]
pub extern "C" fn sim_note_free(ptr: u64) {
    gpumem_sim_engine::note::free(ptr);
}

/// For tests: that free has returned `status`; `strict` if it has cuMemFree's barrier.
#[unsafe(no_mangle)]
pub extern "C" fn sim_note_freed(ptr: u64, status: u32, strict: i32) {
    gpumem_sim_engine::note::freed(ptr, status, strict != 0);
}
