//! Green contexts: a share of a device's units for its primary context, which each of them holds.
//!
//! After NVIDIA's reference (CUDA driver API, Green Contexts) and an H200 (driver 580): memory, modules, events and
//! execs of such a context are the primary one's; its streams answer 709 once it is gone, their destruction too.

use crate::capture;
use crate::context::{self, Context};
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::queue::wait_all;
use crate::stream::{NON_BLOCKING, Stream};

/// The only flag: a default stream of its own.
const DEFAULT_STREAM: u32 = 1;

pub struct Green {
    pub device: u32,
    /// The context that stands for it and can be made current.
    pub ctx: H,
}

/// A green context, which holds the primary context of its device. Its units are ignored.
pub fn create(desc: usize, device: i32, flags: u32) -> Result<H> {
    if desc == 0 || flags & !DEFAULT_STREAM != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let parent = context::retain_primary(device)?;
    let mut m = lock();
    let (ctx, device) = (m.handles.make("context"), device as u32);
    let c = Context { primary: false, active: true, parent, ..Context::unborn(ctx, device) };
    m.contexts.insert(ctx, c);
    let (legacy, id) = (Stream::add(&mut m, ctx, 0, 0, true), m.id());
    let c = m.context(ctx)?;
    (c.legacy, c.id) = (legacy, id);
    let h = m.handles.make("green context");
    m.greens.insert(h, Green { device, ctx });
    Ok(h)
}

/// The context that stands for it; it is the same each time.
pub fn context(h: H) -> Result<H> {
    Ok(find(&mut lock(), h)?.ctx)
}

fn find(m: &mut Machine, h: H) -> Result<&Green> {
    if !m.greens.contains_key(&h) {
        m.missing("green context", h);
        return Err(Error::INVALID_CONTEXT);
    }
    m.greens.get(&h).ok_or(Error::INVALID_CONTEXT)
}

pub fn create_stream(h: H, flags: u32, priority: i32) -> Result<H> {
    let ctx = context(h)?;
    if flags & NON_BLOCKING == 0 {
        return Err(Error::INVALID_VALUE);
    }
    crate::stream::create(ctx, flags, priority)
}

/// Releases the primary context, to which the green context's execs belong from now on. Captures of its streams become
/// invalid.
pub fn destroy(h: H) -> Result {
    let (ctx, fences) = {
        let mut m = lock();
        let ctx = find(&mut m, h)?.ctx;
        (ctx, m.context_fences(ctx))
    };
    wait_all(&fences);
    let mut m = lock();
    let device = find(&mut m, h)?.device;
    m.greens.remove(&h);
    m.handles.retire("green context", h);
    end_context(&mut m, ctx);
    drop(m);
    context::release_primary(device as i32)
}

fn end_context(m: &mut Machine, ctx: H) {
    let streams: Vec<(H, bool)> =
        m.streams.iter().filter(|(_, s)| s.ctx == ctx).map(|(h, s)| (*h, s.builtin)).collect();
    for (h, builtin) in streams {
        capture::leave(m, h);
        m.streams.remove(&h).iter().for_each(|stream| stream.queue.close());
        if !builtin {
            m.detached.insert(h);
        }
    }
    let parent = m.owner(ctx);
    m.execs.values_mut().filter(|e| e.ctx == ctx).for_each(|e| e.ctx = parent);
    m.contexts.remove(&ctx);
    m.handles.retire("context", ctx);
}

/// The primary context ends, and with it its green contexts.
pub fn end_all_of(m: &mut Machine, primary: H) {
    let all: Vec<(H, H)> = m.greens.iter().map(|(h, green)| (*h, green.ctx)).collect();
    for (h, ctx) in all {
        if m.contexts.get(&ctx).is_some_and(|c| c.parent == primary) {
            m.greens.remove(&h);
            m.handles.retire("green context", h);
            end_context(m, ctx);
        }
    }
}

impl Machine {
    /// The context that owns the memory, modules and events that are made in a context.
    pub fn owner(&self, ctx: H) -> H {
        self.contexts.get(&ctx).map(|c| c.parent).filter(|&parent| parent != 0).unwrap_or(ctx)
    }
}
