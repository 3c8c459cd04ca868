//! Copies and memsets as calls: which of them read at once, and which wait.

use crate::capture;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::node::{Copy3D, Kind, Memset, Side, space};
use crate::queue::Fence;
use crate::stream;
use crate::work;
use std::sync::Arc;

fn pageable(m: &Machine, s: &Side) -> bool {
    matches!(s.space, space::HOST | space::UNIFIED) && work::pageable(m, s.at)
}

/// Checks that both ends have memory.
pub fn check(m: &Machine, c: &Copy3D) -> Result {
    for s in [&c.src, &c.dst] {
        let bad = match s.space {
            space::HOST | space::UNIFIED => s.at == 0,
            space::DEVICE => work::pageable(m, s.at),
            space::ARRAY => !m.arrays.contains_key(&(s.at as H)),
            _ => true,
        };
        if bad {
            return Err(Error::INVALID_VALUE);
        }
    }
    work::check(m, &Kind::Memcpy(*c))
}

/// Copies in stream order. Pageable sources are read before this returns and
/// pageable destinations are written before it returns, as the driver does;
/// neither inside a capture.
pub fn copy_async(s: H, c: Copy3D) -> Result {
    if c.width == 0 || c.height == 0 || c.depth == 0 {
        return Ok(());
    }
    let fence = {
        let mut m = lock();
        let capturing = capture::active(&mut m, s)?;
        check(&m, &c)?;
        let linear = c.height == 1 && c.depth == 1 && c.dst.space != space::ARRAY;
        let kind = if !capturing && linear && pageable(&m, &c.src) {
            let from = (c.src.at + c.src.x) as *const u8;
            // SAFETY: `check` found no device range at fault, and the source is host memory. The
            // program vouches that `width` bytes of it are readable during this call, as for a real
            // copy.
            let bytes = unsafe { std::slice::from_raw_parts(from, c.width as usize) };
            Kind::Staged { dst: c.dst.at + c.dst.x, bytes: Arc::from(bytes) }
        } else {
            Kind::Memcpy(c)
        };
        let waits = !capturing && (pageable(&m, &c.dst) || (pageable(&m, &c.src) && !linear));
        let fence = stream::submit(&mut m, s, kind)?;
        if let Some(fence) = &fence {
            reads_from_its_context(&mut m, s, c.src.at, fence);
        }
        fence.filter(|_| waits)
    };
    if let Some(fence) = fence {
        fence.wait();
    }
    Ok(())
}

/// A copy from another context's memory is that context's work as well: the free of the source waits for it. The free of
/// the destination does not (measured on an H200).
fn reads_from_its_context(m: &mut Machine, stream: H, from: u64, fence: &Fence) {
    let Some(owner) = m.find(from).map(|(_, memory)| memory.ctx) else { return };
    if m.stream(stream).is_ok_and(|stream| stream.ctx != owner)
        && let Ok(context) = m.context(owner)
    {
        context.orphans.retain(|f| !f.reached());
        context.orphans.push(fence.clone());
    }
}

/// Copies, and waits until it is done.
pub fn copy_sync(s: H, c: Copy3D) -> Result {
    if c.width == 0 || c.height == 0 || c.depth == 0 {
        return Ok(());
    }
    check(&lock(), &c)?;
    stream::submit_and_wait(s, Kind::Memcpy(c))
}

pub fn set_check(m: &Machine, k: &Memset) -> Result {
    if !matches!(k.elem, 1 | 2 | 4) || !k.dst.is_multiple_of(k.elem as u64) || work::pageable(m, k.dst) {
        return Err(Error::INVALID_VALUE);
    }
    work::check(m, &Kind::Memset(*k))
}

/// Sets memory in stream order; with `sync` not inside a capture.
pub fn set(s: H, k: Memset, sync: bool) -> Result {
    if k.width == 0 || k.height == 0 {
        return Ok(());
    }
    let mut m = lock();
    let capturing = capture::active(&mut m, s)?;
    if sync {
        if capturing {
            capture::invalidate_of(&mut m, s);
            return Err(Error::CAPTURE_UNSUPPORTED);
        }
        capture::forbid_implicit(&mut m, s)?;
    }
    set_check(&m, &k)?;
    stream::submit(&mut m, s, Kind::Memset(k)).map(drop)
}
