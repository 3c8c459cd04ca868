//! The plan of a run, as its seed decides it.

use crate::differ::random::Random;
use gpumem_wire::command::Request;
use gpumem_wire::settings::{Kind, Setting, live};
use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub length: Duration,
    /// Threads of the program that use memory, and threads that use graphs.
    pub threads: (usize, usize),
    /// Most memory that the program has, MiB. That much always fits, so that the program never runs out.
    pub mib: u64,
    /// Variables of gpumem, and of the simulator.
    pub settings: Vec<(&'static str, &'static str)>,
    pub simulator: Vec<(&'static str, &'static str)>,
    /// The pauses of each terminal between two commands, at most.
    pub terminals: Vec<Duration>,
    /// The commands that terminals choose from. None: any.
    pub commands: &'static [&'static str],
}

pub const GUARDS: &[&str] = &["0", "1", "front", "sync"];
/// Commands that make the guard look, and end early, while blocks go back.
pub const CHECKS: &[&str] = &["check 1", "check 5", "check 20", "check 10000", "trim", "set POOL 0", "set POOL 1"];

impl Plan {
    /// `length`: how long the program runs, if it is not short. `guard`: the value of `GPUMEM_GUARD`, if not a random one.
    pub fn new(seed: u64, length: Option<Duration>, guard: Option<&str>) -> Self {
        let mut random = Random::new(seed);
        let threads = (1 + random.below(4), *random.pick(&[0, 0, 1, 2]));
        let short = Duration::from_millis(300 + random.below(300) as u64);
        let drawn = *random.pick::<&str>(GUARDS);
        let guard = GUARDS.iter().copied().find(|known| Some(*known) == guard).unwrap_or(drawn);
        let mut settings = vec![("GPUMEM_GUARD", guard)];
        let mut simulator = vec![("SIM_LAG_US", *random.pick(&["0", "50", "200", "200", "1000"]))];
        if random.chance(40) {
            settings.push(("GPUMEM_GUARD_MAX", *random.pick(&["0", "4MiB", "64MiB"])));
        }
        if random.chance(20) {
            settings.push(("GPUMEM_FREE", "deferred"));
        }
        if random.chance(20) {
            settings.push(("GPUMEM_POOL_FILL", *random.pick(&["zero", "poison"])));
        }
        if random.chance(30) {
            simulator.push(("SIM_DEVICE_MEM", "200M"));
        }
        for (name, percent) in [("SIM_REUSE_HANDLES", 30), ("SIM_DESTROY_WAITS", 20)] {
            if random.chance(percent) {
                simulator.push((name, "1"));
            }
        }
        let gap = |random: &mut Random| Duration::from_micros(*random.pick(&[0, 500, 5_000, 50_000, 400_000]));
        let terminals = (0..random.weighted(&[1, 3, 4, 3, 3])).map(|_| gap(&mut random)).collect();
        let commands: &[&str] = if random.chance(25) { CHECKS } else { &[] };
        let length = length.unwrap_or(short);
        Self { seed, length, threads, mib: 48, settings, simulator, terminals, commands }
    }

    /// Arguments of the program.
    pub fn arguments(&self) -> [String; 5] {
        let (memories, graphs) = self.threads;
        [
            self.length.as_millis().to_string(),
            self.seed.to_string(),
            memories.to_string(),
            graphs.to_string(),
            self.mib.to_string(),
        ]
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables: Vec<String> =
            self.settings.iter().chain(&self.simulator).map(|(name, value)| format!("{name}={value}")).collect();
        let gaps: Vec<String> = self.terminals.iter().map(|gap| format!("{gap:?}")).collect();
        let (arguments, variables) = (self.arguments().join(" "), variables.join(" "));
        writeln!(f, "seed {}: {variables} storm {arguments}; terminals with pauses of {}", self.seed, gaps.join(", "))
    }
}

/// The line that a terminal sends next.
pub fn line(random: &mut Random, commands: &[&str]) -> String {
    match commands {
        [] => command(random).line().unwrap_or_default(),
        _ => format!("{}\n", random.pick(commands)),
    }
}

fn command(random: &mut Random) -> Request {
    let longest_ms = *random.pick(&[0, 1, 5, 20, 200, 10_000]);
    match random.weighted(&[60, 3, 8, 20, 9]) {
        0 => change(random),
        1 => Request::Off,
        2 => Request::Trim { press: false },
        3 => Request::Check { longest_ms },
        _ => Request::References { longest_ms },
    }
}

fn change(random: &mut Random) -> Request {
    let all: Vec<&Setting> = live().collect();
    let name = match random.chance(40) {
        true => *random.pick(&["GPUMEM_POOL", "GPUMEM_POOL", "GPUMEM_GRAPH_CACHE"]),
        false => random.pick(&all).name,
    };
    let kind = all.iter().find(|setting| setting.name == name).map_or(Kind::Bool, |setting| setting.kind);
    let value = match (name, kind) {
        // More than the program and gpumem have, so that nothing runs out.
        ("GPUMEM_LIMIT", _) => *random.pick(&["512MiB", "1GiB", "default"]),
        // A user who presses wants the program to run out.
        ("GPUMEM_STRANDED", _) => *random.pick(&["report", "off", "spill", "default"]),
        (_, Kind::Bool) => *random.pick(&["0", "1"]),
        (_, Kind::Count { .. }) => *random.pick(&["0", "1", "3", "32", "default"]),
        (_, Kind::Size { .. }) => *random.pick(&["0", "1", "64KiB", "4MiB", "256MiB", "default"]),
        (_, Kind::Time) => *random.pick(&["0", "1ms", "20ms", "300ms", "2s", "default"]),
        (_, Kind::Choice(words)) => *random.pick(words),
        (_, Kind::Text | Kind::Name | Kind::Path | Kind::Group) => *random.pick(&["kv", "a b", "default"]),
    };
    Request::Set { name: name.into(), value: value.into(), force: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn terminals_send_every_command_and_change_every_variable() {
        let mut random = Random::new(1);
        let (mut verbs, mut names) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..10_000 {
            let sent = command(&mut random);
            let line = sent.line().expect("short");
            verbs.insert(line.split_whitespace().next().expect("a verb").to_owned());
            if let Request::Set { name, .. } = sent {
                names.insert(name);
            }
        }
        assert_eq!(verbs.into_iter().collect::<Vec<_>>(), ["check", "off", "references", "set", "trim"]);
        assert!(live().all(|setting| names.contains(setting.name)), "{names:?}");
    }

    #[test]
    fn every_seed_has_one_plan() {
        for seed in 0..200 {
            assert_eq!(Plan::new(seed, None, None), Plan::new(seed, None, None));
            assert_eq!(Plan::new(seed, None, Some("sync")).settings[0].1, "sync");
        }
    }
}
