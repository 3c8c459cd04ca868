//! Checkpoints: the states of a process, and what each request does in each state. Measured on an H100 and an H200 (driver
//! 580), if no other source is named.

use super::*;
use crate::checkpoint::Request::*;
use crate::checkpoint::gate::{self, Passes};
use crate::checkpoint::target::{Caller, Target};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A caller that lives on, or that ends as soon as the copy has begun.
struct Lives(bool);

impl Caller for Lives {
    fn lives_for(&self, _: Duration) -> bool {
        self.0
    }
}

impl Target {
    fn ask(&mut self, request: crate::checkpoint::Request) -> Result<i32> {
        self.serve(request, &Lives(true))
    }
}

const MIB: u64 = 1 << 20;
const WRONG_STATE: Result<i32> = Err(Error::ILLEGAL_STATE);

#[test]
fn each_state_allows_one_step() {
    let _r = rig();
    let mut target = Target::new();
    let mut steps = |allowed: crate::checkpoint::Request, state: i32| {
        for request in [Lock(0), Checkpoint, Restore, Unlock].into_iter().filter(|request| *request != allowed) {
            if (request, allowed, state) != (Unlock, Checkpoint, 1) {
                assert_eq!(target.ask(request), WRONG_STATE, "{request:?} in state {state}");
            }
        }
        assert_eq!((target.ask(State), target.ask(allowed)), (Ok(state), Ok(0)));
    };
    steps(Lock(0), 0);
    steps(Checkpoint, 1);
    steps(Restore, 2);
    assert_eq!((target.ask(Unlock), target.ask(State)), (Ok(0), Ok(0)));
}

#[test]
fn the_memory_leaves_the_device_and_comes_back() {
    let r = rig();
    let (p, small) = (alloc(r.ctx, 4 * MIB).unwrap(), alloc(r.ctx, 64).unwrap());
    let words = |value: u64| {
        r.fill(r.s, p, MIB, value).unwrap();
        r.fill(r.s, small, 16, value).unwrap();
        stream::synchronize(r.s).unwrap();
    };
    words(7);
    let (before, mut target) = (used(), Target::new());
    let raw = |p: u64| {
        let m = lock();
        // SAFETY: `p` is a live allocation of at least four bytes, and the arena stays mapped.
        unsafe { *(m.arena.host_address(p) as *const u32) }
    };
    target.ask(Lock(0)).unwrap();
    target.ask(Checkpoint).unwrap();
    assert_eq!(used(), 0);
    assert!(raw(p) != 7 && raw(small) != 7, "nobody can read it meanwhile");
    target.ask(Restore).unwrap();
    assert_eq!((used(), raw(p + 4 * MIB - 4), raw(small)), (before, 7, 7));
    target.ask(Unlock).unwrap();
    assert_eq!((r.words(p, 4), r.words(small, 16)), (vec![7; 4], vec![7; 16]));
    free(p).unwrap();
    free(small).unwrap();
}

#[test]
fn a_lock_waits_for_work_up_to_its_limit() {
    let r = rig();
    let mut target = Target::new();
    r.spin(r.s, 300);
    assert_eq!((target.ask(Lock(20)), target.ask(State)), (Err(Error::NOT_READY), Ok(0)));
    drop(gate::pass());
    let start = Instant::now();
    assert_eq!(target.ask(Lock(0)), Ok(0));
    assert!(start.elapsed() > Duration::from_millis(100) && lock().is_idle());
    target.ask(Unlock).unwrap();
}

#[test]
fn a_lock_waits_for_calls_and_stops_later_ones() {
    static PASSED: AtomicBool = AtomicBool::new(false);
    let _r = rig();
    let mut target = Target::new();
    let inside = gate::pass();
    assert_eq!(target.ask(Lock(20)), Err(Error::NOT_READY));
    drop(inside);
    target.ask(Lock(20)).unwrap();
    let late = std::thread::spawn(|| {
        drop(gate::pass());
        PASSED.store(true, SeqCst);
    });
    target.ask(Checkpoint).unwrap();
    target.ask(Restore).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!PASSED.load(SeqCst));
    target.ask(Unlock).unwrap();
    late.join().unwrap();
}

#[test]
fn managed_memory_has_no_checkpoint() {
    let r = rig();
    let p = memory::alloc_managed(r.ctx, MIB, 1).unwrap();
    let mut target = Target::new();
    target.ask(Lock(0)).unwrap();
    assert_eq!((target.ask(Checkpoint), target.ask(State)), (Err(Error::NOT_SUPPORTED), Ok(1)));
    free(p).unwrap();
    assert_eq!(target.ask(Checkpoint), Ok(0));
    target.ask(Restore).unwrap();
    target.ask(Unlock).unwrap();
}

#[test]
fn a_restore_without_room_is_the_last() {
    let _r = rig();
    let (before, mut target) = (used(), Target::new());
    target.ask(Lock(0)).unwrap();
    target.ask(Checkpoint).unwrap();
    let all = lock().devices[0].total;
    lock().charge(0, all).unwrap();
    assert_eq!(target.ask(Restore), Err(Error::OUT_OF_MEMORY));
    lock().refund(0, all);
    for _ in 0..2 {
        assert_eq!((target.ask(Restore), target.ask(State)), (Err(Error::OPERATING_SYSTEM), Ok(2)));
    }
    // This process goes on with other tests.
    gate::set(Passes::All);
    lock().charge(0, before).unwrap();
}

/// After criu's issue 2547: the caller was killed.
#[test]
fn a_caller_that_ends_in_mid_call_leaves_a_failed_process() {
    let _r = rig();
    let mut target = Target::new();
    target.ask(Lock(0)).unwrap();
    assert_eq!(target.serve(Checkpoint, &Lives(false)), Err(Error::OPERATING_SYSTEM));
    assert_eq!(target.ask(State), Ok(3));
    for request in [Lock(0), Checkpoint, Restore, Unlock] {
        assert_eq!(target.ask(request), Err(Error::OPERATING_SYSTEM));
    }
    gate::set(Passes::All);
}
