//! Tests on the HIP runtime: its suite natively, under the graph cache, and with retargeting by whole updates.

use super::cuda::helper;
use super::suite::{Outcome, Suite};
use super::ways::{ACTIVE, CACHE_OFF};
use super::{Advice, Section, Setup, SuitePart};
use gpumem_wire::counters;

/// Fewer than the suite's handles, so that most launches need an exec brought back.
const BOUND: (&str, &str) = ("GPUMEM_GRAPH_CACHE", "4");
const RETARGET: (&str, &str) = ("GPUMEM_HIP_RETARGET", "1");

/// Runs everything.
///
/// # Errors
/// Says why it cannot run here.
pub(super) fn section(setup: &Setup) -> Result<Section, String> {
    let cannot = |why: String| format!("HIP: {why}");
    let program = helper("conformance", &setup.lib).map_err(cannot)?;
    let suite = Suite { name: "hip", program: &program, args: &["--hip"] };
    eprintln!("selftest: graphs through the HIP runtime, natively and preloaded");
    let native = suite.natively(setup).map_err(cannot)?;
    let part = |run, variables: &[_], counter| suite.preloaded(setup, &native.checks, run, variables, counter);
    let cached = part("preloaded", &[ACTIVE, BOUND], Some((counters::EVICTIONS, "evicted")))?;
    let retargeting = part("retargeting", &[ACTIVE, BOUND, RETARGET], Some((counters::RETARGETS, "retargeted")))?;
    let parts = vec![SuitePart::of("hip", "native", &native.checks, None), cached, retargeting];
    let mut section = Section::new("HIP", &native, parts);
    let [native_held, cached_held, retarget_held] = [0, 1, 2].map(|at: usize| section.parts[at].held());
    let kernels = native.checks.iter().any(|check| check.name.starts_with("kernels.") && check.result == Outcome::Ok);
    if !(native_held && cached_held) {
        let off = part("cache-off", &[ACTIVE, CACHE_OFF], None)?;
        section.advice.push(match (off.fails_as_natively(), cached_held || !native_held) {
            (false, _) => Advice::disable(),
            (true, true) => {
                Advice::new(CACHE_OFF, true, "HIP itself does not do here what the graph cache is built on")
            }
            (true, false) => {
                Advice::new(CACHE_OFF, true, "programs under the graph cache do not do what they do natively")
            }
        });
    } else if !retarget_held {
        section.notes.push("the graph cache held and is on by default; leave GPUMEM_HIP_RETARGET unset".into());
    } else if kernels {
        section.notes.push("the graph cache is on by default and held".into());
        let why = "every graph that was retargeted here did what it does natively; retargeting saves instantiates";
        section.advice.push(Advice::new(RETARGET, false, why));
    } else {
        section.notes.push(
            "the graph cache is on by default and held; whether GPUMEM_HIP_RETARGET=1 may be set is not known: no \
             graph with kernels could be tried"
                .into(),
        );
    }
    Ok(section)
}
