//! The connection to the service: its clients and the runtime on which requests run.

use crate::breaker::Breaker;
use crate::error::{Failure, causes};
use crate::location::Location;
use crate::observer::{Connector, observe, probe};
use crate::part_memory::PartMemory;
use crate::record::Recorder;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use onrush_store::{Key, Result, StoreError};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::time::{Instant, timeout_at};

/// The region of the signature if none is configured. Services other than AWS accept any.
const REGION: &str = "us-east-1";
/// The pauses between attempts. Each is random, up to twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The pause before each request that finds out whether the service responds again.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// Time limits and sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The threads of the runtime. By default one for each core that the process may use: small
    /// requests need more CPU time here than on a worker, but a second thread on the same core
    /// would only be woken in addition.
    pub threads: usize,
    /// The maximum time to connect.
    pub connect_timeout: Duration,
    /// The maximum time between two pieces of a response.
    pub read_timeout: Duration,
    /// The maximum time of a call of the store, with all its requests, attempts and pauses. The
    /// transfer of an object has no limit, as long as the service takes or sends bytes.
    pub operation_timeout: Duration,
    /// The number of attempts after the first one. Only requests that are safe to repeat are.
    pub retries: usize,
    /// The bytes that uploads of unknown length, or longer than a request can be, hold in memory,
    /// those up to 1 MiB aside. An upload holds a part of 8 MiB, and larger ones after the first
    /// 1,000, until it is sent. It waits for room at most the operation timeout.
    pub part_memory_bytes: u64,
    /// After requests have failed for this long without a response, further ones fail at once,
    /// until the service responds. If it responds to none of the requests in progress, not even to
    /// a probe, that is an outage after four fifths of this time, at least 2 s.
    pub outage_after: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(60),
            retries: 4,
            part_memory_bytes: 128 << 20,
            outage_after: Duration::from_secs(5),
        }
    }
}

/// What the text of a refusal contains, and what the operator can do about it.
const REFUSALS: [(&str, &str); 5] = [
    // Without a key, the role of the machine is asked for (IMDSv2). Few machines have one.
    (
        "/latest/api/token",
        "no key: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and this machine has no \
         role",
    ),
    ("<Code>NoSuchBucket<", "there is no such bucket"),
    (
        "<Code>InvalidAccessKeyId<",
        "the service does not know the AWS_ACCESS_KEY_ID",
    ),
    (
        "<Code>SignatureDoesNotMatch<",
        "the AWS_SECRET_ACCESS_KEY is wrong",
    ),
    ("<Code>AccessDenied<", "the key may not list the bucket"),
];

/// How a service responds to a request for the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// With a listing.
    Responds,
    /// It cannot be reached or reports a failure of its own. It may respond later.
    Unreachable(String),
    /// The bucket does not exist, the key is wrong, or the address is not that of such a service.
    Refuses(String),
}

/// Why the client cannot be made.
#[derive(Debug)]
pub struct OpenError(String);

