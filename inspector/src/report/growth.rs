//! Growth in words: the evidence against a suspect, and the command or variable that helps.

use super::cure::{self, Cure};
use crate::model::balance::Balance;
use crate::model::history::Samples;
use crate::model::suspects::{Suspect, Suspects};
use crate::model::verdict::{ENOUGH, Verdict};
use crate::model::{Ledger, left};
use crate::text::{self, clean, file_name, units};
use gpumem_wire::kinds::{GrowthKind, Vendor};
use gpumem_wire::layout::Door;

/// Returns the bytes per minute, with their sign.
pub(crate) fn rate(per_minute: f64) -> String {
    format!("{}/min", units::signed_bytes(per_minute.round() as i64))
}

/// Returns the growth of a suspect: bytes or things per minute.
pub(crate) fn rate_of(suspect: &Suspect) -> String {
    match suspect.count_per_minute {
        Some(count) => format!("{count:+.0} {}/min", things(suspect.kind)),
        None => rate(suspect.bytes_per_minute),
    }
}

/// Returns the noun for the things of a suspect of this kind.
pub(crate) fn things(kind: GrowthKind) -> &'static str {
    match kind {
        GrowthKind::Code => "modules",
        GrowthKind::Graphs => "graphs and execs",
        GrowthKind::Class => "execs",
        GrowthKind::Streams | GrowthKind::Events | GrowthKind::Contexts => kind.name(),
        _ => "allocations",
    }
}

/// Returns the memory of a suspect now: bytes in a number of things, or only that number.
pub(crate) fn held(suspect: &Suspect) -> String {
    let things = match (things(suspect.kind), suspect.live) {
        ("graphs and execs", 1) => "graph or exec",
        (things, 1) => things.trim_end_matches('s'),
        (things, _) => things,
    };
    let count = format!("{} {things}", units::number(suspect.live));
    match suspect.count_per_minute {
        Some(_) => count,
        None => format!("{} in {count}", bytes(suspect)),
    }
}

/// Returns the bytes of a suspect now.
pub(crate) fn bytes(suspect: &Suspect) -> String {
    format!("{}{}", if suspect.measured { "~" } else { "" }, units::bytes(suspect.bytes))
}

/// Returns a suspect's name, with its type if it is not a call site of memory: tags and classes repeat the bytes of
/// call sites.
pub(crate) fn who(suspect: &Suspect) -> String {
    let key = clean(&suspect.key);
    match suspect.kind {
        GrowthKind::Site | GrowthKind::Heap => key.into_owned(),
        kind @ (GrowthKind::Tag | GrowthKind::Class) => format!("{kind} {key}"),
        kind => format!("{kind} of {key}"),
    }
}

/// Returns the sum of bytes per minute.
pub(crate) fn per_minute<'a>(suspects: impl Iterator<Item = &'a Suspect>) -> f64 {
    // An empty sum is -0.0.
    suspects.map(|suspect| suspect.bytes_per_minute).sum::<f64>() + 0.0
}

/// Returns the verdict, with the rate if it grows steadily, and for graphs with the numbers made and destroyed.
pub(crate) fn verdict(suspect: &Suspect) -> String {
    let (verdict, grows) = (suspect.verdict.words(), rate_of(suspect));
    let Some(Balance { what, made, destroyed, native_bytes_per_minute }) = suspect.balance else {
        return format!("{verdict}, {grows}");
    };
    let balance = format!("{} made, {} destroyed", text::count(made, what), units::number(destroyed));
    match native_bytes_per_minute.filter(|&native| native >= 1.0 && native > 2.0 * suspect.bytes_per_minute) {
        Some(native) => {
            let (held, native) = (units::bytes(suspect.bytes), units::bytes(native as u64));
            format!("{verdict}: {balance}; gpumem keeps them at {held}, without gpumem about +{native}/min")
        }
        None => format!("{verdict}, {grows}: {balance}"),
    }
}

