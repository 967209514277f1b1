//! Uploads that continue, in front of a bucket: on another server, after `kill -9`, and with the
//! limits of all servers together. The clients are curl, tuspy and connections of the test.

use crate::program::{
    Folder, SETUP, Server, TIMEOUT, curl, drivers, is_installed, onrush, output, pattern, tool,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testing_s3::{Bucket, KEY};

const SIZE: usize = 21_000_000;
const PATCH: &str = "Content-Type: application/partial-upload";

/// Adds the variables of a service.
fn service(mut command: Command, address: SocketAddr) -> Command {
    command.env("AWS_ENDPOINT_URL", format!("http://{address}"));
    command.env("AWS_ACCESS_KEY_ID", KEY.0);
    command.env("AWS_SECRET_ACCESS_KEY", KEY.1);
    command
}

fn start(bucket: &Bucket, arguments: &[&str]) -> Server {
    let mut command = service(onrush(), bucket.address);
    command.args(["s3://bucket/p", "--port", "0", "--allow", "put,delete"]);
    command.args(arguments);
    Server::run(command)
}

/// Sends the head of a request and the beginning of its body.
fn begin(server: &Server, head: &str, length: usize, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).expect("the server accepts");
    stream.set_read_timeout(Some(2 * TIMEOUT)).expect("set");
    let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
    let fields = fields.replace('\n', "\r\n");
    let end = if fields.is_empty() { "" } else { "\r\n" };
    let head = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\
         {fields}{end}\r\n"
    );
    stream.write_all(head.as_bytes()).expect("the server reads");
    stream.write_all(body).expect("the server reads");
    stream
}

fn response(mut stream: TcpStream) -> (u16, String) {
    let mut response = Vec::new();
    // The server may close the connection before it has read everything.
    let _ = stream.read_to_end(&mut response);
    let text = String::from_utf8_lossy(&response).into_owned();
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text)
}

fn request(server: &Server, head: &str, body: &[u8]) -> (u16, String) {
    response(begin(server, head, body.len(), body))
}

fn field(text: &str, name: &str) -> String {
    let lines = text.lines();
    let mut pairs = lines.filter_map(|line| line.split_once(": "));
    let found = pairs.find(|(found, _)| found.eq_ignore_ascii_case(name));
    found
        .unwrap_or_else(|| panic!("{name}: {text}"))
        .1
        .to_owned()
}

/// Begins an upload of the draft with its first bytes. Returns its URL.
fn create(server: &Server, path: &str, more: &str, first: &[u8]) -> String {
    let head = format!("PUT {path}\nUpload-Complete: ?0{more}");
    let (status, text) = request(server, &head, first);
    assert_eq!(status, 201, "{text}");
    field(&text, "location")
}

fn append(server: &Server, url: &str, at: usize, complete: u8, body: &[u8]) -> (u16, String) {
    request(server, &patch(url, at, complete), body)
}

fn patch(url: &str, at: usize, complete: u8) -> String {
    format!("PATCH {url}\nUpload-Offset: {at}\nUpload-Complete: ?{complete}\n{PATCH}")
}

fn offset(server: &Server, url: &str) -> String {
    let (status, text) = request(server, &format!("HEAD {url}"), b"");
    assert_eq!(status, 204, "{text}");
    field(&text, "upload-offset")
}

fn assert_object(bucket: &Bucket, key: &str, content: &[u8]) {
    let objects = bucket.service.lock();
    let found = objects.by_key.get(&format!("p/{key}"));
    assert!(found.expect("an object").content == content);
}

/// What is left of uploads.
fn leftovers(bucket: &Bucket) -> Vec<String> {
    let objects = bucket.service.lock();
    let is_left =
        |key: &&String| key.starts_with("p/.onrush/state/") && !key.ends_with("/conditions");
    let keys = objects.by_key.keys().filter(is_left).cloned();
    let uploads = objects.uploads.values().map(|upload| upload.key.clone());
    keys.chain(uploads).collect()
}

fn assert_nothing_left(bucket: &Bucket) {
    crate::program::wait_until(|| leftovers(bucket).is_empty());
}

