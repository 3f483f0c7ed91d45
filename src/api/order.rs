//! Sorting and gathering in little code.
//!
//! The standard library generates its sort, 6 KiB of it, anew for each type and each order, and again for each type that
//! is collected into an ordered map or set. Here the sort exists once, for places in a list; what is generated for a type
//! is the comparison and the exchange of two items.

use core::cmp::Ordering;

/// Sorting, equal items staying as they were.
pub trait OrderExt<T> {
    /// Sorts by `compare`.
    fn stable_sort_by(&mut self, compare: impl Fn(&T, &T) -> Ordering);

    /// Sorts by the items' own order.
    fn stable_sort(&mut self)
    where
        T: Ord,
    {
        self.stable_sort_by(T::cmp);
    }

    /// Sorts by a key of each item.
    fn stable_sort_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K) {
        self.stable_sort_by(|a, b| key(a).cmp(&key(b)));
    }
}

impl<T> OrderExt<T> for [T] {
    fn stable_sort_by(&mut self, compare: impl Fn(&T, &T) -> Ordering) {
        for (a, b) in exchanges(self.len(), &|a, b| compare(&self[a], &self[b])) {
            self.swap(a, b);
        }
    }
}

/// The exchanges, one after the other, that sort a list of `len` items.
#[inline(never)]
fn exchanges(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<(usize, usize)> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|&a, &b| compare(a, b));
    let mut all = Vec::new();
    for start in 0..len {
        // Follows one cycle; what is in place points to itself.
        let mut to = start;
        loop {
            let from = places[to];
            places[to] = to;
            if from == start {
                break;
            }
            all.push((to, from));
            to = from;
        }
    }
    all
}

/// Collecting into ordered maps and sets, item by item.
pub trait GatherExt: Iterator + Sized {
    /// The collection of all items; of equal keys the last one stays.
    fn gather_items<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> GatherExt for I {}

#[cfg(test)]
mod tests {
    use alloc::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn as_the_standard_library_sorts() {
        // Every list of up to six items out of four.
        for len in 0..=6 {
            for mut number in 0..4usize.pow(len) {
                let mut list = Vec::new();
                for place in 0..len {
                    list.push((number % 4, place));
                    number /= 4;
                }
                let mut expected = list.clone();
                expected.sort_by_key(|item| item.0);
                let mut found = list.clone();
                found.stable_sort_by_key(|item| item.0);
                assert_eq!(found, expected, "{list:?}");
                list.stable_sort_by(|a, b| b.cmp(a));
                expected.sort_by(|a, b| b.cmp(a));
                assert_eq!(list, expected);
            }
        }
        let mut words = ["b", "c", "a"];
        words.stable_sort();
        assert_eq!(words, ["a", "b", "c"]);
    }

    #[test]
    fn collections() {
        assert_eq!(
            [3, 1, 3].into_iter().gather_items::<BTreeSet<_>>(),
            [1, 3].into()
        );
        let map = [("a", 1), ("b", 2), ("a", 3)].into_iter();
        assert_eq!(
            map.gather_items::<BTreeMap<_, _>>(),
            [("a", 3), ("b", 2)].into()
        );
    }
}
