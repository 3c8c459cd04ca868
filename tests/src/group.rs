//! Kills members of a limit group at any moment. A watcher adds up what they use without asking gpumem: each member's
//! simulator reports what its devices have in use.

use crate::harness::run::{Running, wait_for};
use crate::harness::{Program, client};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// The low bits of a word of `SIM_SHARED`, which count bytes.
const BYTES: u32 = 40;

/// Bytes that members use of their devices, as their simulators report them.
pub struct Watch {
    path: PathBuf,
    words: &'static [AtomicU64],
}

impl Watch {
    /// A watch for this many members, in a file of this directory.
    ///
    /// # Panics
    /// When there is no room for the file.
    pub fn new(dir: &Path, members: usize) -> Self {
        let path = dir.join("shared");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        file.set_len(members as u64 * 8).expect("room for the file");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: mmap takes numbers, and the descriptor is open. The file is so long, and nobody changes that. The
        // mapping is never unmapped, and an atomic may have any bytes.
        let words = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), members * 8, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::slice::from_raw_parts(at.cast(), members)
        };
        Self { path, words }
    }

    /// The value of `SIM_SHARED` for a member.
    pub fn variable(&self, member: usize) -> String {
        format!("{}:{member}", self.path.display())
    }

    /// Bytes of all members that `counts` picks, at one moment. `None` if they changed during each try.
    pub fn sum(&self, counts: impl Fn(usize) -> bool) -> Option<u64> {
        let all = || self.words.iter().map(|word| word.load(SeqCst)).collect::<Vec<_>>();
        let mut before = all();
        for _ in 0..100 {
            let now = all();
            if now == before {
                let of = |(member, word): (usize, &u64)| if counts(member) { word & ((1 << BYTES) - 1) } else { 0 };
                return Some(now.iter().enumerate().map(of).sum());
            }
            before = now;
        }
        None
    }

    /// Notes that a member has ended.
    fn ended(&self, member: usize) {
        self.words[member].store(0, SeqCst);
    }
}

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub members: usize,
    pub kills: usize,
    pub seed: u64,
    /// After this many kills, progress is reported, all members are killed, and one newcomer takes the whole limit. 0:
    /// only at the end.
    pub every: usize,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub kills: usize,
    /// How often the bytes of all members were added up.
    pub looks: u64,
    /// The largest sum.
    pub most: u64,
    /// How often a newcomer took the whole limit after all had been killed.
    pub whole: usize,
    pub took: Duration,
}

/// The limit in bytes: a third of what the members want.
const LIMIT: u64 = 256 << 20;

/// A member that follows commands. `number` is its place in the watch.
pub fn member(dir: &Path, group: &str, watch: &Watch, number: usize) -> Program {
    client("group")
        .dir(dir)
        .envs(&[("SIM_CONTEXT_MEM", "0"), ("GPUMEM_LIMIT_GROUP", group), ("GPUMEM_OOM_REPORT", "0")])
        .env("SIM_SHARED", watch.variable(number))
}

/// Kills members at random and starts another for each. Meanwhile it adds up what all members use.
///
/// # Errors
/// Says what was wrong.
pub fn kill_at_random(dir: &Path, plan: Plan, mut say: impl FnMut(Outcome)) -> Result<Outcome, String> {
    let start = Instant::now();
    let group = format!("churn:{LIMIT}");
    let watch = Watch::new(dir, plan.members + 1);
    let mut seed = plan.seed;
    let mut below = move |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let begin =
        |number: usize, seed: u64| member(dir, &group, &watch, number).args(["churn", &seed.to_string()]).start(true);
    let mut members: Vec<Running> = (0..plan.members).map(|number| begin(number, number as u64)).collect();
    let mut out = Outcome::default();
    while out.kills < plan.kills {
        let until = Instant::now() + Duration::from_micros(below(8000));
        while Instant::now() < until {
            look(&watch, &mut out, |_| true)?;
        }
        // Kills one member, or several at once.
        let first = below(plan.members as u64) as usize;
        let some = if below(8) == 0 { 1 + below(4) as usize } else { 1 };
        let doomed: Vec<usize> = (0..some).map(|next| (first + next) % plan.members).collect();
        doomed.iter().for_each(|number| members[*number].signal(libc::SIGKILL));
        for number in doomed.iter().copied() {
            // The kernel frees a member's bytes for the others when the member ends. The watcher does not hear of that
            // moment.
            while !members[number].reap() {
                look(&watch, &mut out, |number| !doomed.contains(&number))?;
            }
        }
        for number in doomed {
            watch.ended(number);
            members[number] = begin(number, plan.seed + out.kills as u64);
            out.kills += 1;
            if plan.every != 0 && out.kills.is_multiple_of(plan.every) && out.kills < plan.kills {
                members.clear();
                whole(dir, &group, &watch, plan.members, &mut out)?;
                members = (0..plan.members).map(|number| begin(number, below(1 << 30))).collect();
                out.took = start.elapsed();
                say(out);
            }
        }
    }
    members.clear();
    whole(dir, &group, &watch, plan.members, &mut out)?;
    out.took = start.elapsed();
    Ok(out)
}

fn look(watch: &Watch, out: &mut Outcome, counts: impl Fn(usize) -> bool) -> Result<(), String> {
    if let Some(sum) = watch.sum(counts) {
        out.looks += 1;
        out.most = out.most.max(sum);
        if sum > LIMIT {
            return Err(format!("{sum} bytes are in use after {} kills, and the limit is {LIMIT}", out.kills));
        }
    }
    Ok(())
}

/// Checks, once all members have ended, that a newcomer can take the whole limit and not a byte more.
fn whole(dir: &Path, group: &str, watch: &Watch, members: usize, out: &mut Outcome) -> Result<(), String> {
    (0..members).for_each(|number| watch.ended(number));
    let script = format!("alloc {}\ncreate 2\n", LIMIT >> 20);
    let ran = member(dir, group, watch, members).input(script).preloaded();
    watch.ended(members);
    let wanted = format!("ready\nalloc {}: 0\ncreate 2: 2\n", LIMIT >> 20);
    if ran.out != wanted {
        return Err(format!("bytes are lost after {} kills: {}{}", out.kills, ran.out, ran.err));
    }
    out.whole += 1;
    Ok(())
}

/// Sends a member a command and returns its answer: the status, or the numbers.
pub fn tell(running: &mut Running, line: &str) -> String {
    let answers = |running: &Running| running.stdout().matches('\n').count();
    running.says("ready");
    let before = answers(running);
    running.tell(line);
    wait_for(line, || answers(running) > before);
    let said = running.stdout().lines().nth(before).unwrap_or_default().to_owned();
    let word = line.split(' ').next().unwrap_or_default();
    match said.strip_prefix(word).and_then(|rest| rest.split_once(": ")) {
        Some((_, status)) => status.to_owned(),
        None => said,
    }
}
