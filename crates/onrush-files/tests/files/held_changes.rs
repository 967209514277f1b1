//! What happens while a change is held in the middle of it: its client disconnects, or another one
//! changes something.

use crate::common::hooked::{Call, Hooked, Hooks};
use crate::common::*;
use onrush::DriverPreference;
use onrush_files::{Allow, FilesOptions};
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Where changes wait, after the store has made them and before they end.
#[derive(Debug, Default)]
struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    /// The task of the change that waits.
    waiting: Option<Waker>,
    /// Another task has continued it.
    is_moved: bool,
    is_dropped: bool,
    ended: usize,
    /// The next upload that is committed seems to fail: an earlier attempt was successful.
    is_lost: bool,
}

impl Gate {
    fn with<T>(&self, see: impl FnOnce(&mut State) -> T) -> T {
        see(&mut self.0.lock().unwrap())
    }

    async fn pass(self: Arc<Gate>) {
        let end = End(self.clone());
        poll_fn(|cx| {
            self.with(|state| {
                if state.is_open {
                    return Poll::Ready(());
                }
                let before = state.waiting.replace(cx.waker().clone());
                state.is_moved |= before.is_some_and(|before| !before.will_wake(cx.waker()));
                Poll::Pending
            })
        })
        .await;
        self.with(|state| state.ended += 1);
        std::mem::forget(end);
    }

    fn open(&self) {
        let waiting = self.with(|state| {
            state.is_open = true;
            state.waiting.take()
        });
        waiting.expect("a change").wake();
    }

    fn wait_until(&self, holds: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        while !self.with(|state| holds(state)) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{self:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Dropped only with a change that has not ended.
struct End(Arc<Gate>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.with(|state| state.is_dropped = true);
    }
}

struct GatedUpload(Box<dyn Upload>, Arc<Gate>);

impl Upload for GatedUpload {
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        self.0.write(buf)
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        self.0.set_metadata(metadata)
    }

    fn written_bytes(&self) -> u64 {
        self.0.written_bytes()
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        Box::pin(async move {
            let committed = self.0.commit().await;
            self.1.clone().pass().await;
            match self.1.with(|state| std::mem::take(&mut state.is_lost)) {
                true => Err(StoreError::PreconditionFailed),
                false => committed,
            }
        })
    }
}

/// Changes wait at the gate, after they were made.
impl Hooks for Arc<Gate> {
    fn after(&self, call: Call) -> LocalFuture<'_, ()> {
        match call {
            Call::Delete | Call::CreateFolder | Call::ReplaceProperties => {
                Box::pin(self.clone().pass())
            }
            Call::ExistingObject | Call::SyncPartial | Call::ListOwn => Box::pin(async {}),
        }
    }

    fn staged(&self, upload: Box<dyn Upload>) -> Box<dyn Upload> {
        Box::new(GatedUpload(upload, self.clone()))
    }
}

const FORM: &str =
    "--b\r\nContent-Disposition: form-data; name=f; filename=new\r\n\r\nx\r\n--b--\r\n";
const PATCH: &str = "<D:propertyupdate xmlns:D=\"DAV:\"><D:set><D:prop><x>1</x></D:prop></D:set>\
                     </D:propertyupdate>";
const LOCK: &str = "<D:lockinfo xmlns:D=\"DAV:\"><D:lockscope><D:exclusive/></D:lockscope>\
                    <D:locktype><D:write/></D:locktype></D:lockinfo>";

/// A server with the objects `/f/old` and `/f/sub/old`, whose changes wait at a gate.
struct Held {
    dir: TempDir,
    gate: Arc<Gate>,
    server: TestServer,
}

impl Held {
    fn new(options: &FilesOptions, driver: DriverPreference) -> Held {
        let dir = TempDir::new();
        std::fs::create_dir_all(dir.path().join("f/sub")).unwrap();
        std::fs::write(dir.path().join("f/old"), "old").unwrap();
        std::fs::write(dir.path().join("f/sub/old"), "old").unwrap();
        let folder = FolderOptions {
            keep_properties: options.webdav,
            ..FolderOptions::default()
        };
        let pool = BlockingPool::threads(2, 64);
        let gate = Arc::new(Gate::default());
        let store = Arc::new(Hooked {
            folder: Folder::open(dir.path(), pool, folder).expect("a folder"),
            hooks: gate.clone(),
        });
        let server = TestServer::on_store(store, options, driver);
        Held { dir, gate, server }
    }

