//! The live view: takes keys and looks, and draws the screen.

use super::Args;
use super::draw;
use super::look::Look;
use super::state::{Effect, State};
use super::worker::{FromWorker, ToWorker, Worker};
use crate::context::Context;
use crate::failure::{Code, Failure, Result};
use crate::view::plain::{Means, is_utf8};
use crate::view::screen::{Screen, Woken};
use ratatui::crossterm::event::{Event, KeyEventKind};
use std::io::IsTerminal;
use std::path::PathBuf;

/// True if a user can watch and press keys.
pub(super) fn is_possible() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !dumb
}

/// Shows a process, or all of them, until a key or a signal ends it.
///
/// # Errors
/// Those of choosing the process, and of the terminal.
pub(super) fn run(args: &Args, context: &Context) -> Result<()> {
    let whom = whom(args, context)?;
    let terminal = |error: std::io::Error| Failure::io("the terminal cannot be used", &error);
    let mut screen = Screen::open(means(args)).map_err(terminal)?;
    let worker = Worker::start(context.world.clone(), !args.target.no_symbols, screen.waker());
    let worker = worker.map_err(|error| Failure::io("cannot start the thread that reads ledgers", &error))?;
    let mut live = LiveView { state: State::new(whom, args.interval, args.readonly), worker, look: None, asked: None };
    loop {
        live.ask();
        let mut page = 0;
        screen.draw(|buffer| page = draw::all(buffer, &live.state, live.look.as_ref())).map_err(terminal)?;
        live.state.page = page;
        let woken = screen.wait(None).map_err(terminal)?;
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
    asked: Option<super::look::Ask>,
}

impl LiveView {
    /// Requests a look at the present state.
    fn ask(&mut self) {
        let ask = self.state.ask();
        if self.asked.as_ref() != Some(&ask) {
            self.worker.send(ToWorker::Ask(ask.clone()));
            self.asked = Some(ask);
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
                Some(Effect::Quit) => return Ok(true),
                Some(Effect::Suspend) => screen.suspend()?,
                Some(Effect::Redraw) => screen.forget()?,
                Some(Effect::Now) => self.worker.send(ToWorker::Now),
                Some(Effect::Act(request)) => self.worker.send(ToWorker::Act(request)),
                None => {}
            }
        }
        Ok(false)
    }

    /// Takes the worker's results.
    fn listen(&mut self) -> Result<()> {
        while let Some(said) = self.worker.said() {
            match said {
                Ok(FromWorker::Look(look)) => {
                    // A look requested before the last key is outdated.
                    if look.ask.whom == self.state.whom && look.ask.tab == self.state.tab {
                        self.state.looked(&look);
                        self.look = Some(*look);
                    }
                }
                Ok(FromWorker::Answer(Ok(text))) => self.state.say(&text),
                Ok(FromWorker::Answer(Err(why)) | FromWorker::Lost(why)) => self.state.complain(&why),
                Err(()) => return Err(Failure::error("the thread that reads ledgers has ended")),
            }
        }
        Ok(())
    }
}
