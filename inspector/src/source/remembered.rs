//! Facts about processes that one survey keeps for the next one: a server makes a survey for each page.
//!
//! A process without a page fault since then runs the same program with the same libraries, and has made no ledger:
//! each of these touches new pages. The [`Mark`] has the kernel's count of its faults. Its users may have changed. They
//! serve only to tell if a ledger is its own, and it had these users when it made that ledger.

use super::budget::{Budget, Part};
use super::process::{self, Process};
use super::status::{Mark, Stat};
use super::world::World;
use std::collections::HashMap;

/// Processes that are remembered: each takes some 200 bytes.
const MOST: usize = 10_000;

/// The processes of the last survey, by pid.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    before: HashMap<u32, OfProcess>,
    /// Those of the present survey.
    now: HashMap<u32, OfProcess>,
}

#[derive(Debug)]
struct OfProcess {
    mark: Mark,
    process: Process,
    /// True if the last survey found it with the same mark.
    is_unchanged: bool,
    /// True if it has the shim or too many mappings to tell, false if it lacks the shim. `None`: unknown.
    shim: Option<bool>,
}

impl Remembered {
    /// Returns every process that the budget allows to look at, by pid.
    pub(super) fn all(&mut self, world: &World, budget: &Budget) -> Vec<Process> {
        let (mut processes, mut left_out) = (Vec::new(), 0);
        for pid in process::pids(world) {
            if budget.is_over() { left_out += 1 } else { processes.extend(self.process(world, pid)) }
        }
        budget.pay((processes.len() * size_of::<Process>()) as u64);
        budget.leave_out(Part::Process, left_out);
        processes
    }

    /// As [`Process::of`], from less if the process is unchanged.
    fn process(&mut self, world: &World, pid: u32) -> Option<Process> {
        // Read before all else: what happens to the process during the survey changes its next mark.
        let stat = Stat::of(world, pid)?;
        let mark = stat.mark;
        let known = self.before.remove(&pid).filter(|known| known.mark == mark && !stat.is_zombie);
        let of_process = match known {
            Some(known) => OfProcess {
                is_unchanged: true,
                process: Process { name: stat.name, is_stopped: stat.is_stopped, ..known.process },
                ..known
            },
            None => OfProcess { mark, process: Process::with(world, pid, stat)?, is_unchanged: false, shim: None },
        };
        let process = of_process.process.clone();
        if mark.counts_faults() && self.now.len() < MOST {
            self.now.insert(pid, of_process);
        }
        Some(process)
    }

    /// True if the process lacks the shim still.
    pub(super) fn lacks_shim(&self, pid: u32) -> bool {
        self.now.get(&pid).is_some_and(|known| known.shim == Some(false))
    }

    /// True if reading its mappings once may spare later surveys a look at the process.
    pub(super) fn wants_mappings(&self, pid: u32) -> bool {
        self.now.get(&pid).is_some_and(|known| known.is_unchanged && known.shim.is_none())
    }

    pub(super) fn set_shim(&mut self, pid: u32, shim: bool) {
        if let Some(known) = self.now.get_mut(&pid) {
            known.shim = Some(shim);
        }
    }

    /// Ends a survey: forgets processes that it did not find.
    pub(super) fn end(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u64 = 0x0020_0000;

    /// A `/proc` with one process, 7.
    struct Fake {
        dir: tempfile::TempDir,
        world: World,
    }

    impl Fake {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("7")).unwrap();
            let world = World { proc: dir.path().into(), ..World::here(None) };
            Self { dir, world }
        }

        fn put(&self, name: &str, flags: u64, faults: [u64; 2], start: u64, uid: u32) {
            let [minor, major] = faults;
            let rest = format!("{flags} {minor} 1 {major} 1 2 3 4 5 20 0 1 0 {start} 8192 12");
            let put = |file: &str, text: String| std::fs::write(self.dir.path().join("7").join(file), text).unwrap();
            put("stat", format!("7 ({name}) S 1 7 7 0 -1 {rest}"));
            put("status", format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t7\n"));
        }

        /// Makes a survey: returns the name and user of the process, and true if it is known to lack the shim.
        fn look(&self, remembered: &mut Remembered) -> (String, u32, bool) {
            let process = remembered.process(&self.world, 7).unwrap();
            let lacks = remembered.lacks_shim(7);
            if remembered.wants_mappings(7) {
                remembered.set_shim(7, false);
            }
            remembered.end();
            (process.name, process.uid, lacks)
        }
    }

    #[test]
    fn a_process_is_known_until_it_has_a_page_fault() {
        let (fake, mut remembered) = (Fake::new(), Remembered::default());
        let said = |name: &str, uid, lacks| (name.to_owned(), uid, lacks);
        fake.put("sh", 0, [100, 1], 50, 1000);
        assert_eq!(fake.look(&mut remembered), said("sh", 1000, false));
        assert_eq!(fake.look(&mut remembered), said("sh", 1000, false));
        // Only its line is read now. A thread may rename itself without a fault.
        fake.put("other", 0, [100, 1], 50, 1001);
        assert_eq!(fake.look(&mut remembered), said("other", 1000, true));
        for (faults, start, uid) in [([101, 1], 50, 1002), ([101, 2], 50, 1003), ([101, 2], 51, 1004)] {
            fake.put("app", 0, faults, start, uid);
            assert_eq!(fake.look(&mut remembered), said("app", uid, false), "{faults:?} {start}");
            fake.look(&mut remembered);
            assert_eq!(fake.look(&mut remembered), said("app", uid, true));
        }
    }

    #[test]
    fn a_kernel_that_counts_no_faults_tells_nothing() {
        let (fake, mut remembered) = (Fake::new(), Remembered::default());
        for uid in 1000..1003 {
            fake.put("app", 0, [0, 0], 50, uid);
            assert_eq!(fake.look(&mut remembered), ("app".into(), uid, false));
        }
        // Its own threads have none.
        for lacks in [false, false, true] {
            fake.put("kworker", KERNEL, [0, 0], 50, 0);
            assert_eq!(fake.look(&mut remembered), ("kworker".into(), 0, lacks));
        }
    }

    #[test]
    fn what_a_survey_did_not_find_is_forgotten() {
        let (fake, mut remembered) = (Fake::new(), Remembered::default());
        fake.put("app", 0, [1, 0], 50, 1000);
        fake.look(&mut remembered);
        remembered.end();
        fake.put("app", 0, [1, 0], 50, 1001);
        assert_eq!(fake.look(&mut remembered).1, 1001);
        std::fs::remove_dir_all(fake.dir.path().join("7")).unwrap();
        assert_eq!(remembered.process(&fake.world, 7), None);
    }
}
