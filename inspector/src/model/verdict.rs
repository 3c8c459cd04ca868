//! Judges growth: a verdict over a call site's live bytes in time.
//!
//! Memory that comes and goes is ignored by looking at the floor: the time is cut into stretches, and the minimum of
//! each stretch counts. Steady growth reaches a new highest floor in stretch after stretch, up to the last ones. A
//! cache reaches them early and then no more. Memory that rises and falls reaches none, or falls back from them.

/// Verdicts on growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// It grew all the time, and recently.
    GrowsSteadily,
    /// There are too few samples, or the growth is too young.
    TooLittle,
    /// It grew, and has not risen for a good while, or hardly; or its size stays and its blocks change.
    LevelledOff,
    /// It rises and falls, or is one buffer as large as ever needed.
    HighWater,
    /// It was made at one time, and has not changed since.
    OneOff,
}

impl Verdict {
    /// Returns the verdict in words.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::GrowsSteadily => "grows steadily",
            Self::TooLittle => "too little to judge",
            Self::LevelledOff => "a cache that levelled off",
            Self::HighWater => "high-water",
            Self::OneOff => "one-off",
        }
    }

    /// Returns the verdict, given a rate in bytes or things per minute over the later half. A negative rate is no
    /// growth. The bytes of graphs are estimates, which fall when one exec starts to serve several handles.
    pub(crate) fn at_a_rate(self, per_minute: f64) -> Self {
        if self == Self::GrowsSteadily && per_minute <= 0.0 { Self::TooLittle } else { self }
    }

    /// Returns the verdict in a few words, for a column.
    pub(crate) const fn short(self) -> &'static str {
        match self {
            Self::TooLittle => "too little yet",
            Self::LevelledOff => "levelled off",
            other => other.words(),
        }
    }
}

/// Live memory at one point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of samples behind the point; its bytes are the minimum over them.
    pub samples: u64,
    pub bytes: u64,
    pub count: u64,
}

/// Further facts of the allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turnover {
    /// Number ever made, and number live now.
    pub ever: u64,
    pub live: u64,
    /// Number of samples between the births of the older and the younger live ones, without the oldest and the youngest
    /// tenth.
    pub born_over: u64,
    /// Number of its samples before the last one was made, live or not.
    pub newest_at: u64,
}

/// Fewer points allow no verdict.
pub(crate) const ENOUGH: usize = 32;
/// With fewer samples, slow growth cannot be distinguished from no growth.
const ENOUGH_FOR_SLOW: u64 = 60;
/// Number of stretches that the time is cut into, and the number if there are few points.
const STRETCHES: u64 = 12;
const FEW_STRETCHES: u64 = 8;
const MANY: usize = 48;
/// Fewest new highest floors of steady growth. A buffer that is replaced by a larger one reaches as many by chance: the
/// largest of a number of requests rises a few times, and ever more rarely. Steady growth has more of them, in this
/// many of four stretches.
const RISES: usize = 4;
const RISES_OF_ONE: usize = 6;
const OF_FOUR: usize = 3;
/// A fall of more than one part in this many of the growth is no steady growth.
const FALLS_BACK: u64 = 4;
/// Growth has slowed down if the last third has less than one part in this many of it.
const SLOW: u64 = 5;
/// It has all but ended if the last third has at most one part in this many of it.
const HARDLY: u64 = 20;
/// It has ended if this part of the stretches, the last ones, have no new highest floor.
const GOOD_WHILE: usize = 4;
/// Births over more than one part in this many of the time mean that it was not made at once.
const AT_ONCE: u64 = 30;

/// One stretch of time.
#[derive(Clone, Copy)]
struct Stretch {
    /// Number of samples before it.
    at: u64,
    low: u64,
    high: u64,
    count_at_low: u64,
}

/// Returns the verdict on live memory over time, oldest point first.
pub(crate) fn judge(steps: &[Step], turnover: Turnover) -> Verdict {
    if steps.len() < ENOUGH {
        return Verdict::TooLittle;
    }
    let whole: u64 = steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.samples)).max(1);
    match told(steps, whole, turnover) {
        Verdict::LevelledOff | Verdict::HighWater if whole < ENOUGH_FOR_SLOW => Verdict::TooLittle,
        told => told,
    }
}

/// True if these samples alone show steady growth. They may be few points, since older ones are coarse.
pub(crate) fn grew_steadily(steps: &[Step], turnover: Turnover) -> bool {
    let whole: u64 = steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.samples));
    !steps.is_empty() && whole >= ENOUGH as u64 && told(steps, whole, turnover) == Verdict::GrowsSteadily
}

