//! A process's report of the words that refer to its live allocations ([`crate::command::Request::References`]): lines
//! of text, one for each allocation, one for each block that refers to another, and facts about the search itself.
//!
//! ```text
//! ok references 2
//! alloc 17 2 1 0 0 0 0 14 0 0 0 0 7f1200001040
//! edge 12 17
//! fact host_bytes 104857600
//! end
//! ```
//!
//! Allocations are identified by the number of their record ([`crate::layout::AllocSlot::serial`]). A report without
//! `end` is cut.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The line before all others.
pub const FIRST: &str = "ok references 2";
const LAST: &str = "end";

/// The place of a word that refers to an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Place {
    /// Variables of the program or of a library.
    Data,
    /// The heap of the C library, named so in `/proc/self/maps`.
    Heap,
    /// The used part of a thread's stack.
    Stack,
    /// Other memory of the process itself: further heaps, pinned memory, stacks of threads that ran.
    Memory,
    /// Memory shared with other processes, or belonging to a file.
    Shared,
    /// Of those, words that stand like the driver's own records of memory.
    Driver,
    /// Words that stand like them, but may be the program's.
    DriverLike,
    /// Device memory of another allocation.
    Device,
    /// Device memory of the allocation itself.
    Itself,
    /// Nodes of live graphs.
    Graph,
}

impl Place {
    /// In the order of a line.
    pub const ALL: [Self; 10] = [
        Self::Data,
        Self::Heap,
        Self::Stack,
        Self::Memory,
        Self::Shared,
        Self::Driver,
        Self::DriverLike,
        Self::Device,
        Self::Itself,
        Self::Graph,
    ];

    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Memory => "memory",
            Self::Shared => "shared",
            Self::Driver => "driver",
            Self::DriverLike => "driver-like",
            Self::Device => "device",
            Self::Itself => "itself",
            Self::Graph => "graph",
        }
    }

    /// True if a word there shows that the program can still reach the memory.
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Driver | Self::DriverLike | Self::Itself)
    }
}

/// Words that refer to one allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// By [`Place`].
    pub words: [u32; Place::ALL.len()],
    /// The host address of one that counts; 0: none was seen there.
    pub at: u64,
}

impl Seen {
    pub fn of(&self, place: Place) -> u32 {
        self.words[place as usize]
    }

    pub fn add(&mut self, place: Place, words: u32) {
        let count = &mut self.words[place as usize];
        *count = count.saturating_add(words);
    }

    /// Returns the number of words that count.
    pub fn references(&self) -> u64 {
        Place::ALL.iter().filter(|place| place.counts()).map(|&place| u64::from(self.of(place))).sum()
    }
}

/// The whole report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// By the numbers of their records.
    pub allocs: BTreeMap<u64, Seen>,
    /// Referring and referred allocations in device memory, by the same numbers.
    pub edges: Vec<(u64, u64)>,
    /// Facts about the search: see `docs/suspects.md`.
    pub facts: BTreeMap<String, String>,
}

impl References {
    /// Returns a fact that is a number; 0 if it is missing.
    pub fn number(&self, fact: &str) -> u64 {
        self.facts.get(fact).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    pub fn text(&self) -> String {
        let mut text = format!("{FIRST}\n");
        for (serial, seen) in &self.allocs {
            let _ = write!(text, "alloc {serial}");
            for words in seen.words {
                let _ = write!(text, " {words}");
            }
            let _ = writeln!(text, " {:x}", seen.at);
        }
        for (from, to) in &self.edges {
            let _ = writeln!(text, "edge {from} {to}");
        }
        for (name, value) in &self.facts {
            let _ = writeln!(text, "fact {name} {}", value.replace('\n', " "));
        }
        text.push_str(LAST);
        text.push('\n');
        text
    }

    /// # Errors
    /// A description of the fault in the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        if lines.next() != Some(FIRST) {
            return Err(format!("it does not begin with \"{FIRST}\""));
        }
        let mut all = Self::default();
        for line in lines.by_ref() {
            let bad = || format!("{line:?} is none of its lines");
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            match kind {
                LAST => return if lines.next().is_none() { Ok(all) } else { Err("it goes on behind its end".into()) },
                "alloc" => {
                    let (serial, seen) = alloc(rest).ok_or_else(bad)?;
                    all.allocs.insert(serial, seen);
                }
                "edge" => {
                    let (from, to) = rest.split_once(' ').ok_or_else(bad)?;
                    all.edges.push((from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?));
                }
                "fact" => {
                    let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                    all.facts.insert(name.to_owned(), value.to_owned());
                }
                _ => return Err(bad()),
            }
        }
        Err("it is cut".into())
    }
}

fn alloc(text: &str) -> Option<(u64, Seen)> {
    let mut fields = text.split(' ');
    let serial = fields.next()?.parse().ok()?;
    let mut seen = Seen::default();
    for words in &mut seen.words {
        *words = fields.next()?.parse().ok()?;
    }
    seen.at = u64::from_str_radix(fields.next()?, 16).ok()?;
    fields.next().is_none().then_some((serial, seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> References {
        let mut all = References::default();
        let mut seen = Seen { at: 0x7f00_1234, ..Default::default() };
        Place::ALL.iter().zip(1..).for_each(|(&place, words)| seen.add(place, words));
        all.allocs = BTreeMap::from([(3, Seen::default()), (17, seen)]);
        all.edges = vec![(3, 17)];
        all.facts = BTreeMap::from([("device_why".into(), "a stream captures".into()), ("host_ns".into(), "7".into())]);
        all
    }

    #[test]
    fn it_turns_back() {
        let all = some();
        assert_eq!(References::parse(&all.text()).as_ref(), Ok(&all));
        assert_eq!(all.number("host_ns"), 7);
        // Of 1 to 10, all but those of the driver, those like them, and those of the allocation itself.
        assert_eq!(all.allocs[&17].references(), 55 - 6 - 7 - 9);
        Place::ALL.iter().enumerate().for_each(|(index, &place)| assert_eq!(index, place as usize));
    }

    #[test]
    fn what_is_cut_or_strange_is_refused() {
        let text = some().text();
        for (at, _) in text.match_indices('\n') {
            assert_eq!(References::parse(&text[..=at]).is_ok(), at + 1 == text.len(), "{at}");
        }
        for strange in ["alloc 1", "alloc x 0 0 0 0 0 0 0 0 0 0 0", "edge 1", "alloc 1 0 0 0 0 0 0 0 0 0 0 0 0", "hm"] {
            let said = References::parse(&format!("{FIRST}\n{strange}\nend\n")).unwrap_err();
            assert!(said.contains(strange), "{said}");
        }
        assert!(References::parse("ok").is_err());
    }
}
