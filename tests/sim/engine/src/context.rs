//! Contexts: primary and created, the stack of each thread, reset.

use crate::config::config;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::launch::LOCAL_AT_FIRST;
use crate::machine::{Machine, lock};
use crate::queue::{Fence, wait_all};
use crate::report;
use crate::stream::Stream;
use std::collections::HashMap;
use std::time::Duration;

pub struct Context {
    pub device: u32,
    pub flags: u32,
    /// Retains of a primary context; 1 for a created one.
    pub refs: u32,
    pub primary: bool,
    /// For a green context: its primary context. 0: this is not a green context.
    pub parent: H,
    pub active: bool,
    /// Everything in it is gone, but its end is not over yet.
    pub ending: bool,
    /// It was reset after a fault, and stays destroyed.
    pub dead: bool,
    /// The error of a fault on the device. Every later call gives it.
    pub sticky: Option<Error>,
    pub legacy: H,
    pub per_thread: HashMap<u64, H>,
    /// Work of streams that were destroyed while it ran.
    pub orphans: Vec<Fence>,
    pub id: u64,
    pub limits: HashMap<u32, usize>,
    /// Device bytes of its threads' stacks beyond those of its beginning, and of its streams.
    pub stacks: u64,
    /// Most bytes of local memory that a thread of a kernel had that was launched here.
    pub local: u32,
    pub peers: Vec<H>,
}

impl Context {
    /// A primary context that nobody retained yet.
    pub fn unborn(_h: H, device: u32) -> Context {
        Context {
            device,
            flags: 0,
            refs: 0,
            primary: true,
            parent: 0,
            active: false,
            ending: false,
            dead: false,
            sticky: None,
            legacy: 0,
            per_thread: HashMap::new(),
            orphans: Vec::new(),
            id: 0,
            limits: HashMap::new(),
            stacks: 0,
            local: LOCAL_AT_FIRST,
            peers: Vec::new(),
        }
    }
}

fn activate(m: &mut Machine, h: H) -> Result {
    let device = m.context(h)?.device;
    m.charge(device, config().context_mem)?;
    let legacy = Stream::add(m, h, 0, 0, true);
    let id = m.id();
    let c = m.context(h)?;
    c.active = true;
    c.sticky = None;
    c.legacy = legacy;
    c.id = id;
    Ok(())
}

fn check_device(m: &Machine, device: i32) -> Result<u32> {
    if device < 0 || device as usize >= m.devices.len() {
        return Err(Error::INVALID_DEVICE);
    }
    Ok(device as u32)
}

pub fn retain_primary(device: i32) -> Result<H> {
    let mut m = lock();
    let device = check_device(&m, device)?;
    let h = m.devices[device as usize].primary;
    while m.context(h)?.ending {
        drop(m);
        std::thread::sleep(Duration::from_micros(20));
        m = lock();
    }
    if !m.context(h)?.active {
        activate(&mut m, h)?;
    }
    m.context(h)?.refs += 1;
    Ok(h)
}

pub fn release_primary(device: i32) -> Result {
    let (h, last) = {
        let mut m = lock();
        let device = check_device(&m, device)?;
        let h = m.devices[device as usize].primary;
        let c = m.context(h)?;
        if c.refs == 0 {
            return Err(Error::INVALID_CONTEXT);
        }
        c.refs -= 1;
        // A thread that retains it from now on gets the next one.
        c.ending = c.refs == 0;
        (h, c.ending)
    };
    if last { tear_down(h) } else { Ok(()) }
}

/// Destroys everything in the primary context at once, whoever retained it.
pub fn reset_primary(device: i32) -> Result {
    let h = {
        let mut m = lock();
        let device = check_device(&m, device)?;
        let h = m.devices[device as usize].primary;
        if !m.context(h)?.active {
            return Ok(());
        }
        h
    };
    tear_down(h)
}

/// `(flags, active)`.
pub fn primary_state(device: i32) -> Result<(u32, bool)> {
    let mut m = lock();
    let device = check_device(&m, device)?;
    let h = m.devices[device as usize].primary;
    let c = m.context(h)?;
    Ok((c.flags, c.active))
}

pub fn set_primary_flags(device: i32, flags: u32) -> Result {
    let mut m = lock();
    let device = check_device(&m, device)?;
    let h = m.devices[device as usize].primary;
    m.context(h)?.flags = flags;
    Ok(())
}

/// A new context, made current.
pub fn create(device: i32, flags: u32) -> Result<H> {
    let mut m = lock();
    let device = check_device(&m, device)?;
    let h = m.handles.make("context");
    let c = Context { primary: false, flags, refs: 1, ..Context::unborn(h, device) };
    m.contexts.insert(h, c);
    if let Err(e) = activate(&mut m, h) {
        m.contexts.remove(&h);
        return Err(e);
    }
    m.thread().stack.push(h);
    Ok(h)
}

pub fn destroy(h: H) -> Result {
    {
        let mut m = lock();
        let c = m.context(h).map_err(|_| Error::INVALID_CONTEXT)?;
        if c.primary || c.parent != 0 {
            return Err(Error::INVALID_CONTEXT);
        }
    }
    tear_down(h)?;
    let mut m = lock();
    m.contexts.remove(&h);
    m.handles.retire("context", h);
    let t = m.thread();
    if t.stack.last() == Some(&h) {
        t.stack.pop();
    }
    Ok(())
}

