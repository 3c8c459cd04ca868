//! libgpumem.so: preloaded into a program, it sees every call to the CUDA and HIP runtimes that
//! takes or gives back memory, and keeps a ledger of what is live, readable from outside.
//!
//! A call comes in at a door ([`doors`]), meets its hook ([`hooks`]), which calls the real function and has the outcome
//! recorded ([`registry`]) in the process's ledger ([`ledger`]), which the inspector reads. [`progress`] says what the
//! device has done. [`vendor`] asks the real libraries the few questions that recording raises; [`stranded`] recognises
//! call sites that strand memory, [`trace`] writes every allocation down where that is wanted; [`stacks`] says who
//! called; [`gate`] decides whether any of this happens, and contains it.
//!
//! The exported names are those of the rows in `gpumem-abi`, `dlsym`, `dlvsym`, `dlclose`, and the
//! four functions of `gpumem.h`.

#![deny(unreachable_pub)]

mod call;
mod control;
mod doors;
mod gate;
mod graphs;
mod group;
mod hooks;
mod in_force;
mod ledger;
mod newer;
mod pool;
mod process;
mod progress;
mod reclaim;
mod records;
mod references;
mod registry;
mod shim;
mod stacks;
mod start;
mod stranded;
#[doc(hidden)]
pub mod tested;
mod trace;
mod trust;
mod vendor;
