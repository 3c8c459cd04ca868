//! Turns lines back into a recording. Lines are not trusted: numbers that refer to nothing and times that go back are
//! skipped, and everything has an upper limit.

use super::line::{Begin, Line, Made, RowOf, Tick, VERSION};
use crate::model::course::{self, Moment, Of};
use crate::model::summary::Summary;
use crate::text::shorten;
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;

/// Upper limits: frames in words, stacks, frames of all stacks together, rows, large allocations, moments.
const FRAMES: usize = 1 << 19;
const STACKS: usize = 1 << 16;
const ALL_FRAMES: usize = 1 << 22;
const ROWS: usize = 1 << 16;
const LARGE: usize = 100_000;
const MOMENTS: usize = 10_000;
/// Columns of a frame in words, and columns of totals.
const LABEL: usize = 300;
const COLUMNS: usize = 64;

/// The recording of one process.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub begin: Begin,
    /// Times of the ticks, nanoseconds since 1970.
    pub times: Vec<u64>,
    /// By tick, then by column.
    pub totals: Vec<Vec<u64>>,
    pub tracks: Vec<Track>,
    pub large: Vec<Large>,
    /// Number of large allocations and of moments that were left out.
    pub left_out: u64,
    pub moments_left_out: u64,
    pub moments: Vec<Moment>,
    pub summary: Option<Summary>,
    /// The reason why the recording ended. `None`: it was cut short.
    pub ended: Option<String>,
    /// Number of lines that this version does not know.
    pub skipped: u64,
    frames: Vec<Rc<str>>,
    stacks: FxHashMap<u32, Stack>,
    all_frames: usize,
    known: FxHashMap<(Of, String, u32), usize>,
    /// Large live allocations, by their serial.
    live: FxHashMap<u64, usize>,
    begun: bool,
    /// For the present file: rows by number, the number of frames before it, and true until its first tick.
    ids: FxHashMap<u32, usize>,
    first_frame: usize,
    fresh: bool,
}

/// Memory of a row over time.
#[derive(Debug, Default)]
pub(crate) struct Track {
    pub of: RowOf,
    /// The number of a tick, and live bytes from then on.
    pub held: Vec<(u32, u64)>,
    /// At the last tick: live bytes, live count, bytes ever made, number ever made. At the first tick: bytes ever made.
    pub now: [u64; 4],
    pub made_before: u64,
}

/// A large allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Large {
    pub made: Made,
    /// The tick at which it was gone, nanoseconds since 1970.
    pub freed_unix_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Stack {
    frames: Vec<u32>,
    site: usize,
}

impl Recording {
    /// Takes a line. `Err` if this version cannot read the file.
    ///
    /// # Errors
    /// Says what is wrong with the first line.
    pub(crate) fn take(&mut self, line: &[u8]) -> Result<(), String> {
        let line = match serde_json::from_slice::<Line>(line) {
            Ok(line) => line,
            Err(_) if !self.begun => return Err("its first line is not that of a recording".into()),
            Err(_) => {
                self.skipped += 1;
                return Ok(());
            }
        };
        match line {
            Line::GpumemRecording(begin) => return self.begin(begin),
            _ if !self.begun => return Err("its first line is not that of a recording".into()),
            Line::Frames(frames) => {
                let room = FRAMES.saturating_sub(self.frames.len());
                self.frames.extend(frames.iter().take(room).map(|frame| Rc::from(&*shorten(frame, LABEL))));
            }
            Line::Stack(stack) => self.stack(&stack),
            Line::Row(row) => self.row(row),
            Line::Tick(tick) => self.tick(tick),
            Line::Summary(summary) => self.summary = Some(*summary),
            Line::End(end) => self.ended = Some(end.why),
        }
        Ok(())
    }

    fn begin(&mut self, begin: Begin) -> Result<(), String> {
        if begin.version != VERSION {
            return Err(format!(
                "it is a recording of version {}, this program reads version {VERSION}: use the gpumem that wrote it",
                begin.version
            ));
        }
        let first = self.times.is_empty() && !self.begun;
        if !first && (begin.pid, begin.began_unix_ns) != (self.begin.pid, self.begin.began_unix_ns) {
            return Err("it is a part of another recording".into());
        }
        // Each file numbers its rows and frames anew.
        (self.begin, self.begun, self.fresh, self.first_frame) = (begin, true, true, self.frames.len());
        self.begin.columns.truncate(COLUMNS);
        self.ids.clear();
        self.tracks.iter_mut().for_each(|track| track.now = [0; 4]);
        Ok(())
    }

