//! Which changes of a copy or memset an update and a setter accept.

use super::nodes::no_copy;
use super::update::memset;
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use cudarc::driver::sys::{self, CUmemorytype as Type};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("copies.place_and_size", place_and_size),
    Check::measured("copies.memory_type", memory_type),
    Check::measured("copies.memory_of_no_context", memory_of_no_context),
    Check::measured("copies.of_any_memory", of_any_memory),
    Check::measured("copies.of_rows", of_rows),
    Check::measured("copies.memset", memset_changes),
    Check::measured("copies.memset_of_rows", memset_of_rows),
];

const N: u64 = 4096;
const CHANGED: u32 = 910;

type Copy = sys::CUDA_MEMCPY3D;

/// `bytes` of device memory.
fn linear(dst: u64, src: u64, bytes: usize) -> Copy {
    let mut c = no_copy();
    (c.dstDevice, c.srcDevice) = (dst, src);
    (c.WidthInBytes, c.Height, c.Depth) = (bytes, 1, 1);
    c
}

fn rows(dst: u64, src: u64, width: usize, height: usize, pitch: usize) -> Copy {
    let mut c = linear(dst, src, width);
    c.Height = height;
    (c.dstPitch, c.srcPitch) = (pitch, pitch);
    (c.dstHeight, c.srcHeight) = (height, height);
    c
}

/// The same copy from memory that the program calls "any".
fn unified(dst: u64, src: u64, bytes: usize) -> Copy {
    let mut c = linear(dst, src, bytes);
    (c.dstMemoryType, c.srcMemoryType) = (Type::CU_MEMORYTYPE_UNIFIED, Type::CU_MEMORYTYPE_UNIFIED);
    c
}

/// The same copy from host memory.
fn upload(dst: u64, src: *const c_void, bytes: usize) -> Copy {
    let mut c = linear(dst, 0, bytes);
    (c.srcMemoryType, c.srcHost) = (Type::CU_MEMORYTYPE_HOST, src);
    c
}

/// The statuses of changing an exec's copy `a` to `b`: by an update, and by a setter.
fn changes(t: &Checker, a: &Copy, b: &Copy) -> Result<(u32, u32), Stop> {
    let of = |c: &Copy| -> Result<(Graph, sys::CUgraphNode), Stop> {
        let (graph, mut node) = (Graph::new()?, null_mut());
        let added = cu!(cuGraphAddMemcpyNode(&mut node, graph.g, null(), 0, c, t.gpu.primary));
        ok("cuGraphAddMemcpyNode", added)?;
        Ok((graph, node))
    };
    let ((one, node), (two, _)) = (of(a)?, of(b)?);
    let updated = one.instantiate()?.update(&two).0;
    let exec = one.instantiate()?;
    let set = cu!(cuGraphExecMemcpyNodeSetParams(exec.e, node, b, t.gpu.primary));
    Ok((updated, set))
}

/// Stream-ordered memory.
struct Ordered(sys::CUdeviceptr, Strm);

impl Ordered {
    fn new() -> Result<Ordered, Stop> {
        let (stream, mut p) = (Strm::non_blocking()?, 0);
        ok("cuMemAllocAsync", cu!(cuMemAllocAsync(&mut p, N as usize * 4, stream.s)))?;
        stream.sync()?;
        Ok(Ordered(p, stream))
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        cu!(cuMemFreeAsync(self.0, self.1.s));
    }
}

