//! Whose turn it is on the cards: a pure policy. It is given what is known of the members, their requests and the free
//! memory, and says what to do next.
//!
//! * A member that is short of memory gets it from the member that has been idle longest.
//! * A parked member whose program calls the driver comes back. If there is no room, the member that has been idle
//!   longest makes way; if all are busy, the one that has had its turn for longest. A turn lasts at least the quantum.
//! * Members that wait to come back are served in the order in which they began to wait.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time on the service's clock.
pub(crate) type Moment = Duration;

/// A process with GPUMEM_SHARE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Player {
    pub stands: Stands,
    /// Bytes by card: those that it has there, or needs to come back.
    pub cards: BTreeMap<String, u64>,
    /// Since when it has given its GPUs no work; `None` while it works.
    pub idle_since: Option<Moment>,
    /// Without work for this long it counts as idle.
    pub idle_after: Duration,
    /// Reason why it can never be parked.
    pub never: Option<String>,
    /// When it was resumed last.
    pub resumed: Option<Moment>,
    /// Time that its last park and resume took together.
    pub moves: Duration,
}

/// State of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stands {
    #[default]
    Runs,
    /// Its memory is on its cards, and its calls wait.
    Locked,
    Parked,
    /// The driver gave it up.
    Lost,
    /// It cannot be told, or was left alone after a move that failed: it waits.
    Unclear,
}

/// A wish of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// More memory on a card.
    Short { uuid: String, bytes: u64 },
    /// It is parked and wants to run.
    Wake,
}

/// A request that waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Its number; earlier requests have smaller ones.
    pub number: u64,
    pub pid: u32,
    pub wish: Wish,
    /// A member was parked for it since it was made.
    pub served: bool,
}

impl Waiting {
    fn refuse(&self, why: String) -> Move {
        Move::Refuse { number: self.number, why }
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Park {
        pid: u32,
        for_whom: u32,
    },
    Resume {
        pid: u32,
    },
    /// The request with this number is granted: there is room, or the member runs.
    Grant {
        number: u64,
    },
    Refuse {
        number: u64,
        why: String,
    },
}

/// Rules that the user may change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// A member keeps the card at least so long after it was resumed, unless it is idle.
    pub quantum: Duration,
    /// Free memory that is left when a member comes back.
    pub margin: u64,
}

/// A turn is at least this many times as long as the moves that it costs.
const TURN: u32 = 4;

/// Everything that decides.
pub(crate) struct Table<'a> {
    pub rules: Rules,
    pub now: Moment,
    pub players: &'a BTreeMap<u32, Player>,
    pub waiting: &'a [Waiting],
    /// Free bytes of each card; a card that is missing is not known.
    pub free: &'a BTreeMap<String, u64>,
}

