//! Finds how much of a limit a program needs natively. Limits just above that are where faults are likely.

use super::plan::Plan;
use super::programs::Chosen;
use super::run::{End, Manner, run};
use super::trouble::{Limit, Trouble};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// The need that was found, by program and limit.
static FOUND: Mutex<Option<HashMap<(String, Limit), u64>>> = Mutex::new(None);

/// The plan with each limit as a number, where it said how much more than the need. The need is found without signals, so
/// a plan with signals gets room for the frame of one more on its stack.
pub fn settled(plan: &Plan) -> Plan {
    let mut settled = plan.clone();
    let storm = plan.troubles.iter().any(|trouble| matches!(trouble, Trouble::Storm { .. }));
    for trouble in &mut settled.troubles {
        if let Trouble::Tight(limit, more) = *trouble {
            let frame = if storm && limit == Limit::Stack { signal_frame() } else { 0 };
            *trouble = Trouble::Limit(limit, least(&plan.program, limit) + more + frame);
        }
    }
    settled
}

/// Bytes of a signal's frame on this processor: 3 KiB, or 11 KiB and more with the registers of matrices.
fn signal_frame() -> u64 {
    /// `AT_MINSIGSTKSZ` of Linux's auxvec.h.
    const MIN_SIGNAL_STACK: libc::c_ulong = 51;
    // SAFETY: getauxval takes a number, and answers 0 for what it does not know.
    unsafe { libc::getauxval(MIN_SIGNAL_STACK) }
}

/// Nearly the least of a limit with which a program still ends by status 0.
fn least(program: &Chosen, limit: Limit) -> u64 {
    // The need of a tester hardly depends on the generated program that it runs, so all of them share one entry.
    let name = if program.generated.is_some() { program.file.display().to_string() } else { program.name.clone() };
    let key = (name, limit);
    let known = || FOUND.lock().ok()?.as_ref()?.get(&key).copied();
    if let Some(found) = known() {
        return found;
    }
    let (mut low, mut high, exact) = match limit {
        Limit::Space => (4 << 20, 256 << 30, 64 << 10),
        Limit::Data => (64 << 10, 64 << 30, 64 << 10),
        Limit::File => (0, 64 << 20, 4 << 10),
        Limit::Descriptors => (3, 128, 1),
        Limit::Stack => (16 << 10, 8 << 20, 4 << 10),
    };
    while high - low > exact {
        // The search steps by ratio while the bounds are far apart, and by distance once they are near.
        let between = if high / 4 > low { (low as f64 * high as f64).sqrt() as u64 } else { low + (high - low) / 2 };
        let middle = between.clamp(low + 1, high - 1);
        let plan = Plan { seed: 0, program: program.clone(), troubles: vec![Trouble::Limit(limit, middle)] };
        let ran = run(&plan, Manner::native(Duration::from_secs(6)));
        match ran.is_ok_and(|ran| ran.end == End::Exit(0)) {
            true => high = middle,
            false => low = middle,
        }
    }
    if let Ok(mut found) = FOUND.lock() {
        found.get_or_insert_default().insert(key, high);
    }
    high
}
