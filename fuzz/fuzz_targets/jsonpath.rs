#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| picolet::fuzz::run("jsonpath", data));
