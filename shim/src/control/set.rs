//! Changes variables while the process runs: refuses values, tells the parts that apply them, and writes the changes
//! down.

use super::parking;
use crate::gate;
use crate::graphs;
use crate::pool;
use crate::records;
use crate::shim::Shim;
use gpumem_wire::kinds::{Severity, Vendor};
use gpumem_wire::settings::{self, Id, Setting, Settings, Value};
use gpumem_wire::units;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

/// The variables changed since the start, with their values, by name.
pub(super) type Changes = BTreeMap<&'static str, String>;

/// Reason for doing nothing.
pub(super) const NO_POOL: &str = "the pool is off, or was not needed so far";

/// Changes a variable while the process runs, and writes that down.
pub(super) fn set(
    shim: &'static Shim,
    name: &str,
    value: &str,
    force: bool,
    changes: &mut Changes,
) -> Result<String, String> {
    let (setting, new) = settings::change(name, value)?;
    let value = if new.is_none() { "default" } else { value.trim() };
    allowed(shim, setting, new.as_ref(), force)?;
    let said = change(shim, setting, new)?;
    write_down(shim, setting, value, changes);
    shim.message(Severity::Info, &format!("gpumem set {}={value}", setting.name));
    Ok(said)
}

/// Writes the variables changed since the start to the ledger.
fn write_down(shim: &Shim, setting: &'static Setting, value: &str, changes: &mut Changes) {
    changes.insert(setting.name, value.to_owned());
    let lines: Vec<String> = changes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let header = shim.ledger.header();
    header.changes().store(shim.ledger.texts.intern(lines.join("\n").as_bytes()), Relaxed);
}

/// Shortens `GPUMEM_POOL_DECAY`, if the user set none, once the program turns out to have an allocator that keeps what
/// it frees. Such an allocator frees to give memory away: docs/decisions/pool.md has the benefit of its idle blocks.
pub(super) fn shorten_decay_beside_own_cache(shim: &'static Shim, changes: &mut Changes) {
    const SHORT: &str = "500ms";
    let is_chosen = shim.settings.pool_decay.is_some() || changes.contains_key(Id::PoolDecay.setting().name);
    if is_chosen || pool::all().next().is_none() || !shim.stranded.has_own_cache() {
        return;
    }
    if let Ok((setting, value)) = settings::change("POOL_DECAY", SHORT)
        && change(shim, setting, value).is_ok()
    {
        write_down(shim, setting, SHORT, changes);
        let line = "GPUMEM_POOL_DECAY is 500ms from now on: PyTorch's allocator keeps what the program frees";
        shim.message(Severity::Info, line);
    }
}

/// Makes pool and graph cache step aside for all later calls, if they exist.
pub(super) fn off(shim: &'static Shim, changes: &mut Changes) -> Result<String, String> {
    let said: Result<Vec<_>, _> =
        [Id::GraphCache, Id::Pool].map(|id| set(shim, id.setting().name, "0", false, changes)).into_iter().collect();
    said.map(|said| said.join("; "))
}

