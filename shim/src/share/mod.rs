//! Sharing a card with the other processes of `gpumem share NAME` (`GPUMEM_SHARE`).
//!
//! This process is a member. Another process, the service, parks idle members when one is short of memory.
//!
//! * [`wake`]: a thread that calls the driver while this process is parked asks for its resumption, and waits.
//! * [`short`]: a thread whose request for memory ran out asks for memory of others.
//! * [`idle`]: the ledger says since when this process has no work.
//! * [`service`]: one conversation with the service.
//!
//! No lock of ours is held while a thread waits, and each wait ends without the service, too.

pub(crate) mod idle;
mod service;
pub(crate) mod short;
mod wake;

use crate::backend::gates;
use crate::process::clock;
use crate::shim::Shim;
use gpumem_wire::share;
use gpumem_wire::share::{Answer, Ask};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// Time between two messages about the service, ns.
const SAID_EVERY_NS: u64 = 60_000_000_000;

/// Begins the membership, if there is one. A process is not parked before it has a context.
pub(crate) fn begin(shim: &Shim) {
    if gates::is_member()
        && let Some(name) = &shim.settings.share
    {
        gates::wait_by(wake::wait);
        shim.ledger.header().share().store(shim.ledger.texts.intern(name.as_bytes()), Relaxed);
    }
}

/// Asks the service. `None` if there is none, or if it says no, which the user is told; also once `ends` returns true.
fn ask(shim: &Shim, ask: Ask, ends: &dyn Fn() -> bool) -> Option<Answer> {
    let name = shim.settings.share.as_ref()?;
    let socket = share::socket(shim.ledger.path.parent()?, name);
    let refused = match service::ask(&socket, ask, Duration::from_nanos(shim.settings.share_wait), ends) {
        Ok(Some(Answer::No(why))) => why,
        Ok(answer) => return answer,
        Err(error) => format!("no answer from the service ({error}); start it with gpumem share {name}"),
    };
    static SAID_NS: AtomicU64 = AtomicU64::new(0);
    let (now, said) = (clock::precise_ns(), SAID_NS.load(Relaxed));
    if (said == 0 || now - said > SAID_EVERY_NS) && SAID_NS.compare_exchange(said, now, Relaxed, Relaxed).is_ok() {
        let wanted = match ask {
            Ask::Short { .. } => "memory ran out",
            Ask::Wake { .. } => "this process is parked and needed again",
        };
        shim.complain(&format!("GPUMEM_SHARE={name}: {wanted}, and {refused}"));
    }
    None
}
