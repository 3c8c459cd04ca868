//! The service: it knows the members by their ledgers, takes their requests, and parks and resumes them, one move at a
//! time.

use super::counts::Counts;
use super::socket::{Asked, Client, Seat};
use super::turns::{Move, Player, Rules, Stands, Table, Waiting, Wish};
use crate::failure::Result;
use crate::parking::driver::{Driver, State, Step};
use crate::parking::plan::{self, Member};
use crate::parking::worker::{Action, Order, Said, Worker};
use crate::parking::{obstacles, registry};
use crate::source::nvml::Books;
use crate::source::world::{World, monotonic_ns};
use gpumem_wire::share::{Answer, Ask, uuid_text};
use gpumem_wire::units;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Time between two looks at the requests.
const TICK: Duration = Duration::from_millis(200);
/// Time between two looks at the members if nothing waits.
const REST: Duration = Duration::from_secs(5);
/// Time between two looks at the members, and between two lines to members that wait.
const SECOND: Duration = Duration::from_secs(1);
/// Time for which a member that could not be parked is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// The user's options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub name: String,
    pub rules: Rules,
    pub lock: Duration,
}

/// A request with its connection.
struct Request {
    waiting: Waiting,
    client: Client,
    since: Instant,
}

/// Facts about a member that outlast a look.
#[derive(Default)]
struct Memory {
    resumed: Option<Duration>,
    park_time: Duration,
    resume_time: Duration,
    left_alone: Option<Duration>,
    /// Why the last move failed.
    why: String,
}

/// A move that the worker makes now.
struct Going {
    pid: u32,
    action: Action,
    for_whom: Option<u32>,
    bytes: u64,
    begun: Instant,
    text: String,
}

struct Service<'a> {
    world: &'a World,
    options: &'a Options,
    driver: Driver,
    books: Books,
    begin: Instant,
    requests: Vec<Request>,
    numbers: u64,
    members: BTreeMap<u32, Member>,
    /// Reasons why members cannot be parked, as of the last look.
    against: BTreeMap<u32, String>,
    memory: BTreeMap<u32, Memory>,
    looked: Option<Instant>,
    told: Instant,
    going: Option<Going>,
    orders: Sender<Order>,
    ends: Receiver<Result<Said>>,
    counts: Counts,
    say: &'a mut dyn FnMut(String),
}

