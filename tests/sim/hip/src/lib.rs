//! A simulated `libamdhip64.so.6`: HIP's runtime ABI over `gpumem-sim-engine`.
//!
//! One table row per function (see [`abi`]): the exported symbol, its call
//! count and fault injection come from it. As in the real library, some
//! functions call others by their exported names (see [`reentry`]), and the
//! names carry HIP's symbol versions (`hip.map`).
//!
//! Code objects are PTX text, as the engine reads it: kernels run by name, and
//! those of `kernels/gpumem.ptx` do their work. Anything else is refused.
//!
//! Where HIP differs from CUDA, this follows ROCm 6's headers and sources;
//! no AMD device was at hand to measure.

#[macro_use]
mod abi;
mod structs;

mod arrays;
mod copies;
mod devices;
mod events;
mod exec;
mod graphs;
mod host;
mod ipc;
mod memory;
mod modules;
mod nodes;
mod pools;
mod reentry;
mod streams;
mod vmm;

/// Whoever finds no memory here is the simulator, and says so.
#[global_allocator]
static HEAP: gpumem_sim_engine::heap::Heap = gpumem_sim_engine::heap::Heap;

/// All rows, by noun.
fn tables() -> impl Iterator<Item = &'static abi::Row> {
    [
        arrays::ROWS,
        copies::ROWS,
        devices::ROWS,
        events::ROWS,
        exec::ROWS,
        graphs::ROWS,
        host::ROWS,
        ipc::ROWS,
        memory::ROWS,
        modules::ROWS,
        nodes::ROWS,
        pools::ROWS,
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

/// For tests: a number by name. The name of a HIP function gives its calls,
/// those that the library made itself included; others are listed in the
/// engine's `machine::stat`; unknown names give 0.
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
    if name == "graph_arguments" {
        return exec::arguments();
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
