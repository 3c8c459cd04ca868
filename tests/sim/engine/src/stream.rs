//! Streams, and how work gets into them or into the graph being captured.

use crate::capture;
use crate::config::config;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::node::Kind;
use crate::queue::{Fence, Op, Queue};
use crate::work;
use std::collections::HashMap;
use std::sync::Arc;

/// The legacy default stream and the per-thread one, as callers name them.
pub const LEGACY: H = 1;
pub const PER_THREAD: H = 2;
pub const NON_BLOCKING: u32 = 1;

pub struct Stream {
    pub ctx: H,
    pub flags: u32,
    pub priority: i32,
    pub id: u64,
    /// One of the two default streams.
    pub builtin: bool,
    pub queue: Arc<Queue>,
    pub capture: Option<Member>,
    pub attrs: HashMap<u32, [u8; 64]>,
    /// The dependency list that was last shown to the program.
    view: (Box<[H]>, Box<[[u8; 8]]>),
}

/// A stream's part in a capture: what its next node depends on.
pub struct Member {
    pub capture: u64,
    pub deps: Vec<(H, [u8; 8])>,
}

impl Stream {
    pub fn add(m: &mut Machine, ctx: H, flags: u32, priority: i32, builtin: bool) -> H {
        let h = m.handles.make("stream");
        let id = m.id();
        let queue = Queue::new();
        let (capture, attrs) = (None, HashMap::new());
        let s = Stream { ctx, flags, priority, id, builtin, queue, capture, attrs, view: Default::default() };
        m.streams.insert(h, s);
        h
    }

    /// Keeps lists where the program may read them; their addresses.
    pub fn keep_view(&mut self, nodes: Vec<H>, edges: Vec<[u8; 8]>) -> (usize, usize) {
        self.view = (nodes.into(), edges.into());
        (self.view.0.as_ptr() as usize, self.view.1.as_ptr() as usize)
    }

