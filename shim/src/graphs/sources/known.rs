//! Known shapes and classes. Unreferenced ones are forgotten.

use crate::backend::source::Scratch;
use crate::graphs::class::{Class, Shape};
use crate::process::lock::lock;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, Weak};

/// With at most this many entries, a search for unreferenced ones is not worth it.
const FEW_ENTRIES: usize = 32;
/// The most feature sets that are remembered.
const MOST_FEATURES: usize = 1024;

/// Shapes by their bytes, and classes by shape and flags.
#[derive(Default)]
pub(crate) struct KnownClasses(Mutex<Interned>);

#[derive(Default)]
struct Interned {
    /// True for features of graphs that can be built again.
    rebuilds: FxHashMap<u64, bool>,
    shapes: FxHashMap<u64, Vec<Weak<Shape>>>,
    classes: FxHashMap<(usize, u64), Weak<Class>>,
    /// The number of entries at which the unreferenced ones are searched for.
    most: usize,
}

impl KnownClasses {
    /// Returns the shape that has these bytes. `id` is the fingerprint of the bytes.
    pub(super) fn shape(&self, bytes: &[u8], id: u64, scratch: &mut Scratch) -> Option<Arc<Shape>> {
        let same: Vec<_> = lock(&self.0).shapes.get(&id)?.iter().filter_map(Weak::upgrade).collect();
        same.into_iter().find(|shape| shape.is(bytes, scratch))
    }

    /// Adds a shape, unless another thread has made the same one first. Returns the known shape, and true if that is
    /// this one.
    pub(super) fn add_shape(&self, made: Arc<Shape>) -> (Arc<Shape>, bool) {
        let mut known = lock(&self.0);
        known.forget_gone();
        let same = known.shapes.entry(made.id).or_default();
        same.retain(|shape| shape.strong_count() > 0);
        if let Some(first) = same.iter().filter_map(Weak::upgrade).find(|shape| shape.key == made.key) {
            return (first, false);
        }
        same.push(Arc::downgrade(&made));
        (made, true)
    }

    /// Returns the class of a shape and flags. Makes it with `new` if there is none.
    pub(crate) fn class(&self, shape: &Arc<Shape>, flags: u64, new: fn(Arc<Shape>, u64) -> Class) -> Arc<Class> {
        let mut known = lock(&self.0);
        known.forget_gone();
        let entry = known.classes.entry((Arc::as_ptr(shape) as usize, flags)).or_default();
        if let Some(class) = entry.upgrade().filter(|class| Arc::ptr_eq(&class.shape, shape)) {
            return class;
        }
        let class = Arc::new(new(shape.clone(), flags));
        *entry = Arc::downgrade(&class);
        class
    }