#[test]
fn curl_continues_on_another_server() {
    if !is_installed("curl") {
        return;
    }
    let (files, content) = (Folder::new(), pattern(1, SIZE));
    let parts = [0..9_000_000, 9_000_000..13_000_000, 13_000_000..SIZE];
    let [one, two, three] = parts.clone().map(|part| {
        let file = files.file(&part.start.to_string(), &content[part]);
        format!("@{}", file.to_str().expect("UTF-8"))
    });
    for driver in drivers() {
        let bucket = Bucket::ceph();
        let servers = [(); 2].map(|()| start(&bucket, &["--driver", driver]));
        let [a, b] = servers
            .each_ref()
            .map(|server| server.url.trim_end_matches('/'));
        let url = format!("{a}/large");
        let begin = [
            "-i",
            "-X",
            "PUT",
            "-H",
            "Upload-Complete: ?0",
            "-H",
            "Content-Type: text/x",
        ];
        let said = curl(&[&begin[..], &["--data-binary", &one, &url]].concat());
        assert!(said.contains("HTTP/1.1 201"), "{said}");
        let url = field(&said, "location");
        for (to, at, end, is_complete, data, expected) in [
            (b, 9_000_000, 13_000_000, "?0", &two, "HTTP/1.1 204"),
            (a, 13_000_000, SIZE, "?1", &three, "HTTP/1.1 201"),
        ] {
            assert!(end > at);
            let head = curl(&["-I", &format!("{to}{url}")]);
            assert_eq!(field(&head, "upload-offset"), at.to_string());
            let fields = [
                format!("Upload-Complete: {is_complete}"),
                format!("Upload-Offset: {at}"),
                PATCH.to_owned(),
            ];
            let mut arguments = vec!["-i", "-X", "PATCH", "--data-binary", data];
            fields
                .iter()
                .for_each(|field| arguments.extend(["-H", field]));
            let url = format!("{to}{url}");
            arguments.push(&url);
            let said = curl(&arguments);
            assert!(said.contains(expected), "{said}");
        }
        assert_object(&bucket, "large", &content);
        let head = curl(&["-I", &format!("{b}/large")]).to_ascii_lowercase();
        assert!(head.contains("content-type: text/x\r\n"), "{head}");
        assert_nothing_left(&bucket);
    }
}

/// Both have read the same record. The second one claims the upload while the first one receives.
#[test]
fn two_servers_never_both_continue_an_upload() {
    let content = pattern(1, SIZE);
    for completes in [0, 1] {
        let bucket = Bucket::ceph();
        let [one, two] = [(); 2].map(|()| start(&bucket, &[]));
        let first = 9_000_000;
        let url = create(&one, "/a", "", &content[..first]);
        let (rest, half) = (&content[first..], 6_000_000);
        let puts = || bucket.service.lock().requests["PUT"];
        let before = puts();
        let mut early = begin(
            &one,
            &patch(&url, first, completes),
            rest.len(),
            &rest[..half],
        );
        // The first server claims the upload, by a change of its record.
        crate::program::wait_until(|| puts() > before);
        let late = append(&two, &url, first, 1, rest);
        assert_eq!(late.0, 201, "{}", late.1);
        let _ = early.write_all(&rest[half..]);
        let (status, text) = response(early);
        assert!(matches!(status, 404 | 409), "{status} {text}");
        assert_object(&bucket, "a", &content);
    }
}

#[test]
fn a_killed_server_loses_nothing_that_it_has_acknowledged() {
    let content = pattern(1, SIZE);
    let bucket = Bucket::ceph();
    let one = start(&bucket, &[]);
    let url = create(&one, "/a", "", &content[..9_000_000]);
    // More parts, of which nothing is recorded.
    let rest = &content[9_000_000..];
    let stream = begin(
        &one,
        &patch(&url, 9_000_000, 1),
        rest.len(),
        &rest[..9_000_000],
    );
    crate::program::wait_until(|| bucket.service.lock().requests.get("PART") >= Some(&2));
    one.signal("KILL");
    drop((stream, one));
    let two = start(&bucket, &[]);
    assert_eq!(offset(&two, &url), "9000000");
    let (status, text) = append(&two, &url, 9_000_000, 1, rest);
    assert_eq!(status, 201, "{text}");
    assert_object(&bucket, "a", &content);
    assert_nothing_left(&bucket);
}

