//! Takes an exec from its handle: for another handle, or to destroy it, which may have to wait until the exec has
//! completed.

use super::ExecStore;
use super::bounds::to_go;
use super::needed::Need;
use crate::gate;
use crate::graphs::handle::{Body, Handle};
use crate::graphs::real::{self, LOST, Lease, NOWHERE, RealExec, StreamKey};
use crate::process::aside::Turn;
use crate::process::heap;
use crate::progress::device::ContextHold;
use crate::progress::queries::capturing;
use crate::progress::{activity, device};
use crate::records;
use gpumem_wire::kinds::{Pinned, Vendor};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

/// Longest wait for a thread that destroys an exec. While it is stuck in the library, no other such exec is destroyed.
const LONGEST: Duration = Duration::from_millis(500);

/// An exec whose last launch has completed, and whose context does not end meanwhile.
pub(super) struct Idle {
    lease: Lease,
    hold: ContextHold,
    /// The thread that destroys it, if its end may wait.
    turn: Option<Turn>,
}

/// The idle state of devices, as queried while one exec is chosen. A device that is not idle, or that cannot be
/// queried, is not queried again.
#[derive(Default)]
pub(super) struct IdleDevices(Vec<(u64, Option<bool>)>);

impl IdleDevices {
    /// Returns true if the device is idle, `None` if the library cannot tell.
    fn of(&mut self, vendor: Vendor, context: u64) -> Option<bool> {
        if let Some((_, heard)) = self.0.iter().find(|(of, _)| *of == context) {
            return *heard;
        }
        let heard = device::is_idle(vendor, context);
        if heard != Some(true) {
            self.0.push((context, heard));
        }
        heard
    }
}

impl ExecStore {
    /// Takes an exec of a class (of any class, for 0) from its handle, if its last launch has completed or was made on
    /// this same stream.
    ///
    /// The handle that had the exec remembers a launch that may still be pending.
    pub(super) fn take(
        &'static self,
        real: &'static RealExec,
        class: usize,
        stream_key: StreamKey,
        idle_devices: &mut IdleDevices,
    ) -> Option<Lease> {
        let mut lease = real.lease()?;
        // The exec may have gone since it was chosen, and another may have been made in its place.
        let its = real.class.load(Relaxed);
        if !real.in_use() || its == 0 || (class != 0 && its != class) {
            return None;
        }
        if lease.is_abandoned() {
            self.end_in(lease, false, true);
            return None;
        }
        if class != 0 && lease.body().broken {
            return None;
        }
        let last = real.stream_key.load(Relaxed);
        if !self.completion.earlier_completed(&mut lease) {
            return None;
        }
        let pending = match last {
            NOWHERE => false,
            _ if self.completion.has_completed(&mut lease, last) => false,
            // The last launch was on a stream that is gone, or that only another thread can name. If the device is
            // idle, that launch has completed.
            _ if self.completion.is_unknowable(real, last)
                && idle_devices.of(self.library.vendor, real.context.load(Relaxed)) == Some(true) =>
            {
                false
            }
            _ if last != stream_key || last == LOST || !self.library.calls.behaviour().outlived => return None,
            // The exec's handle has ended. The completion of its last launch does not matter, and the next launch comes
            // after it on the same stream.
            _ if real.is_parked() => true,
            _ => {
                if !real.marked.load(Relaxed) {
                    let body = lease.body();
                    // The stream is that of this launch, so it exists. If it captures, the launch fails.
                    let stream = real::stream_of(last)?;
                    if capturing() && self.library.calls.captures(stream) {
                        return None;
                    }
                    body.event = self.library.calls.mark(body.event.take(), stream);
                    body.event?;
                }
                true
            }
        };
        self.handles.evict(&mut lease, pending, last);
        Some(lease)
    }

    /// Takes an exec whose last launch has completed, in order to destroy it. An exec whose launch is pending is not
    /// destroyed: instantiating waits for destroyed execs whose memory it needs (measured on an H200, driver 580: after
    /// nine of 400 nodes each), and their work may wait for the program.
    ///
    /// Destroying some execs may wait for all of the device's work and hold up the launches of other threads meanwhile
    /// (87 ms behind a kernel of 100, measured there). Such an exec is taken only while the device is idle. While
    /// pending work may wait for the program, every exec counts as such an exec. Work may begin right after the check,
    /// so a thread that may wait destroys such an exec. If that thread is not available, the exec is not taken.
    pub(super) fn take_idle(&'static self, real: &'static RealExec, idle_devices: &mut IdleDevices) -> Option<Idle> {
        let context = real.context.load(Relaxed);
        let waits = may_wait(real);
        let turn = if waits { Some(self.aside.turn_within(LONGEST)?) } else { None };
        let hold = ContextHold::begin(context)?;
        // If the library cannot tell if the device is idle, this exec is treated like any other.
        if waits && !idle_devices.of(self.library.vendor, context).unwrap_or(true) {
            return None;
        }
        // Another exec may have been made in its place meanwhile.
        let lease = self.take(real, 0, LOST, idle_devices).filter(|_| real.is_in(context))?;
        Some(Idle { lease, hold, turn })
    }

