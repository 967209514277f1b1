//! Small durable PUTs per second with one sync per file and folder, and with shared syncs (group
//! commit): on a simulated disk whose sync takes 5 ms, and on the disk of this machine.

use crate::run::{Run, Target};
use crate::table::Table;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{SimFs, SyncTime};
use onrush_rt::fs::{Dir, OpenHow};
use onrush_store::{Condition, Folder, FolderOptions, Key, Store};
use std::{
    future::Future,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

const SYNC_TIME: Duration = Duration::from_millis(5);
const CONTENT: [u8; 1024] = [7; 1024];
/// As the server has by default.
const POOL_THREADS: usize = 16;

/// The disks: how their name is shown, and how they sync. The last one is real.
const DISKS: [(&str, Option<SyncTime>); 3] = [
    ("5 ms, one by one", Some(SyncTime::OneByOne(SYNC_TIME))),
    ("5 ms, joined", Some(SyncTime::Joined(SYNC_TIME))),
    ("this machine's", None),
];

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    let head = ["disk", "clients", "separate PUT/s", "shared PUT/s", "ratio"];
    let mut table = Table::new("Durable PUTs of 1 KiB", &head);
    let mut targets = Vec::new();
    for (name, sync_time) in DISKS {
        for clients in [1, 32] {
            if !run.includes(&format!("{name}, {clients}")) {
                continue;
            }
            runner::progress(&format!("commit · {name} · {clients} clients"));
            let disk = || open(run, sync_time);
            let separate = rate(run, clients, &separate(disk()?))?;
            let shared = rate(run, clients, &shared(disk()?)?)?;
            let ratio = shared / separate;
            let text = |number: f64| format!("{number:.0}");
            let cells = [text(separate), text(shared), format!("{ratio:.2}")];
            table.row(
                [name.to_owned(), clients.to_string()]
                    .into_iter()
                    .chain(cells),
            );
            let least = match (sync_time, clients) {
                (_, 1) => 0.97,
                (Some(SyncTime::OneByOne(_)), _) => 3.0,
                _ => continue,
            };
            targets.push(Target {
                what: format!("shared / separate ≥ {least}, {clients} clients, disk {name}"),
                found: format!("{ratio:.2}"),
                holds: Some(ratio >= least),
            });
        }
    }
    run.show("commit", &table)?;
    Ok(targets)
}

fn open(run: &Run, sync_time: Option<SyncTime>) -> Outcome<Dir> {
    let opened = match sync_time {
        Some(time) => {
            let disk = SimFs::new(1);
            disk.set_sync_time(time);
            disk.root()
        }
        None => Dir::open_root(&run.folder("commit")?),
    };
    opened.map_err(|error| format!("the disk cannot be opened: {error}"))
}

/// One PUT of the object with a number.
type Put<'p> = dyn Fn(u64) -> Outcome + Sync + 'p;

/// PUTs per second by so many clients.
fn rate(run: &Run, clients: usize, put: &Put<'_>) -> Outcome<f64> {
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let seconds = run.effort.of(0.2, 3.0, 10.0);
    let end = begun + Duration::from_secs_f64(seconds);
    let client = || -> Outcome {
        while Instant::now() < end {
            run.check_interrupt()?;
            // The objects of earlier PUTs are replaced, as in a cache that is full.
            put(next.fetch_add(1, Ordering::Relaxed) % 100)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err("a client has panicked".to_owned()))
        })
    })?;
    Ok(next.into_inner() as f64 / begun.elapsed().as_secs_f64())
}

/// Each PUT syncs its file and its folder, on the same pool as the store has.
fn separate(root: Dir) -> impl Fn(u64) -> Outcome + Sync {
    let (root, staged) = (Arc::new(root), AtomicU64::new(0));
    let pool = BlockingPool::threads(POOL_THREADS, 4096);
    move |number| {
        let name = format!("staged-{}", staged.fetch_add(1, Ordering::Relaxed));
        let root = root.clone();
        let put = move || -> io::Result<()> {
            let name = name.as_bytes();
            let file = root.open(name, OpenHow::create_new(0o644))?;
            file.write_all_at(&CONTENT, 0)?;
            file.set_modified(root.now_ns())?;
            file.sync()?;
            root.rename(name, &root, number.to_string().as_bytes(), false)?;
            root.sync()
        };
        let done = block_on(pool.run(put)).map_err(|_| "a PUT has panicked".to_owned())?;
        done.map_err(|error| format!("a PUT has failed: {error}"))
    }
}

/// Each PUT is one of the store.
fn shared(root: Dir) -> Outcome<impl Fn(u64) -> Outcome + Sync> {
    let pool = BlockingPool::threads(POOL_THREADS, 4096);
    let folder = Folder::on(root, pool, FolderOptions::default());
    let folder = folder.map_err(|error| format!("the store cannot be opened: {error}"))?;
    Ok(move |number: u64| {
        block_on(async {
            let key = Key::parse(number.to_string().as_bytes())?;
            let size = CONTENT.len() as u64;
            let mut upload = folder.stage(&key, Condition::None, Some(size)).await?;
            upload.write(CONTENT.to_vec()).await?;
            upload.commit().await.map(|_| ())
        })
        .map_err(|error| format!("a PUT has failed: {error}"))
    })
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_store_the_objects() {
        let disk = SimFs::new(1);
        let root = || disk.root().expect("a root");
        assert_eq!(separate(root())(7), Ok(()));
        assert_eq!(shared(root()).expect("a store")(8), Ok(()));
        disk.power_cut();
        disk.restart();
        for name in ["7", "8"] {
            assert_eq!(
                root()
                    .metadata(name.as_bytes())
                    .map(|found| found.size)
                    .ok(),
                Some(1024)
            );
        }
    }
}
