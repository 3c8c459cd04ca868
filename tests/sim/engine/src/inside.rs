//! Which threads are inside a call with a graph or an exec. Two threads at a time are a violation with
//! `SIM_THREADS=strict`: the driver's reference asks that calls on one graph
//! object be serialised by the program, and does not say what happens otherwise.
//! Destroying an exec, and setting its nodes, are calls with the graph that it was instantiated from as well:
//! four threads that destroyed and instantiated execs of one graph crashed in cuGraphExecDestroy
//! (one of 199 runs of a second each, H200, driver 580).

use crate::config::config;
use crate::handle::H;
use crate::lifecycle::thread_id;
use crate::report;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

static INSIDE: Mutex<BTreeMap<H, Vec<u64>>> = Mutex::new(BTreeMap::new());

/// While this lives, the thread is in a call with these objects.
pub struct Inside([Option<H>; 2]);

/// Stays inside for `SIM_SLOW_US`, so that other threads have time to enter.
pub fn exec(h: H) -> Inside {
    enter([Some(("graph exec", h)), None])
}

/// The same, with a graph.
pub fn graph(h: H) -> Inside {
    enter([Some(("graph", h)), None])
}

/// The same, with an exec and the graph that it was instantiated or is updated from. 0 is none. If nobody asked for the
/// check, this looks nothing up and takes no lock.
pub fn exec_and_graph(h: H, graph: impl FnOnce() -> H) -> Inside {
    if !config().strict_threads {
        return Inside([None; 2]);
    }
    let graph = graph();
    enter([Some(("graph exec", h)), (graph != 0).then_some(("graph", graph))])
}

fn enter(objects: [Option<(&str, H)>; 2]) -> Inside {
    if !config().strict_threads {
        return Inside([None; 2]);
    }
    for (what, h) in objects.into_iter().flatten() {
        let others = {
            let mut all = INSIDE.lock().unwrap_or_else(|e| e.into_inner());
            let here = all.entry(h).or_default();
            let others = here.iter().any(|t| *t != thread_id());
            here.push(thread_id());
            others
        };
        if others {
            report::violation("concurrent_use", &format!("{what} {h:#x} is used by two threads at a time"));
        }
    }
    if config().slow_us > 0 {
        std::thread::sleep(Duration::from_micros(config().slow_us));
    }
    Inside(objects.map(|object| object.map(|(_, h)| h)))
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.0 == [None; 2] {
            return;
        }
        let mut all = INSIDE.lock().unwrap_or_else(|e| e.into_inner());
        for h in self.0.into_iter().flatten() {
            let Some(here) = all.get_mut(&h) else { continue };
            if let Some(i) = here.iter().rposition(|t| *t == thread_id()) {
                here.remove(i);
            }
            if here.is_empty() {
                all.remove(&h);
            }
        }
    }
}
