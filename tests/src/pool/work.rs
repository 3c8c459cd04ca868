//! Work on buffers, and what they hold afterwards.

use super::program::{How, Id, Op, STREAMS};
use super::world::{Buffer, World};
use crate::conformance::cu;

impl World {
    /// Makes stream `s` wait for the work on stream `last`. Returns false where that is not possible.
    pub(super) fn follow(&mut self, last: Option<usize>, s: usize) -> bool {
        let Some(last) = last.filter(|last| *last != s) else { return true };
        if self.capturing() || last / STREAMS != s / STREAMS {
            return false;
        }
        let Some(context) = self.of_stream(s).cloned() else { return false };
        let (from, event) = (context.stream(last), context.event(last));
        let status = context.within(|| match cu!(cuEventRecord(event, from)) {
            0 => cu!(cuStreamWaitEvent(context.stream(s), event, 0)),
            refused => refused,
        });
        if status != 0 {
            self.say("waiting for another stream", status);
        }
        status == 0
    }

    /// Waits for a stream that a buffer was used on last.
    pub(super) fn rest(&mut self, last: Option<usize>) -> Option<()> {
        let Some(last) = last else { return Some(()) };
        (!self.capturing()).then_some(())?;
        let context = self.of_stream(last)?.clone();
        let status = context.within(|| cu!(cuStreamSynchronize(context.stream(last))));
        if status != 0 {
            self.say("waiting for a stream", status);
        }
        (status == 0).then_some(())
    }

    /// A live buffer that work on stream `s` may use.
    pub(super) fn usable(&self, p: Id, s: usize) -> Option<Buffer> {
        let fits = |b: &&Buffer| b.live && b.how != How::Host && b.c == s / STREAMS && b.words() > 0;
        self.buffers.get(&p).filter(fits).cloned()
    }

    pub(super) fn work(&mut self, op: &Op) -> Option<()> {
        match *op {
            Op::Fill { p, s, v, end } => {
                let buffer = self.usable(p, s)?;
                let at = if end { buffer.end()? } else { buffer.ptr };
                if self.captures.contains_key(&s) {
                    return self.fill_captured(p, &buffer, s, at, v, end);
                }
                self.follow(buffer.last, s).then_some(())?;
                let (context, words) = (self.of_stream(s)?.clone(), buffer.words());
                let status = context.within(|| context.fill(s, at, words, v));
                if self.say(format!("fill {p} with {v} on stream {s}"), status) {
                    self.wrote(p, s, |b| if end { b.end = Some(v) } else { b.head = Some(v) });
                }
            }
            Op::Set { p, s, v } => {
                let buffer = self.usable(p, s)?;
                (!self.captures.contains_key(&s) && self.follow(buffer.last, s)).then_some(())?;
                let (context, words) = (self.of_stream(s)?.clone(), buffer.words() as usize);
                let status = context.within(|| cu!(cuMemsetD32Async(buffer.ptr, v, words, context.stream(s))));
                if self.say(format!("set {p} to {v} on stream {s}"), status) {
                    self.wrote(p, s, |b| b.head = Some(v));
                }
            }
            Op::Copy { p, from, s } => {
                let (to, source) = (self.usable(p, s)?, self.usable(from, s)?);
                let idle = !self.captures.contains_key(&s) && p != from;
                // A head holds one value only if it was written as a whole.
                (idle && source.words() == to.words()).then_some(())?;
                (self.follow(to.last, s) && self.follow(source.last, s)).then_some(())?;
                let (context, bytes) = (self.of_stream(s)?.clone(), to.words() as usize * 4);
                let status = context.within(|| cu!(cuMemcpyDtoDAsync_v2(to.ptr, source.ptr, bytes, context.stream(s))));
                if self.say(format!("copy {from} to {p} on stream {s}"), status) {
                    self.wrote(p, s, |b| b.head = source.head);
                    self.wrote(from, s, |_| ());
                }
            }
            Op::Check { p, s } => {
                let buffer = self.usable(p, s)?;
                (!self.capturing() && self.follow(buffer.last, s)).then_some(())?;
                let context = self.of_stream(s)?.clone();
                let parts = [(Some(buffer.ptr), buffer.head), (buffer.end(), buffer.end)];
                for (part, (at, value)) in ["first", "last"].iter().zip(parts) {
                    let (Some(at), Some(value)) = (at, value) else { continue };
                    let wrong = context.within(|| context.wrong(s, at, buffer.words(), value));
                    self.tell(format!("{part} words of {p}: {wrong:?} wrong"));
                }
                self.wrote(p, s, |_| ());
            }
            Op::Spin { s, us } => {
                let context = self.of_stream(s)?.clone();
                (!self.captures.contains_key(&s)).then_some(())?;
                let status = context.within(|| context.spin(s, u64::from(us) * 1000));
                self.say(format!("keep stream {s} busy"), status);
            }
            _ => return None,
        }
        Some(())
    }

    /// Notes that work on stream `s` used a buffer.
    pub(super) fn wrote(&mut self, p: Id, s: usize, what: impl FnOnce(&mut Buffer)) {
        if let Some(buffer) = self.buffers.get_mut(&p) {
            what(buffer);
            buffer.last = Some(s);
        }
    }
}