impl OpenError {
    pub(crate) fn new(reason: impl fmt::Display) -> OpenError {
        OpenError(reason.to_string())
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

/// A bucket of a service, and what requests to it need.
pub(crate) struct Service {
    pub(crate) client: AmazonS3,
    /// For requests whose body is a stream. It has no time limit of its own: the response to an
    /// upload arrives after all its bytes.
    pub(crate) streams: reqwest::Client,
    pub(crate) recorder: Recorder,
    /// Whether the service evaluates the conditions of a PUT, once that is known.
    pub(crate) evaluates_conditions: OnceLock<bool>,
    /// The location and the address, for people.
    pub(crate) name: String,
    pub(crate) options: Options,
    pub(crate) handle: Handle,
    pub(crate) part_memory: Arc<PartMemory>,
    location: Location,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Service {
    /// `builder` has the credentials and the endpoint.
    pub(crate) fn open(
        builder: AmazonS3Builder,
        location: Location,
        options: Options,
    ) -> Result<Arc<Service>, OpenError> {
        let endpoint = endpoint(&builder)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .thread_name("onrush-remote")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| OpenError::new(format!("no threads: {error}")))?;
        let handle = runtime.handle().clone();
        let address = endpoint.as_deref().unwrap_or("AWS");
        let name = format!("{location} at {address}");
        let recorder = Recorder {
            metrics: Arc::default(),
            breaker: Arc::new(Breaker::new(name.clone(), options.outage_after)),
        };
        let bucket = bucket_url(&builder, &location, endpoint.as_deref());
        let build = |builder: AmazonS3Builder| {
            let _entered = handle.enter();
            let client = builder.build();
            client.map_err(|error| OpenError::new(causes(&error)))
        };
        let connector = Connector::new(recorder.clone(), &bucket);
        let builder = configure(builder, &location, &options, endpoint.as_deref(), connector);
        let client = build(builder.clone().with_retry(retry(&options, options.retries)))?;
        // With the same credentials, so that they are requested once.
        let credentials = client.credentials().clone();
        let probing = builder.with_retry(retry(&options, 0));
        let probing = build(probing.with_credentials(credentials))?;
        let streams = reqwest::Client::builder()
            .http1_only()
            .connect_timeout(options.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build();
        let streams = streams.map_err(|error| OpenError::new(causes(&error)))?;
        handle.spawn(probe_while_wanted(
            recorder.breaker.clone(),
            probing,
            keys_prefix(&location),
            options.read_timeout,
        ));
        Ok(Arc::new(Service {
            client,
            streams,
            recorder,
            evaluates_conditions: OnceLock::new(),
            name,
            part_memory: PartMemory::new(options.part_memory_bytes),
            location,
            options,
            handle,
            runtime: Some(runtime),
        }))
    }

    /// Where the objects are.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// The path of an object. Fails if a name is not UTF-8 or has control characters, which the
    /// interface cannot transport.
    pub(crate) fn path(&self, key: &Key) -> Result<Path> {
        let key = std::str::from_utf8(key.as_bytes()).map_err(|_| StoreError::InvalidKey)?;
        let path = match self.location.prefix() {
            "" => Path::parse(key),
            prefix => Path::parse(format!("{prefix}/{key}")),
        };
        let path = path.map_err(|_| StoreError::InvalidKey)?;
        // S3 limits keys to 1024 bytes.
        match path.as_ref().len() > 1024 {
            true => Err(StoreError::InvalidKey),
            false => Ok(path),
        }
    }

    /// The beginning of the keys in a folder, with a slash at its end, or empty.
    pub(crate) fn folder_prefix(&self, folder: Option<&Key>) -> Result<String> {
        Ok(match folder {
            Some(folder) => self.path(folder)?.to_string() + "/",
            None => keys_prefix(&self.location),
        })
    }

    /// Requests the bucket and waits for the response. Blocks the calling thread.
    pub(crate) fn check(&self) -> Check {
        let (prefix, until) = (keys_prefix(&self.location), self.limit());
        let listing = observe(until, shortest_listing(&self.client, &prefix));
        match self.wait_for(async { timeout_at(until, listing).await }) {
            Ok((Ok(()), _)) => Check::Responds,
            Ok((Err(error), seen)) => match seen.last.is_none_or(|last| !last.may_be_repeated()) {
                true => Check::Refuses(with_meaning(&causes(&error))),
                false => Check::Unreachable(causes(&error)),
            },
            Err(_) => Check::Unreachable("it did not respond in time".to_owned()),
        }
    }
}

/// The reason why the service refuses, after what it means if that is known.
fn with_meaning(reason: &str) -> String {
    let known = REFUSALS.iter().find(|(part, _)| reason.contains(part));
    known.map_or_else(
        || reason.to_owned(),
        |(_, meaning)| format!("{meaning} ({reason})"),
    )
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // It may be dropped by a worker.
        }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("location", &self.location)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The address of the service. `object_store` panics if it is no URL.
fn endpoint(builder: &AmazonS3Builder) -> Result<Option<String>, OpenError> {
    use object_store::aws::AmazonS3ConfigKey::{Endpoint, S3Endpoint};
    let own = builder.get_config_value(&S3Endpoint);
    let endpoint = own.or_else(|| builder.get_config_value(&Endpoint));
    let is_url = |endpoint: &str| {
        let url = reqwest::Url::parse(endpoint);
        url.is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
    };
    match endpoint.as_deref().is_none_or(is_url) {
        true => Ok(endpoint),
        false => Err(OpenError::new(
            "the address of the service is no URL; write AWS_ENDPOINT_URL as in \
             http://127.0.0.1:7480",
        )),
    }
}

/// The beginning of the addresses of all requests to the bucket, as `object_store` makes them.
fn bucket_url(builder: &AmazonS3Builder, location: &Location, endpoint: Option<&str>) -> String {
    use object_store::aws::AmazonS3ConfigKey::{Region, S3Express, VirtualHostedStyleRequest};
    let bucket = location.bucket();
    let is_set = |key| {
        builder
            .get_config_value(&key)
            .is_some_and(|value| is_true(&value))
    };
    let region = builder.get_config_value(&Region);
    let region = region.as_deref().unwrap_or(REGION);
    match (endpoint, is_set(VirtualHostedStyleRequest)) {
        (Some(endpoint), true) => endpoint.to_owned(),
        (Some(endpoint), false) => format!("{}/{bucket}", endpoint.trim_end_matches('/')),
        (None, _) if is_set(S3Express) => format!("https://{bucket}.s3express-"),
        (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
        (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
    }
}

/// Whether `object_store` reads a setting as true.
fn is_true(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
}

/// The beginning of all keys, with a slash at its end, or empty.
fn keys_prefix(location: &Location) -> String {
    match location.prefix() {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    }
}

/// A request for one key beneath the prefix: a policy may permit listings of it only. Each service
/// responds, if only with a refusal.
async fn shortest_listing(client: &AmazonS3, prefix: &str) -> object_store::Result<()> {
    let options = PaginatedListOptions {
        max_keys: Some(1),
        ..PaginatedListOptions::default()
    };
    let prefix = (!prefix.is_empty()).then_some(prefix);
    match client.list_paginated(prefix, options).await {
        // A key of another client, in a response. See `listing`.
        Err(object_store::Error::InvalidPath { .. }) => Ok(()),
        listed => listed.map(drop),
    }
}

/// Makes a request now and then while the breaker asks for it. Its result is recorded as that of
/// any request. `client` does not repeat a request.
async fn probe_while_wanted(
    breaker: Arc<Breaker>,
    client: AmazonS3,
    prefix: String,
    limit: Duration,
) {
    loop {
        breaker.probe_wanted().await;
        tokio::time::sleep(PROBE_PAUSE).await;
        let begun = Instant::now();
        if !breaker.wants_probe(begun.into_std()) {
            continue;
        }
        let until = begun + breaker.probe_limit(limit, begun.into_std());
        let listing = probe(until, shortest_listing(&client, &prefix));
        let failure = match timeout_at(until, listing).await {
            Ok((_, seen)) => seen.last,
            Err(_) => Some(Failure::Timeout),
        };
        breaker.probed(failure, Instant::now().into_std());
    }
}

fn configure(
    builder: AmazonS3Builder,
    location: &Location,
    options: &Options,
    endpoint: Option<&str>,
    connector: Connector,
) -> AmazonS3Builder {
    use object_store::aws::AmazonS3ConfigKey::{Client, Region};
    use object_store::client::ClientConfigKey::AllowHttp;
    let mut client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(options.connect_timeout)
        .with_read_timeout(options.read_timeout)
        .with_http1_only();
    let allows_http = builder.get_config_value(&Client(AllowHttp));
    // An endpoint that begins with http:// is meant so.
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
        || allows_http.as_deref() == Some("true")
    {
        client = client.with_allow_http(true);
    }
    let has_region = builder.get_config_value(&Region).is_some();
    let builder = match has_region {
        true => builder,
        false => builder.with_region(REGION),
    };
    builder
        .with_bucket_name(location.bucket())
        .with_client_options(client)
        .with_http_connector(connector)
        // A hash of the payload would be computed before the first byte is sent.
        .with_unsigned_payload(true)
        .with_disable_tagging(true)
        // One DELETE per object: not every service has the request for many, and it is no faster.
        .with_disable_bulk_delete(true)
}

/// How often and how soon requests are repeated.
fn retry(options: &Options, retries: usize) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: FIRST_PAUSE,
            max_backoff: LONGEST_PAUSE,
            base: 2.0,
        },
        max_retries: retries,
        retry_timeout: options.operation_timeout,
    }
}
