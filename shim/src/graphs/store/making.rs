//! Coordinates threads that make execs of templates with threads that unload code.

use crate::process::raised::Raised;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Counts of threads that make execs of shared templates, and of threads that unload code that such a template may
/// hold.
#[derive(Default)]
pub(super) struct Making {
    /// Number of threads that are instantiating a template, built from any code.
    making: AtomicU32,
    /// Number of threads that are unloading code.
    going: AtomicU32,
}

impl Making {
    /// Begins to make an exec: from reading a class's template to having the exec, while the guard is held. `None`
    /// while code is being unloaded.
    pub(super) fn begin(&self) -> Option<Raised<'_>> {
        let making = Raised::new(&self.making);
        (self.going.load(SeqCst) == 0).then_some(making)
    }

    /// Stops new makings of execs, while code is being unloaded, until the guard is dropped.
    pub(super) fn close(&self) -> Raised<'_> {
        Raised::new(&self.going)
    }

    /// Returns true if no thread is making an exec of a shared template.
    pub(super) fn is_idle(&self) -> bool {
        self.making.load(SeqCst) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_of_a_template_while_code_goes() {
        let making = Making::default();
        let at_it = making.begin().expect("no code goes");
        assert!(!making.is_idle());
        let going = making.close();
        assert!(making.begin().is_none() && !making.is_idle(), "the first one is still at it");
        drop(at_it);
        assert!(making.is_idle());
        drop(going);
        assert!(making.begin().is_some());
    }
}