    /// Sends a change, and returns when it waits at the gate.
    fn begin(&mut self, head: &str, body: &str) -> Connection {
        let mut connection = self.server.connect();
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\
             {fields}\r\n{body}"
        );
        self.server.send(&mut connection, head.as_bytes());
        self.gate.wait_until(|state| state.waiting.is_some());
        connection
    }

    /// Lets the client of the change that waits disconnect, and returns when the server knows that.
    fn lose(&mut self, connection: Connection) {
        self.server.abort(connection);
        self.gate
            .wait_until(|state| state.is_moved || state.is_dropped);
    }
}

#[test]
fn a_change_runs_to_its_end_without_its_client() {
    for (head, body) in [
        ("PUT /f/new", "x"),
        ("PUT /f/old", "x"),
        ("PUT /f/new/", ""),
        ("DELETE /f/old", ""),
        (
            "POST /f/\nContent-Type: multipart/form-data; boundary=b\r\n",
            FORM,
        ),
    ] {
        for driver in drivers() {
            let mut held = Held::new(&writable(), driver);
            let connection = held.begin(head, body);
            held.lose(connection);
            held.gate.open();
            held.gate
                .wait_until(|state| state.ended == 1 || state.is_dropped);
            held.gate.with(|state| assert!(!state.is_dropped, "{head}"));
        }
    }
}

#[test]
fn no_lock_is_granted_while_a_change_without_its_client_goes_on() {
    let options = FilesOptions {
        webdav: true,
        ..writable()
    };
    for (head, body) in [
        ("PUT /f/new", "x"),
        ("PUT /f/old", "x"),
        ("MKCOL /f/new", ""),
        ("DELETE /f/old", ""),
        ("PROPPATCH /f/old", PATCH),
        (
            "POST /f/\nContent-Type: multipart/form-data; boundary=b\r\n",
            FORM,
        ),
    ] {
        for driver in drivers() {
            let mut held = Held::new(&options, driver);
            let connection = held.begin(head, body);
            held.lose(connection);
            let lock = |held: &mut Held| held.server.request("LOCK /f", LOCK.as_bytes()).status;
            assert_eq!(lock(&mut held), 423, "{head}");
            held.gate.open();
            held.gate.wait_until(|state| state.ended == 1);
            let begun = Instant::now();
            while lock(&mut held) == 423 {
                assert!(begun.elapsed() < Duration::from_secs(30), "{head}");
            }
        }
    }
}

/// While a folder is copied, another client creates an object and a folder at the destination.
#[test]
fn a_copy_of_a_folder_replaces_nothing_that_others_create_meanwhile() {
    for (overwrite, is_kept) in [("F", true), ("T", false)] {
        for driver in drivers() {
            let mut held = Held::new(&writable(), driver);
            let head = format!("COPY /f/\nDestination: /g/\r\nOverwrite: {overwrite}\r\n");
            let mut connection = held.begin(&head, "");
            let (file, folder) = (held.dir.path().join("g/old"), held.dir.path().join("g/sub"));
            std::fs::write(&file, "other").unwrap();
            std::fs::create_dir(&folder).unwrap();
            held.gate.open();
            let response = held.server.receive(&mut connection);
            let reply = Reply::parse(&response, false);
            let kept = std::fs::read(&file).unwrap();
            assert_eq!(kept == b"other", is_kept, "{overwrite}: {}", reply.text());
            assert_eq!(folder.join("old").exists(), !is_kept, "{overwrite}");
            assert_eq!(reply.status, if is_kept { 207 } else { 201 });
            if is_kept {
                assert_eq!(reply.text().matches(" 412 ").count(), 2, "{}", reply.text());
            }
        }
    }
}

fn held_with_destination(driver: DriverPreference) -> Held {
    let mut options = writable();
    options.allow.delete_folders = true;
    let held = Held::new(&options, driver);
    std::fs::create_dir_all(held.dir.path().join("g/sub")).unwrap();
    std::fs::write(held.dir.path().join("g/kept"), "kept").unwrap();
    held
}

/// A copy that replaces a folder is made elsewhere. Without its client it ends, and leaves the old
/// folder and nothing else.
#[test]
fn a_copy_onto_a_folder_ends_without_its_client() {
    for driver in drivers() {
        let mut held = held_with_destination(driver);
        let connection = held.begin("COPY /f/\nDestination: /g/\r\n", "");
        held.lose(connection);
        let read = |name: &str| std::fs::read(held.dir.path().join(name)).ok();
        assert_eq!(read("g/kept").as_deref(), Some(&b"kept"[..]));
        assert_eq!(read("g/old"), None);
        held.gate.open();
        assert_unstaged(held.dir.path());
        assert_eq!(read("g/kept").as_deref(), Some(&b"kept"[..]));
        assert_eq!(read("g/old"), None);
        for name in ["f/old", "f/sub/old"] {
            assert_eq!(read(name).as_deref(), Some(&b"old"[..]), "{name}");
        }
    }
}

