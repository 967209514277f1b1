//! The kernel drivers that work here.

use std::fmt::Display;
use std::sync::OnceLock;

/// The drivers `uring` and `epoll`, or only `epoll` where io_uring is refused, as by the seccomp
/// filter of a container. Prints the reason then.
///
/// `probe` returns why it is refused. The first call in a process calls it, because each probe of
/// the kernel makes a ring; its result holds for the process.
pub fn available<D, T, E: Display>(
    uring: D,
    epoll: D,
    probe: impl FnOnce() -> Result<T, E>,
) -> Vec<D> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    match REFUSAL.get_or_init(|| probe().err().map(|error| error.to_string())) {
        None => vec![uring, epoll],
        Some(reason) => {
            println!("skipped on io_uring: {reason}");
            vec![epoll]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::available;

    #[test]
    fn the_kernel_is_probed_once() {
        // The result is that of the process.
        if crate::child::elsewhere(module_path!(), "the_kernel_is_probed_once") {
            return;
        }
        assert_eq!(available(1, 2, || Err::<(), _>("refused")), [2]);
        let again = available(1, 2, || -> Result<(), String> { panic!("probed twice") });
        assert_eq!(again, [2]);
    }

    #[test]
    fn both_are_used_where_io_uring_works() {
        if crate::child::elsewhere(module_path!(), "both_are_used_where_io_uring_works") {
            return;
        }
        assert_eq!(available("u", "e", || Ok::<_, String>(())), ["u", "e"]);
    }
}
