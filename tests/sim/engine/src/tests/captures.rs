//! Calls that captures allow.

use super::*;

/// Results of a call while a stream captures, and of the capture's end.
type Outcome = (u32, u32);

fn in_capture(r: &Rig, flags: u32, mode: u32, call: &dyn Fn(H) -> Result) -> Outcome {
    let s = r.stream(flags);
    capture::begin(s, mode, None).unwrap();
    let code = |r: Result| r.err().map_or(0, |e| e.0);
    let first = code(call(s));
    (first, code(capture::end(s).map(drop)))
}

/// An exec made while nothing forbids it.
fn spare(r: &Rig, g: H) -> H {
    let mode = capture::exchange_mode(capture::RELAXED).unwrap();
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    capture::exchange_mode(mode).unwrap();
    x
}

#[test]
fn capture_rules_are_the_measured_ones() {
    let r = rig();
    let other = r.stream(stream::NON_BLOCKING);
    let ev = event::create(r.ctx, 0).unwrap();
    event::record(ev, other, 0).unwrap();
    let p = alloc(r.ctx, 4096).unwrap();
    let g = r.chain(p, &[1]);
    let x = exec::instantiate(r.ctx, g, 0).unwrap();
    context::synchronize(r.ctx).unwrap();
    const OK: Outcome = (0, 0);
    const BAD: Outcome = (900, 901);
    let malloc = |_| alloc(r.ctx, 64).and_then(free);
    let legacy = r.legacy();
    type Row<'a> = (&'a str, &'a dyn Fn(H) -> Result, [Outcome; 3]);
    let rows: &[Row] = &[
        ("malloc", &malloc, [BAD, BAD, OK]),
        ("host alloc", &|_| memory::alloc_host(r.ctx, 64, 0).map(drop), [BAD, BAD, OK]),
        ("other stream synchronize", &|_| stream::synchronize(other), [BAD, BAD, OK]),
        ("other stream query", &|_| stream::query(other), [BAD, BAD, OK]),
        ("event query", &|_| event::query(ev), [BAD, BAD, OK]),
        ("event synchronize", &|_| event::synchronize(ev), [BAD, BAD, OK]),
        ("instantiate", &|_| exec::instantiate(r.ctx, g, 0).map(drop), [BAD, BAD, OK]),
        ("exec destroy", &|_| exec::destroy(spare(&r, g)), [BAD, BAD, OK]),
        ("free of null", &|_| free(0), [BAD, BAD, OK]),
        ("alloc async elsewhere", &|_| pool::alloc(r.ctx, other, 64, 0).map(drop), [BAD, BAD, OK]),
        ("capturing stream query", &stream::query, [BAD; 3]),
        ("capturing stream synchronize", &stream::synchronize, [BAD; 3]),
        ("context synchronize", &|_| context::synchronize(r.ctx), [BAD; 3]),
        ("context record event", &|_| event::record_context(ev, r.ctx), [BAD; 3]),
        ("graph launch into it", &|s| exec::launch(x, s), [BAD; 3]),
        ("wait for an event from outside", &|s| event::wait(ev, s, 0), [(905, 901); 3]),
        ("begin again", &|s| capture::begin(s, 2, None), [(401, 0); 3]),
        ("graph launch elsewhere", &|_| exec::launch(x, other), [OK; 3]),
        ("launch elsewhere", &|_| r.fill(other, p, 4, 1), [OK; 3]),
        ("memory info", &|_| (memory::info(0).1 > 0).then_some(()).ok_or(Error::UNKNOWN), [OK; 3]),
        ("event record elsewhere", &|_| event::record(ev, other, 0), [OK; 3]),
        ("module load", &|_| module::load(r.ctx, PTX).map(drop), [OK; 3]),
        ("stream create", &|_| stream::create(r.ctx, 0, 0).map(drop), [OK; 3]),
        ("launch in the legacy stream", &|_| r.fill(legacy, p, 4, 1), [OK; 3]),
    ];
    for (name, call, expected) in rows {
        for (mode, want) in expected.iter().enumerate() {
            assert_eq!(in_capture(&r, stream::NON_BLOCKING, mode as u32, call), *want, "{name}, mode {mode}");
            context::synchronize(r.ctx).unwrap();
        }
    }
    for mode in 0..3 {
        let launch = |_| r.fill(legacy, p, 4, 1);
        assert_eq!(in_capture(&r, 0, mode, &launch), (906, 901), "blocking stream, mode {mode}");
    }
    free(p).unwrap();
}

#[test]
fn other_threads_meet_global_captures_only() {
    let r = rig();
    let ctx = r.ctx;
    for (mode, want) in [(capture::GLOBAL, 900), (capture::THREAD_LOCAL, 0), (capture::RELAXED, 0)] {
        let elsewhere = |_| std::thread::scope(|t| t.spawn(|| alloc(ctx, 64).map(drop)).join().unwrap());
        assert_eq!(in_capture(&r, 1, mode, &elsewhere).0, want, "mode {mode}");
        let exchanged = |_| {
            assert_eq!(capture::exchange_mode(capture::RELAXED), Ok(capture::GLOBAL));
            let made = alloc(ctx, 64).map(drop);
            assert_eq!(capture::exchange_mode(capture::GLOBAL), Ok(capture::RELAXED));
            made
        };
        assert_eq!(in_capture(&r, 1, mode, &exchanged), (0, 0), "exchanged, mode {mode}");
    }
}

#[test]
fn forks_join_and_must_join() {
    let r = rig();
    let p = alloc(r.ctx, 4096).unwrap();
    let (fork, ev, back) = (r.stream(1), event::create(r.ctx, 0).unwrap(), event::create(r.ctx, 0).unwrap());
    let start = |join: bool| {
        capture::begin(r.s, capture::RELAXED, None).unwrap();
        r.fill(r.s, p, 4, 1).unwrap();
        event::record(ev, r.s, 0).unwrap();
        event::wait(ev, fork, 0).unwrap();
        r.fill(fork, p, 4, 2).unwrap();
        if join {
            event::record(back, fork, 0).unwrap();
            event::wait(back, r.s, 0).unwrap();
            r.fill(r.s, p, 4, 3).unwrap();
        }
        capture::end(r.s)
    };
    let g = start(true).unwrap();
    assert_eq!(graph::edges(g).unwrap().len(), 3);
    assert_eq!(start(false), Err(Error::CAPTURE_UNJOINED));
    assert_eq!(event::query(ev), Err(Error::INVALID_VALUE), "its capture is over");
    assert_eq!(stream::query(fork), Ok(()));
    free(p).unwrap();
}