/// As [`judge`], for enough points, with the number of their samples.
fn told(steps: &[Step], whole: u64, turnover: Turnover) -> Verdict {
    let floors = Floors::of(&cut(steps, whole), whole);
    // If records come and go, the youngest are left, and those were made at one time.
    let is_kept = turnover.ever / 2 < turnover.live;
    let made_at_once = is_kept && turnover.born_over.saturating_mul(AT_ONCE) <= whole;
    // Those that were freed at the beginning were tried out.
    let is_replaced = !is_kept && turnover.newest_at.saturating_mul(AT_ONCE) > whole;
    if floors.growth > 0 && floors.fell_back.saturating_mul(FALLS_BACK) <= floors.growth {
        return floors.verdict_on_growth(made_at_once);
    }
    let swings = floors.swings.max(floors.fell_back);
    match () {
        () if turnover.live == 0 && (turnover.ever > 0 || floors.top > 0) => Verdict::HighWater,
        () if swings.saturating_mul(4) > floors.top => Verdict::HighWater,
        () if floors.fell_back.saturating_mul(10) > floors.top => Verdict::HighWater,
        () if is_replaced || turnover.live > 1 && is_kept && !made_at_once => Verdict::LevelledOff,
        () => Verdict::OneOff,
    }
}

/// Cuts the time into stretches; those without a point are left out.
fn cut(steps: &[Step], whole: u64) -> Vec<Stretch> {
    let number = if steps.len() >= MANY { STRETCHES } else { FEW_STRETCHES };
    let (mut stretches, mut at, mut last) = (Vec::<Stretch>::new(), 0_u64, None);
    for step in steps {
        let stretch = (u128::from(at) * u128::from(number) / u128::from(whole)) as u64;
        let Step { samples, bytes, count } = *step;
        match stretches.last_mut().filter(|_| last == Some(stretch)) {
            Some(known) => {
                if bytes < known.low {
                    (known.low, known.count_at_low) = (bytes, count);
                }
                known.high = known.high.max(bytes);
            }
            None => stretches.push(Stretch { at, low: bytes, high: bytes, count_at_low: count }),
        }
        last = Some(stretch);
        at = at.saturating_add(samples);
    }
    stretches
}

/// Movement of the floor.
struct Floors {
    /// Growth from the first floor to the highest.
    growth: u64,
    /// Part of the growth in the last third of the time.
    late: u64,
    /// Number of new highest floors.
    rises: usize,
    /// Stretches that could have had one, and the number of them after the last one.
    chances: usize,
    quiet: usize,
    /// Most stretches without one between two of them, or before the first.
    longest_quiet: usize,
    /// Most bytes that a floor was below an earlier one.
    fell_back: u64,
    /// Most bytes at any time, and the difference to the highest floor.
    top: u64,
    swings: u64,
    /// The number of things grew too, besides their size.
    more_things: bool,
}

impl Floors {
    fn of(stretches: &[Stretch], whole: u64) -> Self {
        let (first, last) = (stretches[0], stretches[stretches.len() - 1]);
        let top = stretches.iter().map(|stretch| stretch.high).max().unwrap_or(0);
        let (mut highest, mut late, mut rises, mut fell_back) = (first.low, 0, 0, 0);
        let (mut quiet, mut longest_quiet) = (0, 0);
        for stretch in &stretches[1..] {
            quiet += 1;
            if stretch.low > highest {
                if stretch.at.saturating_mul(3) >= whole.saturating_mul(2) {
                    late += stretch.low - highest;
                }
                longest_quiet = longest_quiet.max(quiet - 1);
                (highest, quiet) = (stretch.low, 0);
                rises += 1;
            }
            fell_back = fell_back.max(highest - stretch.low);
        }
        Self {
            growth: highest - first.low,
            late,
            rises,
            chances: stretches.len() - 1,
            quiet,
            longest_quiet,
            fell_back,
            top,
            swings: top - highest,
            more_things: last.count_at_low > first.count_at_low,
        }
    }

    /// Returns the verdict if the floor rose and stayed up.
    fn verdict_on_growth(&self, made_at_once: bool) -> Verdict {
        // If nearly every stretch had a rise, two without one are the end of the growth.
        let ended = self.rises * 10 >= self.chances * 6 && self.quiet >= 2;
        let lately = self.late.saturating_mul(SLOW) >= self.growth && !ended;
        let one_grows = self.rises >= RISES_OF_ONE && self.rises * 4 >= self.chances * OF_FOUR;
        let is_level = self.quiet * GOOD_WHILE > self.chances || self.late.saturating_mul(HARDLY) <= self.growth;
        match lately {
            true if one_grows || self.rises >= RISES && self.more_things => Verdict::GrowsSteadily,
            true if self.rises < RISES && self.more_things => Verdict::TooLittle,
            _ if !self.more_things => Verdict::HighWater,
            _ if self.rises <= 2 && made_at_once => match self.swings.saturating_mul(4) <= self.top - self.swings {
                true => Verdict::OneOff,
                false => Verdict::HighWater,
            },
            // It still rises, or did so until lately.
            _ if !is_level => Verdict::TooLittle,
            // It paused as long before, and continued.
            _ if self.quiet < self.longest_quiet => Verdict::TooLittle,
            _ => Verdict::LevelledOff,
        }
    }
}

#[cfg(test)]
mod tests;
