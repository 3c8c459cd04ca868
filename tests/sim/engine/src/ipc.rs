//! Memory of one process of the simulator in another.
//!
//! A handle names the process, its memory file and the place in it; the other
//! process maps the same pages through /proc.

use crate::arena::BLOCK;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::memory::Kind;

const MAGIC: u64 = 0x5349_4d5f_4950_4331;
const PAGE: u64 = 4096;

/// A mapping of another process's memory.
pub struct Import {
    map: u64,
    span: u64,
    refs: u32,
    key: [u8; 64],
}

fn pack(fields: [u64; 6]) -> [u8; 64] {
    let mut out = [0; 64];
    for (slot, f) in out.chunks_exact_mut(8).zip(fields) {
        slot.copy_from_slice(&f.to_le_bytes());
    }
    out
}

fn unpack(bytes: &[u8; 64]) -> [u64; 6] {
    let mut f = [0; 6];
    for (f, slot) in f.iter_mut().zip(bytes.chunks_exact(8)) {
        *f = u64::from_le_bytes(slot.try_into().unwrap_or_default());
    }
    f
}

/// cuIpcGetMemHandle: only for memory of cuMemAlloc.
pub fn export(ptr: u64) -> Result<[u8; 64]> {
    let mut m = lock();
    // A pointer inside an allocation stands for the allocation.
    let (base, a) = m.find(ptr).filter(|(_, a)| a.kind == Kind::Device).ok_or(Error::INVALID_VALUE)?;
    let (size, id) = (a.size, a.id);
    let key = pack([MAGIC, std::process::id() as u64, m.arena.fd as u64, m.arena.offset(base), size, id]);
    if let Some(a) = m.allocs.get_mut(&base) {
        a.exported = true;
    }
    Ok(key)
}

fn open_file(pid: u64, fd: u64) -> Result<i32> {
    let path = std::ffi::CString::new(format!("/proc/{pid}/fd/{fd}")).map_err(|_| Error::INVALID_VALUE)?;
    // SAFETY: `path` is a CString: it ends in NUL and lives until open returns.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 { Err(Error::INVALID_VALUE) } else { Ok(file) }
}

/// Opening in the exporting process gives 201, as on a real device; opening
/// twice gives the same address.
pub fn open(ctx: H, key: [u8; 64]) -> Result<u64> {
    let [magic, pid, fd, off, size, _] = unpack(&key);
    if magic != MAGIC {
        return Err(Error::INVALID_VALUE);
    }
    if pid == std::process::id() as u64 {
        return Err(Error::INVALID_CONTEXT);
    }
    let mut m = lock();
    if let Some((ptr, i)) = m.imports.iter_mut().find(|(_, i)| i.key == key) {
        i.refs += 1;
        return Ok(*ptr);
    }
    let file = open_file(pid, fd)?;
    let first = off / PAGE * PAGE;
    let span = (off + size - first).next_multiple_of(PAGE);
    let mapped = m
        .arena
        .take_blocks(span.next_multiple_of(BLOCK), BLOCK)
        .and_then(|map| m.arena.back(map, span, file, first).map(|()| map));
    // SAFETY: `open_file` opened `file` and no one else has its number. The mapping lives on
    // without the descriptor.
    unsafe { libc::close(file) };
    let map = mapped?;
    let ptr = map + (off - first);
    let device = m.device_of(ctx)?;
    m.add_alloc(ptr, size, Kind::Imported, ctx, device);
    m.imports.insert(ptr, Import { map, span, refs: 1, key });
    Ok(ptr)
}

pub fn close(ptr: u64) -> Result {
    let mut m = lock();
    let i = m.imports.get_mut(&ptr).ok_or(Error::INVALID_VALUE)?;
    i.refs -= 1;
    if i.refs == 0 {
        crate::memory::drop_alloc(&mut m, ptr);
    }
    Ok(())
}

pub fn unmap(m: &mut Machine, ptr: u64, _size: u64) {
    if let Some(i) = m.imports.remove(&ptr) {
        let _ = m.arena.back(i.map, i.span, -1, 0);
        m.arena.give_blocks(i.map, i.span.next_multiple_of(BLOCK));
    }
}

/// A descriptor of a file whose contents say where the memory lies.
pub fn describe_fd(fd: i32, off: u64, size: u64) -> Result<i32> {
    let text = pack([MAGIC, std::process::id() as u64, fd as u64, off, size, 0]);
    // SAFETY: the name is a literal that ends in NUL. `pack` gives 64 bytes, which is what is
    // written of `text`.
    unsafe {
        let out = libc::memfd_create(c"sim-handle".as_ptr(), libc::MFD_CLOEXEC);
        if out < 0 || libc::pwrite(out, text.as_ptr().cast(), 64, 0) != 64 {
            return Err(Error::OPERATING_SYSTEM);
        }
        Ok(out)
    }
}

/// `(file, offset, size)` of the memory that such a descriptor describes.
pub fn open_described(fd: i32) -> Result<(i32, u64, u64)> {
    let mut text = [0u8; 64];
    // SAFETY: `text` is a local of 64 bytes, and at most 64 are written.
    if unsafe { libc::pread(fd, text.as_mut_ptr().cast(), 64, 0) } != 64 {
        return Err(Error::INVALID_VALUE);
    }
    let [magic, pid, file, off, size, _] = unpack(&text);
    if magic != MAGIC {
        return Err(Error::INVALID_VALUE);
    }
    Ok((open_file(pid, file)?, off, size))
}