impl Table<'_> {
    /// Returns the next move; `None` if all have to wait.
    pub(crate) fn next(&self) -> Option<Move> {
        self.waiting.iter().find_map(|waiting| match (self.players.get(&waiting.pid), &waiting.wish) {
            (None, _) => Some(waiting.refuse("the service does not know this process".into())),
            (Some(player), Wish::Short { uuid, bytes }) => self.of_short(waiting, player, uuid, *bytes),
            (Some(player), Wish::Wake) => self.of_wake(waiting, player),
        })
    }

    fn of_short(&self, waiting: &Waiting, player: &Player, uuid: &str, bytes: u64) -> Option<Move> {
        let number = waiting.number;
        // Its own answer would wait for its own way back.
        if player.stands != Stands::Runs {
            return None;
        }
        // Its driver found no memory for it, whatever is counted as free.
        if waiting.served || self.has(uuid, bytes) {
            return Some(Move::Grant { number });
        }
        // A member that waits for memory itself gives its GPUs no work either.
        let asks = |pid: u32| self.waiting.iter().any(|other| other.pid == pid && other.wish != Wish::Wake);
        if let Some(pid) = self.idle_longest(waiting.pid, &[uuid], &asks) {
            return Some(Move::Park { pid, for_whom: waiting.pid });
        }
        let card = [uuid];
        let mut others = self.others(waiting.pid, &card).peekable();
        if others.peek().is_none() {
            return Some(waiting.refuse(format!("no other member has memory on {uuid}")));
        }
        if others.all(|(_, player)| player.never.is_some()) {
            return Some(waiting.refuse(format!("no member on {uuid} can be parked")));
        }
        // Of two that wait for each other the younger is told to go on without.
        let older = self.waiting.iter().any(|other| {
            other.number < number
                && other.pid != waiting.pid
                && matches!(&other.wish, Wish::Short { uuid: of, .. } if of == uuid)
        });
        older.then(|| waiting.refuse("another member waits for memory of this card, and waited before".into()))
    }

    fn of_wake(&self, waiting: &Waiting, player: &Player) -> Option<Move> {
        let number = waiting.number;
        match player.stands {
            Stands::Runs => return Some(Move::Grant { number }),
            Stands::Locked => return Some(Move::Resume { pid: waiting.pid }),
            Stands::Lost => {
                let why = "the driver gave it up when it was moved: it can only be killed";
                return Some(waiting.refuse(why.into()));
            }
            Stands::Unclear => return None,
            Stands::Parked => {}
        }
        let lacking = player.cards.iter().filter(|(uuid, bytes)| !self.has(uuid, **bytes));
        let cards: Vec<&str> = lacking.map(|(uuid, _)| uuid.as_str()).collect();
        if cards.is_empty() {
            return Some(Move::Resume { pid: waiting.pid });
        }
        let pid =
            self.idle_longest(waiting.pid, &cards, &|_| false).or_else(|| self.had_its_turn(waiting.pid, &cards))?;
        Some(Move::Park { pid, for_whom: waiting.pid })
    }

    fn has(&self, uuid: &str, bytes: u64) -> bool {
        self.free.get(uuid).is_some_and(|&free| free >= bytes.saturating_add(self.rules.margin))
    }

    /// Returns the other members that run and have memory on one of the cards.
    fn others<'t>(&'t self, pid: u32, cards: &'t [&'t str]) -> impl Iterator<Item = (u32, &'t Player)> {
        let all = self.players.iter().map(|(&pid, player)| (pid, player));
        all.filter(move |(other, player)| *other != pid && player.stands == Stands::Runs && player.on(cards))
    }

    /// Returns those of [`others`](Self::others) that can make way.
    fn movable<'t>(&'t self, pid: u32, cards: &'t [&'t str]) -> impl Iterator<Item = (u32, &'t Player)> {
        self.others(pid, cards).filter(|(_, player)| player.never.is_none())
    }

    /// `stays`: members that do not make way.
    fn idle_longest(&self, pid: u32, cards: &[&str], stays: &dyn Fn(u32) -> bool) -> Option<u32> {
        // It came back because it had work.
        let since = |player: &Player| {
            let since = player.idle_since?.max(player.resumed.unwrap_or_default());
            (self.now.saturating_sub(since) >= player.idle_after).then_some(since)
        };
        let idle = self.movable(pid, cards).filter(|&(pid, _)| !stays(pid));
        let idle = idle.filter_map(|(pid, player)| Some((since(player)?, pid)));
        idle.min().map(|(_, pid)| pid)
    }

    fn had_its_turn(&self, pid: u32, cards: &[&str]) -> Option<u32> {
        let over = |player: &Player| {
            let turn = self.rules.quantum.max(player.moves * TURN);
            let since = player.resumed.unwrap_or_default();
            (self.now.saturating_sub(since) >= turn).then_some(since)
        };
        self.movable(pid, cards).filter_map(|(pid, player)| Some((over(player)?, pid))).min().map(|(_, pid)| pid)
    }
}

