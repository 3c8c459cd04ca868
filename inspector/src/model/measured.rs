//! Memory that the driver takes for itself, as measured on some cards.

/// A card, as measured with driver 580.
pub(super) struct MeasuredCard {
    /// As `cuDriverGetVersion` reports it.
    driver: u32,
    /// Beginning of the card's name.
    name: &'static str,
    /// NVML's count for a process with one context and nothing allocated, bytes.
    pub first_context: u64,
    /// Threads that have local memory in a context: all that the card runs at once.
    pub threads: u64,
}

impl MeasuredCard {
    /// Local memory per thread that is part of the first context, bytes.
    pub(super) const LOCAL_AT_FIRST: u64 = 1024;

    /// Returns the card of this name, if it was measured with this driver.
    pub(super) fn find(name: &str, driver: u32) -> Option<&'static Self> {
        // A slice of a card has fewer processors, and smaller contexts.
        let is_it = |card: &&Self| card.driver == driver && name.starts_with(card.name);
        MEASURED_CARDS.iter().find(is_it).filter(|_| !name.contains("MIG"))
    }
}

pub(super) const AS_MEASURED: &str = "as measured with this driver and card";
const MEASURED_CARDS: &[MeasuredCard] = &[
    MeasuredCard { driver: 13000, name: "NVIDIA H100 80GB HBM3", first_context: 518 << 20, threads: 132 * 2048 },
    MeasuredCard { driver: 13000, name: "NVIDIA H200", first_context: 518 << 20, threads: 132 * 2048 },
];
