//! Checks of a process's memory: pool, failed allocations, stranded memory, limits, idle memory, and memory that one
//! process has freed and another has open.

use super::finding::{Finding, Severity, info, ok, warning};
use super::subject::Whole;
use crate::model::devices::Device;
use crate::model::pool::{Pool, StrandedSite};
use crate::model::sites::Sites;
use crate::model::{Ledger, RECENT_NS, sums, variables};
use crate::report::cure::{self, Cure};
use crate::report::pool::{head, stranded_words};
use crate::report::shared::{export, import};
use crate::text::{self, units};
use gpumem_wire::kinds::{EventKind, Space};
use gpumem_wire::layout::EventSlot;
use gpumem_wire::settings::{OomFallback, Settings};
use std::collections::BTreeMap;

/// A request that failed at the limit was refused there at most this long before.
const AT_ONCE_NS: u64 = 1_000_000_000;
/// Less idle memory needs no advice, bytes.
const LITTLE: u64 = 64 << 20;
/// Idle memory that is released within this time needs no advice either, ns.
const SOON_NS: u64 = 60_000_000_000;

/// Less local memory of kernels needs no advice, bytes.
const LITTLE_LOCAL: u64 = 256 << 20;

/// Warns of much local memory, and names the kernel that has most.
pub(super) fn local(of: &Whole) -> Vec<Finding> {
    let of_device = |device: &Device| {
        let local = device.local.as_ref().filter(|local| local.bytes >= LITTLE_LOCAL)?;
        let (kernel, each) = (text::clean(&local.kernel), units::bytes(local.per_thread));
        let said = format!(
            "kernel {kernel} has {each} of local memory a thread, for which the driver took about {} of device {} at its \
             first launch and keeps it",
            units::bytes(local.bytes),
            device.device
        );
        Some(warning(said).fix(
            "smaller arrays in the kernel, or __launch_bounds__ so that fewer registers spill; the context keeps the \
             memory until it ends",
        ))
    };
    of.overview.devices.iter().filter_map(of_device).collect()
}

/// Reports the state of the pool, with the contexts that it does not serve.
pub(super) fn pool(of: &Whole) -> Finding {
    let pool = &of.overview.pool;
    let off = || info(format!("off: {}", pool.reason));
    match pool.state {
        "off" if !of.settings.pool => {
            match of.ledger.started_with().contains(&("GPUMEM_POOL".into(), "0".into())) {
                true => {
                    off().fix("start it without GPUMEM_POOL=0, so that freed memory is kept for the next allocation")
                }
                // By `gpumem set` or `gpumem off`.
                false => set(of.ledger, off(), "POOL=1", ""),
            }
        }
        "off" => off(),
        "unused" => ok(&*pool.reason),
        _ => {
            let not = pool
                .not_served()
                .map(|context| format!("context {} on device {}: {}", context.context, context.device, context.reason));
            match not.collect::<Vec<_>>().as_slice() {
                [] => ok(head(pool).unwrap_or_default()),
                not => info(format!("on, but not everywhere: {}", not.join("; "))),
            }
        }
    }
}

/// True if the event is recent enough to count. In a dead process every event counts.
fn is_recent(ledger: &Ledger, event: &EventSlot) -> bool {
    !ledger.status.running() || ledger.age(event.time_ns) <= RECENT_NS
}

/// Reports an allocation that ran out of memory.
pub(super) fn ran_out(of: &Whole) -> Option<Finding> {
    let Whole { ledger, settings, .. } = of;
    let pool = &of.overview.pool;
    let ran_out = ledger.last_event(EventKind::OutOfMemory, |_| true);
    let refused = ledger.last_event(EventKind::LimitRefused, |event| match ran_out {
        Some(ran_out) => {
            (event.tid, event.a) == (ran_out.tid, ran_out.a)
                && event.seq < ran_out.seq
                && ran_out.time_ns.saturating_sub(event.time_ns) < AT_ONCE_NS
        }
        None => true,
    });
    let found = match (ran_out, refused) {
        (Some(event), Some(refused)) | (None, Some(refused @ event)) if refused.b == 1 => of_group(ledger, event),
        (Some(ran_out), Some(_)) => at_the_limit(ledger, ran_out, settings),
        (Some(ran_out), None) => out_of_memory(ledger, ran_out, settings),
        (None, _) if pool.limit_refusals > 0 => {
            let said =
                format!("{} refused at {}", text::count(pool.limit_refusals, "allocation"), limit_in_words(ledger));
            refused_at_the_limit(ledger, pool, refused, info(said))
        }
        _ => return None,
    };
    found.into()
}

