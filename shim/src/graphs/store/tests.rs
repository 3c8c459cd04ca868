//! Threads that destroy contexts while threads use objects in them, stopped inside the library.

use super::ExecStore;
use super::take::IdleDevices;
use crate::backend::graphs::{Reading, StreamArg};
use crate::backend::source::{Packed, Records, Source};
use crate::graphs::class::{Class, Shape, Template};
use crate::graphs::handle::{Body, INVALID, Pending};
use crate::graphs::real::{LOST, RealExec};
use crate::graphs::tests::{CONTEXT, EVENT, EXEC, FakeLibrary, Gate, library as fake_library, start};
use crate::process::clock;
use crate::process::lock::lock;
use gpumem_abi::types::{Graph, Stream};
use gpumem_wire::settings::Settings;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Makes a cache with one parked exec in the context, whose event tells if it runs.
fn cache(library: FakeLibrary) -> (&'static ExecStore, &'static FakeLibrary, &'static RealExec) {
    let (library_of_cache, library) = fake_library(library);
    let (settings, _) = Settings::read(std::iter::empty());
    let cache = ExecStore::new(library_of_cache, &settings, (start(), start())).unwrap();
    let cache: &'static ExecStore = Box::leak(Box::new(cache));
    let shape = Shape::new(Packed::default(), 1, &Reading::default(), CONTEXT, Source::default());
    let class = Arc::new(Class::new(Arc::new(shape), 0, false));
    let empty: (Arc<Records>, Arc<[u8]>) = Default::default();
    let template = Arc::new(Template::new(0x90 as Graph, vec![], Records::default(), empty, library));
    cache.reserve((0, 0), true);
    let mut lease = cache.keep(&class, template, (EXEC, Records::default()), (0, 0));
    lease.body().event = Some(EVENT);
    let real = lease.real();
    real.stream_key.store(LOST, Relaxed);
    real.marked.store(true, Relaxed);
    (cache, library, real)
}

/// Acts as a thread that needs room. Returns true if it got the exec and destroyed it.
fn evict(cache: &'static ExecStore, real: &'static RealExec) -> bool {
    cache.take_idle(real, &mut IdleDevices::default()).map(|idle| cache.end_idle(idle, true)).is_some()
}

/// Acts as a thread that destroys the context.
fn destroy_context(cache: &ExecStore, library: &FakeLibrary) {
    cache.context_going(CONTEXT, false);
    library.gone.store(true, SeqCst);
}

/// A call of the library may be left by an exception, or by the end of the thread.
#[test]
fn what_a_call_was_made_within_is_put_back_when_the_call_unwinds() {
    let (cache, library, _) = cache(FakeLibrary::default());
    let unwinds = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).expect_err("it throws");
    let throws = || resume_unwind(Box::new(7));
    unwinds(&|| {
        let _within = cache.library().relax_in(CONTEXT);
        throws();
    });
    assert_eq!((library.relaxed.load(SeqCst), library.entered.load(SeqCst)), (0, 0));
    let stream = StreamArg::new(0x70 as Stream, false);
    unwinds(&|| {
        let there = || resume_unwind(Box::new(7));
        cache.completion.query_stream(stream, there, || ());
    });
    unwinds(&|| {
        let _no_queries = cache.capture_begins();
        throws();
    });
    unwinds(&|| {
        let _no_queries = cache.stream_going(stream.stream);
        throws();
    });
    assert!(cache.completion.is_unused());
}

#[test]
fn what_is_being_destroyed_is_in_its_context_until_that_is_done() {
    let (gate, begun, open) = Gate::new();
    let (cache, library, real) = cache(FakeLibrary { destroyed: gate, ..FakeLibrary::default() });
    let evicts = spawn(move || evict(cache, real));
    begun.recv().unwrap();
    assert!(real.is_in(CONTEXT) && real.lease().is_none(), "whoever looks for it finds it, and waits");
    let destroys = spawn(move || destroy_context(cache, library));
    sleep(Duration::from_millis(20));
    assert!(!destroys.is_finished());
    open.send(true).unwrap();
    assert!(evicts.join().unwrap());
    destroys.join().unwrap();
    assert!(!real.in_use());
    assert_eq!((library.dead.load(SeqCst), library.destroyed_execs.load(SeqCst)), (0, 1));
}

