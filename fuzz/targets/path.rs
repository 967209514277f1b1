//! Fuzzes `onrush_fuzz::path`.

#![no_main]

use onrush_fuzz::path::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
