//! A load beside what is tried again and again: tests that depend on a quiet machine show it then.

use std::{
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Threads that keep every processor busy while this lives.
pub(super) struct Load {
    over: Arc<AtomicBool>,
}

impl Load {
    pub(super) fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..processors {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        Self { over }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