/// Checks if a variable may have this value now. Changes nothing.
///
/// # Errors
/// Why not.
fn allowed(shim: &'static Shim, setting: &Setting, value: Option<&Value>, force: bool) -> Result<(), String> {
    let on = !matches!(value, Some(Value::Bool(false) | Value::Number(0)));
    if let Id::Pool | Id::GraphCache | Id::GraphCacheBytes | Id::GraphIdle | Id::GraphFold = setting.id {
        parking::may_call()?;
    }
    match setting.id {
        Id::Pool if on => books_are_open(),
        Id::GraphCache if on => books_are_open().and_then(|()| graph_cache_was_on(shim)),
        Id::GraphCacheBytes | Id::GraphIdle | Id::GraphFold => graph_cache_was_on(shim),
        Id::PoolMax | Id::PoolDecay | Id::Free if !shim.settings.pool => Err(NO_POOL.into()),
        Id::PoolMax | Id::PoolDecay if pool::all().next().is_some() && nothing_is_kept() => Err(NO_POOL.into()),
        Id::Limit => match value {
            Some(&Value::Number(limit)) if !force => has_room(shim, limit),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// # Errors
/// The graph cache was off when the process started, and stays so.
fn graph_cache_was_on(shim: &Shim) -> Result<(), String> {
    match shim.settings.graph_cache {
        0 => Err("GPUMEM_GRAPH_CACHE was 0 when the process started: the graph cache stays off".into()),
        _ => Ok(()),
    }
}

/// Checks if the live bytes fit under a limit.
///
/// # Errors
/// The live bytes, if they do not fit.
fn has_room(shim: &'static Shim, limit: u64) -> Result<(), String> {
    pool::all().for_each(|pool| pool.report_all(shim));
    for vendor in [Vendor::Cuda, Vendor::Hip] {
        for device in records::contexts::devices(shim, vendor) {
            let live = records::pooled::live_on(shim, vendor, device);
            if live > limit {
                let (live, limit) = (units::bytes(live), units::bytes(limit));
                return Err(format!(
                    "{live} are live on device {device}, more than a limit of {limit} allows: every later request would \
                     fail as out of memory until enough is freed; --force sets it all the same"
                ));
            }
        }
    }
    Ok(())
}

/// Puts a new value in force. `None` unsets the variable.
///
/// # Errors
/// Why it cannot be changed.
fn change(shim: &'static Shim, setting: &'static Setting, value: Option<Value>) -> Result<String, String> {
    // A pool or cache that is made later finds the new value. An existing one is told.
    let now = shim.in_force.put(setting, value);
    match setting.id {
        Id::Pool if now.pool => {
            return pool::step_back_in(shim).inspect_err(|_| {
                shim.in_force.put(setting, Some(Value::Bool(false)));
            });
        }
        Id::Pool => return Ok(pool::step_aside(shim)),
        Id::GraphCache if now.graph_cache == 0 => return Ok(graphs::step_aside().to_owned()),
        Id::GraphCache => {
            graph_bounds(&now);
            graphs::step_back_in();
        }
        Id::GraphCacheBytes | Id::GraphIdle | Id::GraphFold => graph_bounds(&now),
        Id::Stranded => shim.stranded.set_mode(now.stranded),
        Id::StrandedRetries => shim.stranded.set_retries(now.stranded_retries),
        Id::Stacks | Id::StackEvery => shim.registry.sites.set(&shim.ledger, now.stacks, now.stack_every),
        Id::Tag => shim.set_default_tag(now.tag.as_deref()),
        Id::Free | Id::Limit | Id::PoolMax | Id::PoolDecay | Id::PoolManaged => {
            for pool in pool::all() {
                pool.apply_settings(&now);
                // Live bytes that threads have left out of the totals count against a limit.
                pool.report_all(shim);
            }
        }
        // The shim reads the present value each time; the control thread reads its interval after each command.
        Id::Log | Id::Summary | Id::OomReport | Id::GrowthInterval | Id::OomFallback => {}
        // These are read once, at the start.
        Id::Disable
        | Id::Dir
        | Id::LedgerMax
        | Id::RecordOnly
        | Id::Events
        | Id::Control
        | Id::HipRetarget
        | Id::LimitGroup
        | Id::Share
        | Id::ShareIdle
        | Id::ShareWait
        | Id::PoolFill
        | Id::Quarantine
        | Id::Guard
        | Id::GuardMax
        | Id::FreedInGraph
        | Id::AllocTrace => return Err("nobody follows this variable (a bug in gpumem: please report it)".into()),
    }
    Ok(String::new())
}

/// Checks if anything may be opened again. Once recording has ended, for lack of memory or by a fault of ours, pool and
/// graph cache stay closed with it.
///
/// # Errors
/// Recording has ended.
fn books_are_open() -> Result<(), String> {
    let ended = "recording has ended in this process: the pool and the graph cache stay off until its end";
    gate::shim().map(|_| ()).ok_or_else(|| ended.to_owned())
}

/// True if no pool keeps anything. A pool that is off may exist for the limit.
pub(super) fn nothing_is_kept() -> bool {
    pool::all().all(|pool| pool.releaser.switch().is_closed())
}

/// Makes the graph caches follow these bounds.
fn graph_bounds(now: &Settings) {
    graphs::caches().for_each(|cache| cache.apply_settings(now));
    // An idle process launches nothing that would apply the new bounds.
    graphs::housekeeping();
}