/// Describes the graphs that the program does not destroy, and the remedy until it does.
pub(crate) fn of_balance(ledger: &Ledger, suspect: &Suspect, of: &Balance) -> (String, Option<Cure>) {
    let contexts = &ledger.snapshot.contexts;
    let is_hip = contexts.values().any(|context| context.vendor == Vendor::Hip as u8);
    // A runtime looks the driver's functions up by cuGetProcAddress.
    let by_runtime = ledger.snapshot.header.doors & (Door::RuntimeExport as u32 | Door::ProcAddress as u32) != 0;
    let api = match (is_hip, by_runtime) {
        (true, _) => "hip",
        (_, true) => "cuda",
        _ => "cu",
    };
    let call = format!("{api}Graph{}Destroy", if of.what == "exec" { "Exec" } else { "" });
    let (site, whose) = (clean(&suspect.key), format!("{}s", of.what));
    let fault = match of.destroyed {
        0 => format!("{call} is never called for the {whose} of {site}"),
        n => format!("{call} was called for {} of {} {whose} of {site}", units::number(n), units::number(of.made)),
    };
    (fault, cure::of_graphs(ledger).filter(|_| of.what == "exec"))
}

/// Returns the next command to type; `None` if there is nothing to do.
pub(crate) fn advice(ledger: &Ledger, suspect: &Suspect) -> Option<Cure> {
    let pid = ledger.whose();
    let grows = matches!(suspect.verdict, Verdict::GrowsSteadily);
    let of_site = || cure::of_site(ledger, suspect.stack);
    match suspect.kind {
        GrowthKind::Site if grows && is_left_by_graphs(ledger, suspect) => Some(Cure::Start(
            "capture its cudaFreeAsync too, so that the graph frees it; or cudaFree it once the graph is done".into(),
        )),
        GrowthKind::Site if grows => {
            Some(of_site().unwrap_or_else(|| Cure::Paste(format!("gpumem allocs {pid} --by stack --sort growth"))))
        }
        GrowthKind::Site => of_site(),
        GrowthKind::Tag if grows => {
            let tag = text::shell_word(&suspect.key);
            Some(Cure::Paste(format!("gpumem allocs {pid} --tag {tag} --sort growth")))
        }
        GrowthKind::Graphs | GrowthKind::Class if grows => Some(match &suspect.balance {
            Some(balance) => Cure::Start(match of_balance(ledger, suspect, balance) {
                (fault, Some(bound)) => format!("{fault}; until it is: {}", bound.text()),
                (fault, None) => fault,
            }),
            None => Cure::Paste(format!("gpumem graphs {pid} --by stack")),
        }),
        GrowthKind::Code if suspect.live > 1 => Some(Cure::Start(
            "unload each by cuModuleUnload or cuLibraryUnload once its kernels are done, or load it once and keep it"
                .into(),
        )),
        GrowthKind::Streams if grows => Some(Cure::Start("destroy each by cudaStreamDestroy once it is done".into())),
        GrowthKind::Events if grows => Some(Cure::Start("destroy each by cudaEventDestroy once it is done".into())),
        GrowthKind::Contexts if grows => Some(Cure::Start("destroy each by cuCtxDestroy once it is done".into())),
        _ => None,
    }
}

/// True if destroyed graphs left memory that this call site captured.
fn is_left_by_graphs(ledger: &Ledger, suspect: &Suspect) -> bool {
    ledger.snapshot.allocs.iter().any(|alloc| alloc.stack == suspect.stack && left::is_left(alloc))
}

/// Returns a caveat that a reader needs before trusting a call site's name.
pub(crate) fn caveat(ledger: &Ledger, suspect: &Suspect) -> Option<&'static str> {
    if suspect.kind == GrowthKind::Events {
        return Some("the first 32 events that a process has at a time are not listed");
    }
    if ledger.site(suspect.stack).is_some_and(|site| ledger.symbols.is_stripped(site)) {
        return Some(
            "its file has no symbols: build it with -g, or install its package of debug symbols (-dbgsym, -debuginfo)",
        );
    }
    if ledger.is_uncached("PyTorch") {
        return None;
    }
    let mut names = ledger.modules(suspect.stack).map(file_name);
    let segment = names.any(|name| name.starts_with("libc10_cuda") || name.starts_with("libc10_hip"));
    segment.then_some(
        "a segment of PyTorch's own allocator: this line made it grow, which need not be the line that holds the tensor; \
         start it by gpumem run --tensors to see that one",
    )
}

