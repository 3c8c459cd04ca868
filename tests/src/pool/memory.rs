//! Allocating, freeing, and asking what an address is.

use super::program::{By, How, Id, Op, STREAMS};
use super::world::{Buffer, World};
use crate::conformance::cu;
use cudarc::driver::sys::{self, CUpointer_attribute as Attribute};
use std::ptr::null_mut;

/// How many rows cuMemAllocPitch is asked for.
const ROWS: u64 = 16;
/// The value that out-parameters hold before each call.
const BEFORE: u64 = 0x55;

/// Says whether a failing call changed its out-parameter.
fn untouched(out: u64) -> &'static str {
    match out {
        BEFORE => "untouched",
        0 => "0",
        _ => "something",
    }
}

impl World {
    pub(super) fn memory(&mut self, t: usize, op: &Op) -> Option<()> {
        match *op {
            Op::Alloc { p, bytes, how, s } => self.alloc(t, p, bytes, how, s),
            Op::Free { p, by, at, s } => self.free(t, p, by, at, s),
            Op::WildFree { what, by } => self.wild(what, by),
            _ => None,
        }
    }

    fn alloc(&mut self, t: usize, p: Id, bytes: u64, how: How, s: usize) -> Option<()> {
        if self.buffers.get(&p).is_some_and(|b| b.live) {
            return None;
        }
        let mut c = self.current[t];
        let (mut out, mut pitch) = (BEFORE, BEFORE as usize);
        let status = match how {
            How::Driver => cu!(cuMemAlloc_v2(&mut out, bytes as usize)),
            How::Runtime => {
                c?;
                // SAFETY: cudaMalloc writes one address, and `out` is a local with room for it.
                unsafe { (self.runtime?.malloc)(&mut out, bytes as usize) }
            }
            How::Pitch => {
                cu!(cuMemAllocPitch_v2(&mut out, &mut pitch, bytes.div_ceil(ROWS) as usize, ROWS as usize, 4))
            }
            How::Async => {
                // In a capture the allocation would become a node of the graph.
                (!self.captures.contains_key(&s) && c == Some(s / STREAMS)).then_some(())?;
                let stream = self.of_stream(s)?.stream(s);
                cu!(cuMemAllocAsync(&mut out, bytes as usize, stream))
            }
            How::Managed => cu!(cuMemAllocManaged(&mut out, bytes as usize, 1)),
            How::Host => {
                let mut host = BEFORE as usize as *mut std::ffi::c_void;
                let status = cu!(cuMemHostAlloc(&mut host, bytes as usize, 0));
                out = host as u64;
                status
            }
        };
        let pitched = how == How::Pitch && status == 0;
        let bytes = if pitched { pitch as u64 * ROWS } else { bytes };
        self.say(format!("allocate {bytes} bytes ({how:?}) as {p}"), status);
        if how == How::Runtime {
            // SAFETY: cudaGetLastError takes no arguments and touches this thread's last error
            // only.
            let last = unsafe { (self.runtime?.last)() };
            self.tell(format!("  last error {last}"));
        }
        if status != 0 {
            self.tell(format!("  the pointer is {}", untouched(out)));
            return Some(());
        }
        self.allocs += 1;
        c = c.or(Some(0));
        if out == 0 || bytes == 0 {
            self.tell(format!("  the pointer is {}", untouched(out)));
            return Some(());
        }
        self.tell(format!("  aligned: {}", out.is_multiple_of(256)));
        if let (Some(notes), How::Driver | How::Runtime | How::Pitch) = (self.notes, how) {
            notes.alloc(out, bytes);
        }
        let buffer = Buffer {
            ptr: out,
            bytes,
            how,
            c: c?,
            live: true,
            freed_at: None,
            last: (how == How::Async).then_some(s),
            head: None,
            end: None,
            made: self.allocs,
        };
        self.buffers.insert(p, buffer);
        Some(())
    }

