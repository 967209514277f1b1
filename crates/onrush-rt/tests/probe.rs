//! Which driver is chosen where io_uring is refused, and what is said about it.

mod common;

use common::{in_child, seccomp};
use onrush_rt::driver::{Config, Preference, choose};

/// Under a filter that refuses io_uring with `errno`, `says` must be among the reasons.
fn refused_with(errno: i32, says: &[&str]) {
    seccomp::refuse(&[(libc::SYS_io_uring_setup, errno)]).expect("a filter");
    let config = Config::default();
    let auto = choose(Preference::Auto, &config).expect("epoll always works");
    assert_eq!(auto.name(), "epoll");
    let insisting = choose(Preference::Uring, &config).expect_err("it is refused");
    for word in says {
        assert!(auto.reason().contains(word), "{}", auto.reason());
        assert!(insisting.to_string().contains(word), "{insisting}");
    }
    assert_eq!(auto.reason(), insisting.to_string());
    assert_eq!(auto.build(&config).expect("built").name(), "epoll");
}

#[test]
fn a_seccomp_filter_as_containers_have_it() {
    in_child("a_seccomp_filter_as_containers_have_it", || {
        refused_with(libc::EPERM, &["io_uring is refused", "seccomp"]);
    });
}

#[test]
fn a_kernel_that_does_not_know_it() {
    in_child("a_kernel_that_does_not_know_it", || {
        refused_with(libc::ENOSYS, &["io_uring is refused", "has no io_uring"]);
    });
}

/// Some filters let a ring be made and forbid to use it: then it does not work either.
#[test]
fn a_ring_that_may_not_be_entered() {
    in_child("a_ring_that_may_not_be_entered", || {
        seccomp::refuse(&[(libc::SYS_io_uring_enter, libc::EPERM)]).expect("a filter");
        let auto = choose(Preference::Auto, &Config::default()).expect("epoll always works");
        assert_eq!(auto.name(), "epoll");
        assert!(auto.reason().contains("io_uring is refused"));
    });
}

#[test]
fn a_ring_that_may_not_be_registered_with() {
    in_child("a_ring_that_may_not_be_registered_with", || {
        seccomp::refuse(&[(libc::SYS_io_uring_register, libc::EACCES)]).expect("a filter");
        let auto = choose(Preference::Auto, &Config::default()).expect("epoll always works");
        assert_eq!(auto.name(), "epoll");
    });
}