/// Whether the state is there that a record names.
fn has_named_state(bucket: &Bucket, id: &str) -> bool {
    let objects = bucket.service.lock();
    let record = objects.by_key.get(&format!("p/.onrush/state/uploads/{id}"));
    let record = &record.expect("a record").content;
    let record: serde_json::Value = serde_json::from_slice(record).expect("JSON");
    let place = STANDARD.decode(record["place"].as_str().expect("text"));
    let place = String::from_utf8(place.expect("base64")).expect("text");
    let name = place.split(' ').next().expect("a name");
    let state = format!("p/.onrush/state/kept/{name}");
    objects.by_key.contains_key(&state)
}

/// A server is killed before or after any change that the last request of an upload makes. The next
/// one says that the upload is complete if its object is there, and continues it otherwise.
#[test]
fn a_kill_at_any_change_leaves_a_complete_upload_or_one_that_continues() {
    let content = pattern(2, 400_000);
    let half = content.len() / 2;
    let bucket = Bucket::ceph();
    let steps = &bucket.service.steps;
    let mut completed = 0;
    // On the same server for all steps, until one of them is the last.
    for condition in ["", "\nIf-None-Match: *"] {
        for number in 0.. {
            assert!(number < 40, "the request does not end");
            let path = format!("/{}/{number}", condition.len());
            let mut one = start(&bucket, &[]);
            let url = create(&one, &path, condition, &content[..half]);
            steps.hang_after(number);
            let rest = &content[half..];
            let stream = begin(&one, &patch(&url, half, 1), rest.len(), rest);
            let (sender, responded) = std::sync::mpsc::channel();
            let waiter = std::thread::spawn(move || sender.send(response(stream)));
            let mut ended = None;
            crate::program::wait_until(|| {
                ended = ended.take().or_else(|| responded.try_recv().ok());
                ended.is_some() || steps.is_reached.load(Ordering::SeqCst)
            });
            let is_last = ended.is_some();
            steps.left.store(0, Ordering::SeqCst);
            one.signal("KILL");
            one.wait_for_exit(TIMEOUT);
            let _ = waiter.join();
            let two = start(&bucket, &[]);
            let has_object = || {
                let objects = bucket.service.lock();
                objects.by_key.contains_key(&format!("p{path}"))
            };
            let (status, head) = request(&two, &format!("HEAD {url}"), b"");
            let at = format!("{path} after {number} steps: {head}");
            match (is_last, has_object()) {
                // The record stays for a while.
                (true, _) => {
                    assert_eq!(
                        (status, &field(&head, "upload-complete")[..]),
                        (204, "?1"),
                        "{at}"
                    );
                }
                (false, true) if status == 404 => {} // The record is removed, the last change.
                (false, true) => {
                    assert_eq!(
                        (status, &field(&head, "upload-complete")[..]),
                        (204, "?1"),
                        "{at}"
                    );
                    assert_eq!(field(&head, "upload-offset"), content.len().to_string());
                    let again = append(&two, &url, content.len(), 1, b"");
                    assert!(
                        again.0 == 400 && again.1.contains("completed-upload"),
                        "{}",
                        again.1
                    );
                    completed += 1;
                    // Only the record is left: the state that it names would count for limits.
                    let (_, id) = url.split_once("upload-id=").expect("an id");
                    crate::program::wait_until(|| !has_named_state(&bucket, id));
                }
                (false, false) => {
                    assert_eq!(
                        (status, &field(&head, "upload-complete")[..]),
                        (204, "?0"),
                        "{at}"
                    );
                    let from: usize = field(&head, "upload-offset").parse().expect("a number");
                    let (status, text) = append(&two, &url, from, 1, &content[from..]);
                    assert_eq!(status, 201, "{at}: {text}");
                }
            }
            assert_object(&bucket, &path[1..], &content);
            if is_last {
                break;
            }
        }
    }
    assert!(completed >= 4, "{completed}");
}

