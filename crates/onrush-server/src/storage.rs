//! Opens the store of the objects: a folder, or a bucket of a service.

use crate::build_cache::BuildCacheSettings;
use crate::edge::EdgeSettings;
use crate::failure::{self, Failure};
use crate::quotas::Quotas;
use crate::service_manager::ServiceManager;
use onrush::metrics::{Collector, MetricType, TextWriter};
use onrush_remote::{Check, DURATION_BOUNDS, Location, Options, RemoteStore};
use onrush_rt::blocking::BlockingPool;
use onrush_server::{Files, FilesOptions};
use onrush_store::{BuildCache, EdgeStore, Folder, HandedOver, Quota, Store};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Folder(PathBuf),
    Remote(Location),
}

/// An open store.
pub(crate) struct Opened {
    pub(crate) files: Files,
    /// The service, if the objects are not in a folder.
    pub(crate) remote: Option<RemoteStore>,
    pub(crate) stores: Stores,
}

/// The parts of an open store that can change while it is in use.
#[derive(Clone)]
pub(crate) struct Stores {
    /// The folder of the objects, unless it is a build cache, and its quotas.
    pub(crate) folder: Option<(Folder, Quotas)>,
    /// The cache in front of the store, if there is one.
    pub(crate) edge: Option<Arc<EdgeStore>>,
    /// The store itself, if it is one.
    pub(crate) build_cache: Option<BuildCache>,
}

/// The requests to a service, as metrics.
#[derive(Debug)]
struct Requests(RemoteStore);

impl Collector for Requests {
    fn collect(&self, text: &mut TextWriter) {
        let help = "Requests to the store's service, until the response begins.";
        let name = "onrush_store_request_duration_seconds";
        text.family(name, MetricType::Histogram, help);
        let metrics = self.0.metrics();
        for request in metrics.requests() {
            let labels = [("method", request.method), ("outcome", request.outcome)];
            text.buckets(&labels, &DURATION_BOUNDS, &request.buckets, request.seconds);
        }
        let counters = [
            (
                "onrush_store_retries",
                "Requests to the store's service that repeat one that has failed.",
                metrics.retries(),
            ),
            (
                "onrush_store_sent_bytes",
                "Bytes of the bodies of requests to the store's service.",
                metrics.sent_bytes(),
            ),
            (
                "onrush_store_received_bytes",
                "Bytes of the bodies of responses of the store's service.",
                metrics.received_bytes(),
            ),
        ];
        for (name, help, value) in counters {
            text.family(name, MetricType::Counter, help);
            text.sample(&[], value);
        }
        let help = "Multipart uploads in progress.";
        text.family("onrush_store_open_uploads", MetricType::Gauge, help);
        text.sample(&[], metrics.open_uploads());
        let help = "1 if the store's service can be reached, otherwise 0.";
        text.family("onrush_store_reachable", MetricType::Gauge, help);
        text.sample(&[], u64::from(self.0.is_reachable()));
    }
}

/// What the store's service counts.
pub(crate) fn collector(store: &RemoteStore) -> Arc<dyn Collector> {
    Arc::new(Requests(store.clone()))
}

/// Why requests fail, in one line; `None` if the service responds. `has_edge`: copies are served
/// while it cannot be reached.
pub(crate) fn not_ready(store: &RemoteStore, has_edge: bool) -> Option<&'static str> {
    if store.is_refused() {
        return Some("the store refuses all requests; check the key");
    }
    (!store.is_reachable() && !has_edge).then_some("the store cannot be reached")
}

/// Why requests fail, in one line; `None` if the path of the folder leads to one.
pub(crate) fn folder_not_ready(folder: &Folder) -> Option<&'static str> {
    folder.look_again().map(|failure| match failure {
        io::ErrorKind::NotFound => "the folder is gone",
        io::ErrorKind::TimedOut => "the folder does not respond",
        io::ErrorKind::Unsupported => {
            "the folder is another one, in which rules for paths would not hold"
        }
        _ => "the folder cannot be opened",
    })
}

impl Storage {
    /// A location if the text has a scheme, otherwise a folder.
    pub(crate) fn parse(text: PathBuf) -> Result<Storage, Failure> {
        match text.to_str().filter(|text| Location::has_scheme(text)) {
            None if text.to_string_lossy().starts_with("s3:") => Err(Failure::usage(format!(
                "{}: a bucket is s3://BUCKET or s3://BUCKET/PREFIX; write ./ in front of a folder",
                failure::one_line(&text.display().to_string())
            ))),
            None => Ok(Storage::Folder(text)),
            Some(location) => match location.parse() {
                Ok(location) => Ok(Storage::Remote(location)),
                Err(error) => Err(Failure::usage(format!("{location}: {error}"))),
            },
        }
    }