    pub fn blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

pub fn create(ctx: H, flags: u32, priority: i32) -> Result<H> {
    if flags & !NON_BLOCKING != 0 {
        return Err(Error::INVALID_VALUE);
    }
    // Highest and lowest priority are -5 and 0, as on an H200; others clamp.
    let mut m = lock();
    let owner = m.owner(ctx);
    let device = m.context(owner)?.device;
    m.charge(device, config().stream_mem)?;
    m.context(owner)?.stacks += config().stream_mem;
    Ok(Stream::add(&mut m, ctx, flags, priority.clamp(-5, 0), false))
}

/// Destroys a stream. Its pending work goes on. The handle is invalid at once.
pub fn destroy(h: H) -> Result {
    let mut m = lock();
    if m.stream(h)?.builtin {
        return Err(Error::INVALID_HANDLE);
    }
    capture::leave(&mut m, h);
    if let Some(s) = m.streams.remove(&h) {
        let tail = s.queue.tail();
        s.queue.close();
        if let Some(c) = m.contexts.get_mut(&s.ctx) {
            c.orphans.retain(|f| !f.reached());
            c.orphans.push(tail);
            c.stacks = c.stacks.saturating_sub(config().stream_mem);
            let device = c.device;
            m.refund(device, config().stream_mem);
        }
        m.handles.retire("stream", h);
    }
    Ok(())
}

/// The stream that a caller means by `h` in context `ctx`; 0 and 1 are the
/// legacy default stream, 2 the calling thread's own.
pub fn resolve(m: &mut Machine, ctx: H, h: H) -> Result<H> {
    match h {
        0 | LEGACY => Ok(m.context(ctx)?.legacy),
        PER_THREAD => {
            let tid = crate::lifecycle::thread_id();
            if let Some(s) = m.context(ctx)?.per_thread.get(&tid) {
                return Ok(*s);
            }
            let s = Stream::add(m, ctx, 0, 0, true);
            m.context(ctx)?.per_thread.insert(tid, s);
            Ok(s)
        }
        h => m.stream(h).map(|_| h),
    }
}

/// Puts an operation at the end of a stream, after whatever the legacy default
/// stream demands. The stream must not capture.
pub fn enqueue(m: &mut Machine, stream: H, mut deps: Vec<Fence>, run: Box<dyn FnOnce() + Send>) -> Result<Fence> {
    let s = m.stream(stream)?;
    let (ctx, blocking, queue) = (s.ctx, s.blocking(), s.queue.clone());
    let legacy = m.context(ctx)?.legacy;
    if stream == legacy {
        let others = m.streams.iter().filter(|(h, s)| **h != legacy && s.ctx == ctx && s.blocking());
        deps.extend(others.map(|(_, s)| s.queue.tail()).filter(|f| !f.reached()));
    } else if blocking {
        deps.extend(m.streams.get(&legacy).map(|s| s.queue.tail()).filter(|f| !f.reached()));
    }
    crate::report::count("submissions", 1);
    Ok(queue.submit(Op { deps, run }))
}

/// Submits one piece of work: a node if the stream captures, else an
/// operation, whose fence is returned.
pub fn submit(m: &mut Machine, stream: H, kind: Kind) -> Result<Option<Fence>> {
    if capture::active(m, stream)? {
        capture::add(m, stream, kind)?;
        return Ok(None);
    }
    capture::forbid_implicit(m, stream)?;
    let ctx = m.stream(stream)?.ctx;
    if let Kind::Kernel(kernel) = &kind {
        m.take_local(ctx, kernel)?;
    }
    let step = work::Step::new(m, kind);
    let running = crate::note::submitted(m, std::slice::from_ref(&step));
    let run = move || {
        work::perform(&step, ctx);
        drop(running);
    };
    enqueue(m, stream, Vec::new(), Box::new(run)).map(Some)
}

/// Submits and waits until it is done. Not allowed while the stream captures.
pub fn submit_and_wait(stream: H, kind: Kind) -> Result {
    let (fence, ctx) = {
        let mut m = lock();
        if capture::active(&mut m, stream)? {
            capture::invalidate_of(&mut m, stream);
            return Err(Error::CAPTURE_UNSUPPORTED);
        }
        capture::forbid_implicit(&mut m, stream)?;
        let ctx = m.stream(stream)?.ctx;
        (submit(&mut m, stream, kind)?, ctx)
    };
    if let Some(fence) = fence {
        fence.wait();
    }
    lock().context(ctx)?.sticky.map_or(Ok(()), Err)
}

pub fn synchronize(stream: H) -> Result {
    let (fence, ctx) = {
        let mut m = lock();
        if capture::active(&mut m, stream)? {
            capture::invalidate_of(&mut m, stream);
            return Err(Error::CAPTURE_UNSUPPORTED);
        }
        capture::forbid_implicit(&mut m, stream)?;
        capture::forbid_unsafe(&mut m)?;
        let s = m.stream(stream)?;
        let (ctx, mut fences) = (s.ctx, vec![s.queue.tail()]);
        // The legacy stream's answer includes the blocking streams before it.
        if m.context(ctx)?.legacy == stream {
            let blocking = m.streams.values().filter(|s| s.ctx == ctx && s.blocking());
            fences.extend(blocking.map(|s| s.queue.tail()));
        }
        (fences, ctx)
    };
    crate::queue::wait_all(&fence);
    let mut m = lock();
    crate::pool::waited(&mut m, |freed| freed.stream == stream);
    crate::pool::release_idle(&mut m);
    m.context(ctx)?.sticky.map_or(Ok(()), Err)
}

/// A stream's flags. While it captures they are refused, and the capture is invalid from then on (H100, driver 580), which
/// the reference does not say. Its priority and its context may be asked for.
pub fn flags(stream: H) -> Result<u32> {
    let mut m = lock();
    if capture::active(&mut m, stream)? {
        capture::invalidate_of(&mut m, stream);
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    Ok(m.stream(stream)?.flags)
}

pub fn query(stream: H) -> Result {
    let mut m = lock();
    if capture::active(&mut m, stream)? {
        capture::invalidate_of(&mut m, stream);
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    capture::forbid_implicit(&mut m, stream)?;
    capture::forbid_unsafe(&mut m)?;
    let s = m.stream(stream)?;
    let (ctx, idle) = (s.ctx, s.queue.idle());
    m.context(ctx)?.sticky.map_or(Ok(()), Err)?;
    if idle { Ok(()) } else { Err(Error::NOT_READY) }
}
