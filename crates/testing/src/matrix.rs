//! Which drivers and seeds a test uses.
//!
//! Sockets, limits, TLS and restarts differ between the drivers, so their tests use each driver.
//! What is above them does not: such a test uses one driver and one seed. Its name selects them, so
//! all tests together use each. With `TEST_MATRIX_FULL=1`, which `cargo xtask nightly` sets, every
//! test uses all of them.

use std::env;

/// The variable that selects everything.
pub const FULL: &str = "TEST_MATRIX_FULL";

/// Whether each test uses all drivers and seeds.
pub fn is_full() -> bool {
    env::var_os(FULL).is_some_and(|value| value != "0" && !value.is_empty())
}

/// One of `all`, which the name of the calling test selects; all of them if the matrix is full. The
/// result is the same in each run.
///
/// # Panics
/// If the calling thread has no name, so that it is not that of a test.
pub fn select<T: Clone>(all: &[T]) -> Vec<T> {
    if is_full() || all.len() < 2 {
        return all.to_vec();
    }
    // The test harness names the thread of a test after it.
    let thread = std::thread::current();
    let name = thread.name();
    let name = name.expect("the name of a test: call `select` on its thread, not on one it starts");
    let at = digest(name) % all.len() as u64;
    vec![all[at as usize].clone()]
}

/// FNV-1a with 64 bits, folded: small, and the same on every machine.
fn digest(text: &str) -> u64 {
    let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let sum = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    sum ^ (sum >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_is_used_by_some_test() {
        let mut used = [0; 3];
        for number in 0..300 {
            used[(digest(&format!("files::test_{number}")) % 3) as usize] += 1;
        }
        assert!(used.iter().all(|&times| times > 60), "{used:?}");
    }

    #[test]
    fn a_test_has_the_same_choice_each_time() {
        let all = [1, 2, 3];
        assert_eq!(select(&all), select(&all));
        assert_eq!(select(&all[..1]), [1]);
        let expected = if is_full() { 3 } else { 1 };
        assert_eq!(select(&all).len(), expected);
    }

    #[test]
    fn a_thread_without_a_name_selects_nothing() {
        if is_full() {
            return;
        }
        let without_name = || {
            let _silence = crate::panics::silence(|_| true);
            select(&[1, 2])
        };
        let payload = std::thread::spawn(without_name).join();
        let payload = payload.expect_err("no name");
        let message = payload.downcast_ref::<String>();
        assert!(message.is_some_and(|text| text.starts_with("the name of a test: ")));
    }
}
