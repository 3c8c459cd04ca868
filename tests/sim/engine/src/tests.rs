//! The rules, each as it was measured on an H200 (driver 580, CUDA 13.0).
//!
//! The machine is one per process and a capture in global mode forbids calls
//! of other threads, so the tests take turns.

use crate::copy::{copy_async, copy_sync, set};
use crate::handle::H;
use crate::launch::{Shape, kernel};
use crate::machine::{lock, stat};
use crate::memory::{alloc, free};
use crate::node::{Attrs, Copy3D, Kernel, Kind, Memset, attr};
use crate::{Error, Result, capture, context, event, exec, graph, lifecycle, memory, module, pool};
use crate::{report, stream, update, user_object, vmm};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const PTX: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry gpumem_fill(.param .u64 p0, .param .u64 p1, .param .u32 p2) { ret; }
.visible .entry gpumem_scale(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3) { ret; }
.visible .entry gpumem_spin(.param .u64 p0, .param .u64 p1) { ret; }
.visible .entry unknown(.param .align 8 .b8 p0[24], .param .u32 p1) { ret; }
";

mod captures;
mod checkpoints;
mod execs;
mod graphs;
mod memory_streams;
mod notes;
mod on_host;

struct Rig {
    _turn: MutexGuard<'static, ()>,
    ctx: H,
    module: H,
    s: H,
}

fn rig() -> Rig {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    lifecycle::init().unwrap();
    // What an earlier test left behind goes.
    context::reset_primary(0).unwrap();
    let ctx = context::retain_primary(0).unwrap();
    context::set_current(ctx).unwrap();
    let module = module::load(ctx, PTX).unwrap();
    let s = stream::create(ctx, stream::NON_BLOCKING, 0).unwrap();
    Rig { _turn: turn, ctx, module, s }
}

/// The packed parameters of a function, which takes no more of the last word than it has room for.
fn block(func: H, words: &[u64]) -> Vec<u8> {
    let bytes = lock().function(func).unwrap().layout.last().map_or(0, |(offset, len)| offset + len);
    words.iter().flat_map(|w| w.to_le_bytes()).take(bytes as usize).collect()
}

impl Rig {
    fn stream(&self, flags: u32) -> H {
        stream::create(self.ctx, flags, 0).unwrap()
    }

    fn legacy(&self) -> H {
        stream::resolve(&mut lock(), self.ctx, 0).unwrap()
    }

    fn kernel(&self, name: &str, words: &[u64]) -> Kernel {
        let func = module::function(self.module, name).unwrap();
        let shape = Shape { func, grid: [1; 3], block: [1; 3], shared: 0, attrs: Attrs::new() };
        kernel(shape, Some(block(func, words)), None).unwrap()
    }

    fn spin(&self, s: H, ms: u64) {
        let k = self.kernel("gpumem_spin", &[ms * 1_000_000, 0]);
        stream::submit(&mut lock(), s, Kind::Kernel(k)).unwrap();
    }

    fn fill(&self, s: H, p: u64, n: u64, value: u64) -> Result {
        let k = self.kernel("gpumem_fill", &[p, n, value]);
        stream::submit(&mut lock(), s, Kind::Kernel(k)).map(drop)
    }

    /// A graph of one kernel per value, captured in a chain.
    fn chain(&self, p: u64, values: &[u64]) -> H {
        let s = self.stream(stream::NON_BLOCKING);
        capture::begin(s, capture::RELAXED, None).unwrap();
        for v in values {
            self.fill(s, p, 16, *v).unwrap();
        }
        capture::end(s).unwrap()
    }

    fn nodes(&self, g: H) -> Vec<H> {
        lock().graph(g).unwrap().nodes.clone()
    }

    fn words(&self, p: u64, n: usize) -> Vec<u32> {
        let mut out = vec![0u32; n];
        let c = Copy3D::linear(out.as_mut_ptr() as u64, p, 4 * n as u64);
        copy_sync(self.legacy(), c).unwrap();
        out
    }
}

fn used() -> u64 {
    lock().devices[0].used
}

fn violations_of(kind: impl FnOnce()) -> u64 {
    let before = report::violations();
    kind();
    report::violations() - before
}
