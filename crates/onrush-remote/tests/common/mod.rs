//! An S3 server in this process, with its objects in memory.
#![allow(dead_code, unreachable_pub)]

mod bodies;
pub mod canned;
mod parts;
pub mod s3;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue, IF_MATCH};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use onrush_remote::{Options, RemoteStore};
#[allow(unused_imports)] // some tests poll nothing
pub use onrush_store::testing::block_on;
use onrush_store::{Object, Result};
use s3::MemoryS3;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s::{S3Result, s3_error};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub const KEY: (&str, &str) = ("test-key", "test-secret");

/// A server with one bucket, which is named `bucket`.
pub struct Bucket {
    pub service: MemoryS3,
    pub address: SocketAddr,
    _runtime: Runtime,
}

impl Bucket {
    pub fn new() -> Bucket {
        Bucket::with(MemoryS3::default())
    }

    /// As [`Bucket::new`], with the behaviour of Ceph 16.
    pub fn ceph() -> Bucket {
        let mut service = MemoryS3::default();
        service.is_ceph = true;
        Bucket::with(service)
    }

    pub fn with(memory: MemoryS3) -> Bucket {
        let mut service = S3ServiceBuilder::new(memory.clone());
        service.set_auth(SimpleAuth::from_single(KEY.0, KEY.1));
        service.set_access(Everyone(memory.is_revoked.clone()));
        let service = service.build();
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                let service = service_fn(move |mut request: Request<Incoming>| {
                    quote_tag(request.headers_mut());
                    let service = service.clone();
                    async move { service.call(request.map(s3s::Body::from)).await }
                });
                tokio::spawn(async move {
                    let server = Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Bucket {
            service: memory,
            address,
            _runtime: runtime,
        }
    }

    pub fn store(&self, location: &str) -> RemoteStore {
        self.store_with(location, Options::default())
    }

    pub fn store_with(&self, location: &str, options: Options) -> RemoteStore {
        let location = location.parse().expect("a location");
        let endpoint = format!("http://{}", self.address);
        RemoteStore::at(&endpoint, KEY, location, options).expect("a store")
    }
}

/// Also permits requests without a signature, unless the flag is set. One with a wrong signature is
/// refused.
struct Everyone(Arc<AtomicBool>);

#[async_trait::async_trait]
impl S3Access for Everyone {
    async fn check(&self, _: &mut S3AccessContext<'_>) -> S3Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(s3_error!(AccessDenied)),
            false => Ok(()),
        }
    }
}

/// AWS accepts a tag without quotes, and Ceph 16 only that; s3s does not. If the field is signed,
/// the change removes the signature.
fn quote_tag(headers: &mut HeaderMap) {
    let Some(tag) = headers.get(IF_MATCH) else {
        return;
    };
    if !tag.as_bytes().starts_with(b"\"") {
        let quoted = [b"\"", tag.as_bytes(), b"\""].concat();
        let quoted = HeaderValue::try_from(quoted).expect("a tag");
        headers.insert(IF_MATCH, quoted);
        headers.remove(AUTHORIZATION);
    }
}

/// Stores on a service that runs elsewhere, with a prefix of this process: `ONRUSH_TEST_S3` is its
/// address, key and secret, separated by spaces, and the bucket `conformance` exists. `None` if the
/// variable is not set; then a test does nothing.
pub fn real() -> Option<impl Fn() -> RemoteStore> {
    std::env::var_os("ONRUSH_TEST_S3")?;
    let prefix = std::process::id().to_string();
    Some(move || real_at(&prefix).expect("the variable is set"))
}

/// A store on that service with this prefix.
pub fn real_at(prefix: &str) -> Option<RemoteStore> {
    let service = std::env::var("ONRUSH_TEST_S3").ok()?;
    let [endpoint, key, secret] = service.split(' ').collect::<Vec<_>>()[..] else {
        panic!("ONRUSH_TEST_S3 is not an address, a key and a secret");
    };
    let location = format!("s3://conformance/{prefix}").parse();
    let location = location.expect("a location");
    let store = RemoteStore::at(endpoint, (key, secret), location, Options::default());
    Some(store.expect("a store"))
}

/// All bytes of an object.
pub async fn read_all(object: &Object) -> Result<Vec<u8>> {
    read(object, 0..object.meta().size).await
}

/// A range of an object.
pub async fn read(object: &Object, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
    let mut stream = object.stream(range);
    let mut all = Vec::new();
    while let Some(piece) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        let piece: Bytes = piece?;
        all.extend_from_slice(&piece);
    }
    Ok(all)
}
