//! The lock of a thread's cache: its owner and another thread are never inside together, and each sees what the other
//! one left there.
//!
//! loom knows no `membarrier`, so [`sync`] has a copy of what `shim/src/process/fences.rs` takes from the kernel: a
//! fence in the middle of another thread's code, at any one point between begin and end of the call.

mod sync {
    pub use gpumem_models::atomic::*;
    pub use gpumem_models::thread::{yield_now, yield_now as spin_loop};
    use std::cell::RefCell;
    use std::rc::Rc;

    /// How the two fences work.
    pub enum Fences {
        /// Both sides fence: the kernel has no `membarrier`.
        Alike,
        /// The rare side asks the kernel to fence for both.
        Kernel { asked: AtomicBool, fenced: AtomicBool },
        /// The rare side fences for itself alone, which is too little.
        RareAlone,
    }

    thread_local! {
        /// Those of this run: loom runs all threads of a model on one thread of the system.
        static NOW: RefCell<Option<Rc<Fences>>> = const { RefCell::new(None) };
    }

    pub fn begin_with(fences: Fences) {
        NOW.with(|now| *now.borrow_mut() = Some(Rc::new(fences)));
    }

    fn fences() -> Rc<Fences> {
        NOW.with(|now| now.borrow().clone().expect("the model has begun"))
    }

    /// Marks a point of the owner's code at which the kernel may fence.
    pub fn may_be_fenced() {
        if let Fences::Kernel { asked, fenced } = &*fences()
            && asked.load(Ordering::Relaxed)
        {
            fence(Ordering::SeqCst);
            fenced.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the owner off its processor. A switch of threads is a fence, and the kernel needs no other then.
    pub fn stop_running() {
        if let Fences::Kernel { fenced, .. } = &*fences() {
            fence(Ordering::SeqCst);
            fenced.store(true, Ordering::Relaxed);
        }
    }

    pub fn light() {
        match &*fences() {
            Fences::Alike => fence(Ordering::SeqCst),
            Fences::Kernel { .. } | Fences::RareAlone => may_be_fenced(),
        }
    }

    pub fn heavy() -> bool {
        fence(Ordering::SeqCst);
        if let Fences::Kernel { asked, fenced } = &*fences() {
            asked.store(true, Ordering::Relaxed);
            while !fenced.load(Ordering::Relaxed) {
                yield_now();
            }
            fence(Ordering::SeqCst);
        }
        true
    }
}

#[path = "../../src/pool/biased_lock.rs"]
mod biased_lock;

use biased_lock::BiasedLock;
use gpumem_models::{Arc, Plain, model, thread};
use sync::{Fences, begin_with, may_be_fenced, stop_running};

#[derive(Default)]
struct Cache {
    lock: BiasedLock,
    blocks: Plain<u64>,
}

impl Cache {
    /// Works in the cache, where no other thread may be now.
    fn use_it(&self) {
        self.blocks.write(self.blocks.read() + 1);
    }

    /// Uses the cache as its owner. Returns how often that went well.
    fn enters(&self, times: u64) -> u64 {
        let enter = |_: &u64| {
            may_be_fenced();
            let held = self.lock.enter();
            if held.is_some() {
                self.use_it();
                may_be_fenced();
            }
            held.is_some()
        };
        (0..times).filter(enter).count() as u64
    }

    /// As [`Cache::enters`], as another thread and once.
    fn takes(&self) -> u64 {
        let held = self.lock.take();
        if held.is_some() {
            self.use_it();
        }
        held.is_some().into()
    }
}

/// Runs an owner, and another thread that takes the cache once.
fn owner_and_another(fences: fn() -> Fences) {
    model(3, move || {
        begin_with(fences());
        let cache = Arc::new(Cache::default());
        let other = {
            let cache = cache.clone();
            thread::spawn(move || cache.takes())
        };
        let mut uses = cache.enters(2);
        stop_running();
        uses += other.join().unwrap();
        assert!(uses > 0, "one of the two always comes in");
        assert_eq!(cache.enters(1), 1, "both have left");
        assert_eq!(cache.blocks.read(), uses + 1);
    });
}

/// Red with a relaxed store as a thread leaves, with a relaxed load of `wanted` in `enter` or of `inside` in `take`,
/// and without a fence in `light`.
#[test]
fn both_sides_fence() {
    owner_and_another(|| Fences::Alike);
}

/// Red with a relaxed store as a thread leaves or a relaxed load of `wanted`, and if `heavy` does not wait for the
/// kernel.
#[cfg(not(miri))]
#[test]
fn the_kernel_fences_for_the_owner() {
    owner_and_another(|| Fences::Kernel { asked: false.into(), fenced: false.into() });
}

/// The kernel's part is needed: without it both threads are inside.
#[cfg(not(miri))]
#[test]
#[should_panic(expected = "Concurrent")]
fn a_fence_of_the_rare_side_alone_is_too_little() {
    owner_and_another(|| Fences::RareAlone);
}

/// Red with a relaxed store as a thread leaves.
#[test]
fn two_others_take_it_by_turns() {
    model(2, || {
        begin_with(Fences::Alike);
        let cache = Arc::new(Cache::default());
        let others = [(); 2].map(|()| {
            let cache = cache.clone();
            thread::spawn(move || cache.takes())
        });
        let mut uses = cache.enters(1);
        uses += others.into_iter().map(|other| other.join().unwrap()).sum::<u64>();
        assert_eq!(cache.enters(1), 1);
        assert_eq!(cache.blocks.read(), uses + 1);
    });
}
