//! Turns of tasks on the one thread that everything runs on.
//!
//! Whatever a peer says is there at once if he says it fast enough, and a task that always finds something ready is never
//! left. So every loop that a peer can keep busy gives the others their turn: `tests/turns.rs` holds it.

/// Lets all other tasks have their turn, and the reactor look at what is ready.
pub async fn give() {
    smol::future::yield_now().await;
}

/// Rounds of a loop, of which every so many give the others their turn.
#[derive(Debug)]
pub struct Rounds {
    every: u32,
    left: u32,
}

impl Rounds {
    /// One in `every` gives a turn.
    #[must_use]
    pub const fn new(every: u32) -> Self {
        Self { every, left: every }
    }

    /// Begins the next round.
    pub async fn next(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.left = self.every;
            give().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn others_have_their_turn() {
        for every in [1, 5] {
            let turns = Cell::new(0);
            smol::block_on(smol::future::or(
                async {
                    let mut rounds = Rounds::new(every);
                    for _ in 0..100 {
                        rounds.next().await;
                    }
                },
                async {
                    loop {
                        turns.set(turns.get() + 1);
                        smol::future::yield_now().await;
                    }
                },
            ));
            assert_eq!(turns.get(), 100 / every);
        }
    }
}
