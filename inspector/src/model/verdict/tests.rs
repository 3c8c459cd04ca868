//! Verdicts on planted series, whose truth is known.

use super::Verdict::*;
use super::*;
use gpumem_wire::layout::GROWTH_LEVELS;

/// A generator of random numbers with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.below(1 << 40) as f64 / (1_u64 << 40) as f64
    }
}

/// Returns the points that the shim's ledger keeps of these samples.
fn kept(samples: &[(u64, u64)]) -> Vec<Step> {
    let (mut steps, mut oldest) = (Vec::new(), samples.len());
    for level in GROWTH_LEVELS {
        let every = level.every as usize;
        let done = samples.len() / every;
        let first = done.saturating_sub(level.points);
        for point in (first..done).filter(|point| point * every < oldest) {
            let (bytes, count) = *samples[point * every..][..every].iter().min().unwrap();
            steps.push((point * every, Step { samples: level.every, bytes, count }));
        }
        oldest = if done > first { oldest.min(first * every) } else { oldest };
    }
    steps.sort_by_key(|(at, _)| *at);
    steps.into_iter().map(|(_, step)| step).collect()
}

/// A series of some length with a known truth; each thing has `size` bytes.
struct Planted {
    counts: Vec<u64>,
    turnover: Turnover,
    /// One thing of this many times the size.
    one_thing: bool,
}

fn plant(truth: Verdict, random: &mut Random) -> Planted {
    let len = random.between((60_f64).ln(), (14_400_f64).ln()).exp();
    let samples = len as u64;
    let base = if random.below(3) == 0 { 1 + random.below(200) } else { 0 };
    let churn = if random.below(5) < 2 { 1 + random.below(8) } else { 0 };
    let (mut ever, mut born_over) = (base, samples * 4 / 5);
    let mut counts = Vec::new();
    match truth {
        GrowsSteadily => {
            let rate = f64::max([0.05, 0.2, 1.0, 5.0][random.below(4) as usize], 12.0 / len);
            let (burst, mut owed, mut leaked) = ([1, 1, 3][random.below(3) as usize], 0.0, 0);
            for _ in 0..samples {
                owed += rate * random.between(0.5, 1.5);
                while owed >= burst as f64 {
                    owed -= burst as f64;
                    leaked += burst;
                    ever += burst;
                }
                counts.push(base + leaked + random.below(churn + 1));
            }
        }
        LevelledOff => {
            let (most, over) = (8 + random.below(400), len * random.between(0.03, 0.18));
            let (until, curved) = (len * random.between(0.05, 0.65), random.below(2) == 0);
            for at in 0..samples {
                let share = if curved { 1.0 - (-(at as f64) / over).exp() } else { (at as f64 / until).min(1.0) };
                counts.push(base + (most as f64 * share) as u64 + random.below(churn + 1));
            }
            born_over = if curved { over * 2.0 } else { until } as u64;
            ever = (base + most) * (1 + 2 * random.below(2));
        }
        HighWater => return rising_and_falling(len, base, random),
        OneOff | TooLittle => {
            let many = 1 + random.below(50);
            counts.extend(std::iter::repeat_n(many, (len * random.between(0.6, 1.0)) as usize));
            (ever, born_over) = (many, random.below(2));
        }
    }
    let live = *counts.last().unwrap();
    Planted {
        counts,
        turnover: Turnover { ever: ever.max(live), live, born_over, newest_at: born_over },
        one_thing: false,
    }
}

/// Returns a swinging series, one that is filled and emptied again and again, and one buffer that is replaced by a
/// larger one.
fn rising_and_falling(len: f64, base: u64, random: &mut Random) -> Planted {
    let samples = len as u64;
    let most = base / 2 + 4 + random.below(100);
    let (mut ever, mut counts) = (base, Vec::new());
    let form = random.below(3);
    match form {
        0 => {
            counts.extend((0..samples).map(|_| base + random.below(most + 1)));
            ever += most * samples / 2;
        }
        1 => {
            let period = (len * random.between(0.02, 0.12)).max(3.0);
            let phase = random.between(0.0, period);
            let at = |sample: u64| (sample as f64 + phase) % period / period * most as f64;
            counts.extend((0..samples).map(|sample| base + at(sample) as u64));
            ever += most * (len / period) as u64;
        }
        _ => {
            let mut size = 1;
            for _ in 0..samples {
                if random.below(3) == 0 {
                    let sum: f64 = (0..12).map(|_| random.between(0.0, 1.0)).sum::<f64>() - 6.0;
                    let wanted = (3.0 + sum).exp() as u64;
                    ever += u64::from(wanted > size);
                    size = size.max(wanted);
                }
                counts.push(size);
            }
        }
    }
    let live = if form == 2 { 1 } else { counts[counts.len() - 1] };
    let born_over = if form == 2 { 0 } else { samples * 4 / 5 };
    Planted {
        counts,
        turnover: Turnover { ever: ever.max(live), live, born_over, newest_at: born_over },
        one_thing: form == 2,
    }
}

