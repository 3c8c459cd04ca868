//! Runs the work on a stream's thread and checks every access.

use crate::arena::Arena;
use crate::handle::H;
use crate::kernels;
use crate::machine::{Machine, lock};
use crate::memory::Kind as MemoryKind;
use crate::node::{Copy3D, Kernel, Kind, MemOp, Memset, Side, attr, space};
use crate::report;
use crate::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A range of memory that some work touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ref {
    pub addr: u64,
    pub len: u64,
    /// Number of the allocation that was there when the work was submitted or became a node; 0 if none.
    pub id: u64,
}

/// Work with the memory that it touches.
#[derive(Clone)]
pub struct Step {
    pub kind: Kind,
    pub refs: Vec<Ref>,
}

impl Step {
    pub fn new(m: &Machine, kind: Kind) -> Step {
        let refs = refs(m, &kind);
        Step { kind, refs }
    }
}

static VIEW: OnceLock<(u64, u64, u64)> = OnceLock::new();

/// Sets the place of the device addresses and of their host shadow, which never move.
pub fn publish_view(arena: &Arena) {
    let (base, size) = arena.bounds();
    let _ = VIEW.set((base, size, arena.host_address(base)));
}

fn host(addr: u64) -> u64 {
    match VIEW.get() {
        Some(&(base, size, shadow)) if addr >= base && addr < base + size => addr - base + shadow,
        _ => addr,
    }
}

fn extent(s: &Side, c: &Copy3D, m: &Machine) -> Option<(u64, u64)> {
    let (rows, slices) = (c.height.max(1), c.depth.max(1));
    if c.width == 0 {
        return None;
    }
    if s.space == space::ARRAY {
        let a = m.arrays.get(&(s.at as H))?;
        return Some((a.addr, a.pitch() * a.height.max(1) * a.depth.max(1)));
    }
    let pitch = row(s, c);
    let plane = pitch * s.height.max(rows);
    let start = s.at + s.x + s.y * pitch + s.z * plane;
    Some((start, (slices - 1) * plane + (rows - 1) * pitch + c.width))
}

/// Bytes from one row to the next. Without a pitch rows follow one another.
fn row(s: &Side, c: &Copy3D) -> u64 {
    if s.pitch == 0 { c.width } else { s.pitch }
}

/// The memory that a piece of work touches: device memory, and host memory
/// that the driver knows.
pub fn refs(m: &Machine, kind: &Kind) -> Vec<Ref> {
    let mut ranges = Vec::new();
    match kind {
        Kind::Memcpy(c) => ranges.extend([&c.src, &c.dst].iter().filter_map(|s| extent(s, c, m))),
        Kind::Memset(s) => ranges.push((s.dst, memset_len(s))),
        Kind::Staged { dst, bytes } => ranges.push((*dst, bytes.len() as u64)),
        Kind::Kernel(k) => {
            if let Some(f) = m.functions.get(&k.func) {
                ranges = kernels::ranges(&f.name, &k.params);
            }
        }
        Kind::MemOps(ops) => ranges.extend(ops.iter().map(|op| match op {
            MemOp::Wait { addr, wide, .. } | MemOp::Write { addr, wide, .. } => (*addr, if *wide { 8 } else { 4 }),
        })),
        _ => {}
    }
    ranges.retain(|(_, len)| *len > 0);
    // A kernel that follows an invalid pointer faults. A copy may read
    // memory that is only the host's.
    let kernel = matches!(kind, Kind::Kernel(_));
    let known = |addr: u64| kernel || m.arena.contains(addr) || m.find(addr).is_some();
    let seen = ranges.into_iter().filter(|(addr, _)| known(*addr));
    seen.map(|(addr, len)| Ref { addr, len, id: m.cover(addr, len).unwrap_or(0) }).collect()
}

fn memset_len(s: &Memset) -> u64 {
    if s.width == 0 || s.height == 0 {
        return 0;
    }
    (s.height - 1) * s.pitch + s.width * s.elem as u64
}

/// Checks that the work may be submitted, or become a node: copies and memsets of memory that does not exist are
/// refused at once.
pub fn check(m: &Machine, kind: &Kind) -> Result {
    let bad = refs(m, kind).iter().any(|r| r.id == 0);
    if bad { Err(Error::INVALID_VALUE) } else { Ok(()) }
}

pub fn describe(kind: &Kind, m: &Machine) -> String {
    match kind {
        Kind::Kernel(k) => match m.functions.get(&k.func) {
            Some(f) => format!("kernel {}", f.name),
            None => "a kernel of an unloaded module".into(),
        },
        Kind::Memcpy(_) | Kind::Staged { .. } => "a copy".into(),
        Kind::Memset(_) => "a memset".into(),
        _ => "an operation".into(),
    }
}

