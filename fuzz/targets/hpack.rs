//! Fuzzes `onrush_fuzz::hpack`.

#![no_main]

use onrush_fuzz::hpack::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
