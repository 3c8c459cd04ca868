//! `gpumem top`: watches a process, or all of them: takes keys and looks, and draws the screen.
//!
//! * [`worker`]: the reading thread. [`tabs`]: a ledger to a look, by the commands' own tables. [`draw`]: a state and a
//!   look to a screen. [`state`]: effects of keys. [`look`]: result of a look. [`keys`]: the keys.

mod draw;
mod keys;
mod look;
mod state;
mod tabs;
mod worker;

use crate::args::{Target, interval};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::view::plain::{Means, is_utf8};
use crate::view::screen::{Screen, Woken};
use keys::Does;
use look::Look;
use ratatui::crossterm::event::{Event, KeyEventKind};
use state::State;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;
use worker::{ToWorker, Worker};

/// Watch a process, or all of them: what is live and what grows, with keys
///
/// Needs a terminal, and changes nothing in the process. gpumem stats and gpumem allocs print text and JSON.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = keys::help())]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Time between two refreshes: seconds, or a time such as 500ms or 2m
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1", value_parser = interval(Duration::from_secs(86_400)))]
    interval: Duration,
    /// Draw only with ASCII characters; the default if the locale is not UTF-8
    #[arg(long)]
    ascii: bool,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// `Code::Usage` without a terminal; those of choosing and reading the ledger, and of the terminal.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        context.no_json("top")?;
        if !is_possible() {
            let failure = Failure::usage("top needs a terminal with keys");
            return Err(failure.fix("gpumem stats and gpumem allocs print text and JSON"));
        }
        watch(self, context)
    }
}

/// True if a user can watch and press keys.
fn is_possible() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !dumb
}

/// Shows a process, or all of them, until a key or a signal ends it.
///
/// # Errors
/// Those of choosing the process, and of the terminal.
fn watch(args: &Args, context: &Context) -> Result<()> {
    let whom = whom(args, context)?;
    let terminal = |error: std::io::Error| Failure::io("the terminal cannot be used", &error);
    let mut screen = Screen::open(means(args)).map_err(terminal)?;
    let worker = Worker::start(context.world.clone(), args.target.clone(), screen.waker());
    let worker = worker.map_err(|error| Failure::io("cannot start the thread that reads ledgers", &error))?;
    let mut live = LiveView { state: State::new(whom, args.interval), worker, look: None, asked: None };
    loop {
        live.ask();
        let mut fits = (1, 0);
        screen.draw(|buffer| fits = draw::all(buffer, &live.state, live.look.as_ref())).map_err(terminal)?;
        (live.state.page, live.state.last_from) = fits;
        let woken = screen.wait().map_err(terminal)?;
        if let Some(signal) = woken.ended_by {
            screen.end_by(signal);
            // This happens only if the parent process made it ignore the signal.
            return Ok(());
        }
        if live.input(woken, &mut screen).map_err(terminal)? {
            return Ok(());
        }
        live.listen()?;
    }
}

/// Returns the ledger of the target process; `None`: there are several.
fn whom(args: &Args, context: &Context) -> Result<Option<PathBuf>> {
    match context.ledger(&args.target) {
        Ok(ledger) => Ok(Some(ledger.path)),
        Err(failure) if failure.code == Code::Several && args.target.target.is_none() => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn means(args: &Args) -> Means {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .map(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()));
    let colour = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
    Means { colour, ascii: args.ascii || !is_utf8(locale) }
}

struct LiveView {
    state: State,
    worker: Worker,
    look: Option<Look>,
    asked: Option<look::Ask>,
}

impl LiveView {
    /// Requests a look at the present state.
    fn ask(&mut self) {
        if self.asked.as_ref() != Some(&self.state.ask) {
            self.worker.send(ToWorker::Ask(self.state.ask.clone()));
            self.asked = Some(self.state.ask.clone());
        }
    }

    /// Handles input; true ends the view.
    fn input(&mut self, woken: Woken, screen: &mut Screen) -> std::io::Result<bool> {
        for event in woken.input {
            let effect = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => self.state.key(&key, self.look.as_ref()),
                Event::Paste(text) => {
                    self.state.paste(&text, self.look.as_ref());
                    None
                }
                _ => None,
            };
            // Request the new look before the key's effect.
            self.ask();
            match effect {
                Some(Does::Quit) => return Ok(true),
                Some(Does::Suspend) => screen.suspend()?,
                Some(Does::Redraw) => screen.forget()?,
                Some(Does::Now) => self.worker.send(ToWorker::Now),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Takes the worker's results.
    fn listen(&mut self) -> Result<()> {
        loop {
            match self.worker.said() {
                Ok(Ok(look)) => {
                    // A look requested before the last key is outdated.
                    if look.ask.whom == self.state.ask.whom && look.ask.tab == self.state.ask.tab {
                        self.state.looked(&look);
                        self.look = Some(*look);
                    }
                }
                Ok(Err(why)) => self.state.complain(&why),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::error("the thread that reads ledgers has ended"));
                }
            }
        }
    }
}