    /// Returns all referenced classes.
    pub(crate) fn classes(&self) -> Vec<Arc<Class>> {
        lock(&self.0).classes.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns true if graphs with these features can be built again, if that was tried.
    pub(super) fn rebuilds(&self, features: u64) -> Option<bool> {
        lock(&self.0).rebuilds.get(&features).copied()
    }

    pub(super) fn set_rebuilds(&self, features: u64, rebuilds: bool) {
        let known = &mut lock(&self.0).rebuilds;
        if known.len() >= MOST_FEATURES {
            known.clear();
        }
        known.insert(features, rebuilds);
    }

    /// Forgets the classes of an ending context. Another context may get its handle: its graphs have other shapes.
    pub(super) fn forget_context(&self, context: u64) {
        let mut known = lock(&self.0);
        let of_another = |shape: &Weak<Shape>| shape.upgrade().is_some_and(|shape| shape.context != context);
        known.shapes.retain(|_, same| {
            same.retain(of_another);
            !same.is_empty()
        });
        known.classes.retain(|_, class| class.upgrade().is_some_and(|class| class.shape.context != context));
    }
}

impl Interned {
    /// Drops unreferenced shapes and classes now and then: once there are twice as many as after the last time. So each
    /// entry is visited a constant number of times.
    fn forget_gone(&mut self) {
        if self.shapes.len() + self.classes.len() < self.most {
            return;
        }
        self.shapes.retain(|_, same| {
            same.retain(|shape| shape.strong_count() > 0);
            !same.is_empty()
        });
        self.classes.retain(|_, class| class.strong_count() > 0);
        self.most = 2 * (self.shapes.len() + self.classes.len()).max(FEW_ENTRIES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::graphs::Reading;
    use crate::backend::source::{Packed, Source};

    const CONTEXT: u64 = 0xc0;

    /// Makes a shape of these numbers, like one that was just read.
    fn shape(known: &KnownClasses, number: u64, scratch: &mut Scratch) -> (Arc<Shape>, bool) {
        let bytes = [CONTEXT, number].map(u64::to_le_bytes).concat();
        if let Some(shape) = known.shape(&bytes, number, scratch) {
            return (shape, false);
        }
        let key = Packed::new(&bytes, scratch);
        known.add_shape(Arc::new(Shape::new(key, number, &Reading::default(), CONTEXT, Source::default())))
    }

    fn class(known: &KnownClasses, shape: &Arc<Shape>, flags: u64) -> Arc<Class> {
        known.class(shape, flags, |shape, flags| Class::new(shape, flags, false))
    }

    fn sizes(known: &KnownClasses) -> (usize, usize) {
        let known = lock(&known.0);
        (known.shapes.values().map(Vec::len).sum(), known.classes.len())
    }

    /// The next context may get the handle of the ended one.
    #[test]
    fn classes_go_with_their_context() {
        let (known, mut scratch) = (KnownClasses::default(), Scratch::default());
        let (shape, _) = shape(&known, 1, &mut scratch);
        let its = class(&known, &shape, 0);
        known.forget_context(CONTEXT + 1);
        assert!(Arc::ptr_eq(&its, &class(&known, &shape, 0)));
        assert_eq!(sizes(&known), (1, 1));
        known.forget_context(CONTEXT);
        assert_eq!(sizes(&known), (0, 0));
        assert!(!Arc::ptr_eq(&its, &class(&known, &shape, 0)));
    }

    /// Programs make the same few graphs again and again, with none of them left in between.
    #[test]
    fn shapes_and_classes_that_are_gone_are_forgotten() {
        let (known, mut scratch) = (KnownClasses::default(), Scratch::default());
        for shapes in [1, 100] {
            for turn in 0..2000 {
                let (shape, new) = shape(&known, turn % shapes, &mut scratch);
                assert!(new, "nothing of the last turn is left");
                drop(class(&known, &shape, turn % 3));
            }
            let (shapes_known, classes_known) = sizes(&known);
            assert!(shapes_known <= 128 && classes_known <= 128, "{shapes}: {shapes_known}, {classes_known}");
        }
    }

    /// Referenced shapes and classes stay, however many there are.
    #[test]
    fn shapes_and_classes_in_use_stay_known() {
        let (known, mut scratch) = (KnownClasses::default(), Scratch::default());
        let mut made = |number: u64| {
            let (shape, new) = shape(&known, number, &mut scratch);
            (class(&known, &shape, 0), new)
        };
        let all: Vec<_> = (0..500).map(&mut made).collect();
        assert!(all.iter().all(|(_, new)| *new));
        for (number, (class, _)) in all.iter().enumerate() {
            let (same, new) = made(number as u64);
            assert!(Arc::ptr_eq(class, &same) && !new);
        }
    }

    #[test]
    fn what_was_tried_of_features_is_remembered_within_a_bound() {
        let known = KnownClasses::default();
        assert_eq!(known.rebuilds(7), None);
        known.set_rebuilds(7, true);
        assert_eq!(known.rebuilds(7), Some(true));
        (100..100 + MOST_FEATURES as u64).for_each(|features| known.set_rebuilds(features, false));
        assert_eq!(known.rebuilds(7), None);
        assert!(lock(&known.0).rebuilds.len() <= MOST_FEATURES);
    }
}