/// The memory that a kernel's list names. The list itself was checked before.
fn listed(m: &Machine, k: &Kernel) -> Vec<Ref> {
    let Some(f) = m.functions.get(&k.func) else { return Vec::new() };
    // SAFETY: the caller has just found the kernel's ranges mapped, and the machine is locked since.
    let all = unsafe { kernels::listed(&f.name, &k.params, host) };
    let all = all.into_iter().filter(|&(_, len)| len > 0);
    all.map(|(addr, len)| Ref { addr, len, id: m.cover(addr, len).unwrap_or(0) }).collect()
}

/// Runs one step in a context, unless the context has a sticky error.
pub fn perform(step: &Step, ctx: H) {
    let (mut native, mut refs) = (None, step.refs.clone());
    {
        let mut m = lock();
        match m.contexts.get(&ctx) {
            Some(c) if c.sticky.is_none() => {}
            _ => return,
        }
        for r in &step.refs {
            let now = m.cover(r.addr, r.len);
            let what = |m: &Machine| format!("{} at {:#x}, {} bytes", describe(&step.kind, m), r.addr, r.len);
            if matches!(step.kind, Kind::Kernel(_)) && m.out_of_reach(ctx, r.addr) {
                return fault(&mut m, ctx);
            }
            match now {
                None => {
                    report::violation("freed_memory", &format!("{} touches memory that is not allocated", what(&m)));
                    return fault(&mut m, ctx);
                }
                Some(id) if r.id != 0 && id != r.id => report::violation(
                    "reused_memory",
                    &format!("{} touches memory that was freed and given out again", what(&m)),
                ),
                Some(_) => {}
            }
        }
        if let Kind::Kernel(k) = &step.kind {
            report::count("kernels", 1);
            report::count("cooperative_kernels", k.attrs.contains_key(&attr::COOPERATIVE).into());
            report::count("newer_attributes", attr::NEWER.iter().filter(|&id| k.attrs.contains_key(id)).count() as u64);
            if m.still_loaded(k, "a stream runs").is_err() {
                return fault(&mut m, ctx);
            }
            let listed = listed(&m, k);
            if let Some(Ref { addr, len, .. }) = listed.iter().find(|r| r.id == 0) {
                let text = format!(
                    "{} at {addr:#x}, {len} bytes touches memory that is not allocated",
                    describe(&step.kind, &m)
                );
                report::violation("freed_memory", &text);
                return fault(&mut m, ctx);
            }
            refs.extend(listed);
            native = m.functions.get(&k.func).and_then(|f| kernels::native(&f.name));
        }
    }
    let ids: Vec<Option<u64>> = {
        let m = lock();
        refs.iter().map(|r| m.cover(r.addr, r.len)).collect()
    };
    run(&step.kind, native);
    let m = lock();
    for (r, before) in refs.iter().zip(ids) {
        if m.cover(r.addr, r.len) != before {
            let text = format!("{} at {:#x}: memory was freed while it ran", describe(&step.kind, &m), r.addr);
            report::violation("freed_while_in_use", &text);
        }
    }
}

impl Machine {
    /// True if memory is another device's and this context has no peer access to it. Kernels fault there.
    fn out_of_reach(&self, ctx: H, addr: u64) -> bool {
        let (Some(c), Some((_, a))) = (self.contexts.get(&ctx), self.find(addr)) else { return false };
        a.kind == MemoryKind::Device && a.device != c.device && !c.peers.contains(&a.ctx)
    }
}

fn fault(m: &mut Machine, ctx: H) {
    if let Some(c) = m.contexts.get_mut(&ctx) {
        c.sticky = Some(Error::ILLEGAL_ADDRESS);
    }
}

fn run(kind: &Kind, native: Option<kernels::Native>) {
    match kind {
        Kind::Kernel(k) => {
            if let Some(run) = native {
                run(k, host);
            }
        }
        Kind::Memcpy(c) => copy(c),
        Kind::Memset(s) => set(s),
        Kind::Staged { dst, bytes } => {
            // SAFETY: `perform` checked before that `bytes.len()` bytes at `dst` are live device
            // memory. `bytes` is a buffer of the step's own.
            unsafe { std::ptr::copy(bytes.as_ptr(), host(*dst) as *mut u8, bytes.len()) }
        }
        Kind::Host(f) => call_host(f),
        Kind::MemOps(ops) => ops.iter().for_each(mem_op),
        Kind::FreeAsync(ptr) | Kind::MemFree(ptr) => crate::pool::free_now(*ptr),
        Kind::MemAlloc(a) => crate::pool::graph_alloc_now(a),
        Kind::Newer(count) => report::count("newer_nodes", *count),
        Kind::Child(_) | Kind::Conditional(_) | Kind::Empty | Kind::EventRecord(_) | Kind::EventWait(_) => {}
    }
}

