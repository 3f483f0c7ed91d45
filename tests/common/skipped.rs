//! How a test that cannot run says so: for the library's tests and those beside it.

/// Says aloud what is skipped, and why: past the test harness, which keeps what `eprintln!` prints to itself where a test
/// passes. `cargo xtask test` repeats it at its end.
macro_rules! skipped {
    ($($words:tt)*) => {{
        let line = format!("SKIPPED {}\n", format_args!($($words)*));
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }};
}
