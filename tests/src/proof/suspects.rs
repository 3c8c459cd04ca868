//! Claims about `gpumem leaks --suspect`: compares the blocks that it calls lost with those that were planted.

use super::{Bench, Measured};
use crate::stage::checked;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Programs, where `SCAN_PROGRAMS` does not say another number, and the blocks that each of them plants. `SCAN_FIRST` is the
/// number of the first one (0): so several processes share the programs.
const PROGRAMS: u64 = 20;
const BLOCKS: &str = "50";
/// A lost block must rank before this many percent of the blocks that are referred to.
const BEFORE: usize = 95;

/// How many of the lost blocks may rank lower than that, as a share.
pub const MISSED: f64 = 0.03;
/// How many blocks that are referred to may be called lost.
pub const ALARMS: f64 = 0.0;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

fn programs() -> u64 {
    setting("SCAN_PROGRAMS", PROGRAMS)
}

fn first() -> u64 {
    setting("SCAN_FIRST", 0)
}

/// Adds a program with wrong blocks to the note.
fn tell(measured: &mut Measured, bench: &Bench<'_>, number: u64, wrong: usize, what: &str) {
    if wrong > 0 {
        let told = format!("program {number}: {wrong} {what}");
        bench.step(&told);
        measured.note += if measured.note.is_empty() { "" } else { ", " };
        measured.note += &told;
    }
}

/// A planted block, and the answer about it.
struct Block {
    lost: bool,
    /// The only reference to it lies in a block that was lost.
    chain: bool,
    references: u64,
    none_seen: bool,
}

/// Counts lost blocks, and those of them that do not rank high enough.
pub fn recall(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    for number in first()..first() + programs() {
        let blocks = program(bench, number)?;
        let mut held: Vec<u64> =
            blocks.iter().filter(|block| !block.lost && !block.chain).map(|block| block.references).collect();
        held.sort_unstable();
        let mut behind = 0;
        for lost in blocks.iter().filter(|block| block.lost) {
            measured.native += 1.0;
            let before = held.iter().filter(|&&references| lost.references < references).count();
            behind += usize::from(before * 100 < held.len() * BEFORE);
        }
        measured.preloaded += behind as f64;
        tell(&mut measured, bench, number, behind, "lost that rank lower");
    }
    Ok(measured)
}

/// Counts blocks that are referred to, and those of them that gpumem calls lost.
pub fn false_alarms(bench: &Bench<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let begin = first() + programs();
    for number in begin..begin + programs() {
        let blocks = program(bench, number)?;
        let held: Vec<&Block> = blocks.iter().filter(|block| !block.lost && !block.chain).collect();
        let alarms = held.iter().filter(|block| block.none_seen).count();
        measured.native += held.len() as f64;
        measured.preloaded += alarms as f64;
        tell(&mut measured, bench, number, alarms, "called lost that are not");
    }
    Ok(measured)
}

/// A waiting process that gpumem reads.
struct WaitingProcess(Child);

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How often a program is run, until it can be searched.
const TRIES: usize = 3;

/// Returns the answers about a program's blocks. On a machine that has much else to do a process may not answer in
/// time. Then the program runs again.
fn program(bench: &Bench<'_>, number: u64) -> Result<Vec<Block>, String> {
    let again = |why: &String| bench.step(&format!("program {number} runs again: {why}"));
    let mut tries = (1..TRIES).map(|_| once(bench, number).inspect_err(again));
    tries.find(Result::is_ok).unwrap_or_else(|| once(bench, number))
}

fn once(bench: &Bench<'_>, number: u64) -> Result<Vec<Block>, String> {
    bench.step(&format!("program {} of {}", (number - first()) % programs() + 1, programs()));
    let ledgers = bench.ledgers();
    let mut command = bench.stage.command(&bench.stage.program("lost")?, Some(&ledgers))?;
    command.arg((number + 1).to_string()).arg(BLOCKS);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut asked = WaitingProcess(child.map_err(|error| format!("lost: {error}"))?);
    let mut line = String::new();
    if let Some(out) = asked.0.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(|error| format!("lost: {error}"))?;
    }
    let planted: Value = serde_json::from_str(&line).map_err(|error| format!("lost: {error}: {line}"))?;
    let said = suspects(bench, asked.0.id(), &ledgers)?;
    drop(asked.0.stdin.take());
    let rows = said["allocations"].as_array().cloned().unwrap_or_default();
    let mut blocks = Vec::new();
    for block in planted["blocks"].as_array().into_iter().flatten() {
        let address = u64::from_str_radix(block["address"].as_str().unwrap_or_default(), 16).unwrap_or(0);
        let row = rows.iter().find(|row| row["address"] == address);
        let row = row.ok_or_else(|| format!("the block at {address:#x} is not told of"))?;
        blocks.push(Block {
            lost: block["fate"] == "lost",
            chain: block["fate"] == "chain",
            references: row["references"].as_u64().unwrap_or(u64::MAX),
            none_seen: row["standing"] == "none-seen" || row["standing"] == "only-from-such",
        });
    }
    Ok(blocks)
}

/// Returns the answer of `gpumem leaks --suspect` about a process.
pub(super) fn suspects(bench: &Bench<'_>, pid: u32, ledgers: &std::path::Path) -> Result<Value, String> {
    let mut command: Command = bench.stage.command(&bench.stage.gpumem(), None)?;
    // A machine that has much else to do answers late.
    let args = ["leaks", "--suspect", "--all", "--json", "--older", "0", "--pause", "50ms", "--timeout", "60"];
    let text = checked(command.args(args).arg(pid.to_string()).env("GPUMEM_DIR", ledgers))?;
    serde_json::from_str(&text).map_err(|error| format!("gpumem leaks --suspect: {error}"))
}