#[test]
fn conditions_digests_and_rights_hold_at_the_end() {
    let content = pattern(1, SIZE);
    let bucket = Bucket::ceph();
    let [one, two] = [(); 2].map(|()| start(&bucket, &[]));
    let at = 12_000_000;
    for (condition, is_there, expected) in [
        ("\nIf-None-Match: *", false, 201),
        ("\nIf-None-Match: *", true, 412),
        ("\nIf-Match: *", true, 204),
    ] {
        request(&one, "DELETE /a", b"");
        let (status, text) = match is_there && expected == 412 {
            // The object appears while the upload is not complete.
            true => {
                let url = create(&one, "/a", condition, &content[..at]);
                assert_eq!(request(&two, "PUT /a", b"other").0, 201);
                append(&two, &url, at, 1, &content[at..])
            }
            false => {
                if is_there {
                    assert_eq!(request(&two, "PUT /a", b"other").0, 201);
                }
                let url = create(&one, "/a", condition, &content[..at]);
                append(&two, &url, at, 1, &content[at..])
            }
        };
        assert_eq!(status, expected, "{condition} {text}");
        match expected {
            412 => assert_object(&bucket, "a", b"other"),
            _ => assert_object(&bucket, "a", &content),
        }
        assert_nothing_left(&bucket);
    }
    // The digest of the whole object, of another content.
    let digest = "\nRepr-Digest: sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:";
    let url = create(&one, "/b", digest, &content[..at]);
    assert_eq!(append(&two, &url, at, 1, &content[at..]).0, 400);
    assert_eq!(request(&one, "GET /b", b"").0, 404);
    // The digest of one request: its bytes are dropped.
    let url = create(&one, "/b", "", &content[..at]);
    let head = patch(&url, at, 1) + &digest.replace("Repr", "Content");
    assert_eq!(request(&two, &head, &content[at..]).0, 400);
    assert_eq!(offset(&one, &url), at.to_string());
    assert_eq!(append(&one, &url, at, 1, &content[at..]).0, 201);
    assert_object(&bucket, "b", &content);
    assert_nothing_left(&bucket);
}

#[test]
fn what_a_bucket_does_not_offer_is_refused() {
    let bucket = Bucket::new();
    let server = start(&bucket, &[]);
    let (_, options) = request(&server, "OPTIONS /", b"");
    let extensions = field(&options, "tus-extension");
    assert!(extensions.contains("creation") && !extensions.contains("concatenation"));
    let parts = "PUT /a\nUpload-Complete: ?0\nUpload-Length: 20\nOnrush-Part-Size: 10";
    let (status, text) = request(&server, parts, b"");
    assert_eq!(status, 501, "{text}");
    assert!(text.contains("in order"), "{text}");
    let concat = "POST /a\nTus-Resumable: 1.0.0\nUpload-Concat: partial\nUpload-Length: 5";
    let (status, text) = request(&server, concat, b"");
    assert_eq!(status, 501, "{text}");
    // The page sends a whole file then.
    let (_, page) = request(&server, "GET /\nAccept: text/html", b"");
    assert!(page.contains("data-uploads=\"whole\""), "{page}");
}

/// The servers of a bucket count each other's uploads, and remove those that are too old.
#[test]
fn limits_hold_for_all_servers() {
    let bucket = Bucket::new();
    let limits = ["--unfinished-count", "1", "--unfinished-age", "2s"];
    let one = start(&bucket, &limits);
    let url = create(&one, "/a", "", b"hello");
    let two = start(&bucket, &limits);
    let (status, text) = request(&two, "PUT /b\nUpload-Complete: ?0", b"hello");
    assert_eq!(status, 503, "{text}");
    drop(one);
    crate::program::wait_until(|| leftovers(&bucket).is_empty());
    assert_eq!(request(&two, &format!("HEAD {url}"), b"").0, 404);
    // The other server may have removed it: then this one notices with its next search.
    crate::program::wait_until(|| request(&two, "PUT /b\nUpload-Complete: ?0", b"hello").0 == 201);
    assert_nothing_left(&bucket);
}