/// 1000 random series: at least 95 of a hundred verdicts are right, and steady growth is very rarely reported for a
/// series without it.
#[test]
fn planted_truth_is_found() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let truths = [GrowsSteadily, LevelledOff, HighWater, OneOff];
    let (mut wrong, mut false_alarms) = (Vec::new(), 0);
    for round in 0..1000 {
        let truth = truths[round % truths.len()];
        let Planted { counts, turnover, one_thing } = plant(truth, &mut random);
        let size = [1, 4, 64, 1024, 16384][random.below(5) as usize] << 10;
        let count = |things| if one_thing { 1 } else { things };
        let samples: Vec<_> = counts.iter().map(|&things| (things * size, count(things))).collect();
        let said = judge(&kept(&samples), turnover);
        if said != truth {
            false_alarms += usize::from(said == GrowsSteadily);
            wrong.push(format!("series {round}: {truth:?} is called {said:?}, {} samples", samples.len()));
        }
    }
    assert!(wrong.len() <= 50 && false_alarms <= 10, "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn fine(bytes: impl IntoIterator<Item = u64>) -> Vec<Step> {
    bytes.into_iter().map(|bytes| Step { samples: 1, bytes, count: bytes }).collect()
}

#[test]
fn nothing_is_said_on_too_little() {
    let slow = Turnover { ever: 10, live: 10, born_over: 30, newest_at: 30 };
    assert_eq!(judge(&[], slow), TooLittle);
    assert_eq!(judge(&fine(0..31), slow), TooLittle);
    assert_eq!(judge(&fine(0..32), slow), GrowsSteadily);
    // One recent step, which may be the first of many.
    let step = (0..60).map(|at| if at < 55 { 100 } else { 120 });
    assert_eq!(judge(&fine(step), slow), TooLittle);
}

#[test]
fn a_leak_is_seen_beside_what_is_a_thousand_times_larger() {
    let leak = (0..200).map(|at| (256 << 20) + at * 1024);
    assert_eq!(judge(&fine(leak), Turnover { ever: 201, live: 201, born_over: 160, newest_at: 160 }), GrowsSteadily);
}

#[test]
fn a_leak_is_seen_below_what_comes_and_goes() {
    let leak = (0..240_u64).map(|at| at * 10 + if at % 5 == 0 { 0 } else { 5000 });
    assert_eq!(judge(&fine(leak), Turnover { ever: 2000, live: 250, born_over: 160, newest_at: 160 }), GrowsSteadily);
}

/// One buffer that is replaced by a larger one: at each step if it grows, and now and then if a request is the largest
/// so far.
#[test]
fn one_buffer_grows_steadily_only_if_it_grows_all_the_time() {
    let buffer = |sizes: &mut dyn Iterator<Item = u64>| -> Vec<Step> {
        sizes.map(|bytes| Step { samples: 1, bytes: bytes << 12, count: 1 }).collect()
    };
    let one = |ever| Turnover { ever, live: 1, born_over: 0, newest_at: 0 };
    assert_eq!(judge(&buffer(&mut (0..60)), one(60)), GrowsSteadily);
    assert_eq!(judge(&buffer(&mut (0..40)), one(40)), GrowsSteadily);
    // The largest of a number of requests: a new one comes ever more rarely.
    let records = [(0, 60), (6, 90), (12, 110), (21, 125), (32, 150), (41, 165), (53, 190)];
    let largest = |at| records.iter().rev().find(|(from, _)| *from <= at).map_or(0, |(_, size)| *size);
    assert_eq!(judge(&buffer(&mut (0..60).map(largest)), one(7)), HighWater);
}

/// A size that stays: of one block that stays, and of blocks of which each is replaced by the next.
#[test]
fn what_is_made_anew_is_not_one_off() {
    let flat = || fine(vec![1; 64]);
    let one = |ever, newest_at| Turnover { ever, live: 1, born_over: 0, newest_at };
    assert_eq!(judge(&flat(), one(1, 0)), OneOff);
    assert_eq!(judge(&flat(), one(9, 1)), OneOff, "tried out before");
    assert_eq!(judge(&flat(), one(2000, 64)), LevelledOff);
    assert_eq!(judge(&flat(), Turnover { live: 0, ..one(2000, 64) }), HighWater);
}

#[test]
fn numbers_that_cannot_be_are_borne() {
    let wild = || [u64::MAX, 0, u64::MAX, 1].into_iter().cycle().take(64);
    let endless = Turnover { ever: u64::MAX, live: u64::MAX, born_over: u64::MAX, newest_at: u64::MAX };
    let steps: Vec<_> = wild().map(|bytes| Step { samples: u64::MAX, bytes, count: bytes }).collect();
    assert_ne!(judge(&steps, endless), GrowsSteadily);
    assert_ne!(judge(&fine(wild()), endless), GrowsSteadily);
    assert_eq!(judge(&fine(vec![0; 64]), Turnover::default()), OneOff);
}

#[test]
fn what_shrank_lately_does_not_grow() {
    for (rate, said) in [(1.0, GrowsSteadily), (0.0, TooLittle), (-23.0, TooLittle)] {
        assert_eq!(GrowsSteadily.at_a_rate(rate), said, "{rate}");
        assert_eq!(OneOff.at_a_rate(rate), OneOff);
    }
}
