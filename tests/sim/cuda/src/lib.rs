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
mod checkpoint;
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

/// The allocator of the simulator, which says so if it finds no memory.
#[global_allocator]
static HEAP: gpumem_sim_engine::heap::Heap = gpumem_sim_engine::heap::Heap;

/// All rows, by noun.
fn tables() -> impl Iterator<Item = &'static abi::Row> {
    [
        arrays::ROWS,
        checkpoint::ROWS,
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

gpumem_sim_engine::test_functions!(tables, |_| None);