/// The service is not able to publish an object at the end of an upload, and later it is.
#[test]
fn an_upload_that_was_not_published_is_published_later() {
    let content = pattern(1, SIZE);
    let bucket = Bucket::ceph();
    let [one, two] = [(); 2].map(|()| start(&bucket, &[]));
    let (at, faults) = (9_000_000, &bucket.service.faults);
    for (path, condition) in [("/a", ""), ("/b", "\nIf-None-Match: *")] {
        let url = create(&one, path, condition, &content[..at]);
        faults.throttle(Some(&format!("p{path}")));
        let (status, text) = append(&one, &url, at, 1, &content[at..]);
        assert_eq!(status, 503, "{text}");
        faults.throttle(None);
        assert_eq!(offset(&two, &url), SIZE.to_string());
        let (status, text) = append(&two, &url, SIZE, 1, b"");
        assert_eq!(status, 201, "{text}");
        assert_object(&bucket, &path[1..], &content);
        assert_nothing_left(&bucket);
    }
    // A tus client asks for the offset, and sends what is missing.
    let tus = "Tus-Resumable: 1.0.0";
    let (status, text) = request(&one, &format!("POST /c\n{tus}\nUpload-Length: 5"), b"");
    assert_eq!(status, 201, "{text}");
    let url = field(&text, "location");
    faults.throttle(Some("p/c"));
    let stream = "Content-Type: application/offset+octet-stream\nUpload-Offset: 0";
    let (status, text) = request(&one, &format!("PATCH {url}\n{tus}\n{stream}"), b"hello");
    assert_eq!(status, 503, "{text}");
    faults.throttle(None);
    // HEAD publishes nothing, so it does not say that the upload is complete.
    for server in [&one, &two] {
        let (status, text) = request(server, &format!("HEAD {url}\n{tus}"), b"");
        assert_eq!((status, &field(&text, "upload-offset")[..]), (200, "4"));
        assert_eq!(request(server, "GET /c", b"").0, 404);
    }
    let stream = stream.replace("Offset: 0", "Offset: 4");
    for (body, status) in [(&b""[..], 204), (b"o!", 400)] {
        assert_eq!(
            request(&two, &format!("PATCH {url}\n{tus}\n{stream}"), body).0,
            status
        );
        assert_eq!(request(&two, "GET /c", b"").0, 404);
    }
    let (status, text) = request(&two, &format!("PATCH {url}\n{tus}\n{stream}"), b"o");
    assert_eq!((status, &field(&text, "upload-offset")[..]), (204, "5"));
    assert_object(&bucket, "c", b"hello");
    assert_nothing_left(&bucket);
}

fn count(bucket: &Bucket, folder: &str) -> usize {
    let left = leftovers(bucket);
    left.iter().filter(|key| key.contains(folder)).count()
}

/// A server has read the record, and another one continues the upload before it reads the state.
#[test]
fn a_server_that_comes_too_late_leaves_the_record() {
    let bucket = Bucket::new();
    let [one, two] = [(); 2].map(|()| start(&bucket, &[]));
    let url = create(&one, "/a", "", b"hello");
    let faults = &bucket.service.faults;
    faults.held.store(1, Ordering::SeqCst);
    let late = begin(&one, &patch(&url, 5, 0), 5, b" late");
    crate::program::wait_until(|| faults.held.load(Ordering::SeqCst) == 0);
    let (status, text) = append(&two, &url, 5, 0, b" world");
    assert_eq!(status, 204, "{text}");
    // The state that was read is gone.
    crate::program::wait_until(|| count(&bucket, "/kept/") == 1);
    faults.is_released.store(true, Ordering::SeqCst);
    let (status, text) = response(late);
    assert_eq!(status, 409, "{text}");
    assert_eq!(offset(&two, &url), "11");
    assert_eq!(append(&two, &url, 11, 1, b"").0, 201);
    assert_object(&bucket, "a", b"hello world");
    assert_nothing_left(&bucket);
}

