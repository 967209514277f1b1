//! A coroutine that overflows its stack ends the process and prints its name. Each test runs itself
//! in a child process, which dies.

use crate::common::{KERNEL, choice, contract};
use onrush_coroutine::{self as coroutine, Config, Coroutine, thread, wait};
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use testing::{child, watchdog};

const CHILD: &str = "ONRUSH_TEST_CHILD";

/// Runs `act` on `driver` in a child process. Returns its output and exit status.
fn in_child(name: &'static str, driver: &str, act: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        act();
        return None;
    }
    let output = child::only(module_path!(), name)
        .env(CHILD, name)
        .env("ONRUSH_DRIVER", driver)
        .env("ONRUSH_WORKERS", "1")
        .output()
        .expect("started");
    Some(output)
}

fn drivers() -> impl Iterator<Item = &'static str> {
    let choices = KERNEL.into_iter().filter_map(choice);
    choices.map(|choice| choice.name())
}

#[inline(never)]
fn endless(levels: u64) -> u64 {
    let mut frame = [levels; 64];
    std::hint::black_box(&mut frame);
    if levels == u64::MAX {
        return 0;
    }
    endless(levels + 1) + frame[levels as usize % 64]
}

fn config() -> Config {
    Config {
        stack_bytes: 64 << 10,
        ..Config::from_env().expect("a valid environment")
    }
}

/// The child was killed by `SIGSEGV`, and this was its last output.
fn died(output: &Output, said: &str) {
    let complained = child::shown(output);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{complained}");
    assert!(complained.contains(said), "{complained}");
}

#[test]
fn overflow_in_the_main_function() {
    let _dog = watchdog("overflow_in_the_main_function");
    fn overflows() -> std::io::Result<()> {
        thread::sleep(std::time::Duration::from_millis(1));
        println!("{}", endless(0));
        Ok(())
    }
    for driver in drivers() {
        let run = || coroutine::run(contract(), config(), overflows).expect("not reached");
        let Some(output) = in_child("overflow_in_the_main_function", driver, run) else {
            return;
        };
        died(
            &output,
            "::overflows' has overflowed its stack of 65536 bytes",
        );
    }
}

#[test]
fn overflow_in_a_nested_named_coroutine() {
    let _dog = watchdog("overflow_in_a_nested_named_coroutine");
    let run = || {
        let main = || {
            let inner = || wait(Coroutine::named(contract(), "the inner one", || endless(0)));
            let outer = thread::Builder::new()
                .name("the outer one".to_owned())
                .spawn(inner);
            println!("{:?}", outer?.join());
            Ok(())
        };
        coroutine::run(contract(), config(), main).expect("not reached");
    };
    for driver in drivers() {
        let Some(output) = in_child("overflow_in_a_nested_named_coroutine", driver, run) else {
            return;
        };
        died(
            &output,
            "coroutine 'the inner one' has overflowed its stack of 65536 bytes",
        );
        assert!(!child::shown(&output).contains("the outer one"));
    }
}

/// Also while the coroutine is unwound, and in a future that it waits for.
#[test]
fn overflow_in_a_destructor_and_in_a_future() {
    let _dog = watchdog("overflow_in_a_destructor_and_in_a_future");
    struct Overflows;
    impl Drop for Overflows {
        fn drop(&mut self) {
            println!("{}", endless(0));
        }
    }
    let run = || {
        let main = || {
            let mut sleeps = Box::pin(Coroutine::named(contract(), "dropped", || {
                let _overflows = Overflows;
                wait(std::future::pending::<()>());
            }));
            wait(std::future::poll_fn(|cx| {
                assert!(sleeps.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            }));
            Ok(())
        };
        coroutine::run(contract(), config(), main).expect("not reached");
    };
    let Some(output) = in_child("overflow_in_a_destructor_and_in_a_future", "auto", run) else {
        return;
    };
    died(&output, "coroutine 'dropped' has overflowed");
}

/// A thread that Rust did not start has no alternate stack until the runtime installs one.
#[test]
fn overflow_on_a_thread_without_an_alternate_stack() {
    let _dog = watchdog("overflow_on_a_thread_without_an_alternate_stack");
    let run = || {
        let none = libc::stack_t {
            ss_sp: std::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        // SAFETY: this removes the alternate stack, on which no code runs.
        #[allow(unsafe_code)]
        let taken = unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) };
        assert_eq!(taken, 0);
        coroutine::scope(|| {
            let mut coroutine = Coroutine::named(contract(), "alone", || endless(0));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            println!("{:?}", std::pin::Pin::new(&mut coroutine).poll(&mut cx));
        });
    };
    let Some(output) = in_child(
        "overflow_on_a_thread_without_an_alternate_stack",
        "auto",
        run,
    ) else {
        return;
    };
    died(
        &output,
        "coroutine 'alone' has overflowed its stack of 262144 bytes",
    );
}

/// The earlier signal handler still runs: Rust's handler reports threads that overflow.
#[test]
fn overflow_outside_coroutines_reaches_the_earlier_handler() {
    let _dog = watchdog("overflow_outside_coroutines_reaches_the_earlier_handler");
    let run = || {
        let main = || {
            let thread = std::thread::Builder::new().name("a thread".to_owned());
            println!("{:?}", thread.spawn(|| endless(0))?.join());
            Ok(())
        };
        coroutine::run(contract(), config(), main).expect("not reached");
    };
    let Some(output) = in_child(
        "overflow_outside_coroutines_reaches_the_earlier_handler",
        "auto",
        run,
    ) else {
        return;
    };
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.signal().is_some(), "{complained}");
    assert!(complained.contains("thread 'a thread'"), "{complained}");
    assert!(!complained.contains("coroutine '"), "{complained}");
}

#[test]
fn other_faults_are_not_reported_as_overflow() {
    let _dog = watchdog("other_faults_are_not_reported_as_overflow");
    let run = || {
        let main = || {
            // SAFETY: none. This access must fault.
            #[allow(unsafe_code)]
            let byte = unsafe { std::ptr::without_provenance::<u8>(64).read_volatile() };
            println!("{byte}");
            Ok(())
        };
        coroutine::run(contract(), config(), main).expect("not reached");
    };
    let Some(output) = in_child("other_faults_are_not_reported_as_overflow", "auto", run) else {
        return;
    };
    died(&output, "");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("overflowed"));
}
