//! argv → exit code, nothing else.

fn main() -> std::process::ExitCode {
    picolet::cli::main()
}