    /// The status of a free. `s`: the stream of a stream-ordered free.
    fn call(&self, by: By, ptr: u64, s: usize) -> Option<u32> {
        Some(match by {
            By::Driver => cu!(cuMemFree_v2(ptr)),
            // SAFETY: cudaFree takes an address as a number, and answers with an error for one that
            // is not allocated.
            By::Runtime => unsafe { (self.runtime?.free)(ptr) },
            By::Async => {
                let stream = self.of_stream(s)?.stream(s);
                cu!(cuMemFreeAsync(ptr, stream))
            }
            By::Host => cu!(cuMemFreeHost(ptr as usize as *mut _)),
        })
    }

    fn free(&mut self, t: usize, p: Id, by: By, at: u64, s: usize) -> Option<()> {
        let buffer = self.buffers.get(&p)?.clone();
        let inside = at < buffer.bytes;
        (inside && (buffer.live || self.nobodys(&buffer))).then_some(())?;
        // The runtime needs a context to find its state.
        if by == By::Runtime {
            self.current[t]?;
        }
        // If the stream freed the buffer before other streams finish with it, the buffer would be gone under them.
        if by == By::Async {
            (s / STREAMS == buffer.c && self.current[t] == Some(buffer.c)).then_some(())?;
            (!self.captures.contains_key(&s)).then_some(())?;
            if buffer.live && !self.follow(buffer.last, s) {
                return None;
            }
        }
        let right = buffer.live && at == 0;
        // Only a stream-ordered free of stream-ordered memory waits for work that uses it (NVIDIA's reference of
        // cuMemFree).
        if right && buffer.how == How::Async && by != By::Async {
            self.rest(buffer.last)?;
        }
        let fits = matches!((buffer.how, by), (How::Host, By::Host)) || (buffer.how != How::Host && by != By::Host);
        let barrier = by != By::Async && buffer.how != How::Async;
        let told = right && matches!(buffer.how, How::Driver | How::Runtime | How::Pitch);
        let status = match self.notes.filter(|_| told) {
            Some(notes) => {
                let mut status = None;
                notes.around(buffer.ptr, barrier, || {
                    status = self.call(by, buffer.ptr, s);
                    status.unwrap_or(1)
                });
                status?
            }
            None => self.call(by, buffer.ptr + at, s)?,
        };
        self.say(format!("free {p} + {at} ({by:?})"), status);
        if by == By::Runtime {
            // SAFETY: cudaGetLastError takes no arguments and touches this thread's last error
            // only.
            let last = unsafe { (self.runtime?.last)() };
            self.tell(format!("  last error {last}"));
        }
        if status == 0 {
            if !(right && fits) {
                self.tell("  which is no free of it");
            }
            // A stream-ordered free comes later, on its stream. Until then nothing is known of the address.
            let freed_at = (by != By::Async && buffer.how != How::Async).then_some(self.allocs);
            if let Some(buffer) = self.buffers.get_mut(&p) {
                (buffer.live, buffer.freed_at, buffer.last) = (false, freed_at, None);
            }
        }
        Some(())
    }

    fn wild(&mut self, what: u8, by: By) -> Option<()> {
        let (local, heap) = (0_u64, Box::new(0_u64));
        let ptr = match what {
            0 => 0,
            1 => 0x1000,
            2 => (&raw const local).addr() as u64,
            _ => (&raw const *heap).addr() as u64,
        };
        // Freeing NULL does nothing in each function. The stream-ordered function also needs a stream.
        (by != By::Async).then_some(())?;
        let status = self.call(by, ptr, 0)?;
        self.say(format!("free what never was ({what}, {by:?})"), status);
        if by == By::Runtime {
            // SAFETY: cudaGetLastError takes no arguments and touches this thread's last error
            // only.
            let last = unsafe { (self.runtime?.last)() };
            self.tell(format!("  last error {last}"));
        }
        Some(())
    }