fn place_and_size(t: &mut Checker) -> Done {
    let (a, b) = (t.gpu.words(N)?, t.gpu.words(N)?);
    let first = linear(a.p, b.p, 256);
    t.eq("another size", changes(t, &first, &linear(a.p, b.p, 512))?, (0, 0));
    t.eq("odd addresses", changes(t, &first, &linear(a.p + 1, b.p + 3, 255))?, (0, 0));
    let mut managed = 0;
    ok("cuMemAllocManaged", cu!(cuMemAllocManaged(&mut managed, 4096, 1)))?;
    t.eq("from managed memory", changes(t, &first, &linear(a.p, managed, 256))?, (0, 0));
    cu!(cuMemFree_v2(managed));
    let (graph, mut node) = (Graph::new()?, null_mut());
    let ctx = t.gpu.primary;
    ok("add", cu!(cuGraphAddMemcpyNode(&mut node, graph.g, null(), 0, &first, ctx)))?;
    let exec = graph.instantiate()?;
    let nothing = linear(a.p, b.p, 0);
    t.eq("no size", cu!(cuGraphExecMemcpyNodeSetParams(exec.e, node, &nothing, ctx)), 1);
    Ok(())
}

fn memory_type(t: &mut Checker) -> Done {
    let (a, b, host) = (t.gpu.words(N)?, t.gpu.words(N)?, vec![0u32; 64]);
    let (inside, up) = (linear(a.p, b.p, 256), upload(a.p, host.as_ptr().cast(), 256));
    let any = unified(a.p, b.p, 256);
    t.eq("device, then host", changes(t, &inside, &up)?, (CHANGED, 1));
    t.eq("device, then any", changes(t, &inside, &any)?, (CHANGED, 1));
    t.eq("any, then device", changes(t, &any, &inside)?.0, CHANGED);
    let mut pinned = null_mut();
    ok("cuMemAllocHost", cu!(cuMemAllocHost_v2(&mut pinned, 4096)))?;
    t.eq("pageable, then pinned", changes(t, &up, &upload(a.p, pinned, 256))?, (0, 0));
    t.eq("pinned, then pageable", changes(t, &upload(a.p, pinned, 256), &up)?.0, 0);
    cu!(cuMemFreeHost(pinned));
    Ok(())
}

/// Stream-ordered memory belongs to no context: a copy cannot be changed between
/// such and other memory.
fn memory_of_no_context(t: &mut Checker) -> Done {
    let (a, b, c) = (t.gpu.words(N)?, t.gpu.words(N)?, Ordered::new()?);
    let (own, other) = (linear(a.p, b.p, 256), linear(a.p, c.0, 256));
    t.eq("to stream-ordered memory", changes(t, &own, &other)?, (CHANGED, 1));
    t.eq("and from it", changes(t, &other, &own)?, (CHANGED, 1));
    t.eq("inside it", changes(t, &other, &linear(a.p, c.0 + 512, 128))?.0, 0);
    let any = (unified(a.p, b.p, 256), unified(a.p, c.0, 256));
    t.eq("called any memory", changes(t, &any.0, &any.1)?.0, CHANGED);
    Ok(())
}

/// If the program does not say which kind of memory it is, the kind may change.
fn of_any_memory(t: &mut Checker) -> Done {
    let (a, b, host, mut pinned) = (t.gpu.words(N)?, t.gpu.words(N)?, vec![0u32; 64], null_mut());
    ok("cuMemAllocHost", cu!(cuMemAllocHost_v2(&mut pinned, 4096)))?;
    let from = |p: u64| unified(a.p, p, 256);
    let (device, page, pin) = (from(b.p), from(host.as_ptr() as u64), from(pinned as u64));
    t.eq("device, then pinned", changes(t, &device, &pin)?, (0, 0));
    t.eq("device, then pageable", changes(t, &device, &page)?.0, 0);
    t.eq("pinned, then pageable", changes(t, &pin, &page)?.0, 0);
    t.eq("pinned, then device", changes(t, &pin, &device)?.0, 0);
    cu!(cuMemFreeHost(pinned));
    Ok(())
}

