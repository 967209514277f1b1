//! A whole service: clients that know a token upload files, download them, have them summed up, and
//! watch the changes. `service [PORT] [FOLDER] [TOKEN]`, then, with the token `secret`:
//!
//! `curl -H 'Authorization: Bearer secret' -T a.jpg http://127.0.0.1:8080/files/a.jpg`
//!
//! There are also `/files/a.jpg/sum`, `/files` and `/metrics`. Ctrl-C ends the program gracefully.

use onrush::offload::{OffloadError, offload};
use onrush::sse::{Event, Sse};
use onrush::{Limits, Metrics, Next, Request, Response, Router, ServedFile, Server, WorkerHandle};
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The state that all workers share.
struct Service {
    folder: PathBuf,
    token: String,
    /// Uploads that have begun, and those that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

type State = Arc<Service>;

/// The layer in front of all that is not public.
async fn check_access(request: Request, next: Next) -> Response {
    let given = request.header("Authorization").unwrap_or_default();
    let expected = format!("Bearer {}", request.state::<State>().token).into_bytes();
    // The time does not depend on where they differ.
    let pairs = given.iter().zip(&expected);
    let differences = pairs.fold(0, |all, (a, b)| all | (a ^ b));
    match given.len() == expected.len() && differences == 0 {
        true => next.run(request).await,
        false => Response::new(401).with_header("WWW-Authenticate", "Bearer"),
    }
}

/// The file that the path of the request names. Hidden names are those of unfinished uploads.
fn file_of(request: &Request) -> io::Result<PathBuf> {
    let name = request.param_decoded("name").unwrap_or_default();
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(request.state::<State>().folder.join(&*name))
}

/// Runs a job with files on the pool for calls that wait.
async fn on_disk<T: Send + 'static>(
    worker: &WorkerHandle,
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    worker.blocking(job).await.map_err(io::Error::other)?
}

/// Removes a file that has not got its final name, also when the client disconnects, which drops
/// the future of the handler.
struct Unfinished(PathBuf, WorkerHandle);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        self.1.blocking(move || fs::remove_file(path)).detach();
    }
}

async fn upload(mut request: Request) -> io::Result<u16> {
    let (state, worker) = (request.state::<State>().clone(), request.worker().clone());
    let path = file_of(&request)?;
    let number = state.begun.fetch_add(1, Ordering::Relaxed);
    let staged = state.folder.join(format!(".unfinished-{number}"));
    let unfinished = Unfinished(staged.clone(), worker.clone());
    let mut file = on_disk(&worker, move || fs::File::create(staged)).await?;
    while request.body().remaining() != Some(0) {
        let mut block = Vec::with_capacity(256 * 1024);
        request.body().fill_whole(&mut block).await?;
        file = on_disk(&worker, move || file.write_all(&block).map(|()| file)).await?;
    }
    let staged = unfinished.0.clone();
    on_disk(&worker, move || fs::rename(staged, path)).await?;
    state.ended.fetch_add(1, Ordering::Relaxed);
    Ok(204)
}

/// Also parts of the file, and nothing if the client has it.
async fn download(request: Request) -> io::Result<Response> {
    let file = ServedFile::open(request.worker(), file_of(&request)?).await?;
    Ok(file.respond(&request))
}

/// The sum is CPU work, so it has threads of its own, and is refused with 503 if they are busy.
async fn sum(request: Request) -> io::Result<Result<String, OffloadError>> {
    let path = file_of(&request)?;
    let content = on_disk(request.worker(), move || fs::read(path)).await?;
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let sum = offload(move || content.iter().fold(0xcbf2_9ce4_8422_2325, add)).await;
    Ok(sum.map(|sum| format!("{sum:016x}\n")))
}

/// Tells the number of changes, at most once a second.
async fn changes(request: Request) -> Sse {
    let (state, worker) = (request.state::<State>().clone(), request.worker().clone());
    let (mut sender, events) = Sse::channel(4096);
    let tell = async move {
        let (second, mut told) = (Duration::from_secs(1), None);
        while worker.timeout(second, sender.closed()).await.is_none() {
            let changes = state.ended.load(Ordering::Relaxed);
            if told.replace(changes) != Some(changes) {
                let _ = sender.send(Event::new(changes.to_string())).await;
            }
        }
    };
    request.worker().spawn(tell).detach();
    let events = events.keep_alive(Duration::from_secs(20));
    events.until(request.draining())
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: &str| arguments.next().unwrap_or_else(|| default.to_owned());
    let port = argument("8080");
    let service = Service {
        folder: argument("service-files").into(),
        token: argument("secret"),
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
    };
    fs::create_dir_all(&service.folder)?;
    let metrics = Metrics::new();
    let files = Router::new()
        .get("/", changes)
        .get("/{name}", download)
        .put("/{name}", upload)
        .get("/{name}/sum", sum)
        .layer(check_access)
        .with_state(Arc::new(service));
    let router = Router::new().nest("/files", files);
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .limits(Limits::default().body_bytes_max(16 << 20))
        .metrics(&metrics)
        .graceful(Duration::from_secs(10))
        .serve(router.get("/metrics", metrics.clone()))
}
