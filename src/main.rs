//! argv → exit code, nothing else.
//!
//! A shim is one process per container: it starts without the Rust runtime's set-up, which costs 8 KiB of memory each.

#![cfg_attr(target_env = "gnu", no_main)]

#[cfg(not(target_env = "gnu"))]
#[global_allocator]
static HEAP: picolet::sys::heap::Heap = picolet::sys::heap::Heap;

#[cfg(target_env = "gnu")]
mod entry {
    #![expect(unsafe_code, reason = "the C library's way into a program")]

    use core::ffi::{c_char, c_int};
    use std::process::ExitCode;

    use picolet::sys::start;

    /// # Safety
    /// Called by the C library only.
    // SAFETY: no other `main` exists: the crate is `no_main`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
        // SAFETY: these are the C library's.
        let mut args = unsafe { start::process_args(argc, argv) }.skip(1);
        if args.clone().next() == Some(c"shim") {
            args.next();
            return picolet::shim::process::main(args);
        }
        start::set_up_like_runtime();
        let code = picolet::cli::main();
        // `ExitCode` does not show its number, but it can be compared.
        let number = (0..=u8::MAX).find(|n| ExitCode::from(*n) == code);
        c_int::from(number.unwrap_or(1))
    }
}

#[cfg(not(target_env = "gnu"))]
fn main() -> std::process::ExitCode {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStringExt;

    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|a| a == "shim") {
        // Other C libraries give Rust its arguments in its own set-up only. They live as long as the process.
        let texts = args.filter_map(|a| CString::new(a.into_vec()).ok());
        let code = picolet::shim::process::main(texts.map(|t| &*Box::leak(t.into_boxed_c_str())));
        return u8::try_from(code).map_or(std::process::ExitCode::FAILURE, Into::into);
    }
    picolet::cli::main()
}