/// Describes the times without samples.
fn gaps(ledger: &Ledger, gaps: &[(u64, u64)]) -> String {
    let long = |gap: &(u64, u64)| gap.1 - gap.0;
    let (least, most) = (gaps.iter().map(long).min(), gaps.iter().map(long).max());
    let [least, most] = [least, most].map(|ns| units::span(ns.unwrap_or(0)));
    let how = match gaps {
        [_] => format!("for {most},"),
        _ => format!("in {} of {least} to {most}, the last", text::count(gaps.len() as u64, "gap")),
    };
    let last = ledger.status.ago(ledger.age(gaps.last().map_or(0, |gap| gap.1)));
    format!(
        "no samples {how} until {last}: the process, its control thread or the machine was stopped; verdicts leave that \
         time out"
    )
}

/// Returns the problems with the samples, one a line.
pub(crate) fn remarks(ledger: &Ledger, found: &Suspects) -> Vec<String> {
    let settings = ledger.settings();
    let samples = &found.samples;
    let mut remarks = Vec::new();
    let mut say = |when: bool, line: String| {
        if when {
            remarks.push(line)
        }
    };
    say(!settings.control, "nothing is sampled in this process: GPUMEM_CONTROL=0 turns that off".into());
    let marks_alone = settings.control && settings.growth_interval == 0;
    say(marks_alone, "GPUMEM_GROWTH_INTERVAL=0: samples are taken only at a gpumem mark".into());
    let too_few = too_few(ledger, samples);
    say(settings.control && too_few.is_some(), too_few.unwrap_or_default());
    say(
        settings.stacks == 0,
        "no call stacks are recorded (GPUMEM_STACKS=0): all call sites are one, and tags alone tell who".into(),
    );
    say(!samples.gaps.is_empty(), gaps(ledger, &samples.gaps));
    let parked = samples.parked.iter().fold(0, |sum: u64, (begin, end)| sum.saturating_add(end - begin));
    say(parked > 0, format!("the process was parked for {}: that time does not count", units::span(parked)));
    let cannot = text::count(samples.unbelievable as u64, "sample");
    say(samples.unbelievable > 0, format!("{cannot} left out: their times cannot be, so the ledger may be damaged"));
    let lost = text::count(found.without_row, "call stack");
    say(found.without_row > 0, format!("{lost} with live memory have no history: there is no more room for one"));
    remarks
}

/// Returns the command that profiles the heap of a process. `None` if the process has ended.
pub(crate) fn heap_profiler(ledger: &Ledger) -> Option<String> {
    ledger.status.running().then(|| format!("heaptrack -p {}", ledger.pid()))
}

/// Names the call sites without a verdict, and says why they have none. The one that grew most comes first.
pub(crate) fn without_verdict(unclear: &[&Suspect]) -> String {
    let Some(most) = unclear.first() else { return "each call site has a verdict".into() };
    let why = match most {
        Suspect { samples, sampled_ns, .. } if *samples < ENOUGH => {
            format!("it has samples of {} only", units::span(*sampled_ns))
        }
        Suspect { has_paused: true, .. } => "it grew steadily, and has paused".into(),
        _ => "its growth has only just begun, has paused or slows down".into(),
    };
    let about = format!("{} ({}): {why}", who(most), held(most));
    match unclear.len() {
        1 => format!("there is no verdict yet on {about}"),
        n => format!("there is no verdict yet on {n} call sites that grew; most did {about}"),
    }
}

/// Says how many samples there are, if they are too few for a verdict.
pub(crate) fn too_few(ledger: &Ledger, samples: &Samples) -> Option<String> {
    // A dump or a dead process gets no more samples.
    let interval_ns = if ledger.status.running() { ledger.settings().growth_interval } else { 0 };
    (samples.points.len() < ENOUGH).then(|| too_little(interval_ns, samples))
}

fn too_little(interval_ns: u64, samples: &Samples) -> String {
    let there = text::count(samples.points.len() as u64, "sample");
    let said = format!("too little to judge: {there} in {}, {ENOUGH} are needed", units::span(samples.span_ns()));
    match (ENOUGH.saturating_sub(samples.points.len()) as u64).saturating_mul(interval_ns) {
        0 => said,
        wait => format!("{said}; ask again in {}", units::span(wait)),
    }
}
