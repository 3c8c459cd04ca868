//! The program's last launches, so that the guard can name those that may have made a write.

use super::of;
use crate::backend::reader::name_of;
use crate::call::Call;
use crate::gate;
use crate::pool::Pool;
use crate::pool::block::FRONT;
use crate::process::clock;
use crate::process::lock::lock;
use crate::records::registry::sites::Made;
use crate::stranded;
use gpumem_abi::types::{Opaque, Stream};
use gpumem_wire::layout::StackRef;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Number of launches that are kept.
const KEPT: usize = 4096;
/// Number of kernel names that are kept.
const NAMES: usize = 4096;
/// Number of argument words that are kept of one launch.
const WORDS: usize = 12;

/// Kind of work that a program launches.
#[derive(Clone, Copy)]
pub(crate) enum LaunchKind {
    Kernel(Opaque),
    Graph,
    Other,
}

/// Notes a launch that may write. `words`: arguments of the launch that may be addresses.
#[cold]
pub(crate) fn note_launch(call: &Call, stream: Stream, what: LaunchKind, words: &[u64]) {
    let Some((pool, guard)) = of(call.vendor) else { return };
    // Work without code writes to its arguments alone. So a recorded event, for example, is not noted.
    if matches!(what, LaunchKind::Other) && !words.iter().any(|&word| is_in_block(pool, word)) {
        return;
    }
    gate::note(|shim| {
        let name = match what {
            LaunchKind::Graph => "a graph".into(),
            LaunchKind::Other => "a copy, fill or other work".into(),
            LaunchKind::Kernel(function) => guard.launches.name(function as usize, || {
                // SAFETY: the driver has just accepted a launch of this function.
                let named = unsafe { name_of(function) };
                named.unwrap_or_else(|| format!("the kernel at {:#x}", function as usize)).into()
            }),
        };
        let stack = shim.site(call.site(), Made::Stream);
        guard.launches.add(stream as u64, name, !matches!(what, LaunchKind::Other), stack, words);
    });
}

/// Returns true if a word is an address in a block, or in front of the part of a block that is the program's.
fn is_in_block(pool: &Pool, word: u64) -> bool {
    let blocks = pool.releaser.blocks();
    stranded::may_matter(word) && (blocks.around(word).is_some() || blocks.around(word.saturating_add(FRONT)).is_some())
}

/// One launch.
#[derive(Clone, Debug)]
pub(super) struct PastLaunch {
    /// Number of launches before it.
    pub number: u64,
    pub time_ns: u64,
    pub stream: u64,
    /// The kernel's name, or the kind of work.
    pub name: Arc<str>,
    pub stack: StackRef,
    /// It runs code, which may write anywhere. Other work writes only to the addresses in its call.
    runs_code: bool,
    /// Arguments that may be addresses.
    words: [u64; WORDS],
}

/// The last launches, and the names of kernels.
#[derive(Debug, Default)]
pub(super) struct PastLaunches {
    last: Mutex<VecDeque<PastLaunch>>,
    count: AtomicU64,
    names: Mutex<FxHashMap<usize, Arc<str>>>,
}

impl PastLaunches {
    /// Returns the name of a kernel. Calls `ask` if it is not known yet.
    pub(super) fn name(&self, function: usize, ask: impl FnOnce() -> Arc<str>) -> Arc<str> {
        if let Some(name) = lock(&self.names).get(&function) {
            return name.clone();
        }
        let name = ask();
        let mut names = lock(&self.names);
        // Once code was unloaded, its handles may be reused for other kernels.
        if names.len() >= NAMES {
            names.clear();
        }
        names.insert(function, name.clone());
        name
    }

    pub(super) fn add(&self, stream: u64, name: Arc<str>, runs_code: bool, stack: StackRef, arguments: &[u64]) {
        let mut words = [0; WORDS];
        words.iter_mut().zip(arguments).for_each(|(word, &argument)| *word = argument);
        let mut last = lock(&self.last);
        if last.len() >= KEPT {
            last.pop_front();
        }
        let number = self.count.fetch_add(1, Relaxed);
        last.push_back(PastLaunch { number, time_ns: clock::precise_ns(), stream, name, stack, runs_code, words });
    }

    /// Returns `true` and the launches since a time that were given an address in a range, at most `most`, the newest
    /// first. If there are none: `false` and the newest launches since then that ran code.
    pub(super) fn since(&self, time_ns: u64, range: &Range<u64>, most: usize) -> (bool, Vec<PastLaunch>) {
        let last = lock(&self.last);
        let since = || last.iter().rev().take_while(|launch| launch.time_ns >= time_ns);
        let given = since().filter(|launch| launch.words.iter().any(|word| range.contains(word)));
        let given: Vec<PastLaunch> = given.take(most).cloned().collect();
        if given.is_empty() {
            (false, since().filter(|l| l.runs_code).take(most).cloned().collect())
        } else {
            (true, given)
        }
    }

    /// Returns the first launch since a time that ran code.
    pub(super) fn first_since(&self, time_ns: u64) -> Option<PastLaunch> {
        let last = lock(&self.last);
        let since = last.iter().skip(last.partition_point(|launch| launch.time_ns < time_ns));
        since.into_iter().find(|launch| launch.runs_code).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_given_the_address_come_first() {
        let launches = PastLaunches::default();
        let start = clock::precise_ns();
        launches.add(1, "a".into(), true, 0, &[0x1000, 5]);
        launches.add(1, "b".into(), true, 0, &[7, 0x2000]);
        launches.add(2, "c".into(), false, 0, &[0x1800]);
        launches.add(2, "d".into(), true, 0, &[]);
        let names =
            |(given, found): (bool, Vec<PastLaunch>)| (given, found.iter().map(|l| l.name.to_string()).collect());
        let is = |given, names: &[&str]| (given, names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(names(launches.since(start, &(0x1000..0x2000), 3)), is(true, &["c", "a"]));
        assert_eq!(names(launches.since(start, &(0x9000..0xa000), 2)), is(false, &["d", "b"]));
        assert_eq!(names(launches.since(clock::precise_ns() + 1, &(0..1), 2)), is(false, &[]));
        assert_eq!(launches.first_since(start).map(|launch| launch.name).as_deref(), Some("a"));
        (0..KEPT as u64 + 5).for_each(|n| launches.add(n, "e".into(), true, 0, &[]));
        assert_eq!(lock(&launches.last).len(), KEPT);
    }

    #[test]
    fn a_name_is_asked_for_once() {
        let launches = PastLaunches::default();
        let name = |of: &str| launches.name(1, || of.into()).to_string();
        assert_eq!((name("a"), name("b")), ("a".into(), "a".into()));
    }
}
