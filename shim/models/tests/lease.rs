//! The lease of an exec, and the handle that has the exec: a launch runs its own handle's content, and no thread
//! changes an exec while another launches it.

mod sync {
    pub use gpumem_models::atomic::*;
    pub use gpumem_models::thread::yield_now;
}

// What the files below name and do not look into.
extern crate self as gpumem_abi;
mod types {
    pub type GraphExec = *mut ();
    pub type Stream = *mut ();
}
mod class {
    pub struct Class;
    pub struct Template;
}
mod backend {
    pub mod graphs {
        use crate::types::Stream;

        pub struct Event;
        #[derive(Clone, Copy)]
        pub struct StreamArg {
            pub stream: Stream,
            pub per_thread: bool,
            pub home: u32,
        }

        impl StreamArg {
            pub fn new(stream: Stream, per_thread: bool) -> Self {
                Self { stream, per_thread, home: 0 }
            }
        }
    }
    pub mod source {
        /// Content of an exec: loom and Miri look at each access.
        pub type Records = gpumem_models::Plain<u64>;
    }
}
mod process {
    pub mod threads {
        pub fn tid(_: impl FnOnce(u32)) -> u32 {
            0
        }
    }
}

#[allow(dead_code, reason = "these models are about the lease")]
#[path = "../../src/graphs/real.rs"]
mod real;
#[path = "../../src/graphs/resident.rs"]
mod resident;

use gpumem_models::{Arc, Plain, model, thread};
use real::{Lease, RealExec};
use resident::Resident;

/// Two handles and the exec that they take from one another. The first one has it.
struct Cache {
    handles: [Resident; 2],
    real: &'static RealExec,
    /// The library's content of the exec: the number of the handle whose content it is. A launch reads it.
    library: Plain<u64>,
}

impl Cache {
    fn new() -> Arc<Self> {
        // As in the shim, an exec is never freed.
        let real: &'static RealExec = Box::leak(Box::default());
        let cache = Self { handles: Default::default(), real, library: Plain::new(0) };
        cache.handles[0].set(&real.lease().expect("no other thread knows it"));
        Arc::new(cache)
    }

    /// Launches a handle if its exec serves, and returns true if it did.
    fn launches_shared(&self, handle: usize) -> bool {
        let Some(real) = self.handles[handle].get() else { return false };
        let is_shared = self.handles[handle].share(real, || true);
        if is_shared {
            assert_eq!(self.library.read(), handle as u64, "another handle's content was launched");
            real.unshare();
        }
        is_shared
    }

    /// Launches a handle with its exec leased, and returns true if it had one.
    fn launches_leased(&self, handle: usize) -> bool {
        let Some(mut lease) = self.handles[handle].lease() else { return false };
        assert_eq!(self.library.read(), handle as u64, "another handle's content was launched");
        change(&mut lease);
        true
    }

    /// Takes the exec from the first handle for the second one, if no thread uses it.
    fn takes_it(&self) -> bool {
        let Some(mut lease) = self.real.lease() else { return false };
        lease.real().set_handle(None);
        self.handles[0].clear();
        self.library.write(1);
        change(&mut lease);
        lease.real().set_handle(Some(1));
        self.handles[1].set(&lease);
        true
    }
}

/// Changes what only the lease's holder may touch.
fn change(lease: &mut Lease) {
    let content = &lease.body().content;
    content.write(content.read() + 1);
}

/// Red with a relaxed `fetch_add` in `share`, a relaxed `fetch_sub` in `unshare`, a relaxed `fetch_and` in the lease's
/// drop, or a `compare_exchange` in `lease` that does not acquire: an exec is changed while it is launched. Red without
/// the second look in `share`: another handle's content is launched.
#[test]
fn a_launch_runs_its_own_handles_content() {
    model(3, || {
        let cache = Cache::new();
        let other = {
            let cache = cache.clone();
            thread::spawn(move || cache.takes_it())
        };
        let launched = cache.launches_shared(0);
        let taken = other.join().unwrap();
        assert!(launched || taken, "none of the two waits for the other in vain");
        assert_eq!(cache.launches_shared(1), taken);
    });
}

/// Two launches share an exec that a third thread takes for another handle.
#[test]
fn launches_share_an_exec() {
    model(2, || {
        let cache = Cache::new();
        let others = [true, false].map(|launches| {
            let cache = cache.clone();
            thread::spawn(move || if launches { cache.launches_shared(0) } else { cache.takes_it() })
        });
        cache.launches_shared(0);
        let taken = others.map(|other| other.join().unwrap())[1];
        assert_eq!((cache.launches_shared(0), cache.launches_shared(1)), (!taken, taken));
    });
}

/// A launch that needs the exec for itself waits for it, and finds out if the exec is taken away meanwhile.
/// Red without the second look in `lease`.
#[test]
fn a_launch_that_leases_its_exec_gets_it_or_learns_that_it_is_gone() {
    model(3, || {
        let cache = Cache::new();
        let others = [true, false].map(|launches| {
            let cache = cache.clone();
            thread::spawn(move || if launches { cache.launches_shared(0) } else { cache.takes_it() })
        });
        let launched = cache.launches_leased(0);
        let taken = others.map(|other| other.join().unwrap())[1];
        assert!(launched || taken);
        assert_eq!((cache.launches_leased(0), cache.launches_leased(1)), (!taken, taken));
    });
}

/// A thread that finds a new exec at a handle sees it as it was made. Red with a relaxed `get` or `set`.
#[test]
fn a_new_exec_is_whole() {
    model(3, || {
        let cache = Arc::new((Resident::default(), Plain::new(0)));
        let other = {
            let cache = cache.clone();
            thread::spawn(move || {
                let (handle, made) = &*cache;
                let real: &'static RealExec = Box::leak(Box::default());
                made.write(1);
                handle.set(&real.lease().expect("no other thread knows it"));
            })
        };
        let (handle, made) = &*cache;
        assert!(handle.get().is_none() || made.read() == 1);
        other.join().unwrap();
    });
}
