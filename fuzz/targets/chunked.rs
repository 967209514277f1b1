//! Fuzzes `onrush_fuzz::chunked`.

#![no_main]

use onrush_fuzz::chunked::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
