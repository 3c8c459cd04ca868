//! Scans memory for addresses with a kernel, while its context is idle. Two launches may be in flight: the second waits
//! on the device for the first.

use super::ContextPool;
use super::readers::{NAP, NotKnown, loaded};
use crate::backend::reader::Reader;
use crate::backend::scan::{self, Found, LIST_BYTES, LISTS, Range, Wanted};
use crate::pool::claims::Claim;
use crate::process::cancel;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// One launch reads as much as takes this long at the last measured rate, and at most [`MOST`] bytes. A thread that
/// gives back memory which is being read waits for at most two launches, 4 ms.
const LAUNCH: Duration = Duration::from_millis(2);
const MOST: u64 = 4 << 30;
/// Bytes of the first launch, whose rate is unknown: 4 ms at 64 GB/s.
const FIRST: u64 = 256 << 20;
/// A launch that reads less is not used to measure the rate.
const RATED: u64 = 64 << 20;
/// The thread polls for the end of a launch without a nap for this long. A nap lasts 80 µs, in which 256 MiB are read.
const AWAKE: Duration = Duration::from_millis(2);
/// Number of polls between two checks for an early end and for the time limit.
const LOOKS: u32 = 16;

/// Parameters of a scan for addresses.
pub(crate) struct Scan<'a> {
    pub wanted: &'a Wanted,
    pub longest: Duration,
}

/// A launch in flight.
pub(crate) struct Scanning {
    reader: Reader,
    generation: u32,
    bytes: u64,
    began: Instant,
    until: Instant,
}

impl ContextPool {
    /// Returns the bytes that one launch reads now. `None`: none should begin while another is in flight.
    pub(crate) fn scanned_at_once(&self, is_another: bool) -> Option<u64> {
        match self.readers.scanned_a_ms.load(Relaxed) {
            0 => (!is_another).then_some(FIRST),
            rate => Some((rate * LAUNCH.as_millis() as u64).clamp(RATED, MOST)),
        }
    }

    /// Begins a scan of device memory by the kernel, while the context is idle. `None`: the context is not idle, or
    /// there is no kernel; the memory may be copied instead. Some of the scan may be in flight, for as long as the
    /// blocks stay claimed.
    pub(crate) fn begin_scan(&self, ranges: &[Range], claim: &Claim, how: &Scan<'_>) -> Option<Scanning> {
        // If a kernel of the program occupied all processors, our kernel would wait for its end. Our launches are not
        // submissions: the context stays known to be idle.
        if !self.is_idle() {
            return None;
        }
        let generation = self.generation();
        let (reader, kernel) = self.within(|| {
            // Loaded while the context is idle, since loading waits for work.
            let kernel = loaded(&self.readers.scan, || self.readers.made(LIST_BYTES, 0, scan::load))?;
            let mut reader = self.reader(false)?;
            reader.list = (0..LISTS).find(|list| self.readers.lists.fetch_or(1 << list, Acquire) >> list & 1 == 0);
            Some((reader, kernel))
        })?;
        let bytes = ranges.iter().map(|[_, words]| words * 8).sum();
        let began = Instant::now();
        let mut scanning = Scanning { reader, generation, bytes, began, until: began + how.longest };
        if scanning.reader.list.is_none() {
            self.put_back(scanning.reader, generation, None);
            return None;
        }
        match self.within(|| scan::scan(&mut scanning.reader, &kernel, ranges, how.wanted)) {
            Ok(()) => Some(scanning),
            Err(status) => {
                self.finish(scanning.reader, generation, claim, Err::<(), _>(NotKnown::Refused(status)), |_, ()| None)
            }
        }
    }

    /// Waits for a launch, and passes on the words that may be addresses, each with its position. `is_over` returns
    /// true if the launch has to end early. `ended`: on entry the end of the previous launch, on return the end of this
    /// one. `None`: the result is incomplete; the memory may be copied instead. Some of the scan may still be in
    /// flight, for as long as the blocks stay claimed.
    pub(crate) fn end_scan(
        &self,
        mut scanning: Scanning,
        claim: &Claim,
        ended: &mut Option<Instant>,
        is_over: &dyn Fn() -> bool,
        read: impl FnOnce(&[Found]),
    ) -> Option<()> {
        let waited = self.within(|| scanning.wait(is_over));
        let began = ended.replace(Instant::now()).map_or(scanning.began, |before| before.max(scanning.began));
        let (took, Scanning { reader, generation, bytes, .. }) = (began.elapsed(), scanning);
        let was_read = self.finish(reader, generation, claim, waited, |reader, ()| scan::passed(reader).map(read));
        if was_read.is_some() && bytes >= RATED {
            let rate = u128::from(bytes) * 1_000_000 / took.as_nanos().max(1);
            self.readers.scanned_a_ms.store(rate.max(1) as u64, Relaxed);
        }
        was_read
    }
}

impl Scanning {
    /// Waits; ends the kernel early if it has to end.
    fn wait(&mut self, is_over: &dyn Fn() -> bool) -> Result<(), NotKnown> {
        let (began, mut looks) = (Instant::now(), 0_u32);
        let mut naps = false;
        while !self.reader.is_done().map_err(NotKnown::Refused)? {
            looks += 1;
            if naps {
                cancel::sleep(NAP);
            }
            if looks % LOOKS == 0 {
                let now = Instant::now();
                if is_over() {
                    self.reader.cancel();
                }
                if now > self.until {
                    self.reader.cancel();
                    return Err(NotKnown::Stuck);
                }
                naps = now > began + AWAKE;
            }
        }
        Ok(())
    }
}