    /// The folder, if it is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match self {
            Storage::Folder(path) => Some(path),
            Storage::Remote(_) => None,
        }
    }

    /// The folder without links, or the location.
    fn absolute(&self) -> String {
        let folder = self.folder().and_then(|path| path.canonicalize().ok());
        folder.map_or_else(|| self.to_string(), |path| path.display().to_string())
    }

    /// Opens the store and serves it: as a build cache with `cache`, or through the cache of `edge`
    /// if there is one. `quotas`: with what an earlier process knows of them. A service that does
    /// not respond is logged; it may respond later. One that refuses is a failure.
    pub(crate) fn open(
        &self,
        options: FilesOptions,
        quotas: (&[Quota], &[HandedOver], &ServiceManager),
        edge: Option<&EdgeSettings>,
        cache: Option<BuildCacheSettings>,
    ) -> Result<Opened, Failure> {
        let (mut with_quotas, mut build_cache) = (None, None);
        let (store, pool, remote): (Arc<dyn Store>, _, _) = match (self, cache) {
            (Storage::Folder(path), Some(cache)) => {
                let pool = BlockingPool::threads(options.blocking_threads, 4096);
                let opened = cache.open(path, pool.clone(), options.descriptors.clone())?;
                build_cache = Some(opened.clone());
                (Arc::new(opened), pool, None)
            }
            (Storage::Folder(path), None) => {
                let folder = open_folder(path, &options)?;
                let pool = folder.pool().clone();
                // Also without quotas: there may be some later.
                let (quotas, known, manager) = quotas;
                let quotas = Quotas::open(folder.clone(), quotas, known, manager)?;
                let store = Arc::new(quotas.store().clone());
                with_quotas = Some((folder, quotas));
                (store, pool, None)
            }
            (Storage::Remote(location), _) => {
                let store = open_remote(location, options.allow.put)?;
                let pool = BlockingPool::threads(options.blocking_threads, 4096);
                (Arc::new(store.clone()), pool, Some(store))
            }
        };
        let descriptors = options.descriptors.clone();
        let edge = match edge {
            Some(edge) => {
                let origin = match &remote {
                    Some(store) => store.name().to_owned(),
                    None => self.absolute(),
                };
                let (store, pool) = (store.clone(), pool.clone());
                Some(edge.open(store, origin, self.folder(), pool, descriptors)?)
            }
            None => None,
        };
        let store = match &edge {
            Some(edge) => edge.clone(),
            None => store,
        };
        if options.webdav {
            self.report_webdav(&*store);
        }
        Ok(Opened {
            files: Files::on_store(store, pool, options),
            remote,
            stores: Stores {
                folder: with_quotas,
                edge,
                build_cache,
            },
        })
    }

    /// Logs what clients of WebDAV cannot do with the store.
    pub(crate) fn report_webdav(&self, store: &dyn Store) {
        let features = store.features();
        if !(features.empty_folders && features.properties_bytes_max > 0) {
            tracing::warn!(
                store = %self,
                folders = features.empty_folders,
                properties = features.properties_bytes_max > 0,
                "this store cannot do all of WebDAV: without folders, MKCOL gets 501; without \
                 properties, PROPPATCH gets 403"
            );
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Folder(path) => path.display().fmt(f),
            Storage::Remote(location) => location.fmt(f),
        }
    }
}

fn open_folder(path: &Path, options: &FilesOptions) -> Result<Folder, Failure> {
    Files::open_folder(path, options).map_err(|error| {
        let hint = match error.kind() {
            // Perhaps a command was meant, such as help.
            io::ErrorKind::NotFound if is_word(path) => {
                "; onrush --help lists the options and commands"
            }
            io::ErrorKind::NotFound if !options.sink => " (--allow put)",
            _ => "",
        };
        Failure::run(failure::error_text(&error) + hint)
    })
}

/// Whether a path looks like the name of a command.
fn is_word(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    !text.is_empty() && text.iter().all(u8::is_ascii_lowercase)
}

/// `has_uploads`: clients may upload.
fn open_remote(location: &Location, has_uploads: bool) -> Result<RemoteStore, Failure> {
    let store = RemoteStore::from_env(location.clone(), Options::default());
    let store = store.map_err(|error| Failure::run(format!("{location}: {error}")))?;
    match store.check() {
        Check::Responds if has_uploads => report_conditions(&store),
        Check::Responds => {}
        Check::Unreachable(reason) => {
            tracing::warn!(
                store = store.name(),
                reason,
                "the store does not respond; requests get 503 until it does"
            );
        }
        Check::Refuses(reason) => {
            return Err(Failure::run(format!("{}: {reason}", store.name())));
        }
    }
    Ok(store)
}

/// Logs what clients would find out late: conditional uploads that do not work.
fn report_conditions(store: &RemoteStore) {
    let store_name = store.name();
    match store.evaluates_conditions() {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            store = store_name,
            "the service ignores If-Match and If-None-Match; conditional uploads get 501"
        ),
        Err(error) => tracing::warn!(
            store = store_name,
            %error,
            "uploads may not work: the service did not accept a test object"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_distinguishes_locations_from_folders() {
        let of = |text: &str| Storage::parse(PathBuf::from(text));
        let folder = of("data").expect("a folder");
        assert_eq!(folder.folder(), Some(Path::new("data")));
        let remote = of("s3://bucket/prefix/").expect("a location");
        assert_eq!(remote.folder(), None);
        assert_eq!(remote.to_string(), "s3://bucket/prefix");
        for text in ["s3://", "gs://bucket", "http://a.example/"] {
            assert!(matches!(of(text), Err(Failure::Usage(_))), "{text}");
        }
    }
}
