//! Fuzzes `onrush_fuzz::head`.

#![no_main]

use onrush_fuzz::head::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