/// Nothing of a copy of several rows can be changed, not even where it goes.
fn of_rows(t: &mut Checker) -> Done {
    let (a, b) = (t.gpu.words(N)?, t.gpu.words(N)?);
    let first = rows(a.p, b.p, 64, 4, 128);
    t.eq("the same: an update", changes(t, &first, &first)?.0, 0);
    for (what, other) in [
        ("another address", rows(a.p, b.p + 4096, 64, 4, 128)),
        ("another width", rows(a.p, b.p, 32, 4, 128)),
        ("another height", rows(a.p, b.p, 64, 8, 128)),
        ("another pitch", rows(a.p, b.p, 64, 4, 256)),
        ("one row", linear(a.p, b.p, 256)),
    ] {
        t.eq(what, changes(t, &first, &other)?, (CHANGED, 1));
    }
    let touching = rows(a.p, b.p, 64, 4, 64);
    t.eq("one row, then rows without a gap", changes(t, &linear(a.p, b.p, 256), &touching)?.0, CHANGED);
    Ok(())
}

type Set = sys::CUDA_MEMSET_NODE_PARAMS;

fn set_changes(t: &Checker, a: &Set, b: &Set) -> Result<(u32, u32), Stop> {
    let of = |s: &Set| -> Result<(Graph, sys::CUgraphNode), Stop> {
        let (graph, mut node) = (Graph::new()?, null_mut());
        let added = cu!(cuGraphAddMemsetNode(&mut node, graph.g, null(), 0, s, t.gpu.primary));
        ok("cuGraphAddMemsetNode", added)?;
        Ok((graph, node))
    };
    let ((one, node), (two, _)) = (of(a)?, of(b)?);
    let updated = one.instantiate()?.update(&two).0;
    let exec = one.instantiate()?;
    Ok((updated, cu!(cuGraphExecMemsetNodeSetParams(exec.e, node, b, t.gpu.primary))))
}

/// A memset of one row can change in all its parameters.
fn memset_changes(t: &mut Checker) -> Done {
    let (a, b, c) = (t.gpu.words(N)?, t.gpu.words(N)?, Ordered::new()?);
    let first = memset(&a, 1, 16);
    let bytes = Set { elementSize: 1, width: 64, ..first };
    t.eq("place, value and size", set_changes(t, &first, &memset(&b, 2, 1000))?, (0, 0));
    t.eq("elements of one byte", set_changes(t, &first, &bytes)?, (0, 0));
    t.eq("and back", set_changes(t, &bytes, &first)?, (0, 0));
    t.eq("stream-ordered memory", set_changes(t, &first, &Set { dst: c.0, ..first })?, (0, 0));
    t.eq("and back", set_changes(t, &Set { dst: c.0, ..first }, &first)?, (0, 0));
    let (graph, mut node) = (Graph::new()?, null_mut());
    let ctx = t.gpu.primary;
    ok("add", cu!(cuGraphAddMemsetNode(&mut node, graph.g, null(), 0, &first, ctx)))?;
    let exec = graph.instantiate()?;
    let nothing = Set { width: 0, ..first };
    t.eq("no size", cu!(cuGraphExecMemsetNodeSetParams(exec.e, node, &nothing, ctx)), 1);
    Ok(())
}

/// Of a memset of several rows only address and value can change.
fn memset_of_rows(t: &mut Checker) -> Done {
    let (a, b) = (t.gpu.words(N)?, t.gpu.words(N)?);
    let first = Set { dst: a.p, pitch: 128, value: 1, elementSize: 1, width: 64, height: 3 };
    t.eq("address and value", set_changes(t, &first, &Set { dst: b.p, value: 2, ..first })?, (0, 0));
    for (what, other) in [
        ("another width", Set { width: 32, ..first }),
        ("another height", Set { height: 4, ..first }),
        ("another pitch", Set { pitch: 256, ..first }),
        ("one row", Set { height: 1, ..first }),
    ] {
        let got = set_changes(t, &first, &other)?;
        t.eq(&format!("{what}: an update"), got.0, CHANGED);
    }
    let one = Set { pitch: 0, height: 1, ..first };
    t.eq("rows, then one row", set_changes(t, &first, &one)?, (CHANGED, 1));
    t.eq("one row, then rows", set_changes(t, &one, &first)?, (CHANGED, 1));
    t.eq("another width: a setter", set_changes(t, &first, &Set { width: 32, ..first })?.1, 1);
    Ok(())
}
