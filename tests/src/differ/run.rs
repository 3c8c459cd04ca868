//! Runs programs in this process, each operation on its thread, one after another.

use super::api::Api;
use super::objects::Real;
use super::program::{Op, Program, THREADS};
use super::world::{STOOD_STILL, World};
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

type Turn<A> = (Box<World<A>>, Op);

/// Threads that take turns with the one world.
struct Threads<A: Api> {
    turns: Vec<Sender<Turn<A>>>,
    back: Receiver<Box<World<A>>>,
}

impl<A: Api + 'static> Threads<A> {
    fn new(api: &A) -> Self {
        let (done, back) = channel();
        let start = |_| {
            let (turn, turns) = channel::<Turn<A>>();
            let (done, api) = (done.clone(), api.clone());
            std::thread::spawn(move || {
                api.enter();
                for (mut world, op) in turns {
                    world.run(&op);
                    if done.send(world).is_err() {
                        break;
                    }
                }
            });
            turn
        };
        Self { turns: (1..THREADS).map(start).collect(), back }
    }

    fn run(&self, mut world: Box<World<A>>, t: usize, op: &Op) -> Result<Box<World<A>>, String> {
        match self.turns.get(t.wrapping_sub(1)) {
            None => {
                world.run(op);
                Ok(world)
            }
            Some(thread) => {
                thread.send((world, op.clone())).map_err(|_| format!("thread {t} has ended"))?;
                self.back.recv().map_err(|_| format!("thread {t} has ended"))
            }
        }
    }
}

/// The line that ends a program's output.
pub const END: &str = "== end";
/// The line that ends a program's text.
pub const DOT: &str = ".";

/// Runs the programs that `input` holds, each ended by a line of a dot, and prints what each call
/// answered, as it goes. `clock`: operations that take a millisecond say so.
///
/// # Errors
/// When there is no device, a program cannot be read, or a thread is gone.
pub fn serve(input: impl BufRead, mut out: impl Write, words: bool, clock: bool) -> Result<(), String> {
    super::stacks::answer_signals();
    let real = Real::open(words)?;
    let threads = Threads::new(&real);
    let mut world = Box::new(World::new(real));
    let mut text = String::new();
    for line in input.lines() {
        let line = line.map_err(|error| error.to_string())?;
        if line != DOT {
            text += &line;
            text.push('\n');
            continue;
        }
        let program: Program = text.parse()?;
        text.clear();
        let mut stood_still = false;
        for (i, line) in program.0.iter().chain([&Op::Reset.into()]).enumerate() {
            // The driver waited for what the program would have done next. The remaining operations would only take as
            // long again.
            if stood_still && !matches!(line.op, Op::Reset) {
                continue;
            }
            let begin = Instant::now();
            world = threads.run(world, line.t, &line.op)?;
            if clock && begin.elapsed() > Duration::from_millis(1) {
                world.trace.push(format!("took {} ms", begin.elapsed().as_millis()));
            }
            stood_still |= world.trace.iter().any(|said| said == STOOD_STILL);
            let said: String = world.trace.drain(..).map(|said| format!("{i} {said}\n")).collect();
            world.seen.clear();
            out.write_all(said.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())?;
        }
        writeln!(out, "{END}").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
    }
    Ok(())
}
