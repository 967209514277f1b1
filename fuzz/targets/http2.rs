//! Fuzzes `onrush_fuzz::http2`.

#![no_main]

use onrush_fuzz::http2::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
