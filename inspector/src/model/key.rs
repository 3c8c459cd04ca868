//! Keys of groups of allocations, graphs and execs, and their text.

use super::sites::Sites;
use super::{Ledger, execs};
use crate::text::units;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::StackRef;
use std::rc::Rc;

/// The key of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GroupKey {
    /// The name of a call site, see [`Sites`].
    Site(Rc<str>),
    Stack(StackRef),
    Thread(u32),
    Tag(String),
    Context(u16),
    /// Of allocations: the number of a kind.
    Kind(u8),
    Size(u64),
    Device(Option<u32>),
    /// Of execs: the fingerprint of a class; `None` for graphs.
    Class(Option<u64>),
    /// Of execs: the name of a state and of the reason for pinning; empty for graphs.
    State(&'static str, &'static str),
}

impl GroupKey {
    /// Returns the key as text.
    pub(crate) fn text(&self, ledger: &Ledger, sites: &Sites) -> String {
        match self {
            Self::Site(site) => site.to_string(),
            Self::Stack(stack) => sites.name(*stack).to_string(),
            Self::Thread(tid) => format!("{tid} {}", ledger.thread(*tid)).trim_end().into(),
            Self::Tag(tag) if tag.is_empty() => "(no tag)".into(),
            Self::Tag(tag) => tag.clone(),
            Self::Context(0) => "(no context)".into(),
            Self::Context(context) => format!("context {context} on device {}", ledger.device(*context)),
            Self::Kind(number) => {
                AllocKind::from_u8(*number).map_or(format!("kind {number}"), |kind| kind.name().into())
            }
            Self::Size(bytes) => units::bytes(*bytes),
            Self::Device(None) => "(no device)".into(),
            Self::Device(Some(device)) => {
                let slot = ledger.snapshot.contexts.values().find(|slot| slot.device == *device);
                format!("{device}: {}", slot.map(|slot| ledger.snapshot.name(slot.name)).unwrap_or_default())
            }
            Self::Class(None) | Self::State("", _) => "(graphs)".into(),
            Self::Class(Some(0)) => "(no class)".into(),
            Self::Class(Some(class)) => execs::hex(*class),
            Self::State(state, "") => (*state).to_owned(),
            Self::State(state, pinned) => format!("{state}: {pinned}"),
        }
    }
}
