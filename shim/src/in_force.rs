//! The present values of the variables: those of the start, and those that `gpumem set` changed.
//!
//! [`crate::shim::Shim::settings`] stays as it was at the start. A value that is read often, or in a place that may
//! take no lock, is an atomic here or beside its user.

use gpumem_wire::settings::{Log, Setting, Settings, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// The variables of one process.
pub(crate) struct InForce {
    now: Mutex<Settings>,
    /// `GPUMEM_LIMIT`; 0: none.
    limit: AtomicU64,
    quiet: AtomicBool,
    summary: AtomicBool,
    oom_report: AtomicBool,
}

impl InForce {
    pub(crate) fn new(settings: &Settings) -> Self {
        let new = Self {
            now: Mutex::new(settings.clone()),
            limit: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
            summary: AtomicBool::new(false),
            oom_report: AtomicBool::new(false),
        };
        new.follow(settings);
        new
    }

    /// Changes a variable; `None` unsets it. Returns all variables afterwards.
    pub(crate) fn put(&self, setting: &Setting, value: Option<Value>) -> Settings {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.put(setting, value);
        self.follow(&now);
        now.clone()
    }

    fn follow(&self, settings: &Settings) {
        self.limit.store(settings.limit.unwrap_or(0), Relaxed);
        self.quiet.store(settings.log == Log::Quiet, Relaxed);
        self.summary.store(settings.summary, Relaxed);
        self.oom_report.store(settings.oom_report, Relaxed);
    }

    /// Returns all present variables.
    pub(crate) fn all(&self) -> Settings {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the bytes of each device that the process may take. 0: no limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// True if nothing is written to stderr.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet.load(Relaxed)
    }

    /// True if totals are written to stderr at the end.
    pub(crate) fn summary(&self) -> bool {
        self.summary.load(Relaxed)
    }

    /// True if a report of memory holders goes to stderr when memory runs out.
    pub(crate) fn oom_report(&self) -> bool {
        self.oom_report.load(Relaxed)
    }
}
