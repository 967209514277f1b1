//! Fuzzes `onrush_fuzz::properties`.

#![no_main]

use onrush_fuzz::properties::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