/// cuCtxAttach: one more use of the thread's context.
pub fn attach() -> Result<H> {
    let mut m = lock();
    let h = require(&mut m)?;
    m.context(h)?.refs += 1;
    Ok(h)
}

/// One use less of a context that somebody made; the last ends it.
pub fn detach(h: H) -> Result {
    {
        let mut m = lock();
        let c = m.context(h).map_err(|_| Error::INVALID_CONTEXT)?;
        if c.refs > 1 && !c.primary {
            c.refs -= 1;
            return Ok(());
        }
    }
    destroy(h)
}

/// Waits for all work of the context, then destroys all that lives in it.
fn tear_down(h: H) -> Result {
    let fences = lock().context_fences(h);
    wait_all(&fences);
    let mut m = lock();
    let device = m.context(h)?.device;
    crate::green::end_all_of(&mut m, h);
    crate::memory::drop_context(&mut m, h);
    let streams: Vec<H> = m.streams.iter().filter(|(_, s)| s.ctx == h).map(|(h, _)| *h).collect();
    for s in streams {
        m.streams.remove(&s).iter().for_each(|stream| stream.queue.close());
        m.handles.retire("stream", s);
    }
    m.events.retain(|_, e| e.ctx != h);
    let modules: Vec<H> = m.modules.iter().filter(|(_, x)| x.ctx == h).map(|(h, _)| *h).collect();
    for module in modules {
        crate::module::drop_module(&mut m, module);
    }
    let execs: Vec<H> = m.execs.iter().filter(|(_, x)| x.ctx == h).map(|(h, _)| *h).collect();
    for exec in execs {
        crate::exec::drop_exec(&mut m, exec);
    }
    m.context(h)?.ending = true;
    drop(m);
    std::thread::sleep(Duration::from_micros(config().end_us));
    let mut m = lock();
    let c = m.context(h)?;
    c.ending = false;
    let (was, stacks) = (std::mem::replace(&mut c.active, false), std::mem::take(&mut c.stacks));
    (c.refs, c.local) = (0, LOCAL_AT_FIRST);
    if c.sticky.take().is_some() {
        // It cannot be made again in this process.
        c.dead = true;
    }
    c.per_thread.clear();
    c.orphans.clear();
    if was {
        m.refund(device, config().context_mem + stacks);
    }
    Ok(())
}

pub fn current() -> Option<H> {
    lock().thread().stack.last().copied()
}

/// Replaces the top of the thread's stack; 0 takes it away.
pub fn set_current(h: H) -> Result {
    let mut m = lock();
    if h != 0 && !m.contexts.contains_key(&h) {
        m.missing("context", h);
        return Err(Error::INVALID_CONTEXT);
    }
    let stack = &mut m.thread().stack;
    stack.pop();
    if h != 0 {
        stack.push(h);
    }
    Ok(())
}

pub fn push(h: H) -> Result {
    let mut m = lock();
    if !m.contexts.contains_key(&h) {
        m.missing("context", h);
        return Err(Error::INVALID_CONTEXT);
    }
    m.thread().stack.push(h);
    Ok(())
}

pub fn pop() -> Result<H> {
    lock().thread().stack.pop().ok_or(Error::INVALID_CONTEXT)
}

/// The thread's context, usable: alive, and without a sticky error.
pub fn require(m: &mut Machine) -> Result<H> {
    let h = m.thread().stack.last().copied().ok_or(Error::INVALID_CONTEXT)?;
    match m.contexts.get(&h) {
        None => {
            m.missing("context", h);
            Err(Error::CONTEXT_IS_DESTROYED)
        }
        Some(c) if c.ending => {
            report::violation("dead_handle", &format!("context {h:#x} is being destroyed"));
            Err(Error::CONTEXT_IS_DESTROYED)
        }
        Some(c) if !c.active || c.dead => Err(Error::CONTEXT_IS_DESTROYED),
        Some(c) => c.sticky.map_or(Ok(h), Err),
    }
}

/// The sticky error of the thread's context, if it has both.
pub fn check_current(m: &mut Machine) -> Result {
    match m.thread().stack.last().copied() {
        Some(h) => m.contexts.get(&h).and_then(|c| c.sticky).map_or(Ok(()), Err),
        None => Ok(()),
    }
}

/// The sticky error of a context.
pub fn check(m: &mut Machine, h: H) -> Result {
    m.contexts.get(&h).and_then(|c| c.sticky).map_or(Ok(()), Err)
}

/// Waits for everything in the context. Gives 900 and invalidates if any
/// stream of it captures, relaxed mode too (measured on an H200).
pub fn synchronize(h: H) -> Result {
    let fences = {
        let mut m = lock();
        crate::capture::forbid_in_context(&mut m, h)?;
        m.context_fences(h)
    };
    crate::memory::count_wait(&fences);
    wait_all(&fences);
    let mut m = lock();
    crate::pool::waited(&mut m, |freed| freed.ctx == h);
    crate::pool::release_idle(&mut m);
    let c = m.context(h)?;
    c.orphans.retain(|f| !f.reached());
    c.sticky.map_or(Ok(()), Err)
}
