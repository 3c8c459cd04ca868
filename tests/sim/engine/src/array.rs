//! Arrays: rows of texels in ordinary memory. Mipmapped arrays are lists of arrays.

use crate::abi::Array3DDesc;
use crate::handle::H;
use crate::memory::{alloc, free};
use crate::{Error, Result, lock};
use std::collections::HashMap;
use std::sync::Mutex;

/// A simple array: rows of texels in ordinary device memory.
#[derive(Clone, Copy)]
pub struct Array {
    pub addr: u64,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
    pub elem: u64,
    /// One level of a mipmapped array: freed with it.
    pub level: bool,
}

impl Array {
    pub fn pitch(&self) -> u64 {
        self.width * self.elem
    }
}

/// An array in device memory; its handle.
pub fn create_array(ctx: H, mut a: Array) -> Result<H> {
    let size = a.pitch() * a.height.max(1) * a.depth.max(1);
    a.addr = alloc(ctx, size)?;
    let mut m = lock();
    let h = m.handles.make("array");
    m.arrays.insert(h, a);
    Ok(h)
}

pub fn destroy_array(h: H) -> Result {
    let a = *lock().arrays.get(&h).ok_or(Error::INVALID_HANDLE)?;
    if a.level {
        return Err(Error::INVALID_HANDLE);
    }
    free(a.addr)?;
    let mut m = lock();
    m.arrays.remove(&h);
    m.handles.retire("array", h);
    Ok(())
}

/// Bytes of one channel of a CUarray_format (hipArray_Format has the same numbers).
fn format_size(format: u32) -> Result<u64> {
    Ok(match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return Err(Error::INVALID_VALUE),
    })
}

/// The array that is described, without memory.
pub fn array_of(d: &Array3DDesc) -> Result<Array> {
    if d.width == 0 || !matches!(d.channels, 1 | 2 | 4) {
        return Err(Error::INVALID_VALUE);
    }
    Ok(Array {
        addr: 0,
        width: d.width as u64,
        height: d.height as u64,
        depth: d.depth as u64,
        format: d.format,
        channels: d.channels,
        flags: d.flags,
        elem: format_size(d.format)? * d.channels as u64,
        level: false,
    })
}

/// Levels of the mipmapped arrays that live.
static MIPMAPS: Mutex<Option<HashMap<H, Vec<H>>>> = Mutex::new(None);

fn mipmaps<R>(f: impl FnOnce(&mut HashMap<H, Vec<H>>) -> R) -> R {
    f(MIPMAPS.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_default())
}

fn destroy_levels(levels: Vec<H>) -> Result {
    for h in levels {
        if let Some(a) = lock().arrays.get_mut(&h) {
            a.level = false;
        }
        destroy_array(h)?;
    }
    Ok(())
}

fn create_levels(ctx: H, top: Array, count: u32) -> Result<Vec<H>> {
    let mut levels = Vec::new();
    for level in 0..count {
        let half = |n: u64| if n == 0 { 0 } else { (n >> level).max(1) };
        let a = Array { width: half(top.width), height: half(top.height), depth: half(top.depth), ..top };
        match create_array(ctx, a) {
            Ok(h) => levels.push(h),
            Err(e) => {
                destroy_levels(levels)?;
                return Err(e);
            }
        }
    }
    for h in &levels {
        if let Some(a) = lock().arrays.get_mut(h) {
            a.level = true;
        }
    }
    Ok(levels)
}

/// A mipmapped array with so many levels; its handle.
pub fn create_mipmapped(ctx: H, top: &Array3DDesc, levels: u32) -> Result<H> {
    if !(1..=32).contains(&levels) {
        return Err(Error::INVALID_VALUE);
    }
    let levels = create_levels(ctx, array_of(top)?, levels)?;
    let h = lock().handles.make("mipmapped array");
    mipmaps(|list| list.insert(h, levels));
    Ok(h)
}

pub fn destroy_mipmapped(h: H) -> Result {
    destroy_levels(mipmaps(|list| list.remove(&h)).ok_or(Error::INVALID_VALUE)?)
}

/// The array of one level of a mipmapped array.
pub fn level_of(h: H, level: u32) -> Result<H> {
    let found = mipmaps(|list| list.get(&h).and_then(|levels| levels.get(level as usize)).copied());
    found.ok_or(Error::INVALID_VALUE)
}
