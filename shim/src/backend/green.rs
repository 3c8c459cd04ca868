//! The program's green contexts.

use crate::process::lock::lock;
use gpumem_abi::types::{Context, Device, Stream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A green context that the program made.
pub(crate) struct Green {
    pub handle: u64,
    pub device: Device,
    /// The context that stands for it, once the program has asked for one.
    pub context: Option<u64>,
    /// Streams that were made for it, by name.
    pub streams: Vec<u64>,
}

/// All green contexts of the process.
pub(crate) static GREENS: Mutex<Vec<Green>> = Mutex::new(Vec::new());
/// True if some context stands for a green one.
static CONTEXTS: AtomicBool = AtomicBool::new(false);

/// Notes that a context stands for a green one. Returns the device.
pub(crate) fn stands_for(context: u64, handle: Context) -> Option<Device> {
    CONTEXTS.store(true, Relaxed);
    with(handle, |green| {
        green.context = Some(context);
        green.device
    })
}

/// True if a context stands for a green one. Its execs live on after its end, and then no others can be made of their
/// graphs.
pub(crate) fn is_one(context: u64) -> bool {
    CONTEXTS.load(Relaxed) && lock(&GREENS).iter().any(|green| green.context == Some(context))
}

/// Runs `f` on a green context of the program.
pub(crate) fn with<R>(handle: Context, f: impl FnOnce(&mut Green) -> R) -> Option<R> {
    lock(&GREENS).iter_mut().find(|green| green.handle == handle as u64).map(f)
}

/// Notes that a stream was destroyed, whichever context it belonged to.
pub(crate) fn stream_gone(stream: Stream) {
    for green in lock(&GREENS).iter_mut() {
        green.streams.retain(|&its| its != stream as u64);
    }
}