/// Waits until no copy of a folder is left beside the objects.
fn assert_unstaged(dir: &std::path::Path) {
    let staging = dir.join(".onrush/staging");
    let begun = Instant::now();
    let is_left = || {
        let processes = std::fs::read_dir(&staging).unwrap().flatten();
        let mut entries = processes.flat_map(|process| std::fs::read_dir(process.path()));
        entries.any(|mut entries| entries.next().is_some())
    };
    while is_left() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same if the server ends meanwhile: the next start removes what was copied.
#[test]
fn a_copy_onto_a_folder_that_does_not_end_leaves_it() {
    for driver in drivers() {
        let mut held = held_with_destination(driver);
        let connection = held.begin("COPY /f/\nDestination: /g/\r\n", "");
        let Held { dir, gate, server } = held;
        drop((server, connection));
        assert!(gate.with(|state| state.is_dropped));
        let pool = BlockingPool::threads(1, 64);
        let folder = Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder");
        let read = |name: &str| std::fs::read(dir.path().join(name)).ok();
        assert_eq!(read("g/kept").as_deref(), Some(&b"kept"[..]));
        assert_eq!(read("f/sub/old").as_deref(), Some(&b"old"[..]));
        assert!(!dir.path().join("g/old").exists());
        assert_unstaged(dir.path());
        drop(folder);
    }
}

/// It ends with what is being changed, and says so to no one. The lock tells when it has ended.
#[test]
fn a_change_of_a_folder_ends_without_its_client() {
    let options = FilesOptions {
        webdav: true,
        allow: Allow {
            put: true,
            delete: true,
            delete_folders: true,
        },
        ..FilesOptions::default()
    };
    for head in ["DELETE /f/", "COPY /f/\nDestination: /g/\r\n"] {
        for driver in drivers() {
            let mut held = Held::new(&options, driver);
            let connection = held.begin(head, "");
            held.lose(connection);
            held.gate.open();
            let begun = Instant::now();
            for path in ["/f", "/g"] {
                let lock = format!("LOCK {path}\nDepth: 0");
                while held.server.request(&lock, LOCK.as_bytes()).status == 423 {
                    assert!(begun.elapsed() < Duration::from_secs(30), "{head}");
                }
            }
            let exists = |path: &str| held.dir.path().join(path).exists();
            assert!(exists("f/old") && exists("f/sub/old"), "{head}");
            assert!(!exists("g/old") && !exists("g/sub"), "{head}");
            held.gate.with(|state| assert!(!state.is_dropped, "{head}"));
        }
    }
}

/// The share of a client is that of the locks which it has: also after requests for one name at the
/// same time, and after one that seemed to fail.
#[test]
fn a_lock_of_a_state_has_the_share_of_the_request_that_made_it() {
    let options = FilesOptions {
        terraform_state: true,
        ..writable()
    };
    const JSON: &str = "Content-Type: application/json\r\n";
    for (is_lost, driver) in [true, false].into_iter().zip(drivers().into_iter().cycle()) {
        let mut held = Held::new(&options, driver);
        let folder = held.dir.path().join(".onrush/state/terraform");
        std::fs::create_dir_all(&folder).unwrap();
        for number in 1..=9_991 {
            std::fs::write(folder.join(number.to_string()), "x").unwrap(); // Of another server.
        }
        let change = |held: &mut Held, method: &str, name: &str, id: &str| {
            let head = format!("{method} /{name}.tfstate\n{JSON}");
            let info = format!("{{\"ID\":\"{id}\"}}");
            held.server.request(head.trim_end(), info.as_bytes()).status
        };
        held.gate
            .with(|state| (state.is_open, state.is_lost) = (true, is_lost));
        assert_eq!(change(&mut held, "LOCK", "a", "1"), 200);
        if !is_lost {
            // The lock is gone, and another one is there before the end of the request.
            held.gate.with(|state| state.is_open = false);
            let head = format!("UNLOCK /a.tfstate\n{JSON}");
            let mut unlock = held.begin(&head, "{\"ID\":\"1\"}");
            held.gate.with(|state| state.is_open = true);
            assert_eq!(change(&mut held, "LOCK", "a", "2"), 200);
            held.gate.open();
            let unlocked = Reply::parse(&held.server.receive(&mut unlock), false);
            assert_eq!(unlocked.status, 200);
        }
        // Of the nine that are left, this client may have four.
        for (name, status) in [("b", 200), ("c", 200), ("d", 200), ("e", 429)] {
            assert_eq!(
                change(&mut held, "LOCK", name, "3"),
                status,
                "{is_lost} {name}"
            );
        }
    }
}