    pub(super) fn ask(&mut self, op: &Op) -> Option<()> {
        match *op {
            Op::Query { p, at } => {
                let buffer = self.buffers.get(&p)?.clone();
                (at < buffer.bytes && (buffer.live || self.nobodys(&buffer))).then_some(())?;
                self.query(p, &buffer, at);
            }
            Op::Number { p } => {
                let buffer = self.live_device(p)?;
                let mut number = 0_u64;
                let id = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
                let status = cu!(cuPointerGetAttribute((&raw mut number).cast(), id, buffer.ptr));
                self.say(format!("number of {p}"), status);
                // A buffer keeps its number as long as it lives, and no other buffer ever gets that number.
                let again = self.numbers.contains(&number);
                self.tell(format!("  given before: {again}"));
                if !again {
                    self.numbers.push(number);
                }
            }
            Op::Mark { p } => {
                let (buffer, on) = (self.live_device(p)?, 1_u32);
                let id = Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
                let status = cu!(cuPointerSetAttribute((&raw const on).cast(), id, buffer.ptr));
                self.say(format!("mark {p}"), status);
            }
            Op::Export { p } => {
                let buffer = self.live_device(p)?;
                // SAFETY: CUipcMemHandle is an array of bytes, so all zeroes is a valid value.
                let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
                let status = cu!(cuIpcGetMemHandle(&mut handle, buffer.ptr));
                self.say(format!("export {p}"), status);
            }
            _ => return None,
        }
        Some(())
    }

    fn live_device(&self, p: Id) -> Option<Buffer> {
        let of_device = |b: &&Buffer| b.live && matches!(b.how, How::Driver | How::Runtime | How::Pitch);
        self.buffers.get(&p).filter(of_device).filter(|_| !self.ruined).cloned()
    }

    fn query(&mut self, p: Id, buffer: &Buffer, at: u64) {
        let (mut base, mut size) = (0, 0);
        let status = cu!(cuMemGetAddressRange_v2(&mut base, &mut size, buffer.ptr + at));
        self.say(format!("range of {p} + {at}"), status);
        if status == 0 {
            self.tell(format!("  at + {}, {size} bytes", base.wrapping_sub(buffer.ptr)));
        }
        // An out-parameter that the caller does not want may be NULL.
        let status = cu!(cuMemGetAddressRange_v2(null_mut(), &mut size, buffer.ptr + at));
        self.say("  size alone", status);
        let mut kind = u32::MAX;
        let id = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let status = cu!(cuPointerGetAttribute((&raw mut kind).cast(), id, buffer.ptr + at));
        self.say("  memory type", status);
        let (mut kind_too, mut start, mut range, mut managed, mut context, mut device) =
            (u32::MAX, u64::MAX, u64::MAX, u32::MAX, u64::MAX, i32::MAX);
        let mut ids = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let mut places = [
            (&raw mut kind_too).cast(),
            (&raw mut start).cast(),
            (&raw mut range).cast(),
            (&raw mut managed).cast(),
            (&raw mut context).cast(),
            (&raw mut device).cast::<std::ffi::c_void>(),
        ];
        let status =
            cu!(cuPointerGetAttributes(ids.len() as u32, ids.as_mut_ptr(), places.as_mut_ptr(), buffer.ptr + at));
        self.say("  attributes", status);
        if status == 0 {
            let start = match start {
                0 => "none".into(),
                // A driver leaves this out-parameter alone for freed memory (an H200, driver 580).
                u64::MAX => "untouched".into(),
                start => format!("{:+}", start.wrapping_sub(buffer.ptr) as i64),
            };
            let context = self.contexts.iter().position(|c| c.as_ref().is_some_and(|c| c.handle as u64 == context));
            let managed = managed & 0xff;
            self.tell(format!(
                "  {kind}, {kind_too}, {start}, {range}, {managed}, context {context:?}, device {device}"
            ));
        }
    }
}
