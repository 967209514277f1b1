//! The pages of docs/recipes about data, images and states.

use super::{recipes, recipes_with, tools};
use crate::program::pattern;

#[test]
#[ignore = "nightly"] // large packages of Python
fn python_reads_tables_arrays_and_images() {
    let python = [tools().join("python/data/bin")];
    for mut recipe in recipes_with("data", &["curl", "dask", "rio"], &python) {
        let title = recipe.title();
        recipe.step();
        recipe.step();
        let tables = recipe.step();
        let url = format!("{}/tables/", recipe.server().url);
        let expected = format!(
            "['{url}cities.csv', '{url}cities.parquet']\nb'id,city\\n'\n4999950000\nLyon\n25000\n"
        );
        assert_eq!(tables, expected, "{title}");
        assert_eq!(recipe.step(), "3020.0 89999.0\n", "{title}");
        // Other names with a dot stay hidden.
        recipe.folder().file("data/grid.zarr/.git", "secret");
        let url = &recipe.server().url;
        let hidden = format!("curl --silent --output hidden {url}/grid.zarr/.git\n");
        recipe.run(&hidden);
        assert_eq!(
            recipe.read("hidden"),
            b"there is no such object\n",
            "{title}"
        );
        recipe.step();
        assert_eq!(recipe.step(), "True\n", "{title}");
        let log = recipe.server().logs("GDAL");
        let whole = |line: &str| line.contains("GDAL") && line.contains("status=200 ");
        let images = log
            .lines()
            .filter(|line| whole(line) && line.contains("method=GET"));
        assert_eq!(
            images.filter(|line| line.contains("map.tif")).count(),
            0,
            "{title}: {log}"
        );
        recipe.step();
        assert_eq!(recipe.step(), "b'id,city'\n['new/b.txt']\n", "{title}");
        assert!(
            !recipe.folder().path().join("data/new/b.txt").exists(),
            "{title}"
        );
        recipe.finish();
        // The space of the disk, for those who may write.
        let free = "python - <<'END'\nfrom webdav3.client import Client\n\
                    client = Client({'webdav_hostname': 'http://127.0.0.1:8080/'})\n\
                    print(client.free() > 0)\nEND\n";
        assert_eq!(recipe.run(free), "True\n", "{title}");
    }
}

#[test]
#[ignore = "nightly"] // zsync, zchunk
fn zsync_and_zchunk_fetch_what_has_changed() {
    for mut recipe in recipes("zsync", &["zsync", "zsyncmake", "zck", "zckdl"]) {
        let title = recipe.title();
        let old = pattern(1, 4 << 20);
        let mut new = old.clone();
        for at in [300_000, 2_000_000, 3_900_000] {
            new[at..at + 1000].fill(b'x');
        }
        recipe.folder().file("old.img", &old);
        recipe.folder().file("www/new.img", &new);
        for _ in ["checksums", "serve", "fetch"] {
            recipe.step();
        }
        assert!(recipe.read("image") == new, "{title}");
        recipe.step();
        assert!(
            recipe.read("data.zck") == recipe.read("www/data.zck"),
            "{title}"
        );
        recipe.finish();
        let log = recipe.server().logs("/data.zck");
        let of_chunks = || log.lines().filter(|line| line.contains("/data.zck"));
        let sent = of_chunks().filter_map(|line| {
            let (_, rest) = line.split_once("body_bytes=")?;
            rest.split(' ').next()?.parse::<usize>().ok()
        });
        let sent: usize = sent.sum();
        assert!(sent < new.len() / 2, "{title}: {sent} of {}", new.len());
        assert!(
            of_chunks().all(|line| line.contains("status=206 ")),
            "{title}: {log}"
        );
    }
}

#[test]
#[ignore = "nightly"] // nbdkit, QEMU
fn nbdkit_and_qemu_read_images() {
    let programs = ["nbdkit", "nbdcopy", "qemu-img", "qemu-io"];
    for mut recipe in recipes("disk-images", &programs) {
        let title = recipe.title();
        let mut disk = pattern(1, 16 << 20);
        disk[4 << 20..8 << 20].fill(0);
        recipe.folder().file("images/disk.raw", &disk);
        recipe.run("qemu-img convert -q -f raw -O qcow2 images/disk.raw images/disk.qcow2\n");
        for _ in ["serve", "copy", "convert"] {
            recipe.step();
        }
        assert!(recipe.read("copy.raw") == disk, "{title}");
        assert!(recipe.read("converted.raw") == disk, "{title}");
        let original = recipe.read("images/disk.qcow2");
        recipe.finish();
        assert!(recipe.read("images/disk.qcow2") == original, "{title}");
        recipe.server().logs("status=206");
    }
}

#[test]
#[ignore = "nightly"] // OpenTofu
fn opentofu_locks_and_updates_a_state() {
    let tofu = [tools().join("bin")];
    for mut recipe in recipes_with("terraform", &["tofu", "curl"], &tofu) {
        let title = recipe.title();
        recipe.step();
        recipe.step();
        let applied = recipe.step();
        assert!(applied.ends_with("\nhello"), "{title}: {applied}");
        recipe.finish();
        let state = recipe.read("states/infra/prod.tfstate");
        assert!(
            String::from_utf8_lossy(&state).contains("\"hello\""),
            "{title}"
        );
        // Another client has the lock: nothing changes, and the message names it.
        let url = "http://127.0.0.1:8080/infra/prod.tfstate";
        let info = r#"{"ID":"held","Who":"bob@host","Created":"2026-11-28T00:00:00Z"}"#;
        let lock =
            format!("curl -fsS -X LOCK -H 'Content-Type: application/json' -d '{info}' {url}\n");
        recipe.run(&lock);
        // The server starts again meanwhile.
        recipe.run("onrush ./states --terraform-state --allow put\n");
        let apply = "tofu init -input=false -reconfigure >/dev/null\n\
                     tofu apply -no-color -input=false -auto-approve 2>said && exit 1\n\
                     cat said\n";
        let main = String::from_utf8(recipe.read("main.tf")).expect("UTF-8");
        let address = recipe.server().address().to_string();
        let (_, old) = main.split_once("http://").expect("an address");
        let (old, _) = old.split_once('/').expect("a path");
        let main = main.replace(old, &address);
        recipe.folder().file("main.tf", main);
        let said = recipe.run(apply);
        assert!(
            said.contains("held") && said.contains("bob@host"),
            "{title}: {said}"
        );
        assert!(recipe.read("states/infra/prod.tfstate") == state, "{title}");
        recipe.run("tofu force-unlock -no-color -force held\n");
        recipe.run("tofu destroy -no-color -input=false -auto-approve\n");
        assert!(recipe.read("states/infra/prod.tfstate") != state, "{title}");
        let log = recipe.server().logs("method=UNLOCK");
        assert!(log.contains("prod.tfstate?ID="), "{title}: {log}");
    }
}
