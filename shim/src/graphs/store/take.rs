//! An exec is taken from the handle that has it: for another handle, or to be destroyed.

use super::ExecStore;
use super::aside::Turn;
use crate::graphs::real::{self, LOST, Lease, NOWHERE, RealExec, StreamKey};
use crate::progress::device::ContextHold;
use crate::progress::queries::capturing;
use crate::progress::{activity, device};
use gpumem_wire::kinds::Vendor;
use std::sync::atomic::Ordering::*;

/// An exec whose last launch has completed, and whose context does not end meanwhile.
pub(super) struct Idle {
    lease: Lease,
    hold: ContextHold,
    /// The thread that destroys it, if its end may wait.
    turn: Option<Turn>,
}

/// Whether devices are idle, as asked while one exec is chosen. A device that is not idle, or that cannot be asked, is
/// not asked again.
#[derive(Default)]
pub(super) struct IdleDevices(Vec<(u64, Option<bool>)>);

impl IdleDevices {
    /// `None` if the library cannot tell.
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
    /// Takes an exec of a class (of any class, for 0) from whoever has it, if its last launch has completed or was made
    /// on this same stream.
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
            // The exec's handle has ended. Nobody asks when its last launch completes, and the next launch comes after
            // it on the same stream.
            _ if real.is_parked() => true,
            _ => {
                if !real.marked.load(Relaxed) {
                    let body = lease.body();
                    // The stream is that of this launch, so the stream lives. If it captures, the launch fails.
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
    /// (87 ms behind a kernel of 100, measured there). Such an exec is taken only while the device is idle. While pending
    /// work may wait for the program, every exec counts as such an exec. Work may begin right after the look, so a thread
    /// that may wait destroys such an exec. If that thread is not available, the exec is not taken.
    pub(super) fn take_idle(&'static self, real: &'static RealExec, idle_devices: &mut IdleDevices) -> Option<Idle> {
        let context = real.context.load(Relaxed);
        let waits = may_wait(real);
        let turn = if waits { Some(self.aside.turn()?) } else { None };
        let hold = ContextHold::begin(context)?;
        // If the library cannot tell whether the device is idle, this exec is treated like any other.
        if waits && !idle_devices.of(self.library.vendor, context).unwrap_or(true) {
            return None;
        }
        // Another exec may have been made in its place meanwhile.
        let lease = self.take(real, 0, LOST, idle_devices).filter(|_| real.is_in(context))?;
        Some(Idle { lease, hold, turn })
    }

    /// Destroys an exec. `true` if it is gone; an exec whose end may wait is destroyed later, by another thread.
    pub(super) fn end_idle(&'static self, idle: Idle, evicted: bool) -> bool {
        let Idle { lease, hold, turn } = idle;
        let Some(turn) = turn else {
            self.end(lease, evicted);
            return true;
        };
        turn.run(move || {
            let _hold = hold;
            if self.is_ending() {
                return;
            }
            let _relaxed = self.library.relax();
            let _ = self.handles.contain(|| {
                let _entered = self.library.enter(lease.real().context.load(Relaxed));
                self.end(lease, evicted);
            });
        })
    }

    /// Takes from its handle an exec that was only partly changed. Unless its last launch has `completed`, there is an
    /// event behind that launch ([`Completion::completed_or_marked`](crate::graphs::completed::Completion::completed_or_marked)), and the next launch of the handle waits for the
    /// event.
    pub(crate) fn evict_and_destroy(&'static self, mut lease: Lease, completed: bool) {
        // The stream may be destroyed meanwhile. LOST is the key of no stream.
        self.handles.evict(&mut lease, !completed, LOST);
        self.destroy_when_completed(lease);
    }

    /// Handles an exec that holds parts of two graphs: no handle gets it any more, and it is destroyed when that needs
    /// no wait.
    pub(crate) fn destroy_when_completed(&'static self, mut lease: Lease) {
        lease.body().broken = true;
        self.mark_to_destroy(&lease, true);
        drop(lease);
        self.destroy_completed();
    }

    /// Destroys what is to be destroyed and has completed by now.
    pub(crate) fn destroy_completed(&'static self) {
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
}

/// Whether destroying an exec may wait for the device.
pub(super) fn may_wait(real: &RealExec) -> bool {
    real.waits.load(Relaxed) || activity::is_outside()
}
