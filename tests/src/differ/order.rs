//! Knows which work comes after which. A program may rely on that order. Where it does not order two accesses to one
//! buffer, the runner waits between them.

use super::program::{BLOCKING, EVENTS, LEGACY, STREAMS};
use super::work::Buf;
use std::collections::BTreeMap;

/// For each stream, how many of its operations are known to have finished.
pub type Clock = [u32; STREAMS];

pub fn later(clock: &mut Clock, other: &Clock) {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

/// The buffers that are touched, and whether each is written.
pub type Touched = BTreeMap<Buf, bool>;

pub fn conflict(a: &Touched, b: &Touched) -> bool {
    a.iter().any(|(buf, write)| b.get(buf).is_some_and(|other| *write || *other))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    stream: usize,
    index: u32,
    write: bool,
}

/// Known facts about all streams.
#[derive(Clone, Debug, Default)]
pub struct Order {
    streams: [Clock; STREAMS],
    events: [Clock; EVENTS],
    host: Clock,
    accesses: BTreeMap<Buf, Vec<Access>>,
    /// The stream that the gate holds up, and the operation that holds it.
    gate: Option<(usize, u32)>,
    /// Streams and events that may wait for the gate, although the API does not promise that they do.
    held: [bool; STREAMS],
    held_events: [bool; EVENTS],
    /// Operations with a host function, by stream and index.
    hosts: Vec<(usize, u32)>,
}

impl Order {
    fn is_held(&self, s: usize) -> bool {
        let other = match s {
            LEGACY => self.held[BLOCKING],
            BLOCKING => self.held[LEGACY],
            _ => false,
        };
        self.held[s] || other || self.gated() && self.waits_for_host(s)
    }

    /// True if work on this stream comes after a host function that is not known to have run. The driver may run host
    /// functions one after another, on whatever streams they are. So each of them may wait for the gate, also one that
    /// was put on its stream before the gate.
    fn waits_for_host(&self, s: usize) -> bool {
        let clock = self.begin(s);
        self.hosts.iter().any(|(of, index)| *index > self.host[*of] && clock[*of] >= *index)
    }

    /// The clock with which an operation put on the stream now would begin.
    fn begin(&self, s: usize) -> Clock {
        let mut clock = self.streams[s];
        later(&mut clock, &self.host);
        match s {
            LEGACY => later(&mut clock, &self.streams[BLOCKING]),
            BLOCKING => later(&mut clock, &self.streams[LEGACY]),
            _ => {}
        }
        clock
    }

    /// The streams that `s` must be made to wait for before something with this clock may touch this.
    pub fn missing(&self, s: usize, also: &Clock, touched: &Touched) -> Vec<usize> {
        let mut clock = self.begin(s);
        later(&mut clock, also);
        let mut streams = Vec::new();
        for (buf, write) in touched {
            for access in self.accesses.get(buf).into_iter().flatten() {
                let known = clock[access.stream] >= access.index;
                if (*write || access.write) && !known && !streams.contains(&access.stream) {
                    streams.push(access.stream);
                }
            }
        }
        streams
    }

    /// Puts an operation on a stream. Returns the clock at which it has finished.
    pub fn put(&mut self, s: usize, also: &Clock, touched: &Touched) -> Clock {
        let mut clock = self.begin(s);
        later(&mut clock, also);
        let before = clock;
        clock[s] += 1;
        self.streams[s] = clock;
        self.held[s] = self.is_held(s);
        for (buf, write) in touched {
            let list = self.accesses.entry(*buf).or_default();
            if *write {
                list.retain(|access| before[access.stream] < access.index);
            }
            list.push(Access { stream: s, index: clock[s], write: *write });
        }
        clock
    }

    /// Makes `s` wait for the work that is on `of` now.
    pub fn link(&mut self, of: usize, s: usize) {
        let clock = self.streams[of];
        later(&mut self.streams[s], &clock);
        self.held[s] |= self.is_held(of);
    }

    pub fn record(&mut self, event: usize, s: usize) {
        self.events[event] = self.streams[s];
        self.held_events[event] = self.is_held(s);
    }

    /// Forgets an event that was recorded at an unknown place in the order.
    pub fn forget_event(&mut self, event: usize) {
        self.events[event] = Clock::default();
        self.held_events[event] = self.gated();
    }

    pub fn wait(&mut self, event: usize, s: usize) {
        let clock = self.events[event];
        later(&mut self.streams[s], &clock);
        self.held[s] |= self.held_events[event];
    }

    /// The host has waited for the work on the stream. It has not waited for what the stream's next operation would
    /// wait for.
    pub fn synced(&mut self, s: usize) {
        let clock = self.streams[s];
        later(&mut self.host, &clock);
    }

    pub fn all_synced(&mut self) {
        for s in 0..STREAMS {
            self.synced(s);
        }
        self.accesses.clear();
    }

    pub fn close_gate(&mut self, s: usize) {
        self.hosts.retain(|(of, index)| *index > self.host[*of]);
        let clock = self.put(s, &Clock::default(), &Touched::new());
        self.gate = Some((s, clock[s]));
    }

    pub fn open_gate(&mut self) -> bool {
        (self.held, self.held_events) = Default::default();
        self.gate.take().is_some()
    }

    pub fn gated(&self) -> bool {
        self.gate.is_some()
    }

    /// True if work on this stream runs only after the gate has opened.
    pub fn behind_gate(&self, s: usize) -> bool {
        self.gate.is_some_and(|(gate, index)| self.is_held(s) || self.begin(s)[gate] >= index)
    }

    /// The operation that was last put on the stream has a host function.
    pub fn put_host(&mut self, s: usize) {
        self.hosts.push((s, self.streams[s][s]));
    }

    /// Joins what two threads know, each of the streams that it used.
    pub fn merge(&mut self, other: &Order, theirs: impl Fn(usize) -> bool) {
        for s in (0..STREAMS).filter(|s| theirs(*s)) {
            self.streams[s] = other.streams[s];
            self.held[s] = other.held[s];
        }
        self.held_events.iter_mut().zip(other.held_events).for_each(|(mine, theirs)| *mine |= theirs);
        later(&mut self.host, &other.host);
        self.hosts.extend(other.hosts.iter().filter(|(s, _)| theirs(*s)));
        for (mine, theirs) in self.events.iter_mut().zip(&other.events) {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = (*mine).min(*theirs));
        }
        for (buf, list) in &other.accesses {
            let mine = self.accesses.entry(*buf).or_default();
            mine.extend(list.iter().filter(|access| !mine.contains(access)).copied().collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(write: bool) -> Touched {
        Touched::from([(Buf(0), write)])
    }

    #[test]
    fn two_streams_are_unordered_until_linked() {
        let (mut order, none) = (Order::default(), Clock::default());
        order.put(0, &none, &touch(true));
        assert_eq!(order.missing(1, &none, &touch(false)), [0]);
        assert_eq!(order.missing(0, &none, &touch(true)), [0; 0]);
        order.link(0, 1);
        assert_eq!(order.missing(1, &none, &touch(true)), [0; 0]);
    }

    #[test]
    fn readers_do_not_wait_for_readers_but_writers_do() {
        let (mut order, none) = (Order::default(), Clock::default());
        order.put(0, &none, &touch(false));
        assert_eq!(order.missing(1, &none, &touch(false)), [0; 0]);
        assert_eq!(order.missing(1, &none, &touch(true)), [0]);
    }

    #[test]
    fn the_legacy_stream_and_blocking_ones_wait_for_each_other() {
        let (mut order, none) = (Order::default(), Clock::default());
        order.put(BLOCKING, &none, &touch(true));
        assert_eq!(order.missing(LEGACY, &none, &touch(true)), [0; 0]);
        order.put(LEGACY, &none, &touch(true));
        assert_eq!(order.missing(BLOCKING, &none, &touch(true)), [0; 0]);
        assert_eq!(order.missing(0, &none, &touch(true)), [LEGACY]);
    }

    #[test]
    fn who_waits_for_a_blocking_stream_has_not_waited_for_the_legacy_one() {
        let (mut order, none) = (Order::default(), Clock::default());
        order.put(LEGACY, &none, &touch(true));
        order.synced(BLOCKING);
        assert_eq!(order.missing(0, &none, &touch(true)), [LEGACY]);
        order.synced(LEGACY);
        assert_eq!(order.missing(0, &none, &touch(true)), [0; 0]);
    }

    #[test]
    fn launches_of_one_exec_carry_what_was_before_them() {
        let mut order = Order::default();
        order.put(0, &Clock::default(), &Touched::from([(Buf(1), true)]));
        let first = order.put(0, &Clock::default(), &touch(true));
        assert_eq!(order.missing(1, &first, &Touched::from([(Buf(1), true)])), [0; 0]);
    }

    #[test]
    fn what_waits_for_the_gate_is_behind_it() {
        let mut order = Order::default();
        order.close_gate(0);
        assert!(order.behind_gate(0) && !order.behind_gate(1));
        order.link(0, 1);
        assert!(order.behind_gate(1));
        assert!(order.open_gate() && !order.behind_gate(1));
    }

    #[test]
    fn what_may_be_behind_the_gate_is_not_known_to_be() {
        let (mut order, none) = (Order::default(), Clock::default());
        order.put(0, &none, &touch(false));
        order.close_gate(0);
        order.put(BLOCKING, &none, &Touched::new());
        order.put_host(BLOCKING);
        assert!(order.behind_gate(BLOCKING) && order.behind_gate(LEGACY) && !order.behind_gate(1));
        assert_eq!(order.missing(LEGACY, &none, &touch(true)), [0], "the read before the gate");
        order.link(BLOCKING, 1);
        assert!(order.behind_gate(1));
        assert!(order.open_gate() && !order.behind_gate(1));
    }

    #[test]
    fn a_host_function_from_before_the_gate_may_wait_for_it() {
        let (mut order, none) = (Order::default(), Clock::default());
        order.put(1, &none, &Touched::new());
        order.put_host(1);
        let over = order.put(1, &none, &Touched::new());
        order.put(2, &over, &Touched::new());
        order.put(3, &none, &Touched::new());
        order.close_gate(0);
        assert!(order.behind_gate(1) && order.behind_gate(2), "also what comes after it on another stream");
        assert!(!order.behind_gate(3));
        assert!(order.open_gate() && !order.behind_gate(1));
        order.synced(1);
        order.close_gate(0);
        assert!(!order.behind_gate(1) && !order.behind_gate(2), "it has run");
    }
}
