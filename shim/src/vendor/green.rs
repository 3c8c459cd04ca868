//! Green contexts that the program has.

use crate::process::lock::lock;
use gpumem_abi::types::{Context, Device, Stream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// One that the program made.
pub(crate) struct Green {
    pub handle: u64,
    pub device: Device,
    /// What stands for it where a context is asked for, once the program has that.
    pub context: Option<u64>,
    /// Streams that were made for it, by name.
    pub streams: Vec<u64>,
}

/// Those that there are.
pub(crate) static GREENS: Mutex<Vec<Green>> = Mutex::new(Vec::new());
/// There is a context that stands for one.
static CONTEXTS: AtomicBool = AtomicBool::new(false);

/// A context stands for one from now on; the device.
pub(crate) fn stands_for(context: u64, handle: Context) -> Option<Device> {
    CONTEXTS.store(true, Relaxed);
    with(handle, |green| {
        green.context = Some(context);
        green.device
    })
}

/// Whether a context stands for a green one: its execs live on when it has ended, and no other can be made of their
/// graphs then.
pub(crate) fn is_one(context: u64) -> bool {
    CONTEXTS.load(Relaxed) && lock(&GREENS).iter().any(|green| green.context == Some(context))
}

/// Does something with one that the program has.
pub(crate) fn with<R>(handle: Context, f: impl FnOnce(&mut Green) -> R) -> Option<R> {
    lock(&GREENS).iter_mut().find(|green| green.handle == handle as u64).map(f)
}

/// A stream is gone, whose ever it was.
pub(crate) fn stream_gone(stream: Stream) {
    for green in lock(&GREENS).iter_mut() {
        green.streams.retain(|&its| its != stream as u64);
    }
}