impl Player {
    /// True if it has memory on one of the cards.
    fn on(&self, cards: &[&str]) -> bool {
        cards.iter().any(|&uuid| self.cards.get(uuid).is_some_and(|&bytes| bytes > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const CARD: &str = "GPU-1";

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    const RULES: Rules = Rules { quantum: Duration::from_secs(20), margin: GIB };

    fn player(bytes: u64) -> Player {
        let cards = BTreeMap::from([(CARD.into(), bytes)]);
        Player { cards, idle_after: seconds(5), ..Player::default() }
    }

    fn idle(bytes: u64, since: u64) -> Player {
        Player { idle_since: Some(seconds(since)), ..player(bytes) }
    }

    fn next(now: u64, players: &[(u32, Player)], free: u64, waiting: &[Waiting]) -> Option<Move> {
        let (players, free) = (players.iter().cloned().collect(), BTreeMap::from([(CARD.to_owned(), free)]));
        Table { rules: RULES, now: seconds(now), players: &players, waiting, free: &free }.next()
    }

    fn short(number: u64, pid: u32, bytes: u64) -> Waiting {
        Waiting { number, pid, wish: Wish::Short { uuid: CARD.into(), bytes }, served: false }
    }

    fn wake(number: u64, pid: u32) -> Waiting {
        Waiting { number, pid, wish: Wish::Wake, served: false }
    }

    #[test]
    fn the_member_that_is_idle_longest_makes_way() {
        let players = [(1, player(0)), (2, idle(8 * GIB, 90)), (3, idle(8 * GIB, 80)), (4, idle(8 * GIB, 70))];
        let asked = &[short(1, 1, 4 * GIB)];
        assert_eq!(next(100, &players, GIB, asked), Some(Move::Park { pid: 4, for_whom: 1 }));
        assert_eq!(next(100, &players, 5 * GIB, asked), Some(Move::Grant { number: 1 }));
        let served = &[Waiting { served: true, ..asked[0].clone() }];
        assert_eq!(next(100, &players, 0, served), Some(Move::Grant { number: 1 }), "it tries again");
        // Idle for 4 s is not idle.
        assert_eq!(next(94, &players[..2], GIB, asked), None);
        assert_eq!(next(95, &players[..2], GIB, asked), Some(Move::Park { pid: 2, for_whom: 1 }));
    }

    #[test]
    fn a_member_that_has_just_come_back_is_not_idle() {
        let back = Player { resumed: Some(seconds(97)), ..idle(8 * GIB, 0) };
        let players = [(1, player(0)), (2, back), (3, idle(8 * GIB, 50))];
        assert_eq!(next(100, &players, GIB, &[short(1, 1, 4 * GIB)]), Some(Move::Park { pid: 3, for_whom: 1 }));
        assert_eq!(next(100, &players[..2], GIB, &[short(1, 1, 4 * GIB)]), None);
    }

    #[test]
    fn who_cannot_be_parked_is_not_and_is_not_waited_for() {
        let stays = Player { never: Some("managed memory".into()), ..idle(8 * GIB, 0) };
        let refused = next(100, &[(1, player(0)), (2, stays)], 0, &[short(1, 1, GIB)]);
        assert!(matches!(refused, Some(Move::Refuse { number: 1, why }) if why.contains("can be parked")));
        let refused = next(100, &[(1, player(0))], 0, &[short(1, 1, GIB)]);
        assert!(matches!(refused, Some(Move::Refuse { number: 1, why }) if why.contains("no other member")));
        assert!(matches!(next(100, &[], 0, &[short(7, 1, GIB)]), Some(Move::Refuse { number: 7, .. })));
        // One on another card is no help.
        let elsewhere = Player { cards: BTreeMap::from([("GPU-2".into(), GIB)]), ..idle(0, 0) };
        assert!(matches!(
            next(100, &[(1, player(0)), (2, elsewhere)], 0, &[short(1, 1, GIB)]),
            Some(Move::Refuse { .. })
        ));
    }

    #[test]
    fn of_two_that_wait_for_each_other_the_younger_goes_on() {
        let both = [(1, player(8 * GIB)), (2, player(8 * GIB))];
        let waiting = [short(1, 1, 4 * GIB), short(2, 2, 4 * GIB)];
        assert!(matches!(next(100, &both, 0, &waiting), Some(Move::Refuse { number: 2, .. })));
        assert_eq!(next(100, &both, 0, &waiting[..1]), None, "the older one waits");
        // While they wait they give their GPUs no work.
        let idle = [(1, idle(8 * GIB, 0)), (2, idle(8 * GIB, 0))];
        assert!(matches!(next(100, &idle, 0, &waiting), Some(Move::Refuse { number: 2, .. })));
    }

    #[test]
    fn a_parked_member_comes_back_where_there_is_room() {
        let parked = Player { stands: Stands::Parked, ..player(8 * GIB) };
        let asked = &[wake(1, 1)];
        assert_eq!(next(0, &[(1, parked.clone())], 9 * GIB, asked), Some(Move::Resume { pid: 1 }));
        assert_eq!(next(0, &[(1, parked.clone())], 8 * GIB, asked), None, "without a margin it may never come back");
        assert_eq!(next(0, &[(1, player(8 * GIB))], 0, asked), Some(Move::Grant { number: 1 }));
        let idle = idle(8 * GIB, 0);
        assert_eq!(next(9, &[(1, parked), (2, idle)], 0, asked), Some(Move::Park { pid: 2, for_whom: 1 }));
    }

    #[test]
    fn a_member_that_is_not_there_is_not_said_to_run() {
        let asked = &[wake(1, 1)];
        let stands = |stands| next(0, &[(1, Player { stands, ..player(GIB) })], 0, asked);
        assert_eq!(stands(Stands::Locked), Some(Move::Resume { pid: 1 }), "its memory is there");
        assert!(matches!(stands(Stands::Lost), Some(Move::Refuse { why, .. }) if why.contains("killed")));
        assert_eq!(stands(Stands::Unclear), None);
    }

    #[test]
    fn a_busy_member_has_its_turn_first() {
        let parked = Player { stands: Stands::Parked, ..player(8 * GIB) };
        let busy = Player { resumed: Some(seconds(100)), moves: seconds(3), ..player(8 * GIB) };
        let both = [(1, parked.clone()), (2, busy.clone())];
        assert_eq!(next(119, &both, 0, &[wake(1, 1)]), None);
        assert_eq!(next(120, &both, 0, &[wake(1, 1)]), Some(Move::Park { pid: 2, for_whom: 1 }));
        // Moves that take long make long turns.
        let slow = [(1, parked), (2, Player { moves: seconds(10), ..busy })];
        assert_eq!(next(139, &slow, 0, &[wake(1, 1)]), None);
        assert_eq!(next(140, &slow, 0, &[wake(1, 1)]), Some(Move::Park { pid: 2, for_whom: 1 }));
        // A member that is short of memory gets nothing from one that is busy.
        assert_eq!(next(500, &[(3, player(0)), (2, player(8 * GIB))], 0, &[short(1, 3, GIB)]), None);
    }

    /// Eight members, each always wanting to run, on a card for two: none waits for more than all others' turns.
    #[test]
    fn nobody_starves() {
        let mut players: BTreeMap<u32, Player> =
            (1..=8).map(|pid| (pid, Player { stands: Stands::Parked, ..player(8 * GIB) })).collect();
        let (mut waiting, mut number) = (Vec::new(), 0);
        let mut turns = BTreeMap::<u32, Vec<u64>>::new();
        for now in 0..4000 {
            for (&pid, player) in &players {
                if player.stands == Stands::Parked && !waiting.iter().any(|waiting: &Waiting| waiting.pid == pid) {
                    number += 1;
                    waiting.push(wake(number, pid));
                }
            }
            let on_card: u64 =
                players.values().filter(|player| player.stands == Stands::Runs).map(|player| player.cards[CARD]).sum();
            assert!(on_card <= 17 * GIB);
            let free = BTreeMap::from([(CARD.to_owned(), 17 * GIB - on_card)]);
            let table = Table { rules: RULES, now: seconds(now), players: &players, waiting: &waiting, free: &free };
            match table.next() {
                Some(Move::Park { pid, .. }) => players.get_mut(&pid).unwrap().stands = Stands::Parked,
                Some(Move::Resume { pid }) => {
                    let player = players.get_mut(&pid).unwrap();
                    (player.stands, player.resumed) = (Stands::Runs, Some(seconds(now)));
                    turns.entry(pid).or_default().push(now);
                }
                Some(Move::Grant { number }) => waiting.retain(|waiting| waiting.number != number),
                Some(refused) => panic!("{refused:?}"),
                None => {}
            }
        }
        for pid in 1..=8 {
            let of = &turns[&pid];
            let longest = of.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(of.len() > 30 && longest < 8 * 21 + 60, "{pid}: {} turns, {longest} s apart", of.len());
        }
    }
}
