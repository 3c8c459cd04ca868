//! Runs a program in this process, each operation on its thread, one after another.

use super::program::{Program, THREADS};
use super::world::World;
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};

type Turn = (Box<World>, super::program::Line);

/// Ends what a program printed.
pub const END: &str = "== end";

struct Threads {
    turns: Vec<Sender<Turn>>,
    back: Receiver<Box<World>>,
}

impl Threads {
    fn new() -> Self {
        let (done, back) = channel();
        let start = |t: usize| {
            let (turn, turns) = channel::<Turn>();
            let done = done.clone();
            std::thread::spawn(move || {
                let mut entered = false;
                for (mut world, line) in turns {
                    if !entered {
                        entered = world.enter(t) == 0;
                    }
                    world.run(&line);
                    if done.send(world).is_err() {
                        break;
                    }
                }
            });
            turn
        };
        Self { turns: (1..THREADS).map(start).collect(), back }
    }
}

/// Prints what each call answered, as it goes.
///
/// # Errors
/// When there is no device or a thread is gone.
pub fn exec(program: &Program, mut out: impl Write) -> Result<(), String> {
    // If one thread panics, the others would wait for it for ever. So a panic ends the process.
    std::panic::set_hook(Box::new(|what| {
        eprintln!("{what}");
        std::process::exit(101);
    }));
    let mut world = Box::new(World::open()?);
    world.enter(0);
    let threads = Threads::new();
    let mut print = |i: usize, world: &mut World| -> Result<(), String> {
        let said: String = world.trace.drain(..).map(|said| format!("{i} {said}\n")).collect();
        out.write_all(said.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
    };
    for (i, line) in program.0.iter().enumerate() {
        match threads.turns.get(line.t.wrapping_sub(1)) {
            None => drop(world.run(line)),
            Some(thread) => {
                thread.send((world, line.clone())).map_err(|_| format!("thread {} has ended", line.t))?;
                world = threads.back.recv().map_err(|_| format!("thread {} has ended", line.t))?;
            }
        }
        print(i, &mut world)?;
    }
    world.finish();
    print(program.0.len(), &mut world)?;
    // The process ends with everything still allocated, so that the destructors of the libraries see that.
    std::mem::forget(world);
    writeln!(out, "{END}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}
