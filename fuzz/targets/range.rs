//! Fuzzes `onrush_fuzz::range`.

#![no_main]

use onrush_fuzz::range::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