    fn stack(&mut self, stack: &super::line::Stack) {
        let fits = self.stacks.len() < STACKS && self.all_frames + stack.frames.len() <= ALL_FRAMES;
        if stack.id == 0 || !fits || self.stacks.contains_key(&stack.id) {
            return;
        }
        let number = |frame: &u32| {
            let at = self.first_frame.checked_add(*frame as usize)?;
            (at < self.frames.len()).then_some(at as u32)
        };
        let frames: Vec<u32> = stack.frames.iter().filter_map(number).collect();
        let site = (stack.site as usize).min(frames.len().saturating_sub(1));
        self.all_frames += frames.len();
        self.stacks.insert(stack.id, Stack { frames, site });
    }

    fn row(&mut self, row: RowOf) {
        let key = (row.kind, shorten(&row.name, LABEL).into_owned(), row.stack);
        let index = match self.known.get(&key) {
            Some(&index) => index,
            None if self.tracks.len() >= ROWS => return,
            None => {
                self.known.insert(key.clone(), self.tracks.len());
                self.tracks.push(Track { of: RowOf { name: key.1, ..row }, ..Track::default() });
                self.tracks.len() - 1
            }
        };
        self.ids.insert(row.id, index);
    }

    fn tick(&mut self, tick: Tick) {
        if self.times.last().is_some_and(|&last| tick.unix_ns <= last) {
            self.skipped += 1;
            return;
        }
        let number = self.times.len() as u32;
        self.times.push(tick.unix_ns);
        self.totals.push(tick.totals.into_iter().take(COLUMNS).collect());
        for (id, bytes, count, made_bytes, made) in tick.rows {
            let Some(track) = self.ids.get(&id).and_then(|&index| self.tracks.get_mut(index)) else { continue };
            let changes = [bytes, count, made_bytes, made];
            track.now.iter_mut().zip(changes).for_each(|(now, change)| *now = now.saturating_add_signed(change));
            if number == 0 {
                track.made_before = track.now[2];
            }
            track.tell(number);
        }
        if std::mem::take(&mut self.fresh) && number > 0 {
            // The first tick of a file is complete, so a row that it does not name holds nothing.
            self.tracks.iter_mut().for_each(|track| track.tell(number));
            if tick.left_out == 0 {
                let told: FxHashSet<u64> = tick.made.iter().map(|made| made.serial).collect();
                let gone: Vec<u64> = self.live.keys().copied().filter(|serial| !told.contains(serial)).collect();
                self.large(Vec::new(), &gone, tick.unix_ns);
            }
        }
        self.large(tick.made, &tick.freed, tick.unix_ns);
        self.left_out = self.left_out.saturating_add(tick.left_out).saturating_sub(tick.told_late);
        let room = MOMENTS.saturating_sub(self.moments.len());
        let beyond = tick.moments.len().saturating_sub(room) as u64;
        self.moments_left_out = self.moments_left_out.saturating_add(tick.moments_left_out).saturating_add(beyond);
        self.moments.extend(tick.moments.into_iter().take(room));
    }

    fn large(&mut self, made: Vec<Made>, freed: &[u64], unix_ns: u64) {
        for serial in freed {
            if let Some(large) = self.live.remove(serial).and_then(|at| self.large.get_mut(at)) {
                large.freed_unix_ns = Some(unix_ns);
            }
        }
        for made in made {
            // The next file of a recording lists live allocations again.
            if self.large.len() >= LARGE || self.live.contains_key(&made.serial) {
                continue;
            }
            self.live.insert(made.serial, self.large.len());
            self.large.push(Large { made, freed_unix_ns: None });
        }
    }
}

impl Recording {
    /// Returns the frames of a stack in words, innermost first.
    pub(crate) fn labels(&self, stack: u32) -> Vec<Rc<str>> {
        let frames = self.stacks.get(&stack).map_or(&[][..], |stack| &stack.frames);
        frames.iter().map(|&frame| Rc::clone(&self.frames[frame as usize])).collect()
    }

    /// Returns a frame in words, `depth` steps out from a stack's call site.
    pub(super) fn step(&self, stack: u32, depth: usize) -> Option<Rc<str>> {
        let stack = self.stacks.get(&stack)?;
        let frame = *stack.frames.get(stack.site.checked_add(depth)?)?;
        self.frames.get(frame as usize).cloned()
    }
}

impl Track {
    /// Notes the bytes held from a tick on.
    fn tell(&mut self, tick: u32) {
        let before = self.held.last().map_or(0, |&(_, bytes)| bytes);
        if before != self.now[0] {
            self.held.push((tick, self.now[0]));
        }
    }

    /// Returns the bytes held at these ticks, which are in order.
    pub(super) fn at(&self, ticks: &[usize]) -> Vec<u64> {
        course::at(self.held.iter().map(|&(tick, bytes)| (tick as usize, bytes)), ticks.iter().copied())
    }

    /// Returns the most bytes ever held.
    pub(super) fn peak(&self) -> u64 {
        self.held.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0)
    }
}
