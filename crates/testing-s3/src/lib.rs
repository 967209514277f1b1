//! S3 services in the process of a test. It is not part of the product.
//!
//! Modules, lowest first: `bodies` (of requests and responses), `object` (one in memory), `parts`
//! (multipart uploads, and where the service fails), [`s3`] (the protocol), [`canned`] (a server
//! that responds with given bytes). [`Bucket`] serves [`s3::MemoryS3`] on a port of 127.0.0.1.

mod bodies;
pub mod canned;
mod object;
mod parts;
pub mod s3;

pub use parts::{Faults, Parts, Steps};

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue, IF_MATCH};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use onrush_remote::{Options, RemoteStore};
use s3::MemoryS3;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s::{S3Result, s3_error};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// The access key and its secret, which sign a request.
pub const KEY: (&str, &str) = ("test-key", "test-secret");

/// A server with one bucket, which is named `bucket`, until it is dropped.
pub struct Bucket {
    /// Its objects, and how it behaves.
    pub service: MemoryS3,
    /// Where it listens.
    pub address: SocketAddr,
    _runtime: Runtime,
}

impl Bucket {
    /// One with the behaviour of AWS.
    ///
    /// # Panics
    /// As [`Bucket::with`].
    #[expect(clippy::new_without_default, reason = "a test starts it on purpose")]
    pub fn new() -> Bucket {
        Bucket::with(MemoryS3::default())
    }

    /// One with the behaviour of Ceph 16.
    ///
    /// # Panics
    /// As [`Bucket::with`].
    pub fn ceph() -> Bucket {
        let mut service = MemoryS3::default();
        service.is_ceph = true;
        Bucket::with(service)
    }

    /// One with this service.
    ///
    /// # Panics
    /// If there is no free port, or no thread can be started.
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

    /// The store at a location, such as `s3://bucket/prefix`.
    ///
    /// # Panics
    /// If it is not a location.
    pub fn store(&self, location: &str) -> RemoteStore {
        self.store_with(location, Options::default())
    }

    /// The same, with options.
    ///
    /// # Panics
    /// If it is not a location.
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