    /// Destroys an exec. Returns true if it is gone; an exec whose end may wait is destroyed later, by another thread.
    pub(super) fn end_idle(&'static self, idle: Idle, evicted: bool) -> bool {
        let Idle { lease, hold, turn } = idle;
        let Some(turn) = turn else {
            self.end(lease, evicted);
            return true;
        };
        let end = move |_: &AtomicBool| {
            let _hold = hold;
            if self.is_ending() {
                return;
            }
            let _relaxed = self.library.relax();
            let _ = self.handles.contain(|| {
                let _entered = self.library.enter(lease.real().context.load(Relaxed));
                self.end(lease, evicted);
            });
        };
        // The program may lack memory for a thread's stack.
        !heap::is_short() && turn.run(LONGEST, end).is_some()
    }

    /// Takes from its handle an exec that was only partly changed, and destroys it. Unless its last launch has
    /// `completed`, there is an event after that launch
    /// ([`Completion::completed_or_marked`](crate::graphs::completed::Completion::completed_or_marked)), and the next
    /// launch of the handle waits for the event.
    pub(crate) fn evict_and_destroy(&'static self, mut lease: Lease, completed: bool) {
        // The stream may be destroyed meanwhile. LOST is the key of no stream.
        self.handles.evict(&mut lease, !completed, LOST);
        self.destroy_when_completed(lease);
    }

    /// Destroys an exec that holds parts of two graphs as soon as that needs no wait. No handle gets it any more.
    pub(super) fn destroy_when_completed(&'static self, mut lease: Lease) {
        lease.body().broken = true;
        self.mark_to_destroy(&lease, true);
        drop(lease);
        self.destroy_completed();
    }

    /// Destroys the marked execs that have completed by now.
    pub(super) fn destroy_completed(&'static self) {
        if self.to_destroy.load(Relaxed) == 0 {
            return;
        }
        let mut idle_devices = IdleDevices::default();
        for real in self.reals().into_iter().filter(|real| real.to_destroy.load(Relaxed)) {
            let Some(_entered) = self.library.enter_context_of(real) else { continue };
            if let Some(idle) = self.take_idle(real, &mut idle_devices).filter(|_| real.to_destroy.load(Relaxed)) {
                self.end_idle(idle, false);
            }
        }
    }

    /// Destroys a real exec. Pending launches of it go on.
    pub(super) fn end(&self, lease: Lease, evicted: bool) {
        self.end_in(lease, evicted, false);
    }

    /// Marks an exec to be destroyed, since its launch may be pending. Instantiating waits for destroyed execs whose
    /// launches are pending, and the shim instantiates at launches, too, which must not wait. So the exec stays parked
    /// and is destroyed once it is seen to have completed. If the class is shared, another handle may use it before
    /// that.
    pub(super) fn mark_to_destroy(&self, lease: &Lease, alone: bool) {
        if alone && !lease.real().to_destroy.swap(true, Relaxed) {
            self.to_destroy.fetch_add(1, Relaxed);
            to_go();
        }
    }

    /// As [`Self::end`]. If the exec's context is gone already, makes no call to the library.
    ///
    /// Until the library is done with it, the exec is leased and listed in its context. A thread that ends the context
    /// finds it there and waits ([`Self::context_going`]).
    pub(super) fn end_in(&self, mut lease: Lease, evicted: bool, gone: bool) {
        let real = lease.real();
        if real.to_destroy.swap(false, Relaxed) {
            self.to_destroy.fetch_sub(1, Relaxed);
        }
        let body = std::mem::take(lease.body());
        // An exec that stays with its handle for good is not counted.
        let counted = real.class.swap(0, Relaxed) != 0;
        self.handles.lose(&lease);
        real.stream_key.store(NOWHERE, Relaxed);
        let bytes = real.take_bytes();
        if gone || lease.is_abandoned() {
            // Its events and its template's graph ended with the context.
            body.template.iter().for_each(|template| template.lose_graph());
        } else {
            {
                let _alone = body.template.as_ref().map(|template| template.alone());
                self.library.calls.destroy_exec(real.exec());
            }
            body.event.into_iter().chain(body.earlier).for_each(|event| self.library.calls.drop_event(event));
            drop(body.template);
        }
        let context = real.context.load(Relaxed);
        lease.set_unused();
        drop(lease);
        self.execs.give_place(real);
        if counted {
            self.release(bytes);
            gate::record_if_started(|shim| {
                records::handles::real_ended(shim, self.library.vendor, context, bytes, evicted)
            });
        }
    }

    /// Keeps an exec with this handle from now on: no other exec may stand in for its content.
    pub(crate) fn own(&self, lease: Lease, index: u32, handle: &Handle, body: &mut Body, why: Pinned) {
        let real = lease.real();
        handle.gets(&lease, index);
        if !body.apart().owned {
            let before = Need::of(body);
            body.apart_mut().owned = true;
            self.need_is(before, Need::default());
            body.source = None;
            body.take_changes();
            real.class.store(0, Relaxed);
            let (slot, bytes, context) = (handle.slot.load(Relaxed), real.take_bytes(), real.context.load(Relaxed));
            self.release(bytes);
            gate::record_if_started(|shim| {
                records::handles::real_ended(shim, self.library.vendor, context, bytes, false);
                records::handles::pinned(shim, slot, why);
            });
        }
    }
}

/// Returns true if destroying an exec may wait for the device.
pub(super) fn may_wait(real: &RealExec) -> bool {
    real.waits.load(Relaxed) || activity::is_outside()
}
