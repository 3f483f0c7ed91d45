//! Streams by their numbers, which only grow: a sorted list is enough for the few of a connection, and costs less than
//! a tree.

use crate::http2::Http2StreamId;

#[derive(Debug)]
pub(crate) struct StreamTable<T>(Vec<(Http2StreamId, T)>);

impl<T> StreamTable<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    fn find_place(&self, id: Http2StreamId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, |(id, _)| *id)
    }

    pub(crate) fn get(&self, id: Http2StreamId) -> Option<&T> {
        let place = self.find_place(id).ok()?;
        self.0.get(place).map(|(_, of)| of)
    }

    pub(crate) fn get_mut(&mut self, id: Http2StreamId) -> Option<&mut T> {
        let place = self.find_place(id).ok()?;
        self.0.get_mut(place).map(|(_, of)| of)
    }

    pub(crate) fn contains(&self, id: Http2StreamId) -> bool {
        self.find_place(id).is_ok()
    }

    /// A number that was not there before.
    pub(crate) fn insert(&mut self, id: Http2StreamId, of: T) {
        if let Err(place) = self.find_place(id) {
            self.0.insert(place, (id, of));
        }
    }

    /// Removes a stream; returns true if it was there. An empty table gives its memory back.
    pub(crate) fn remove(&mut self, id: Http2StreamId) -> bool {
        let place = self.find_place(id);
        if let Ok(place) = place {
            self.0.remove(place);
        }
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
        place.is_ok()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(Http2StreamId, &T) -> bool) {
        self.0.retain(|(id, of)| keep(*id, of));
    }

    /// Iterates over the streams in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Http2StreamId, &T)> {
        self.0.iter().map(|(id, of)| (*id, of))
    }

    /// Iterates over the streams in the order of their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Http2StreamId, &mut T)> {
        self.0.iter_mut().map(|(id, of)| (*id, of))
    }

    /// The number whose turn it is after this one.
    pub(crate) fn next_id_after(&self, id: Http2StreamId) -> Option<Http2StreamId> {
        let next = self.0.partition_point(|(of, _)| *of <= id);
        let found = self.0.get(next).or_else(|| self.0.first());
        found.map(|(id, _)| *id)
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_by_number() {
        let mut table = StreamTable::new();
        for id in [1, 3, 7] {
            table.insert(id, id * 10);
        }
        assert_eq!((table.get(3), table.get(5)), (Some(&30), None));
        assert!(table.contains(7) && !table.contains(9));
        let turns: Vec<_> = [0, 1, 3, 7, 9].map(|id| table.next_id_after(id)).into();
        assert_eq!(turns, [Some(1), Some(3), Some(7), Some(1), Some(1)]);
        if let Some(of) = table.get_mut(1) {
            *of = 11;
        }
        assert!(table.remove(3) && !table.remove(3));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(1, &11), (7, &70)]);
        table.retain(|id, of| id == 1 && *of == 11);
        assert_eq!(table.len(), 1);
        assert!(table.remove(1) && table.is_empty());
        assert_eq!((table.next_id_after(1), table.0.capacity()), (None, 0));
    }
}
