//! Pushes bodies to a collector over HTTP: makes them at intervals, keeps those that wait, and tries again as OTLP says:
//! <https://opentelemetry.io/docs/specs/otlp/#otlphttp-response>. Knows nothing of their content.

use super::post::{Answer, Connection, Endpoint};
use hyper::StatusCode;
use hyper::body::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::BuildHasher;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Most bytes that wait. If there are more, the oldest body is dropped.
const MOST_WAITING: usize = 32 << 20;
/// A whole answer must arrive within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// First and longest pause before another try. Each pause is twice as long as the one before.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Longest pause that a collector can ask for.
const MOST_PAUSE: Duration = Duration::from_secs(3600);
/// Failures are reported at most this often.
const SAYS_EACH: Duration = Duration::from_secs(60);

/// Numbers of bodies by outcome.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub accepted: Cell<u64>,
    /// The collector refused them for good.
    pub refused: Cell<u64>,
    /// Newer bodies took their room.
    pub dropped: Cell<u64>,
    /// Tries that failed.
    pub failed_tries: Cell<u64>,
    pub waiting_bytes: Cell<usize>,
}

fn count(cell: &Cell<u64>, number: impl Into<u64>) {
    cell.set(cell.get() + number.into());
}

/// Makers of the bodies.
pub(crate) struct Source {
    /// Returns the keys of the bodies of one round.
    pub keys: Box<dyn FnMut() -> Vec<u32>>,
    /// Makes a body, compressed by gzip; `None` if there is nothing to push.
    pub make: Box<dyn FnMut(u32) -> Option<Vec<u8>>>,
    pub kind: &'static str,
    /// Returns the reason why a collector that answered 200 took only a part.
    pub complaint: fn(&[u8]) -> Option<String>,
}

/// Bodies on their way to a collector.
pub(crate) struct Push {
    pub to: Endpoint,
    pub each: Duration,
    pub source: Source,
    pub outcomes: Rc<Outcomes>,
}

impl Push {
    /// Pushes without end.
    pub(super) async fn run(self) -> Infallible {
        let Self { to, each, source: Source { mut keys, mut make, kind, complaint }, outcomes } = self;
        let outbox = Outbox { outcomes, ..Outbox::default() };
        let gather = async {
            let mut ticks = interval(each);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                for key in keys() {
                    if let Some(body) = make(key) {
                        outbox.add(body.into());
                    }
                    // Clients of the server are answered between two bodies.
                    yield_now().await;
                }
            }
        };
        let sender = Sender { to, kind, complaint, outbox: &outbox, said: Cell::default() };
        tokio::select! {
            end = gather => end,
            end = sender.send_all() => end,
        }
    }
}

/// A queue of bodies with a bound.
#[derive(Default)]
struct Outbox {
    /// The oldest first, each with its number.
    waiting: RefCell<VecDeque<(u64, Bytes)>>,
    last: Cell<u64>,
    outcomes: Rc<Outcomes>,
    added: Notify,
}

impl Outbox {
    fn add(&self, body: Bytes) {
        let mut waiting = self.waiting.borrow_mut();
        self.last.set(self.last.get() + 1);
        let mut bytes = self.outcomes.waiting_bytes.get() + body.len();
        waiting.push_back((self.last.get(), body));
        while bytes > MOST_WAITING {
            let Some((_, dropped)) = waiting.pop_front() else { break };
            bytes -= dropped.len();
            count(&self.outcomes.dropped, 1_u64);
        }
        self.outcomes.waiting_bytes.set(bytes);
        self.added.notify_one();
    }

    fn oldest(&self) -> Option<(u64, Bytes)> {
        self.waiting.borrow().front().cloned()
    }

    /// Removes the oldest body if it still has this number. False if it was dropped meanwhile.
    fn remove(&self, number: u64) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let Some((_, body)) = waiting.front().filter(|(oldest, _)| *oldest == number) else { return false };
        self.outcomes.waiting_bytes.set(self.outcomes.waiting_bytes.get() - body.len());
        waiting.pop_front();
        true
    }
}

/// The outcome of one try.
enum Tried {
    Accepted,
    /// The collector will not take this body, for this reason.
    Refused(String),
    /// The collector may take it later; the time is its own wish.
    Failed(String, Option<Duration>),
}