/// An allocation failed at the group's limit, although the device had room: names the holders at that time.
fn of_group(ledger: &Ledger, event: &EventSlot) -> Finding {
    const SAYS: &str = "out of memory at GPUMEM_LIMIT_GROUP: ";
    let messages = ledger.snapshot.events.iter().rev().filter(|event| event.kind == EventKind::Message as u8);
    let said = messages.map(|event| ledger.snapshot.name(event.text)).find(|text| text.starts_with(SAYS));
    let value = variables::of(ledger).into_iter().find(|variable| variable.name == "GPUMEM_LIMIT_GROUP");
    let holders =
        said.as_deref().and_then(|text| text.strip_prefix(SAYS)).map_or(String::new(), |text| format!(": {text}"));
    let said = format!(
        "an allocation of {} failed at GPUMEM_LIMIT_GROUP={} {}{holders}",
        units::bytes(event.a),
        value.map_or(String::new(), |value| value.value),
        ledger.status.ago(ledger.age(event.time_ns)),
    );
    let found = if is_recent(ledger, event) { warning } else { info };
    let fix =
        "start all processes of the group with a larger limit, or end one that holds much: the smallest limit counts";
    found(text::clean(&said).into_owned()).bytes(event.a).fix(fix)
}

/// Allocations were refused at the limit, and the program continued.
fn refused_at_the_limit(ledger: &Ledger, pool: &Pool, refused: Option<&EventSlot>, finding: Finding) -> Finding {
    let live = pool.in_contexts.iter().map(|context| context.live_bytes).sum::<u64>();
    match refused {
        Some(event) if is_recent(ledger, event) => {
            let wanted = live.saturating_add(event.a);
            let finding = finding.bytes(event.a);
            // If there is room, the limit was raised since.
            let still = ledger.settings().limit.is_some_and(|limit| limit < wanted);
            if still { raise(ledger, as_warning(ledger, finding), wanted) } else { finding }
        }
        None if ledger.settings().limit.is_some() => {
            let raise = "raise GPUMEM_LIMIT if the device has that much";
            as_warning(ledger, finding).fix(format!("{raise}; {}", is_it_a_leak(ledger)))
        }
        _ => finding,
    }
}

/// Makes it a warning, with the call site that holds most.
fn as_warning(ledger: &Ledger, finding: Finding) -> Finding {
    let said = format!("{}{}", finding.finding, holder(ledger));
    Finding { severity: Severity::Warning, finding: said, ..finding }
}

/// Returns the limit as the user wrote it.
fn limit_in_words(ledger: &Ledger) -> String {
    let limit = variables::of(ledger).into_iter().find(|variable| variable.name == "GPUMEM_LIMIT");
    match limit.map(|limit| limit.value).filter(|value| !value.is_empty()) {
        Some(value) => format!("GPUMEM_LIMIT={value}"),
        None => "a GPUMEM_LIMIT that is unset by now".into(),
    }
}

/// An allocation failed at the limit, although the device had room.
fn at_the_limit(ledger: &Ledger, ran_out: &EventSlot, settings: &Settings) -> Finding {
    let (asked, live) = (ran_out.a, ran_out.b);
    let wanted = asked.saturating_add(live);
    let said = format!(
        "an allocation of {} failed at {} {}, with {} live; the device had room{}",
        units::bytes(asked),
        limit_in_words(ledger),
        ledger.status.ago(ledger.age(ran_out.time_ns)),
        units::bytes(live),
        holder(ledger)
    );
    let still = settings.limit.is_some_and(|limit| limit < wanted) && is_recent(ledger, ran_out);
    if still { raise(ledger, warning(said).bytes(asked), wanted) } else { info(said) }
}

