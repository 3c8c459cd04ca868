//! Who is inside a call with an exec. Two threads at a time are a violation with
//! `SIM_THREADS=strict`: the driver's reference asks that calls on one graph
//! object be serialised by the program, and what it does otherwise nobody states.

use crate::config::config;
use crate::handle::H;
use crate::lifecycle::thread_id;
use crate::report;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

static INSIDE: Mutex<BTreeMap<H, Vec<u64>>> = Mutex::new(BTreeMap::new());

/// Until dropped, this thread is in a call with the exec.
pub struct Inside(Option<H>);

/// Stays inside for `SIM_SLOW_US`, so that others have time to come in.
pub fn exec(h: H) -> Inside {
    if !config().strict_threads {
        return Inside(None);
    }
    let others = {
        let mut all = INSIDE.lock().unwrap_or_else(|e| e.into_inner());
        let here = all.entry(h).or_default();
        let others = here.iter().any(|t| *t != thread_id());
        here.push(thread_id());
        others
    };
    if others {
        report::violation("concurrent_use", &format!("graph exec {h:#x} is used by two threads at a time"));
    }
    if config().slow_us > 0 {
        std::thread::sleep(Duration::from_micros(config().slow_us));
    }
    Inside(Some(h))
}

impl Drop for Inside {
    fn drop(&mut self) {
        let Some(h) = self.0 else { return };
        let mut all = INSIDE.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(here) = all.get_mut(&h) {
            if let Some(i) = here.iter().rposition(|t| *t == thread_id()) {
                here.remove(i);
            }
            if here.is_empty() {
                all.remove(&h);
            }
        }
    }
}
