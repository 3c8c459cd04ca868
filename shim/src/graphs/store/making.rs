//! Threads that make execs of templates, beside threads that unload code.

use crate::process::raised::Raised;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Who makes execs of shared templates, and who unloads code that such a template may hold.
#[derive(Default)]
pub(super) struct Making {
    /// How many threads are instantiating a template, whatever code it was built from.
    making: AtomicU32,
    /// How many threads are unloading code.
    going: AtomicU32,
}

impl Making {
    /// While the answer lives, this thread is between reading a class's template and having an exec of it. `None` while
    /// code is being unloaded.
    pub(super) fn begin(&self) -> Option<Raised<'_>> {
        let making = Raised::new(&self.making);
        (self.going.load(SeqCst) == 0).then_some(making)
    }

    /// While the answer lives, code is being unloaded: nobody begins.
    pub(super) fn close(&self) -> Raised<'_> {
        Raised::new(&self.going)
    }

    /// Whether nobody is making an exec of a shared template.
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
