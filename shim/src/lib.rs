//! libgpumem.so is preloaded into a program. It sees every call to CUDA and HIP that takes or frees memory, and keeps a
//! ledger of live memory, which can be read from outside.
//!
//! A call comes in at a door ([`doors`]) and meets its hook ([`hooks`]). The hook calls the real function and has the
//! outcome recorded ([`records`]) in the process's ledger ([`ledger`]), which the inspector reads. [`progress`] tells
//! what the device has done. [`backend`] finds and calls the real libraries. [`stranded`] recognises call sites that
//! strand memory. [`guard`] finds writes outside of allocations and to freed memory. [`trace`] writes down every
//! allocation, if the user wants that. [`stacks`] identifies the caller. [`gate`] decides if any of this happens, and
//! contains panics.
//!
//! The exported names are those of the rows in `gpumem-abi`, `dlsym`, `dlvsym`, `dlclose`, `gpumem_copy`, and the four
//! functions of `gpumem.h`.

#![deny(unreachable_pub)]

mod backend;
mod call;
mod control;
mod doors;
mod freed_graphs;
mod gate;
mod graphs;
mod group;
mod guard;
#[expect(clippy::type_complexity, reason = "the arguments of the vendors' functions")]
mod hooks;
mod in_force;
mod ledger;
mod newer;
mod pool;
mod process;
mod progress;
mod records;
mod references;
mod request;
mod share;
mod shim;
mod stacks;
mod start;
mod stranded;
#[doc(hidden)]
pub mod tested;
mod trace;
mod trust;
