//! The program's own objects that graphs hold: graphs, their clones, child
//! graphs and execs each hold references, and the destructor runs with the last.

use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::queue::{Fence, Op};
use std::collections::HashMap;

pub struct UserObject {
    pub refs: u32,
    pub destroy: usize,
    pub data: usize,
}

pub fn create(destroy: usize, data: usize, refs: u32) -> Result<H> {
    if destroy == 0 || refs == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    let h = m.handles.make("user object");
    m.user_objects.insert(h, UserObject { refs, destroy, data });
    Ok(h)
}

pub fn retain(h: H, count: u32) -> Result {
    lock().user_objects.get_mut(&h).ok_or(Error::INVALID_VALUE)?.refs += count;
    Ok(())
}

/// Adds a reference to each object that a graph holds.
pub fn retain_all(m: &mut Machine, objects: &HashMap<H, u32>) {
    for (object, count) in objects {
        if let Some(o) = m.user_objects.get_mut(object) {
            o.refs += count;
        }
    }
}

/// Gives up references. When none is left the destructor runs on the driver's thread,
/// after `after` if something may still use the object.
pub fn release(m: &mut Machine, h: H, count: u32, after: Option<Fence>) {
    let Some(o) = m.user_objects.get_mut(&h) else {
        return;
    };
    o.refs = o.refs.saturating_sub(count);
    if o.refs > 0 {
        return;
    }
    let (destroy, data) = (o.destroy, o.data);
    m.user_objects.remove(&h);
    let run = move || {
        // SAFETY: the program gave `destroy` as a CUhostFn and `data` as its argument. It keeps
        // both valid until the call, as the API asks.
        let call: extern "C" fn(usize) = unsafe { std::mem::transmute(destroy) };
        call(data)
    };
    m.callbacks.submit(Op { deps: after.into_iter().collect(), run: Box::new(run) });
}

/// Moves (`transfer`) or adds references to a graph.
pub fn retain_in_graph(graph: H, object: H, count: u32, transfer: bool) -> Result {
    let mut m = lock();
    let o = m.user_objects.get_mut(&object).ok_or(Error::INVALID_VALUE)?;
    if !transfer {
        o.refs += count;
    }
    *m.graph(graph)?.user_objects.entry(object).or_default() += count;
    Ok(())
}

pub fn release_in_graph(graph: H, object: H, count: u32) -> Result {
    let mut m = lock();
    let g = m.graph(graph)?;
    let have = g.user_objects.get_mut(&object).ok_or(Error::INVALID_VALUE)?;
    if *have < count {
        return Err(Error::INVALID_VALUE);
    }
    *have -= count;
    if *have == 0 {
        g.user_objects.remove(&object);
    }
    release(&mut m, object, count, None);
    Ok(())
}
