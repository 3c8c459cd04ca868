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
//! Differences from CUDA follow ROCm 6's headers and sources;
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

/// The allocator of the simulator, which says so if it finds no memory.
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

gpumem_sim_engine::test_functions!(tables, |name| (name == "graph_arguments").then(exec::arguments));
