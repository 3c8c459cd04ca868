//! Events: a point in a stream, or in a capture.

use crate::capture;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::node::Kind;
use crate::queue::Fence;
use crate::stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

pub const DISABLE_TIMING: u32 = 2;
pub const INTERPROCESS: u32 = 4;
const KNOWN_FLAGS: u32 = 7;
/// Flag of record and wait: make a node of it inside a capture.
pub const EXTERNAL: u32 = 1;

pub struct Event {
    pub ctx: H,
    pub flags: u32,
    pub fences: Vec<Fence>,
    /// Nanoseconds of the last record that ran, 0 before.
    pub time: Arc<AtomicU64>,
    /// The capture it was recorded in, and what came before it there.
    pub captured: Option<(u64, Vec<crate::node::Edge>)>,
}

/// Nanoseconds since the simulator's first look at the clock, never 0.
pub fn now_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

pub fn create(ctx: H, flags: u32) -> Result<H> {
    let interprocess_timed = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
    if flags & !KNOWN_FLAGS != 0 || interprocess_timed {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    let (h, ctx) = (m.handles.make("event"), m.owner(ctx));
    let time = Arc::new(AtomicU64::new(0));
    m.events.insert(h, Event { ctx, flags, fences: Vec::new(), time, captured: None });
    Ok(h)
}

pub fn destroy(h: H) -> Result {
    let mut m = lock();
    m.event(h)?;
    m.events.remove(&h);
    m.handles.retire("event", h);
    Ok(())
}

pub fn record(h: H, stream: H, flags: u32) -> Result {
    let mut m = lock();
    m.event(h)?;
    if capture::active(&mut m, stream)? {
        if flags & EXTERNAL != 0 {
            return capture::add(&mut m, stream, Kind::EventRecord(h)).map(drop);
        }
        let s = m.stream(stream)?;
        let captured = s.capture.as_ref().map(|c| (c.capture, c.deps.clone()));
        m.event(h)?.captured = captured;
        return Ok(());
    }
    capture::forbid_implicit(&mut m, stream)?;
    record_outside(&mut m, h, stream)
}

/// Records into a stream that does not capture.
pub fn record_outside(m: &mut Machine, h: H, stream: H) -> Result {
    let time = m.event(h)?.time.clone();
    let s = m.stream(stream)?;
    if !s.blocking() && s.queue.idle() {
        // Nothing is before it, so it has completed at once.
        let fence = s.queue.tail();
        let e = m.event(h)?;
        e.captured = None;
        e.fences = vec![fence];
        e.time.store(now_ns(), SeqCst);
        return Ok(());
    }
    let fence = stream::enqueue(m, stream, Vec::new(), Box::new(move || time.store(now_ns(), SeqCst)))?;
    let e = m.event(h)?;
    e.captured = None;
    e.fences = vec![fence];
    Ok(())
}

/// cuCtxRecordEvent: all work of the context so far. While any stream of it
/// captures: 900, and the capture is invalidated (measured on an H200).
pub fn record_context(h: H, ctx: H) -> Result {
    let mut m = lock();
    m.context(ctx).map_err(|_| Error::INVALID_CONTEXT)?;
    capture::forbid_in_context(&mut m, ctx)?;
    let fences = m.context_fences(ctx);
    let e = m.event(h)?;
    e.captured = None;
    e.fences = fences;
    e.time.store(now_ns(), SeqCst);
    Ok(())
}

/// Later work of the stream waits for the event; inside a capture, or with a
/// captured event, this joins the stream to the capture.
pub fn wait(h: H, stream: H, flags: u32) -> Result {
    let mut m = lock();
    m.event(h)?;
    let capturing = capture::active(&mut m, stream)?;
    if capturing && flags & EXTERNAL != 0 {
        return capture::add(&mut m, stream, Kind::EventWait(h)).map(drop);
    }
    let (captured, fences) = {
        let e = m.event(h)?;
        (e.captured.clone(), e.fences.clone())
    };
    match captured {
        Some((id, deps)) => capture::join(&mut m, stream, id, deps),
        None if capturing => {
            // The graph cannot depend on an event from outside the capture.
            capture::invalidate_of(&mut m, stream);
            Err(Error::CAPTURE_ISOLATION)
        }
        None => {
            capture::forbid_implicit(&mut m, stream)?;
            let deps: Vec<Fence> = fences.into_iter().filter(|f| !f.reached()).collect();
            if !deps.is_empty() {
                stream::enqueue(&mut m, stream, deps, Box::new(|| ()))?;
            }
            Ok(())
        }
    }
}

/// cuCtxWaitEvent: all later work of the context waits.
pub fn wait_context(h: H, ctx: H) -> Result {
    let mut m = lock();
    m.context(ctx).map_err(|_| Error::INVALID_CONTEXT)?;
    capture::forbid_in_context(&mut m, ctx)?;
    let fences = m.event(h)?.fences.clone();
    let streams: Vec<H> = m.streams.iter().filter(|(_, s)| s.ctx == ctx).map(|(h, _)| *h).collect();
    for s in streams {
        stream::enqueue(&mut m, s, fences.clone(), Box::new(|| ()))?;
    }
    Ok(())
}

fn forbid_captured(m: &mut Machine, h: H) -> Result {
    let Some((id, _)) = m.event(h)?.captured.clone() else {
        return Ok(());
    };
    if !m.captures.contains_key(&id) {
        // The event's capture has ended. It can be used again only after a new record.
        return Err(Error::INVALID_VALUE);
    }
    capture::invalidate(m, id);
    Err(Error::CAPTURED_EVENT)
}

pub fn query(h: H) -> Result {
    let mut m = lock();
    forbid_captured(&mut m, h)?;
    capture::forbid_unsafe(&mut m)?;
    let e = m.event(h)?;
    let (ctx, done) = (e.ctx, e.fences.iter().all(Fence::reached));
    if let Some(c) = m.contexts.get(&ctx) {
        c.sticky.map_or(Ok(()), Err)?;
    }
    if done { Ok(()) } else { Err(Error::NOT_READY) }
}

pub fn synchronize(h: H) -> Result {
    let (fences, ctx) = {
        let mut m = lock();
        forbid_captured(&mut m, h)?;
        capture::forbid_unsafe(&mut m)?;
        let e = m.event(h)?;
        (e.fences.clone(), e.ctx)
    };
    crate::queue::wait_all(&fences);
    let mut m = lock();
    crate::pool::release_idle(&mut m);
    m.contexts.get(&ctx).and_then(|c| c.sticky).map_or(Ok(()), Err)
}

/// Milliseconds from one record to the other.
pub fn elapsed(start: H, end: H) -> Result<f32> {
    let mut m = lock();
    let mut times = [0u64; 2];
    for (slot, h) in times.iter_mut().zip([start, end]) {
        let e = m.event(h)?;
        if e.flags & DISABLE_TIMING != 0 || e.fences.is_empty() {
            return Err(Error::INVALID_HANDLE);
        }
        if !e.fences.iter().all(Fence::reached) {
            return Err(Error::NOT_READY);
        }
        *slot = e.time.load(SeqCst);
    }
    Ok((times[1] as i64 - times[0] as i64) as f32 / 1e6)
}