/// Names the call site that holds most device memory, with its share; empty if none is live.
fn holder(ledger: &Ledger) -> String {
    let sites = Sites::of_allocs(ledger);
    let on_device = ledger.snapshot.allocs.iter().filter(|alloc| alloc.space() == Space::Device);
    let mut held = BTreeMap::new();
    for alloc in on_device {
        let of_site: &mut (u64, u64) = held.entry(sites.name(alloc.stack)).or_default();
        *of_site = (of_site.0.saturating_add(alloc.bytes), of_site.1 + 1);
    }
    let all = held.values().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes));
    let most = held.into_iter().rev().max_by_key(|(_, (bytes, _))| *bytes);
    let Some((site, (bytes, count))) = most else { return String::new() };
    let when = if ledger.status.running() { "now" } else { "at its end" };
    let (live, share) = (units::bytes(bytes), units::percent(bytes, all));
    format!(
        "; {site} holds most {when}: {live} in {}, {share} of the live device memory",
        text::count(count, "allocation")
    )
}

/// Returns the commands that say if a leak fills the memory: then a larger limit only puts the end off.
fn is_it_a_leak(ledger: &Ledger) -> String {
    let whose = ledger.whose();
    format!(
        "first see if the memory is lost: gpumem leaks {whose} says what grows, gpumem allocs {whose} --by stack who \
         holds it"
    )
}

/// Adds the value to raise the limit to, if the device has that much.
fn raise(ledger: &Ledger, finding: Finding, wanted: u64) -> Finding {
    let total = ledger.snapshot.contexts.values().map(|context| context.total_bytes).max().unwrap_or(0);
    if wanted > total {
        return finding.fix(format!(
            "gpumem allocs {} shows which call sites hold memory; the device has no more than {}",
            ledger.pid(),
            units::bytes(total)
        ));
    }
    // Slightly more than requested, because the pool's blocks are larger than the requests.
    let limit = wanted.saturating_add(wanted / 8).min(total);
    let change = format!("LIMIT={}MiB", limit.div_ceil(1 << 20));
    set(ledger, finding, &change, &format!("; {}", is_it_a_leak(ledger)))
}

fn out_of_memory(ledger: &Ledger, ran_out: &EventSlot, settings: &Settings) -> Finding {
    let said = format!(
        "an allocation of {} ran out of memory {}, with {} live{}",
        units::bytes(ran_out.a),
        ledger.status.ago(ledger.age(ran_out.time_ns)),
        units::bytes(ran_out.b),
        holder(ledger)
    );
    let holders = format!("gpumem allocs {} shows which call sites hold memory", ledger.pid());
    // It is still unknown if the variable that was set since is enough.
    if !is_recent(ledger, ran_out) || variables::were_set_since(ledger, "GPUMEM_OOM_FALLBACK", ran_out.time_ns) {
        return info(said);
    }
    let finding = warning(said).bytes(ran_out.a);
    match settings.oom_fallback {
        OomFallback::None => set(
            ledger,
            finding,
            "OOM_FALLBACK=managed",
            &format!(": memory that does not fit is then placed in managed memory; {holders}"),
        ),
        _ => finding.fix(format!("{holders}; spilling failed too")),
    }
}

/// Returns a finding with a change as its remedy: a command to paste if the running process accepts it, else the next
/// start. `more`: further text behind the change.
pub(super) fn set(ledger: &Ledger, finding: Finding, change: &str, more: &str) -> Finding {
    cured(finding, cure::set(ledger, change), more)
}

/// Adds a remedy.
pub(super) fn cured(finding: Finding, cure: Cure, more: &str) -> Finding {
    match cure {
        Cure::Paste(command) => finding.paste(command).fix(more.trim_start_matches([';', ',', ':', ' '])),
        Cure::Start(start) => finding.fix(format!("{start}{more}")),
    }
}

/// Reports call sites with stranded memory.
pub(super) fn stranded(of: &Whole) -> Vec<Finding> {
    let pool = &of.overview.pool;
    if pool.stranded_bytes == 0 && !pool.stranded.is_empty() {
        let sites = text::count(pool.stranded.len() as u64, "call site");
        return vec![info(format!("{sites} had stranded memory, which is freed by now"))];
    }
    let now = pool.stranded.iter().filter(|site| site.now_bytes > 0);
    now.map(|site| one_stranded(of.ledger, site, &of.settings)).collect()
}