/// Sends the bodies of an outbox, one after another.
struct Sender<'a> {
    to: Endpoint,
    kind: &'static str,
    complaint: fn(&[u8]) -> Option<String>,
    outbox: &'a Outbox,
    /// Time of the last report of a failure.
    said: Cell<Option<Instant>>,
}

impl Sender<'_> {
    async fn send_all(&self) -> Infallible {
        let outcomes = &*self.outbox.outcomes;
        let (mut connection, mut pause) = (None, PAUSE.0);
        loop {
            let Some((number, body)) = self.outbox.oldest() else {
                connection = None;
                self.outbox.added.notified().await;
                continue;
            };
            let tried = timeout(ANSWER_WITHIN, self.try_once(&mut connection, body)).await;
            let tried = tried.unwrap_or_else(|_| Tried::Failed("no answer within 10 s".into(), None));
            match tried {
                Tried::Failed(why, wish) => {
                    connection = None;
                    count(&outcomes.failed_tries, 1_u64);
                    self.say(&why);
                    sleep(wish.unwrap_or_default().clamp(jittered(pause), MOST_PAUSE)).await;
                    pause = (pause * 2).min(PAUSE.1);
                    continue;
                }
                Tried::Accepted => count(&outcomes.accepted, self.outbox.remove(number)),
                Tried::Refused(why) => {
                    self.say(&why);
                    count(&outcomes.refused, self.outbox.remove(number));
                }
            }
            pause = PAUSE.0;
        }
    }

    async fn try_once(&self, connection: &mut Option<Connection>, body: Bytes) -> Tried {
        let is_reused = connection.is_some();
        let answer = match self.exchange(connection, &body).await {
            // The collector may have closed it since.
            Err(_) if is_reused => self.exchange(connection, &body).await,
            answer => answer,
        };
        let Answer { status, retry_after, body } = match answer {
            Ok(answer) => answer,
            Err(why) => return Tried::Failed(why, None),
        };
        match status {
            StatusCode::OK => (self.complaint)(&body).map_or(Tried::Accepted, Tried::Refused),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Tried::Failed(status.to_string(), retry_after),
            _ if status.is_success() => Tried::Accepted,
            _ => Tried::Refused(status.to_string()),
        }
    }

    /// Posts a body on the open connection, or on a new one. A connection that failed is closed.
    async fn exchange(&self, connection: &mut Option<Connection>, body: &Bytes) -> Result<Answer, String> {
        let mut open: Connection = match connection.take() {
            Some(open) => open,
            None => Connection::open(&self.to).await?,
        };
        let answer = open.post(&self.to, self.kind, body.clone()).await?;
        *connection = Some(open);
        Ok(answer)
    }

    /// Reports a failure, unless one was reported a moment ago.
    fn say(&self, why: &str) {
        if self.said.get().is_none_or(|then| then.elapsed() >= SAYS_EACH) {
            self.said.set(Some(Instant::now()));
            tracing::warn!("{} does not take profiles: {why}", self.to);
        }
    }
}

/// Returns a random time between half of this one and all of it, so that machines do not try all at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + (RandomState::new().hash_one(0) >> 11) as f64 / (1_u64 << 54) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room_for_the_newest() {
        let outbox = Outbox::default();
        let outcomes = Rc::clone(&outbox.outcomes);
        for _ in 0..40 {
            outbox.add(vec![0; 1 << 20].into());
        }
        assert_eq!((outcomes.dropped.get(), outcomes.waiting_bytes.get()), (8, MOST_WAITING));
        assert!(!outbox.remove(8), "dropped while it was sent");
        assert!(outbox.oldest().is_some_and(|(number, _)| number == 9) && outbox.remove(9));
        assert_eq!(outcomes.waiting_bytes.get(), MOST_WAITING - (1 << 20));
        outbox.add(vec![0; MOST_WAITING + 1].into());
        assert!(outbox.oldest().is_none(), "what is too large is dropped, too");
        assert_eq!((outcomes.dropped.get(), outcomes.waiting_bytes.get()), (40, 0));
    }

    #[test]
    fn a_pause_is_never_the_same() {
        let pauses: Vec<Duration> = (0..50).map(|_| jittered(PAUSE.1)).collect();
        assert!(pauses.iter().all(|pause| (PAUSE.1 / 2..=PAUSE.1).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().max() > pauses.iter().min());
    }
}
