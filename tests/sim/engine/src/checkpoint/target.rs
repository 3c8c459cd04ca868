//! The states of a process, and what each request does to them.

use super::Request;
use super::gate::{self, Passes};
use super::parking::Parked;
use crate::config::config;
use crate::error::{Error, Result};
use crate::machine::lock;
use std::time::{Duration, Instant};

/// Answer of `cuCheckpointProcessGetState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running = 0,
    Locked = 1,
    Checkpointed = 2,
    Failed = 3,
}

/// The process that asks.
pub(crate) trait Caller {
    /// Waits so long; returns false at once if the caller ends.
    fn lives_for(&self, time: Duration) -> bool;
}

pub(crate) struct Target {
    state: State,
    parked: Parked,
    /// A restore found no room. None after it is of use.
    lost: bool,
}

impl Target {
    pub(crate) fn new() -> Self {
        Self { state: State::Running, parked: Parked::default(), lost: false }
    }

    /// Does what is asked.
    ///
    /// # Errors
    /// The code for the caller.
    pub(crate) fn serve(&mut self, request: Request, caller: &impl Caller) -> Result<i32> {
        match request {
            Request::State => return Ok(self.state as i32),
            // SAFETY: gettid takes nothing and cannot fail.
            Request::RestoreThread => return Ok(unsafe { libc::gettid() }),
            _ if self.state == State::Failed => return Err(Error::OPERATING_SYSTEM),
            Request::Lock(limit) => self.lock(Duration::from_millis(limit.into())),
            Request::Checkpoint => self.checkpoint(caller),
            Request::Restore => self.restore(caller),
            Request::Unlock => self.unlock(),
        }?;
        Ok(0)
    }

    fn require(&self, state: State) -> Result {
        if self.state == state { Ok(()) } else { Err(Error::ILLEGAL_STATE) }
    }

    /// Stops calls and waits until nothing is under way. A limit of 0 is none.
    fn lock(&mut self, limit: Duration) -> Result {
        const LOOK_EVERY: Duration = Duration::from_micros(100);
        self.require(State::Running)?;
        let start = Instant::now();
        gate::set(Passes::Questions);
        while !(gate::is_empty() && lock().is_idle()) {
            if !limit.is_zero() && start.elapsed() >= limit {
                gate::set(Passes::All);
                return Err(Error::NOT_READY);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.state = State::Locked;
        Ok(())
    }

    fn unlock(&mut self) -> Result {
        self.require(State::Locked)?;
        self.state = State::Running;
        gate::set(Passes::All);
        Ok(())
    }

    fn checkpoint(&mut self, caller: &impl Caller) -> Result {
        self.require(State::Locked)?;
        if lock().has_managed() {
            return Err(Error::NOT_SUPPORTED);
        }
        gate::set(Passes::Nothing);
        self.take_time(caller)?;
        self.parked = lock().park();
        self.state = State::Checkpointed;
        Ok(())
    }

    fn restore(&mut self, caller: &impl Caller) -> Result {
        self.require(State::Checkpointed)?;
        if self.lost {
            return Err(Error::OPERATING_SYSTEM);
        }
        if let Err(error) = lock().make_room(&self.parked) {
            self.lost = true;
            return Err(error);
        }
        self.take_time(caller)?;
        lock().scramble();
        gate::set(Passes::Questions);
        self.state = State::Locked;
        Ok(())
    }

    /// Copies for `SIM_CHECKPOINT_US`. The process has failed if the caller ends meanwhile.
    fn take_time(&mut self, caller: &impl Caller) -> Result {
        if caller.lives_for(Duration::from_micros(config().checkpoint_us)) {
            return Ok(());
        }
        self.state = State::Failed;
        Err(Error::OPERATING_SYSTEM)
    }
}
