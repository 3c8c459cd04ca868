//! On the HIP runtime: the probe natively, under the graph cache, and with retargeting by whole updates.

use super::cuda::preload_is_active;
use super::suite::{Check, Outcome, Suite, ledger};
use super::{Advice, Part, Section, Setup};
use crate::failure::{Failure, Result};
use gpumem_wire::counters;

/// Fewer than the probe has handles, so that most launches need an exec brought back.
const BOUND: (&str, &str) = ("GPUMEM_GRAPH_CACHE", "4");
const ACTIVE: (&str, &str) = ("GPUMEM_RECORD_ONLY", "0");
const RETARGET: (&str, &str) = ("GPUMEM_HIP_RETARGET", "1");

/// Runs everything; inside, why it cannot run here.
///
/// # Errors
/// When no directory can be made for a part.
pub(super) fn section(setup: &Setup) -> Result<std::result::Result<Section, String>> {
    let exe = std::env::current_exe().map_err(|error| Failure::io("cannot find gpumem itself", &error))?;
    let suite = Suite { program: &exe, args: &["selftest", "--hip-probe"], says: "selftest:" };
    eprintln!("selftest: graphs through the HIP runtime, natively and preloaded");
    let native = match suite.run(None, Some(&setup.log("hip-native"))) {
        Ok(native) => native,
        Err(why) => return Ok(Err(format!("HIP: {}", why.trim_start_matches("gpumem: ")))),
    };
    let part =
        |run: &'static str, variables: &[_], counter| preloaded(&suite, setup, &native.checks, run, variables, counter);
    let cached = part("preloaded", &[ACTIVE, BOUND], Some((counters::EVICTIONS, "evicted")))?;
    let retargeting = part("retargeting", &[ACTIVE, BOUND, RETARGET], Some((counters::RETARGETS, "retargeted")))?;
    let parts = vec![Part::of("hip", "native", &native.checks, None), cached, retargeting];
    let mut section =
        Section { vendor: "HIP", device: native.device.clone(), parts, advice: Vec::new(), notes: Vec::new() };
    let [native_held, cached_held, retarget_held] = [0, 1, 2].map(|at: usize| section.parts[at].held());
    let kernels = native.checks.iter().any(|check| check.name.starts_with("kernels.") && check.result == Outcome::Ok);
    if !(native_held && cached_held) {
        let off = part("cache-off", &[ACTIVE, ("GPUMEM_GRAPH_CACHE", "0")], None)?;
        let cured = off.failures.iter().all(|failed| failed.why.starts_with("as natively"));
        section.advice.push(Advice {
            variable: if cured { "GPUMEM_GRAPH_CACHE" } else { "GPUMEM_DISABLE" },
            value: if cured { "0" } else { "1" },
            needed: true,
            why: match (cured, cached_held || !native_held) {
                (false, _) => "what failed fails without the graph cache too: do not use gpumem here".into(),
                (true, true) => "HIP itself does not do here what the graph cache is built on".into(),
                (true, false) => "programs under the graph cache do not do what they do natively".into(),
            },
        });
    } else if !retarget_held {
        section.notes.push("the graph cache held and is on by default; leave GPUMEM_HIP_RETARGET unset".into());
    } else if kernels {
        section.notes.push("the graph cache is on by default and held".into());
        section.advice.push(Advice {
            variable: RETARGET.0,
            value: RETARGET.1,
            needed: false,
            why: "every graph that was retargeted here did what it does natively; retargeting saves instantiates"
                .into(),
        });
    } else {
        section.notes.push(
            "the graph cache is on by default and held; whether GPUMEM_HIP_RETARGET=1 may be set is not known: no \
             graph with kernels could be tried"
                .into(),
        );
    }
    Ok(Ok(section))
}

/// The probe under the preload. That the preload worked, and did what this part is about, is a check.
fn preloaded(
    suite: &Suite,
    setup: &Setup,
    native: &[Check],
    run: &'static str,
    variables: &[(&'static str, &'static str)],
    exercised: Option<(usize, &str)>,
) -> Result<Part> {
    let under = setup.under(&format!("hip-{run}"), variables)?;
    let told = match suite.run(Some(&under), Some(&setup.log(&format!("hip-{run}")))) {
        Ok(told) => told,
        Err(why) => return Ok(Part::broken("hip", run, why)),
    };
    let mut part = Part::of("hip", run, &told.checks, Some(native));
    let did = preload_is_active(&under, told.pid).and_then(|()| match exercised {
        Some((counter, what)) if ledger(&under, told.pid).is_none_or(|ledger| ledger.counter(counter) == 0) => {
            Err(format!("no exec was {what}: this part tried nothing"))
        }
        _ => Ok(()),
    });
    match did {
        Ok(()) => part.ok += 1,
        Err(why) => part.fail("preload.is_active", why),
    }
    Ok(part)
}