/// What a server has kept, and cannot record because another one continues the upload, is removed.
#[test]
fn a_server_that_is_taken_over_leaves_nothing() {
    let bucket = Bucket::new();
    let [one, two] = [(); 2].map(|()| start(&bucket, &[]));
    let url = create(&one, "/a", "", b"hello");
    let puts = || bucket.service.lock().requests["PUT"];
    let before = puts();
    let mut early = begin(&one, &patch(&url, 5, 0), 6, b" ear");
    crate::program::wait_until(|| puts() > before); // It has claimed the upload.
    assert_eq!(append(&two, &url, 5, 0, b" world").0, 204);
    early.write_all(b"ly").expect("the server reads");
    let (status, text) = response(early);
    assert_eq!(status, 409, "{text}");
    crate::program::wait_until(|| count(&bucket, "/kept/") == 1);
    assert_eq!(offset(&two, &url), "11");
    // Other servers learn from the record that it is in use.
    let objects = bucket.service.lock();
    let records = objects.by_key.iter();
    let mut records = records.filter(|(key, _)| key.starts_with("p/.onrush/state/uploads/"));
    let (_, record) = records.next().expect("a record");
    let record = String::from_utf8_lossy(&record.content);
    assert!(record.contains("\"claimed_s\":1"), "{record}");
}

/// A record that cannot be read is an upload that counts.
#[test]
fn limits_hold_while_records_cannot_be_read() {
    let bucket = Bucket::new();
    let limits = ["--unfinished-count", "1"];
    let one = start(&bucket, &limits);
    create(&one, "/a", "", b"hello");
    bucket
        .service
        .faults
        .throttle(Some("p/.onrush/state/uploads/"));
    let two = start(&bucket, &limits);
    let begin = || request(&two, "PUT /b\nUpload-Complete: ?0", b"hello");
    assert_eq!(begin().0, 503);
    bucket.service.faults.throttle(None);
    let (status, text) = begin();
    assert_eq!(status, 503);
    assert!(text.contains("too many unfinished uploads"), "{text}");
}

#[test]
fn sweep_leaves_uploads_in_use() {
    let content = pattern(1, SIZE);
    let bucket = Bucket::new();
    let server = start(&bucket, &[]);
    let url = create(&server, "/a", "", &content[..9_000_000]);
    // It began long ago, and its last bytes have arrived now.
    for upload in bucket.service.lock().uploads.values_mut() {
        upload.begun -= Duration::from_secs(100 * 3600);
    }
    let sweep = |arguments: &[&str]| {
        let mut command = service(onrush(), bucket.address);
        let output = output(command.args(["sweep", "s3://bucket/p"]).args(arguments));
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(sweep(&["--delete"]), "nothing to remove; 3 younger\n");
    // A session may have continued it in the last moment, and not written a state since then.
    for object in bucket.service.lock().by_key.values_mut() {
        object.modified -= Duration::from_secs(47 * 3600);
    }
    assert_eq!(sweep(&["--delete"]), "nothing to remove; 3 younger\n");
    assert_eq!(offset(&server, &url), "9000000");
    let found = sweep(&["--older-than", "0"]);
    assert!(found.contains(".onrush/state/uploads/"), "{found}");
    assert!(found.contains(".onrush/state/kept/"), "{found}");
    assert!(
        found.contains(" p/a\n3 found, --delete removes them; 0 younger\n"),
        "{found}"
    );
    // The parts are removed with the state that names them.
    let removed = sweep(&["--older-than", "0", "--delete"]);
    assert!(removed.ends_with("2 removed; 0 younger\n"), "{removed}");
    assert_eq!(leftovers(&bucket), [""; 0]);
}

#[test]
fn tuspy_uploads_to_a_bucket() {
    let Some(python) = tool("python/tuspy/bin/python", SETUP) else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upload_clients/tus.py");
    let source = Folder::new();
    let file = source.file("source", pattern(1, 1_234_567));
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let server = start(&bucket, &[]);
        let mut command = Command::new(&python);
        command.arg(&script).arg(&server.url).arg(&file);
        let output = crate::program::output_within(&mut command, Duration::from_secs(120));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_nothing_left(&bucket);
    }
}
