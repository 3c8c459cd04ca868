//! Checks of a process's memory: the pool, what ran out, what is stranded.

use super::finding::{Finding, Severity};
use crate::model::Ledger;
use crate::model::pool::{self, Pool};
use crate::report::pool::{head, stranded_words};
use crate::text::{self, units};
use gpumem_wire::kinds::EventKind;
use gpumem_wire::settings::{OomFallback, Settings, Stranded};

/// All of them.
pub(super) fn check(ledger: &Ledger) -> Vec<Finding> {
    let pool = pool::of(ledger);
    let settings = ledger.settings();
    let mut findings = vec![on(ledger, &pool), memory(ledger, &pool, &settings)];
    findings.extend(stranded(&pool, &settings));
    findings
}

/// Whether the pool is on, and where it is not.
fn on(ledger: &Ledger, pool: &Pool) -> Finding {
    let finding = |severity, text: String| Finding::new("pool", severity, text);
    match pool.state {
        "off" if !ledger.settings().pool => finding(Severity::Info, format!("off: {}", pool.reason))
            .fix("start it without GPUMEM_POOL=0 to have freed memory kept for the next allocation"),
        "off" => finding(Severity::Info, format!("off: {}", pool.reason)),
        "unused" => finding(Severity::Ok, pool.reason.clone()),
        _ => {
            let not: Vec<_> = pool
                .not_served()
                .map(|context| format!("context {} on device {}: {}", context.context, context.device, context.reason))
                .collect();
            match not.is_empty() {
                true => finding(Severity::Ok, head(pool).unwrap_or_default()),
                false => finding(Severity::Info, format!("on, but not everywhere: {}", not.join("; "))),
            }
        }
    }
}

/// Whether an allocation ran out.
fn memory(ledger: &Ledger, pool: &Pool, settings: &Settings) -> Finding {
    let finding = |text: String| Finding::new("memory", Severity::Warning, text);
    let mut ran_out = ledger.snapshot.events.iter().filter(|event| event.kind == EventKind::OutOfMemory as u8);
    if let Some(last) = ran_out.next_back() {
        let said = format!(
            "an allocation of {} ran out of memory {} ago, with {} live",
            units::bytes(last.a),
            units::span(ledger.age(last.time_ns)),
            units::bytes(last.b)
        );
        let pid = ledger.pid();
        return finding(said).fix(match settings.oom_fallback {
            OomFallback::None => {
                format!("gpumem allocs {pid} says who holds it; GPUMEM_OOM_FALLBACK=managed would have spilled it")
            }
            _ => format!("gpumem allocs {pid} says who holds it; spilling failed too"),
        });
    }
    if pool.limit_refusals > 0 {
        return finding(format!(
            "{} refused at the limit of this process",
            text::count(pool.limit_refusals, "allocation")
        ))
        .fix("raise GPUMEM_LIMIT, with gpumem set if you like, if the device has that much");
    }
    Finding::new("memory", Severity::Ok, "no allocation ran out of memory")
}

/// Call sites that strand memory.
fn stranded(pool: &Pool, settings: &Settings) -> Vec<Finding> {
    let fix = match settings.stranded {
        Stranded::Press | Stranded::Spill => "GPUMEM_STRANDED is at work; gpumem stats --all shows the call stacks",
        _ => {
            "gpumem stats --all shows the call stacks; GPUMEM_STRANDED=press, if the program frees its caches and retries when memory runs out, else GPUMEM_STRANDED=spill"
        }
    };
    if pool.stranded.is_empty() {
        return vec![Finding::new("stranded", Severity::Ok, "no call site was seen to strand memory")];
    }
    if pool.stranded_bytes == 0 {
        let sites = text::count(pool.stranded.len() as u64, "call site");
        let said = format!("{sites} stranded memory for a while, which is freed by now");
        return vec![Finding::new("stranded", Severity::Info, said).fix(fix)];
    }
    let finding = |site| Finding::new("stranded", Severity::Warning, stranded_words(site)).fix(fix);
    pool.stranded.iter().map(finding).collect()
}
