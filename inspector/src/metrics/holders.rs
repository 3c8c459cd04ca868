//! Holders of memory: the largest call sites and tags, with the rest summed, so that a program of a thousand call sites
//! has no thousand series.

use super::page::{Page, shown};
use super::table::{self as t, Metric};
use crate::model::allocs::{self, By, Filter, Sort};
use crate::model::key::GroupKey;
use crate::model::{Ledger, suspects};

/// Label of the sum of all unnamed holders.
const OTHER: &str = "(other)";
const UNTAGGED: &str = "(untagged)";

/// Adds the first `top` of both, and the growth. If `top` is 0, there are no names: neither holders nor their sum.
pub(super) fn add(page: &mut Page, ledger: &Ledger, top: usize) {
    if top > 0 {
        of(page, ledger, By::Site, ("site", &t::SITE_LIVE_BYTES), top);
        of(page, ledger, By::Tag, ("tag", &t::TAG_LIVE_BYTES), top);
    }
    let found = suspects::find(ledger, None);
    let growing = || suspects::growing(&found.all);
    page.add(&t::GROWING_SITES, &[], growing().count() as f64);
    // An empty sum is -0.
    let per_minute = growing().map(|suspect| suspect.bytes_per_minute).fold(0.0, |sum: f64, rate| sum + rate.max(0.0));
    page.add(&t::GROWING_RATE, &[], per_minute / 60.0);
}

fn of(page: &mut Page, ledger: &Ledger, by: By, (label, metric): (&str, &Metric), top: usize) {
    let mut groups = allocs::group(ledger, &Filter::default(), by, false);
    allocs::sort(&mut groups, Sort::Bytes);
    // Names that are equal as far as they are shown are merged.
    let mut named: Vec<(String, u64)> = Vec::new();
    for group in &groups {
        let name = match &group.key {
            GroupKey::Site(_) if ledger.awaits_names(group.stack) => OTHER.to_owned(),
            GroupKey::Site(site) => shown(site).into_owned(),
            GroupKey::Tag(tag) if tag.is_empty() => UNTAGGED.to_owned(),
            GroupKey::Tag(tag) => shown(tag).into_owned(),
            _ => continue,
        };
        let is_known = named.iter().any(|(known, _)| *known == name);
        let there = named.iter().filter(|(name, _)| name != OTHER).count();
        let name = if is_known || there < top { name } else { OTHER.to_owned() };
        let at = named.iter().position(|(known, _)| *known == name).unwrap_or(named.len());
        if at == named.len() {
            named.push((name, 0));
        }
        named[at].1 = named[at].1.saturating_add(group.bytes);
    }
    named.iter().for_each(|(name, bytes)| page.add(metric, &[(label, name)], *bytes as f64));
}
