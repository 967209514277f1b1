//! Fuzzes `onrush_fuzz::pipelined`.

#![no_main]

use onrush_fuzz::pipelined::check_input;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check_input(input));
