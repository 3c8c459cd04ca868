//! One call of the program: its API, and its origin.

use crate::process::regs::Regs;
use crate::process::threads;
use gpumem_wire::kinds::Vendor;

/// A call that came in at a door.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub vendor: Vendor,
    regs: Regs,
}

impl Call {
    #[inline(always)]
    pub(crate) fn new(vendor: Vendor, regs: Regs) -> Self {
        Self { vendor, regs }
    }

    /// Returns the place of the program's call: the runtime call, if this call comes from inside one.
    #[inline]
    pub(crate) fn site(&self) -> Regs {
        let outer = threads::local(|local| local.caller.get());
        outer.filter(|outer| encloses(outer, &self.regs)).unwrap_or(self.regs)
    }
}

/// True if an inner call can have been made inside an outer one: then it is further down the stack. An outer call that
/// is not further up was left by `longjmp`.
#[inline]
fn encloses(outer: &Regs, inner: &Regs) -> bool {
    outer.sp > inner.sp
}

/// Attributes driver calls of this thread to a runtime call while it lives.
pub(crate) struct Anchor {
    outer: Option<Regs>,
    records: u64,
}

/// Remembers a runtime call for the driver calls that it will make.
#[inline]
pub(crate) fn anchor(call: Call) -> Anchor {
    threads::local(|local| {
        // A runtime function inside another one (a wrapper library): the program called the outer one.
        let outer = local.caller.get().filter(|outer| encloses(outer, &call.regs));
        local.caller.set(outer.or(Some(call.regs)));
        Anchor { outer, records: local.records.get() }
    })
}

impl Anchor {
    /// True if no driver call was seen inside this runtime call so far.
    #[inline]
    pub(crate) fn saw_nothing(&self) -> bool {
        threads::local(|local| local.records.get() == self.records && !local.busy.get())
    }
}

impl Drop for Anchor {
    #[inline]
    fn drop(&mut self) {
        threads::local(|local| local.caller.set(self.outer));
    }
}
