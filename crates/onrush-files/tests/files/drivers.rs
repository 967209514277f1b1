//! The drivers of these tests.

use crate::common::*;
use onrush::DriverPreference;
use testing::{child, seccomp};

/// A test that would use io_uring uses epoll where that is refused, as in a container.
#[test]
fn where_io_uring_is_refused_tests_use_epoll() {
    if child::elsewhere(module_path!(), "where_io_uring_is_refused_tests_use_epoll") {
        return;
    }
    seccomp::refuse(&[(libc::SYS_io_uring_setup, libc::EPERM)]).expect("a filter");
    assert_eq!(available_drivers(), [DriverPreference::Epoll]);
    let used = std::cell::RefCell::new(Vec::new());
    on_all_backends(&writable(), |server| {
        assert_eq!(server.put("/a", b"content").status, 201);
        assert_eq!(server.get("/a").body, b"content");
        used.borrow_mut().push(server.name);
    });
    assert_eq!(used.borrow()[..2], ["epoll", "simulator"]);
}
