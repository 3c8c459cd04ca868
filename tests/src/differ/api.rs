//! The calls of a driver, in the program's own names. By default each call does nothing and never fails: programs are
//! generated on that driver.

use super::program::{How, Id, Mode};
use super::work::{Kernel, Work};

/// A driver's status; 0 is success.
pub type Status = u32;

/// A function that this driver does not have.
pub const NO_FUNCTION: Status = 99_999;

/// A status, and the outputs of the call in words.
pub type Answer = (Status, String);

pub trait Api: Clone + Send {
    /// Called on every thread before anything else.
    fn enter(&self) {}
    /// Sets the buffers to what they hold at the beginning of a program.
    fn fresh(&mut self) {}

    fn graph(&mut self, _g: Id) -> Status {
        0
    }
    fn end_capture(&mut self, _g: Id, _s: usize) -> Status {
        0
    }
    fn begin_capture(&mut self, _s: usize, _mode: Mode) -> Status {
        0
    }
    fn clone_graph(&mut self, _g: Id, _from: Id) -> Status {
        0
    }
    fn drop_graph(&mut self, _g: Id) -> Status {
        0
    }
    /// Appends a node.
    fn add(&mut self, _g: Id, _after: &[usize], _work: &Work) -> Status {
        0
    }
    fn remove(&mut self, _g: Id, _n: usize) -> Status {
        0
    }
    fn edge(&mut self, _g: Id, _from: usize, _to: usize, _on: bool) -> Status {
        0
    }
    fn set(&mut self, _g: Id, _n: usize, _to: &Work) -> Status {
        0
    }
    fn attributes(&mut self, _g: Id, _n: usize, _k: &Kernel) -> Status {
        0
    }
    fn copy_attributes(&mut self, _g: Id, _n: usize, _from: usize) -> Status {
        0
    }
    /// Everything about a graph, one fact a line. From then on the program has handles of the nodes with these numbers.
    fn query(&mut self, _g: Id, _nodes: &[usize]) -> Vec<String> {
        Vec::new()
    }
    /// True if the program has a handle of that node.
    fn has_node(&self, _g: Id, _n: usize) -> bool {
        true
    }

    fn instantiate(&mut self, _e: Id, _g: Id, _how: How, _flags: u64, _s: usize) -> Answer {
        (0, String::new())
    }
    fn update(&mut self, _e: Id, _g: Id, _v: u8) -> Answer {
        (0, String::new())
    }
    /// Sets node `n` of graph `g` in an exec. `any`: by the function that takes nodes of all kinds.
    fn set_exec(&mut self, _e: Id, _g: Id, _n: usize, _to: &Work, _any: bool) -> Status {
        0
    }
    fn enable(&mut self, _e: Id, _g: Id, _n: usize, _on: bool) -> Status {
        0
    }
    fn enabled(&mut self, _e: Id, _g: Id, _n: usize) -> Answer {
        (0, String::new())
    }
    fn flags(&mut self, _e: Id) -> Answer {
        (0, String::new())
    }
    fn upload(&mut self, _e: Id, _s: usize) -> Status {
        0
    }
    fn launch(&mut self, _e: Id, _s: usize) -> Status {
        0
    }
    fn drop_exec(&mut self, _e: Id) -> Status {
        0
    }

    fn load(&mut self, _m: Id) -> Status {
        0
    }
    fn unload(&mut self, _m: Id) -> Status {
        0
    }

    /// Puts work on a stream. `captured`: the stream is capturing.
    fn put(&mut self, _s: usize, _work: &Work, _captured: bool) -> Status {
        0
    }
    fn record(&mut self, _ev: u8, _s: usize) -> Status {
        0
    }
    fn wait(&mut self, _ev: u8, _s: usize) -> Status {
        0
    }
    /// Makes `s` wait for the work that is on `of`.
    fn link(&mut self, _of: usize, _s: usize) -> Status {
        0
    }
    fn sync(&mut self, _s: usize) -> Status {
        0
    }
    fn sync_all(&mut self) -> Status {
        0
    }
    /// Returns the contents of the buffers, a line each.
    fn dump(&mut self) -> Vec<String> {
        Vec::new()
    }
    fn gate(&mut self, _s: usize) -> Status {
        0
    }
    /// Opens the gate. Returns whether the gate had already opened by itself because nothing went on for too long.
    fn open(&mut self) -> bool {
        false
    }
    /// Takes over the handles of these graphs and execs from another thread's copy.
    fn take(&mut self, _from: &Self, _graphs: &[Id], _execs: &[Id]) {}
}

/// The driver that does nothing.
#[derive(Clone, Default)]
pub struct Dry;

impl Api for Dry {}
