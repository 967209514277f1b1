//! Measures what the store costs on this machine: `cargo run --release --example measure [DIR]`.
//! Prints one line for each measurement: the median and the 99th percentile of single operations.

use onrush_rt::blocking::BlockingPool;
use onrush_store::testing::block_on;
use onrush_store::*;
use std::path::PathBuf;
use std::time::Instant;

fn measure(what: &str, times: usize, mut each: impl FnMut(usize)) {
    let mut took: Vec<u64> = (0..times)
        .map(|i| {
            let start = Instant::now();
            each(i);
            start.elapsed().as_nanos() as u64
        })
        .collect();
    took.sort_unstable();
    let us = |ns: u64| ns as f64 / 1000.0;
    println!(
        "{what:44} {:10.1} µs {:10.1} µs",
        us(took[times / 2]),
        us(took[times * 99 / 100])
    );
}

fn put(folder: &Folder, key: &Key, body: &[u8]) {
    block_on(async {
        let mut upload = folder
            .stage(key, Condition::None, Some(body.len() as u64))
            .await
            .unwrap();
        let mut buf = Vec::with_capacity(65_536);
        for piece in body.chunks(65_536) {
            buf.extend_from_slice(piece);
            buf = upload.write(buf).await.unwrap();
        }
        upload.commit().await.unwrap();
    });
}

fn main() {
    let scratch = std::env::temp_dir().join(format!("onrush-measure-{}", std::process::id()));
    let dir = std::env::args_os().nth(1).map_or(scratch, PathBuf::from);
    let pool = BlockingPool::threads(4, 256);
    let options = FolderOptions::default();
    let full = Folder::open(&dir, pool.clone(), options).unwrap();
    let options = FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    };
    let quick = Folder::open(&dir, pool.clone(), options).unwrap();
    let small = Key::parse(b"some/folder/small").unwrap();
    let large = Key::parse(b"some/folder/large").unwrap();
    let (kib, mib64) = (vec![7; 1024], vec![7; 64 << 20]);

    measure("pool: a job there and back", 20_000, |_| {
        block_on(pool.run(|| ())).unwrap()
    });
    measure("put 1 KiB, no sync", 5000, |_| put(&quick, &small, &kib));
    measure("put 1 KiB, no sync, new keys", 5000, |i| {
        put(
            &quick,
            &Key::parse(format!("many/{i}").as_bytes()).unwrap(),
            &kib,
        );
    });
    measure("put 1 KiB, durable", 300, |_| put(&full, &small, &kib));
    measure("put 64 MiB, no sync", 5, |_| put(&quick, &large, &mib64));
    measure("put 64 MiB, durable", 5, |_| put(&full, &large, &mib64));
    measure("open now", 20_000, |_| {
        drop(full.try_get(&small).unwrap().unwrap())
    });
    let none = Key::parse(b"some/folder/none").unwrap();
    measure("get, absent", 20_000, |_| {
        assert!(block_on(full.get(&none)).is_err())
    });
    measure("key from bytes", 20_000, |_| {
        drop(Key::parse(b"some/folder/none").unwrap())
    });
    let mut buf = [0; 1024];
    measure("open now and read 1 KiB now", 20_000, |_| {
        let object = full.try_get(&small).unwrap().unwrap();
        assert_eq!(
            object.local().unwrap().try_read(0, &mut buf),
            Some(Ok(1024))
        );
    });
    let object = block_on(full.get(&large)).unwrap();
    let file = object.local().unwrap().file();
    measure("is 64 MiB resident", 2000, |_| {
        assert!(file.is_resident(0, 64 << 20))
    });
    measure("is 64 KiB resident", 2000, |_| {
        assert!(file.is_resident(0, 64 << 10))
    });

    let hundred = dir.join("hundred");
    std::fs::create_dir_all(&hundred).unwrap();
    for i in 0..100_000u64 {
        let name = format!("{:016x}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        std::fs::write(hundred.join(name), b"").unwrap();
    }
    let hundred = Key::parse(b"hundred").unwrap();
    let how = |limit| ListHow {
        limit,
        ..ListHow::default()
    };
    measure("list 100,000: the first 1000", 20, |_| {
        assert_eq!(
            block_on(full.list(Some(&hundred), how(1000)))
                .unwrap()
                .entries
                .len(),
            1000
        );
    });
    measure("list 100,000: the first 100", 20, |_| {
        assert_eq!(
            block_on(full.list(Some(&hundred), how(100)))
                .unwrap()
                .entries
                .len(),
            100
        );
    });
    measure("list 100,000: the first 10,000", 20, |_| {
        assert_eq!(
            block_on(full.list(Some(&hundred), how(10_000)))
                .unwrap()
                .entries
                .len(),
            10_000
        );
    });
    if std::env::args_os().len() == 1 {
        std::fs::remove_dir_all(dir).unwrap();
    }
}