#[test]
fn a_context_waits_for_looks_at_its_execs() {
    let (gate, begun, open) = Gate::new();
    let (cache, library, real) = cache(FakeLibrary { looked: gate, ..FakeLibrary::default() });
    let evicts = spawn(move || evict(cache, real));
    begun.recv().unwrap();
    let destroys = spawn(move || destroy_context(cache, library));
    sleep(Duration::from_millis(20));
    assert!(!destroys.is_finished());
    open.send(false).unwrap();
    assert!(!evicts.join().unwrap(), "it runs");
    destroys.join().unwrap();
    assert!(!real.in_use());
    assert_eq!((library.dead.load(SeqCst), library.destroyed_execs.load(SeqCst)), (0, 1));
}

/// No wait is unbounded. An object that another thread uses for longer than a context waits is never passed to the
/// library again, whatever that thread does later.
#[test]
fn what_is_used_for_too_long_is_abandoned_with_its_context() {
    for over in [true, false] {
        let (gate, begun, open) = Gate::new();
        let (cache, library, real) = cache(FakeLibrary { looked: gate, ..FakeLibrary::default() });
        let evicts = spawn(move || evict(cache, real));
        begun.recv().unwrap();
        cache.context_going_by(clock::precise_ns(), CONTEXT, false);
        library.gone.store(true, SeqCst);
        open.send(over).unwrap();
        assert_eq!(evicts.join().unwrap(), over);
        assert!(!evict(cache, real));
        assert!(!real.in_use() && real.lease().is_some());
        assert_eq!((library.dead.load(SeqCst), library.destroyed_execs.load(SeqCst)), (0, 0));
    }
}

/// The driver gets nothing of it, and nothing of it stays.
#[test]
fn what_an_exec_held_goes_with_its_context() {
    for gone in [false, true] {
        let (cache, library, real) = cache(FakeLibrary::default());
        let template = real.lease().and_then(|mut lease| lease.body().template.as_ref().map(Arc::downgrade)).unwrap();
        library.gone.store(gone, SeqCst);
        cache.context_going(CONTEXT, gone);
        assert!(template.upgrade().is_none(), "{gone}");
        assert_eq!((library.dead.load(SeqCst), library.destroyed_execs.load(SeqCst)), (0, usize::from(!gone)));
    }
}

/// Folded graphs are destroyed by the next thread that waits for the device, in any context.
#[test]
fn a_context_waits_for_graphs_that_are_destroyed_in_spare_time() {
    let (gate, begun, open) = Gate::new();
    let (cache, library, _) = cache(FakeLibrary { graph_destroyed: gate, ..FakeLibrary::default() });
    cache.sources().wait_to_go(0x91 as Graph, CONTEXT);
    let spares = spawn(move || cache.sources().destroy_folded(None, false));
    begun.recv().unwrap();
    let destroys = spawn(move || destroy_context(cache, library));
    sleep(Duration::from_millis(20));
    assert!(!destroys.is_finished());
    open.send(true).unwrap();
    spares.join().unwrap();
    destroys.join().unwrap();
    assert_eq!(library.dead.load(SeqCst), 0);
}

/// The program may destroy such a handle whenever it likes, once.
#[test]
fn a_handle_means_nothing_when_its_context_is_gone() {
    for gone in [false, true] {
        let (cache, ..) = cache(FakeLibrary::default());
        let shape = Arc::new(Shape::new(Packed::default(), 1, &Reading::default(), CONTEXT, Source::default()));
        let source = Arc::new(Source::default());
        let class = Arc::new(Class::new(shape, 0, false));
        let (index, handle) = cache.handles().execs().take().unwrap();
        *lock(&handle.body) = Body { class: Some(class.clone()), source: Some(source.clone()), ..Body::default() };
        cache.handles().set_pending(handle, Pending { event: EVENT, stream_key: LOST });
        cache.context_going(CONTEXT + 1, gone);
        assert_eq!((Arc::strong_count(&class), Arc::strong_count(&source)), (2, 2));
        cache.context_going(CONTEXT, gone);
        assert_eq!((Arc::strong_count(&class), Arc::strong_count(&source)), (1, 1));
        assert!(
            !handle.waits.load(SeqCst)
                && cache.handles().wait_for_pending(handle, StreamArg::new(0x70 as Stream, false), LOST).is_none(),
            "its event is of that context"
        );
        assert_eq!((cache.end_handle(index), cache.end_handle(index)), (Ok(()), Err(INVALID)));
    }
}
