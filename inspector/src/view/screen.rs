//! The whole screen of a terminal: taken, drawn on, and restored however the program ends.
//!
//! It restores the earlier screen, the cursor, echo and line editing: on return, on an error, on a panic of any thread,
//! and on the signals that end a program. Only SIGKILL leaves the terminal as it is.

use super::plain::Means;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, DisableBracketedPaste, EnableBracketedPaste, Event};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{cursor, execute};
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::{flag, low_level};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

/// True while the screen is taken. One process has one terminal.
static UP: AtomicBool = AtomicBool::new(false);
/// Log output while the screen was taken; stderr gets it afterwards.
static HELD: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// Most bytes of held log output.
const MOST_HELD: usize = 16 << 10;

/// Signals that end a program.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// The screen, taken for the lifetime of this value.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Out>>,
    means: Means,
    /// A byte from the other end ends the wait.
    woken: UnixStream,
    waker: Waker,
    ended: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
    registered: Vec<signal_hook::SigId>,
}

/// Ends a [`Screen::wait`] from any thread.
#[derive(Clone)]
pub(crate) struct Waker(Arc<UnixStream>);

/// Result of a wait.
#[derive(Default)]
pub(crate) struct Woken {
    /// Keys and pasted text. The terminal keeps the mouse, which selects text.
    pub input: Vec<Event>,
    /// The signal that should end the program.
    pub ended_by: Option<i32>,
}

impl Waker {
    pub(crate) fn wake(&self) {
        // A full pipe wakes too.
        let _ = (&*self.0).write(&[0]);
    }
}

impl Screen {
    /// Takes the screen.
    ///
    /// # Errors
    /// Those of the terminal, and of making a pipe.
    pub(crate) fn open(means: Means) -> io::Result<Self> {
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        give_back_after_a_panic();
        let terminal = Terminal::new(CrosstermBackend::new(Out::default()))?;
        let mut screen = Self {
            terminal,
            means,
            woken,
            waker: Waker(Arc::new(waker)),
            ended: Arc::default(),
            stopped: Arc::default(),
            continued: Arc::default(),
            registered: Vec::new(),
        };
        screen.register()?;
        enter()?;
        Ok(screen)
    }

    fn register(&mut self) -> io::Result<()> {
        for signal in ENDING {
            self.registered.push(flag::register_usize(signal, Arc::clone(&self.ended), signal as usize)?);
        }
        self.registered.push(flag::register(SIGTSTP, Arc::clone(&self.stopped))?);
        self.registered.push(flag::register(SIGCONT, Arc::clone(&self.continued))?);
        // Registered after the flags, so that a woken thread finds them set.
        for signal in ENDING.into_iter().chain([SIGTSTP, SIGCONT, SIGWINCH]) {
            self.registered.push(low_level::pipe::register(signal, self.waker.0.try_clone()?)?);
        }
        Ok(())
    }

    /// Returns a handle that ends waits.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Draws; only cells that changed are written.
    ///
    /// # Errors
    /// Those of the terminal.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        let means = self.means;
        self.terminal.draw(|frame| {
            draw(frame.buffer_mut());
            means.apply(frame.buffer_mut());
        })?;
        Ok(())
    }

    /// Makes the next [`Screen::draw`] write everything anew.
    ///
    /// # Errors
    /// Those of the terminal.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Waits for a key, a signal, a change of the terminal's size, or a [`Waker`].
    ///
    /// # Errors
    /// Those of the terminal.
    pub(crate) fn wait(&mut self) -> io::Result<Woken> {
        let hung_up = self.poll()?;
        while matches!(self.woken.read(&mut [0; 64]), Ok(1..)) {}
        let ended_by = match self.ended.load(Acquire) {
            0 if hung_up => Some(SIGHUP),
            0 => None,
            signal => Some(signal as i32),
        };
        let mut woken = Woken { ended_by, ..Woken::default() };
        if woken.ended_by.is_some() {
            return Ok(woken);
        }
        if self.stopped.swap(false, AcqRel) {
            self.suspend()?;
        }
        // The process that stopped this one may have changed the terminal.
        if self.continued.swap(false, AcqRel) {
            leave();
            enter()?;
            self.forget()?;
        }
        while event::poll(Duration::ZERO)? {
            woken.input.push(event::read()?);
        }
        Ok(woken)
    }

    /// True if the terminal is gone.
    fn poll(&self) -> io::Result<bool> {
        let stdin = rustix::stdio::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.woken, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Restores the terminal and stops, as programs do at Ctrl-Z; takes the screen again when continued.
    ///
    /// # Errors
    /// Those of the terminal.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        leave();
        low_level::emulate_default_handler(SIGTSTP)?;
        self.continued.store(false, Release);
        enter()?;
        self.forget()
    }

    /// Restores the terminal and ends with this signal.
    pub(crate) fn end_by(self, signal: i32) {
        drop(self);
        let _ = low_level::emulate_default_handler(signal);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}

fn enter() -> io::Result<()> {
    UP.store(true, Release);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, cursor::Hide)?;
    Ok(())
}

/// Restores the terminal if the screen is taken. A failure here means that the terminal is gone.
fn leave() {
    if !UP.swap(false, AcqRel) {
        return;
    }
    let mut out = io::stdout();
    let _ = execute!(out, DisableBracketedPaste, cursor::Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
    let held = std::mem::take(&mut *HELD.lock().unwrap_or_else(PoisonError::into_inner));
    let _ = io::stderr().write_all(&held);
}

/// Restores the terminal if any thread panics, so that the message is readable on the earlier screen.
fn give_back_after_a_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            before(panic);
        }));
    });
}

/// Buffer of drawing output until it is flushed. Once the terminal is restored, nothing more is written.
#[derive(Default)]
struct Out(Vec<u8>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.0);
        if !UP.load(Acquire) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()
    }
}

/// Stderr; output while the screen is taken is held until the terminal is restored.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !UP.load(Acquire) {
            return io::stderr().write(bytes);
        }
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() + bytes.len() <= MOST_HELD {
            held.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests;