fn call_host(f: &crate::node::HostFn) {
    match f.stream {
        // SAFETY: the program gave `f.f` as a CUhostFn and `f.data` as its argument, and keeps both
        // valid until the call.
        None => unsafe {
            let call: extern "C" fn(usize) = std::mem::transmute(f.f);
            call(f.data)
        },
        // SAFETY: the program gave `f.f` as a CUstreamCallback and `f.data` as its argument, and
        // keeps both valid until the call.
        Some(s) => unsafe {
            let call: extern "C" fn(usize, u32, usize) = std::mem::transmute(f.f);
            call(s, 0, f.data)
        },
    }
}

fn side(s: &Side, c: &Copy3D) -> (u64, u64, u64) {
    if s.space == space::ARRAY {
        let m = lock();
        let Some(a) = m.arrays.get(&(s.at as H)) else {
            return (0, 0, 0);
        };
        let plane = a.pitch() * a.height.max(1);
        return (host(a.addr) + s.x + s.y * a.pitch() + s.z * plane, a.pitch(), plane);
    }
    let pitch = row(s, c);
    let plane = pitch * s.height.max(c.height);
    (host(s.at) + s.x + s.y * pitch + s.z * plane, pitch, plane)
}

fn copy(c: &Copy3D) {
    let ((src, spitch, splane), (dst, dpitch, dplane)) = (side(&c.src, c), side(&c.dst, c));
    if src == 0 || dst == 0 {
        return;
    }
    for z in 0..c.depth.max(1) {
        for y in 0..c.height.max(1) {
            let (s, d) = (src + z * splane + y * spitch, dst + z * dplane + y * dpitch);
            // SAFETY: `perform` checked the ranges on the device. The program vouches for ranges on
            // the host until the copy is over, as for a real copy.
            unsafe { std::ptr::copy(s as *const u8, d as *mut u8, c.width as usize) }
        }
    }
}

fn set(s: &Memset) {
    let value = s.value.to_le_bytes();
    for y in 0..s.height {
        let row = host(s.dst + y * s.pitch) as *mut u8;
        let n = s.width as usize;
        // SAFETY: `perform` checked that all rows of the range are live device memory. Writes need
        // no alignment here: they are of bytes, or unaligned.
        unsafe {
            match s.elem {
                1 => std::ptr::write_bytes(row, value[0], n),
                2 => (0..n).for_each(|i| row.cast::<[u8; 2]>().add(i).write_unaligned([value[0], value[1]])),
                _ => (0..n).for_each(|i| row.cast::<[u8; 4]>().add(i).write_unaligned(value)),
            }
        }
    }
}

/// A wait of work has a limit, so that no test hangs for ever.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

fn mem_op(op: &MemOp) {
    match *op {
        MemOp::Write { addr, wide, value } => {
            let p = host(addr);
            // SAFETY: `perform` checked that the word is live. The driver demands its alignment,
            // and programs on the simulator keep to that.
            unsafe {
                if wide {
                    (*(p as *const AtomicU64)).store(value, SeqCst);
                } else {
                    (*(p as *const AtomicU32)).store(value as u32, SeqCst);
                }
            }
        }
        MemOp::Wait { addr, wide, value, flags } => {
            let p = host(addr);
            let start = Instant::now();
            loop {
                // SAFETY: `perform` checked that the word is live. The program keeps it aligned and
                // mapped until the wait is over.
                let now = unsafe {
                    if wide {
                        (*(p as *const AtomicU64)).load(SeqCst)
                    } else {
                        (*(p as *const AtomicU32)).load(SeqCst) as u64
                    }
                };
                let distance = if wide {
                    now.wrapping_sub(value) as i64
                } else {
                    (now as u32).wrapping_sub(value as u32) as i32 as i64
                };
                let met = match flags & 3 {
                    0 => distance >= 0,
                    1 => now == value,
                    2 => now & value != 0,
                    _ => (now | value) != u64::MAX,
                };
                if met {
                    return;
                }
                if start.elapsed() > WAIT_LIMIT {
                    return report::violation("endless_wait", &format!("nobody wrote {value} to {addr:#x}"));
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

/// True if only the host knows the memory at an address. Copies from there read it when the call is made.
pub fn pageable(m: &Machine, addr: u64) -> bool {
    !m.arena.contains(addr) && m.find(addr).is_none()
}

/// True if memory belongs to no context: it is stream-ordered, or mapped by hand. A copy node cannot change between
/// such memory and other memory (H200, driver 580).
pub fn without_context(m: &Machine, s: &Side) -> bool {
    let of_no_context = |k: MemoryKind| matches!(k, MemoryKind::Pool(_) | MemoryKind::Mapped(_) | MemoryKind::Graph);
    s.space != space::ARRAY && m.find(s.at).is_some_and(|(_, a)| of_no_context(a.kind))
}
