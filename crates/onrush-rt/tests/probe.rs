//! The driver that is chosen if io_uring is refused, and the reported reason.

use crate::common::in_child;
use onrush_rt::driver::{Config, Preference, choose};
use testing::seccomp;

/// Under a filter that refuses io_uring with `errno`, the reason must contain `says`.
fn refused_with(errno: i32, says: &[&str]) {
    seccomp::refuse(&[(libc::SYS_io_uring_setup, errno)]).expect("a filter");
    let config = Config::default();
    let auto = choose(Preference::Auto, &config).expect("epoll always works");
    assert_eq!(auto.name(), "epoll");
    let insisting = choose(Preference::Uring, &config).expect_err("io_uring is refused");
    for word in says {
        assert!(auto.reason().contains(word), "{}", auto.reason());
        assert!(insisting.to_string().contains(word), "{insisting}");
    }
    assert_eq!(auto.reason(), insisting.to_string());
    assert_eq!(auto.build(&config).expect("built").name(), "epoll");
}

#[test]
fn seccomp_filter_of_a_container() {
    in_child(module_path!(), "seccomp_filter_of_a_container", || {
        refused_with(libc::EPERM, &["io_uring is refused", "seccomp"]);
    });
}

#[test]
fn kernel_without_io_uring() {
    in_child(module_path!(), "kernel_without_io_uring", || {
        refused_with(libc::ENOSYS, &["io_uring is refused", "has no io_uring"]);
    });
}

/// Some filters permit creating a ring but not using it. io_uring is refused then, too.
#[test]
fn ring_that_may_not_be_entered() {
    in_child(module_path!(), "ring_that_may_not_be_entered", || {
        seccomp::refuse(&[(libc::SYS_io_uring_enter, libc::EPERM)]).expect("a filter");
        let auto = choose(Preference::Auto, &Config::default()).expect("epoll always works");
        assert_eq!(auto.name(), "epoll");
        assert!(auto.reason().contains("io_uring is refused"));
    });
}

#[test]
fn ring_that_may_not_register_buffers() {
    in_child(module_path!(), "ring_that_may_not_register_buffers", || {
        seccomp::refuse(&[(libc::SYS_io_uring_register, libc::EACCES)]).expect("a filter");
        let auto = choose(Preference::Auto, &Config::default()).expect("epoll always works");
        assert_eq!(auto.name(), "epoll");
    });
}
