//! Places for connections: a fixed number, and the order in which those at rest make room.

use alloc::{collections::BTreeMap, rc::Rc};
use core::cell::{Cell, RefCell};

use smol::Task;

/// Activity of a connection. The order is that of closing for a new connection: first those that were never of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionActivity {
    /// At rest since this turn; no request was ever served on it.
    New(u64),
    /// At rest since this turn.
    Resting(u64),
    /// A request is being served: never closed for another.
    Working,
}

struct OccupiedPlace {
    standing: ConnectionActivity,
    proven: bool,
    task: Option<Task<()>>,
}

/// All places of the server.
pub(super) struct ConnectionPlaces {
    most: usize,
    turn: Cell<u64>,
    taken: RefCell<BTreeMap<u64, OccupiedPlace>>,
}

impl ConnectionPlaces {
    pub(super) const fn new(most: usize) -> Self {
        Self {
            most,
            turn: Cell::new(0),
            taken: RefCell::new(BTreeMap::new()),
        }
    }

    fn next_turn(&self) -> u64 {
        self.turn.set(self.turn.get() + 1);
        self.turn.get()
    }

    /// A place for a new connection; that of one at rest if need be, which is closed. `None`: all are at work.
    pub(super) fn take_place(self: &Rc<Self>) -> Option<ConnectionPlace> {
        let id = self.next_turn();
        let closed = {
            let mut taken = self.taken.borrow_mut();
            let first = if taken.len() < self.most {
                None
            } else {
                let all = taken.iter().map(|(id, one)| (one.standing, *id));
                let (standing, id) = all.min()?;
                if standing == ConnectionActivity::Working {
                    return None;
                }
                Some(id)
            };
            let closed = first.and_then(|id| taken.remove(&id));
            let occupied = OccupiedPlace {
                standing: ConnectionActivity::New(id),
                proven: false,
                task: None,
            };
            taken.insert(id, occupied);
            closed
        };
        // The task's future ends with it, and the connection with that.
        drop(closed);
        let places = Rc::clone(self);
        Some(ConnectionPlace { places, id })
    }
}

/// A connection's place.
#[derive(Clone)]
pub(super) struct ConnectionPlace {
    places: Rc<ConnectionPlaces>,
    id: u64,
}

impl ConnectionPlace {
    fn with_occupied<T>(&self, change: impl FnOnce(&mut OccupiedPlace, u64) -> T) -> Option<T> {
        let turn = self.places.next_turn();
        let mut taken = self.places.taken.borrow_mut();
        taken.get_mut(&self.id).map(|one| change(one, turn))
    }

    /// Names the task that serves the connection. It is ended when the place goes to another.
    pub(super) fn set_task(&self, task: Task<()>) {
        self.with_occupied(|one, _| one.task = Some(task));
    }

    /// Marks the connection as at rest: no request is under way.
    pub(super) fn mark_resting(&self) {
        self.with_occupied(|one, turn| {
            one.standing = match one.proven {
                true => ConnectionActivity::Resting(turn),
                false => ConnectionActivity::New(turn),
            };
        });
    }

    /// Marks a request as under way.
    pub(super) fn mark_working(&self) {
        self.with_occupied(|one, _| one.standing = ConnectionActivity::Working);
    }

    /// Marks the connection as one on which a request was served.
    pub(super) fn mark_proven(&self) {
        self.with_occupied(|one, _| one.proven = true);
    }

    /// Gives the place back. Called by the task itself.
    pub(super) fn release_place(&self) {
        let left = self.places.taken.borrow_mut().remove(&self.id);
        if let Some(task) = left.and_then(|one| one.task) {
            task.detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_room() {
        let places = Rc::new(ConnectionPlaces::new(3));
        let ids =
            |places: &ConnectionPlaces| places.taken.borrow().keys().copied().collect::<Vec<_>>();
        let take = || places.take_place().expect("a place");
        let (used, fresh, busy) = (take(), take(), take());
        used.mark_working();
        used.mark_proven();
        used.mark_resting();
        busy.mark_working();
        // The one that never asked goes first, though it is younger.
        let other = take();
        assert_eq!(ids(&places), [used.id, busy.id, other.id]);
        other.mark_working();
        let third = take();
        assert_eq!(ids(&places), [busy.id, other.id, third.id]);
        third.mark_working();
        assert!(places.take_place().is_none(), "all work");
        // A closed connection changes nothing by what it still does.
        fresh.mark_resting();
        fresh.release_place();
        busy.release_place();
        assert_eq!(ids(&places), [other.id, third.id]);
        drop(take());
    }
}
