//! Since when this process has no work, and why it cannot be parked, for the service that reads the ledger.

use crate::backend::{self, gates};
use crate::process::clock;
use crate::progress::{activity, device};
use crate::records::contexts;
use crate::shim::Shim;
use gpumem_wire::kinds::{Interception, Space, Vendor};
use gpumem_wire::location::Tally;
use std::sync::atomic::Ordering::*;

/// Observations of the control thread.
#[derive(Default)]
pub(crate) struct Idle {
    /// The number of submissions at the last look.
    submissions: Option<u64>,
    why_not: &'static str,
    /// True once the driver has said that it can park processes.
    is_able: bool,
}

impl Idle {
    /// Looks once a second, unless the process is parked. The driver is asked only after a second without submissions,
    /// until the process is seen idle.
    pub(crate) fn look(&mut self, shim: &'static Shim) {
        let Some(name) = shim.settings.share.as_ref().filter(|_| gates::is_member()) else { return };
        self.is_able = self.is_able || backend::of(Vendor::Cuda).parking().is_some();
        let why_not = if self.is_able { why_not(shim) } else { "its driver cannot park a process (CUDA 12.8 can)" };
        if why_not != self.why_not {
            self.why_not = why_not;
            let text = if why_not.is_empty() { name.clone() } else { format!("{name}\n{why_not}") };
            shim.ledger.header().share().store(shim.ledger.texts.intern(text.as_bytes()), Relaxed);
        }
        let before = std::mem::replace(&mut self.submissions, activity::submissions_if_none_open());
        let since = shim.ledger.header().idle_since_ns();
        if self.submissions.is_none() || self.submissions != before {
            since.store(0, Relaxed);
        } else if since.load(Relaxed) == 0 && are_all_idle(shim) && activity::submissions_if_none_open() == before {
            since.store(clock::precise_ns(), Relaxed);
        }
    }
}

/// True if no context has work.
fn are_all_idle(shim: &Shim) -> bool {
    let all = contexts::all(shim, Vendor::Cuda);
    all.into_iter().all(|(context, _)| device::is_idle(Vendor::Cuda, context) == Some(true))
}

/// Returns the reason why the driver, if it can park processes, cannot park this one; empty if it can.
fn why_not(shim: &Shim) -> &'static str {
    let ledger = &shim.ledger;
    let live = |row: Tally| ledger.counter(row.alloc_bytes()) > ledger.counter(row.free_bytes());
    if !activity::countable() {
        "it gives the device work that gpumem cannot count"
    } else if ledger.header().interception().load(Relaxed) != Interception::Complete as u32 {
        "some of its calls go past gpumem, which could not see that it needs its memory again"
    } else if gates::are_too_few() {
        "it uses more functions of the driver than gpumem can watch"
    } else if !device::can_tell(Vendor::Cuda) {
        "its driver does not tell when a context is idle"
    } else if Tally::all_in(Space::Managed).any(live) {
        "it has managed memory, which the driver cannot park"
    } else if !contexts::all(shim, Vendor::Hip).is_empty() {
        "it uses HIP, which has no such call"
    } else {
        ""
    }
}
