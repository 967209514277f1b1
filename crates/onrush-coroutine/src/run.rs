//! Runs a thread-style program on workers: its main function is a coroutine on each of them.

use super::contract::Contract;
use super::ports::{self, Ports};
use super::scope::scope;
use super::stack::StackOptions;
use super::switch::Coroutine;
use super::thread_stacks::configure;
use onrush_rt::blocking;
use onrush_rt::driver::{self, Choice, Preference, choose};
use onrush_rt::environment::Environment;
use onrush_rt::worker::{Notifier, Pools, Worker, affinity, pin_to};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Configuration of [`run`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Address space of a coroutine's stack, in bytes; see [`StackOptions::stack_bytes`]. Default:
    /// 256 KiB.
    pub stack_bytes: usize,
    /// The number of workers; each runs the main function. Default: 1. With more, coroutines of
    /// different workers share only ports.
    pub workers: usize,
    /// The driver. Default: the better one of those that work here.
    pub driver: Preference,
    /// Whether each worker is pinned to a core, if there are enough cores. Default: yes.
    pub pinned: bool,
    /// The maximum number of threads for file operations and name lookups of all workers. Default:
    /// 16.
    pub blocking_threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            stack_bytes: StackOptions::default().stack_bytes,
            workers: 1,
            driver: Preference::Auto,
            pinned: true,
            blocking_threads: 16,
        }
    }
}

impl Config {
    /// The default, with `ONRUSH_WORKERS` and `ONRUSH_DRIVER` if they are set. Fails if one of them
    /// is invalid.
    pub fn from_env() -> io::Result<Config> {
        let environment = Environment::read()?;
        let default = Config::default();
        Ok(Config {
            workers: environment.workers.unwrap_or(default.workers),
            driver: environment.driver.unwrap_or(default.driver),
            ..default
        })
    }
}

/// Runs `main`, which fulfils `contract`, as a coroutine on each worker, and returns when it has
/// returned on all of them.
///
/// When `main` returns on a worker, the other coroutines there are unwound, as the threads of a
/// process end with its main function. The first error or panic ends the other workers, too, and is
/// returned.
///
/// ```
/// use onrush_coroutine::{self as coroutine, Config, Contract, thread};
/// use std::time::Duration;
///
/// let config = Config { stack_bytes: 64 << 10, ..Config::default() };
/// // SAFETY: the program does not use thread-locals, scopes or libraries.
/// let contract = unsafe { Contract::accept() };
/// coroutine::run(contract, config, || {
///     let other = thread::spawn(|| thread::sleep(Duration::from_millis(1)));
///     other.join().expect("it does not panic");
///     Ok(())
/// })
/// # .unwrap();
/// ```
pub fn run(
    contract: Contract,
    config: Config,
    main: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<()> {
    let workers = config.workers.max(1);
    let cores = affinity();
    let program = Arc::new(Program {
        contract,
        choice: choose(config.driver, &driver::Config::default())?,
        pools: Pools {
            blocking: blocking::BlockingPool::threads(config.blocking_threads.max(1), 4096),
            ..Pools::default()
        },
        ports: Arc::new(Ports::new(workers)),
        is_ending: AtomicBool::new(false),
        notifiers: Mutex::default(),
        main,
    });
    let mut threads = Vec::new();
    let mut result = Ok(());
    for index in 0..workers {
        let core = (config.pinned && workers <= cores.len()).then(|| cores[index]);
        let (program_there, stack_bytes) = (program.clone(), config.stack_bytes);
        let thread = thread::Builder::new().name(format!("onrush-{index}"));
        match thread.spawn(move || program_there.work(index, core, stack_bytes)) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                result = Err(error);
                program.end();
                break;
            }
        }
    }
    for thread in threads {
        let panicked = |_| Err(io::Error::other("a worker panicked"));
        result = result.and(thread.join().unwrap_or_else(panicked));
    }
    result
}

struct Program<Main> {
    contract: Contract,
    choice: Choice,
    pools: Pools,
    ports: Arc<Ports>,
    is_ending: AtomicBool,
    notifiers: Mutex<Vec<Notifier>>,
    main: Main,
}

impl<Main: Fn() -> io::Result<()> + Send + Sync + 'static> Program<Main> {
    fn work(
        self: Arc<Self>,
        index: usize,
        core: Option<usize>,
        stack_bytes: usize,
    ) -> io::Result<()> {
        if let Some(core) = core {
            let _ = pin_to(core); // If that is forbidden, it only costs time.
        }
        configure(&StackOptions {
            stack_bytes,
            ..StackOptions::default()
        });
        ports::share(self.ports.clone());
        // Around the whole life of the worker, so that the coroutines it drops are unwound.
        let result = scope(|| self.clone().run_worker(index));
        if result.is_err() {
            self.end();
        }
        result
    }

    fn run_worker(self: Arc<Self>, index: usize) -> io::Result<()> {
        let config = driver::Config::default();
        let mut worker = Worker::new(&self.choice, &config, self.pools.clone(), index)?;
        self.notifiers().push(worker.notifier());
        let program = self.clone();
        let name = std::any::type_name::<Main>();
        let main = Coroutine::try_named(self.contract, name, move || (program.main)())?;
        let mut main = worker.context().spawn(main).fallible();
        while !main.is_finished() {
            if self.is_ending.load(Ordering::Acquire) {
                return Ok(()); // The worker that ended it reports the error.
            }
            worker.poll(&(), true)?;
        }
        let ended = worker.block_on(&mut main)?;
        ended.unwrap_or_else(|| Err(io::Error::other("the main function panicked")))
    }

    fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.notifiers().iter().for_each(Notifier::notify);
    }

    fn notifiers(&self) -> std::sync::MutexGuard<'_, Vec<Notifier>> {
        self.notifiers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