fn one_stranded(ledger: &Ledger, site: &StrandedSite, settings: &Settings) -> Finding {
    let finding = warning(stranded_words(site)).bytes(site.now_bytes);
    let stacks = "gpumem stats --all shows the call stacks";
    let retries = "GPUMEM_STRANDED=press instead, if the program frees its caches and retries when memory runs out";
    match cure::of_stranding(ledger) {
        None => finding.fix(format!("GPUMEM_STRANDED is at work; {stacks}")),
        Some(change) if settings.stranded_retries => set(ledger, finding, change, &format!("; {stacks}")),
        Some(change) => set(ledger, finding, change, &format!("; {retries}; {stacks}")),
    }
}

/// Reports if live memory leaves room under the limit.
pub(super) fn near_the_limit(of: &Whole) -> Finding {
    let Some(limit) = of.settings.limit else { return ok("GPUMEM_LIMIT is unset") };
    let contexts = of.overview.pool.in_contexts.iter();
    let live = sums::by(contexts.map(|context| (context.device, context.live_bytes)));
    let limit_text = limit_in_words(of.ledger);
    match live.into_iter().max_by_key(|&(device, bytes)| (bytes, device)) {
        Some((device, bytes)) if bytes > limit / 10 * 9 => {
            let said = format!("{} of {limit_text} are live on device {device}", units::bytes(bytes));
            // An allocation that failed says who holds most, and by how much to raise the limit.
            match ran_out(of) {
                Some(failed) if !failed.paste.is_empty() || failed.fix.contains("GPUMEM_LIMIT=") => {
                    warning(said).bytes(bytes)
                }
                _ => {
                    let found = warning(format!("{said}{}", holder(of.ledger))).bytes(bytes);
                    raise(of.ledger, found, bytes.saturating_add(bytes / 4))
                }
            }
        }
        _ => ok(format!("there is room under {limit_text}")),
    }
}

/// Reports if idle memory is released by itself.
pub(super) fn idle(of: &Whole) -> Finding {
    let pool = &of.overview.pool;
    let live: u64 = pool.in_contexts.iter().map(|context| context.live_bytes).sum();
    let said = format!("{} lie idle in the pool, beside {} live", units::bytes(pool.idle_bytes), units::bytes(live));
    let goes = match pool.decay_ns {
        _ if pool.idle_bytes < LITTLE || pool.idle_bytes < live / 3 => return ok(said),
        0 => "stay there: GPUMEM_POOL_DECAY=0".to_owned(),
        decay if decay > SOON_NS => format!("go back within {}", units::span(decay)),
        _ => return ok(said),
    };
    let found = info(format!("{said}, and {goes}")).bytes(pool.idle_bytes);
    let more = format!("; gpumem trim {} gives it back once", of.ledger.pid());
    set(of.ledger, found, "POOL_DECAY=10s", &more)
}

/// Reports freed memory that is still open.
pub(super) fn shared(of: &Whole) -> Vec<Finding> {
    let here = of.sharing.exported.iter().filter(|row| row.freed).map(|row| (export(row), row.bytes));
    let there = of.sharing.imported.iter().filter(|row| row.freed).map(|row| (import(row), row.bytes));
    let fixes = [
        "have it closed there (cuIpcCloseMemHandle, cudaIpcCloseMemHandle): the memory goes back to the device with the last \
         close, or with the end of that process",
        "close it here (cuIpcCloseMemHandle, cudaIpcCloseMemHandle) if it is not needed: that it is open keeps it on the \
         device",
    ];
    let freed = [here.collect::<Vec<_>>(), there.collect()];
    let all = freed.iter().zip(fixes).filter_map(|(rows, fix)| {
        let bytes = rows.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let more = match rows.len() {
            0 | 1 => String::new(),
            n => format!("; and {} more: gpumem leaks shows them", n - 1),
        };
        Some(warning(format!("{}{more}", rows.first()?.0)).bytes(bytes).fix(fix))
    });
    all.chain(of.sharing.remarks.iter().map(info)).collect()
}