/// Serves until the process ends. `say` is given a line for each thing that happens.
///
/// # Errors
/// The name is taken, or the worker does not start.
pub(crate) fn serve(world: &World, driver: Driver, options: &Options, say: &mut dyn FnMut(String)) -> Result<()> {
    let mut seat = Seat::of(world, &options.name)?;
    say(format!("this service is called {0:?}: start programs with GPUMEM_SHARE={0}", options.name));
    let (to, asked) = mpsc::channel();
    seat.listen(to);
    let (orders, ends) = moves(world.clone());
    let mut service = Service {
        world,
        options,
        driver,
        books: Books::default(),
        begin: Instant::now(),
        requests: Vec::new(),
        numbers: 0,
        members: BTreeMap::new(),
        against: BTreeMap::new(),
        memory: BTreeMap::new(),
        looked: None,
        told: Instant::now(),
        going: None,
        orders,
        ends,
        counts: Counts { name: options.name.clone(), ..Counts::default() },
        say,
    };
    service.counts.write(world);
    loop {
        match asked.recv_timeout(TICK) {
            Ok(asked) => service.note(asked),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        service.tick();
    }
}

/// Starts the thread that gives orders to the worker, and starts a new worker if one has ended.
fn moves(world: World) -> (Sender<Order>, Receiver<Result<Said>>) {
    let (orders, todo) = mpsc::channel::<Order>();
    let (done, ends) = mpsc::channel();
    std::thread::spawn(move || {
        let mut worker = None;
        for order in todo {
            let end = (|| {
                let mut one = match worker.take() {
                    Some(worker) => worker,
                    None => Worker::start(&world)?,
                };
                let end = one.carry_out(&order, &mut |_| {})?;
                worker = Some(one);
                Ok(end)
            })();
            if done.send(end).is_err() {
                return;
            }
        }
    });
    (orders, ends)
}

impl Service<'_> {
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn note(&mut self, asked: Asked) {
        let wish = match asked.ask {
            Ask::Short { uuid, bytes, .. } => Wish::Short { uuid: uuid_text(&uuid), bytes },
            Ask::Wake { .. } => Wish::Wake,
        };
        self.numbers += 1;
        let waiting = Waiting { number: self.numbers, pid: asked.pid, wish, served: false };
        self.requests.push(Request { waiting, client: asked.client, since: Instant::now() });
        self.looked = None;
    }

    fn tick(&mut self) {
        self.requests.retain(|request| !request.client.is_gone());
        self.hear_the_worker();
        self.tell_who_waits();
        let age = if self.requests.is_empty() { REST } else { SECOND };
        if self.looked.is_none_or(|looked| looked.elapsed() >= age) {
            self.look();
        }
        while self.going.is_none() && !self.requests.is_empty() {
            match self.next() {
                Some(next) => self.make(next),
                None => return,
            }
        }
    }

    /// Looks at all members and their cards; if something waits, also at what keeps members from being parked.
    fn look(&mut self) {
        self.looked = Some(Instant::now());
        self.books.look_again();
        let of_name = plan::sharing(self.world, &self.driver, &self.books, &self.options.name);
        self.members = of_name.into_iter().map(|member| (member.process.pid, member)).collect();
        self.memory.retain(|pid, _| self.members.contains_key(pid));
        let running = self.members.iter().filter(|(_, member)| member.state == State::Running);
        let first = |(&pid, member): (&u32, &Member)| {
            let found = || obstacles::of(self.world, member, &self.books).into_iter().next();
            Some((pid, plan::never(member).or_else(|| Some(found()?.what))?))
        };
        self.against = if self.requests.is_empty() { BTreeMap::new() } else { running.filter_map(first).collect() };
    }

    /// Returns what to do next.
    fn next(&self) -> Option<Move> {
        let players = self.members.iter().map(|(&pid, member)| (pid, self.player(member))).collect();
        let waiting: Vec<Waiting> = self.requests.iter().map(|request| request.waiting.clone()).collect();
        let free = self.books.uuids().unwrap_or_default().into_iter().filter_map(|uuid| {
            let card = self.books.card(&uuid).ok()?;
            Some((uuid, card.total.saturating_sub(card.used)))
        });
        let table = Table {
            rules: self.options.rules,
            now: self.now(),
            players: &players,
            waiting: &waiting,
            free: &free.collect(),
        };
        table.next()
    }

    fn player(&self, member: &Member) -> Player {
        let memory = self.memory.get(&member.process.pid);
        let stands = match member.state {
            State::Running => Stands::Runs,
            State::Locked => Stands::Locked,
            State::Checkpointed => Stands::Parked,
            State::Failed => Stands::Lost,
            _ => Stands::Unclear,
        };
        let header = member.ledger.as_ref().map(|ledger| &ledger.snapshot.header);
        let since = header.map(|header| header.idle_since_ns).filter(|&since| since != 0);
        // On the service's clock: a member that was idle before the service began counts from then.
        let idle_for = since.map(|since| Duration::from_nanos(monotonic_ns().saturating_sub(since)));
        let alone = memory.and_then(|memory| memory.left_alone.map(|since| (since, &memory.why)));
        let left_alone =
            alone.filter(|(since, _)| self.now().saturating_sub(*since) < LEFT_ALONE).map(|(_, why)| why.clone());
        // A way back that failed is not tried again at once.
        let stands = match stands {
            Stands::Parked if left_alone.is_some() => Stands::Unclear,
            stands => stands,
        };
        let never = match stands {
            Stands::Parked | Stands::Unclear => None,
            _ => left_alone.or_else(|| self.against.get(&member.process.pid).cloned()),
        };
        Player {
            stands,
            cards: member.cards.iter().map(|card| (card.uuid.clone(), card.bytes)).collect(),
            idle_after: member
                .ledger
                .as_ref()
                .map_or(Duration::MAX, |ledger| Duration::from_nanos(ledger.settings().share_idle)),
            idle_since: idle_for.map(|idle| self.now().saturating_sub(idle)),
            never,
            resumed: memory.and_then(|memory| memory.resumed),
            moves: memory.map_or(Duration::ZERO, |memory| memory.park_time + memory.resume_time),
        }
    }

    fn make(&mut self, next: Move) {
        match next {
            Move::Grant { number } => self.answer(number, None),
            Move::Refuse { number, why } => self.answer(number, Some(why)),
            Move::Park { pid, for_whom } => self.begin(pid, Action::Park, Some(for_whom)),
            Move::Resume { pid } => self.begin(pid, Action::Resume, None),
        }
    }

    fn answer(&mut self, number: u64, refused: Option<String>) {
        let Some(at) = self.requests.iter().position(|request| request.waiting.number == number) else { return };
        let mut request = self.requests.remove(at);
        let waited = request.since.elapsed().as_secs_f64();
        let (answer, text) = match (refused, &request.waiting.wish) {
            (Some(why), _) => (Answer::No(why.clone()), format!("refused ({why})")),
            (None, Wish::Short { .. }) => (Answer::Again, "there is room".into()),
            (None, Wish::Wake) => (Answer::Awake, "runs".into()),
        };
        match answer {
            Answer::No(_) => self.counts.refused += 1,
            _ => {
                self.counts.granted += 1;
                self.counts.waited_seconds += waited;
                self.counts.longest_wait_seconds = self.counts.longest_wait_seconds.max(waited);
            }
        }
        (self.say)(format!("pid {}: {text}, after {waited:.1} s", request.waiting.pid));
        request.client.say(&answer);
        self.counts.write(self.world);
        // The member is about to use the memory that it was granted.
        self.looked = None;
        if !self.requests.is_empty() {
            std::thread::sleep(TICK);
            self.look();
        }
    }

    fn begin(&mut self, pid: u32, action: Action, for_whom: Option<u32>) {
        let text = match for_whom {
            Some(whom) => format!("parking pid {pid} for pid {whom}"),
            None => format!("resuming pid {pid}"),
        };
        let Some(member) = self.members.get(&pid) else { return };
        let bytes = member.bytes();
        let members = vec![member.note(registry::now(), vec![pid])];
        let order = Order { action, members, lock: self.options.lock, families: Vec::new() };
        (self.say)(format!("{text}: {}", units::bytes(bytes)));
        self.going = Some(Going { pid, action, for_whom, bytes, begun: Instant::now(), text });
        if self.orders.send(order).is_err() {
            self.going = None;
        }
    }

    fn hear_the_worker(&mut self) {
        let Ok(end) = self.ends.try_recv() else { return };
        let Some(going) = self.going.take() else { return };
        let (time, now) = (going.begun.elapsed(), self.now());
        let memory = self.memory.entry(going.pid).or_default();
        let why = match end {
            Ok(Said::Done) => None,
            Ok(Said::Stopped(stop)) if stop.step == Step::Look => Some(format!("pid {}: {}", stop.pid, stop.why)),
            Ok(Said::Stopped(stop)) => Some(format!("{} failed: {}", stop.step, stop.why)),
            Ok(Said::Failed { why }) => Some(why),
            Ok(_) => Some("the worker said nothing".into()),
            Err(failure) => Some(failure.to_string()),
        };
        match (&why, going.action) {
            (Some(why), _) => {
                self.counts.failed += 1;
                (memory.left_alone, memory.why) = (Some(now), why.clone());
            }
            (None, Action::Park) => {
                self.counts.parks += 1;
                self.counts.parked_bytes += going.bytes;
                self.counts.park_seconds += time.as_secs_f64();
                memory.park_time = time;
                let served = self.requests.iter_mut().filter(|request| Some(request.waiting.pid) == going.for_whom);
                served.for_each(|request| request.waiting.served = true);
            }
            (None, Action::Resume) => {
                self.counts.resumes += 1;
                self.counts.resumed_bytes += going.bytes;
                self.counts.resume_seconds += time.as_secs_f64();
                (memory.resume_time, memory.resumed) = (time, Some(now));
            }
        }
        let outcome = why.unwrap_or_else(|| "done".into());
        (self.say)(format!("{}: {outcome}, {:.1} s", going.text, time.as_secs_f64()));
        self.counts.write(self.world);
        self.looked = None;
    }

    /// Tells members that wait what goes on. One that is short of memory is told only while something is moved, since its
    /// patience counts the time without progress.
    fn tell_who_waits(&mut self) {
        if self.told.elapsed() < SECOND {
            return;
        }
        self.told = Instant::now();
        for request in &mut self.requests {
            match (&self.going, &request.waiting.wish) {
                (Some(going), _) => request.client.say(&Answer::Wait(going.text.clone())),
                (None, Wish::Wake) => request.client.say(&Answer::Wait("waiting for room on the card".into())),
                (None, Wish::Short { .. }) => {}
            }
        }
    }
}
