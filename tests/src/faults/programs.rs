//! Programs that campaigns run. They are short, reach the driver in different ways, and do different things.

use crate::differ::random::Random;
use crate::harness::artifacts;
use std::path::PathBuf;

/// A program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The command as a person would type it.
    pub name: String,
    pub file: PathBuf,
    pub args: Vec<String>,
    /// The text that a generator made for the program to run. The last argument is the path of a file with this text.
    pub generated: Option<String>,
    /// True if its output is the same each time, with gpumem and without.
    pub prints: bool,
}

/// Programs of tests/programs that print the same natively and preloaded.
const PROGRAMS: &[&str] = &[
    "basic",
    "bystander",
    "captures",
    "deepbind",
    "driver",
    "driver_dlopen",
    "errors",
    "exits",
    "firstuse",
    "fork",
    "graphs",
    "hip_basic",
    "hip_graphs",
    "hip_kinds",
    "hip_nodes",
    "hip_pool",
    "ipc",
    "noctx",
    "plugin",
    "pool_answers",
    "pool_captures",
    "pool_contexts",
    "pool_creep",
    "pool_graphs",
    "pool_ipc",
    "pool_order",
    "pool_peers",
    "pool_press",
    "pool_spill",
    "pool_threads",
    "stranded_pool",
    "tags",
    "threads 2 200",
];

/// Programs of tests/programs/clients that print the same natively and preloaded.
const CLIENTS: &[&str] = &[
    "cancel",
    "deep 60 256",
    "devices",
    "errno",
    "forks 10",
    "graph_churn ggml",
    "graph_churn packed",
    "graph_churn unload",
    "graph_churn threads",
    "graph_ends",
    "graph_handles update",
    "graph_handles recycled",
    "graph_handles nodes",
    "graph_lives objects",
    "graph_lives context",
    "graph_lives reset",
    "graph_lives exit",
    "graph_order streams",
    "graph_order evicted",
    "graph_order back",
    "graph_refused",
    "held",
    "holders",
    "main_ends thread",
    "main_ends main",
    "many 800",
    "many 6000",
    "nulls",
    "passed",
    "perthread",
    "reexec 2",
    "runtime",
    "twins",
    "walk",
];

/// Programs of both lists whose output differs from run to run, or tells that gpumem is there.
const VARY: &[&str] = &["forks 10", "pool_threads", "tags", "threads 2 200"];

/// Programs of both lists that talk to child processes.
const PARENTS: &[&str] =
    &["exits", "fork", "forks 10", "ipc", "pool_ipc", "pool_threads", "graph_lives exit", "reexec 2"];

impl Chosen {
    /// True if the program talks to child processes.
    pub fn has_children(&self) -> bool {
        PARENTS.contains(&self.name.as_str())
    }
}

/// Picks a program by a seed's random numbers.
pub fn choose(random: &mut Random) -> Chosen {
    match random.weighted(&[PROGRAMS.len(), CLIENTS.len() - 1, 1, 12, 12]) {
        0 => listed(&artifacts().programs, random.pick::<&str>(PROGRAMS)),
        1 => listed(&artifacts().clients, random.pick::<&str>(CLIENTS)),
        2 => {
            let plugin = artifacts().programs.join(random.pick::<&str>(&["plugin_a.so", "plugin_b.so"]));
            let mut chosen = listed(&artifacts().clients, "reload");
            chosen.args = vec![plugin.display().to_string(), "3".into()];
            chosen.name = format!("reload {} 3", plugin.file_name().unwrap_or_default().display());
            chosen
        }
        3 => generated("pooler", random, |seed, length| crate::pool::generate::program(seed, length).to_string()),
        _ => generated("differ", random, |seed, length| crate::differ::generate::program(seed, length).to_string()),
    }
}

fn listed(folder: &std::path::Path, line: &str) -> Chosen {
    let mut words = line.split(' ');
    let file = folder.join(words.next().unwrap_or_default());
    Chosen {
        name: line.into(),
        file,
        args: words.map(str::to_owned).collect(),
        generated: None,
        prints: !VARY.contains(&line),
    }
}

fn generated(tester: &str, random: &mut Random, program: impl Fn(u64, usize) -> String) -> Chosen {
    let (seed, length) = (random.next() % 1_000_000, 10 + random.below(50));
    Chosen {
        name: format!("{tester} exec <({tester} gen --seed {seed} --length {length})"),
        file: artifacts().shim.with_file_name(tester),
        args: vec!["exec".into()],
        generated: Some(program(seed, length)),
        // Programs of the differ are well defined only where their operations succeed.
        prints: tester == "pooler",
    }
}

/// Every listed program once, so that a test can check the lists.
pub fn all() -> Vec<Chosen> {
    let of = |folder: &PathBuf, lines: &[&str]| lines.iter().map(|line| listed(folder, line)).collect::<Vec<_>>();
    [of(&artifacts().programs, PROGRAMS), of(&artifacts().clients, CLIENTS)].concat()
}
