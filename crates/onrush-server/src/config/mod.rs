//! The configuration file, and the settings that result from all options. It parses and checks
//! values; `main` applies them.

mod access;
mod conflicts;
mod site;
mod tls;
pub(crate) mod trusted_files;

use crate::config::trusted_files::TrustedFiles;
use crate::options::Options;
use crate::options::quota_values::QuotaOf;
use crate::options::toml_values::Switch;
use crate::options::values::{AccessLogFormat, AdminAt, Bind, LogFormat, LogLevel, ShowName};
use crate::process::failure::{self, Failure};
use crate::process::memory::{self, ReducedDefaults};
use crate::stores::build_cache::BuildCacheSettings;
use crate::stores::edge::EdgeSettings;
use crate::stores::storage::Storage;
pub(crate) use access::AccessSettings;
use onrush::{AccessLog, Limits, TrustedPeers};
use onrush_files::{Allow, Cors, FilesOptions, RuleFiles, UploadLimits};
use onrush_rt::driver;
use onrush_store::{Quota, ShownNames};
use std::fmt::Display;
use std::path::{Path, PathBuf};
pub(crate) use tls::{AcmeSettings, CertificateFiles, CertificateSource, TlsSettings};

/// The maximum size of a configuration file. A larger file was probably named by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum size of all receive buffers of a worker's ring.
const RING_BYTES_MAX: u64 = 128 << 20;

/// The default receive memory of all workers together.
const RECEIVE_BYTES: u64 = 256 << 20;
/// The minimum receive memory of one worker.
const WORKER_BYTES_MIN: usize = 1 << 20;

/// All settings of the server, with the defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What they result from. An option with a default of its own is read here.
    pub(crate) options: Options,
    pub(crate) storage: Storage,
    /// `None`: no cache in front of the store.
    pub(crate) edge: Option<EdgeSettings>,
    /// `None`: the folder is not a build cache.
    pub(crate) cache: Option<BuildCacheSettings>,
    pub(crate) files: FilesOptions,
    /// Limits on the objects beneath folders.
    pub(crate) quotas: Vec<Quota>,
    /// The files with redirects and header fields of a site.
    pub(crate) rules: RuleFiles,
    /// The files that the options name.
    pub(crate) trusted_files: TrustedFiles,
    /// `None`: clients do not log in, and all have the same rights.
    pub(crate) access: Option<AccessSettings>,
    /// Other origins whose pages may send requests.
    pub(crate) cors: Cors,
    /// The proxies that say who their clients are.
    pub(crate) trusted_proxies: TrustedPeers,
    /// One or more, in the form of `onrush::Server::bind`.
    pub(crate) addresses: Vec<String>,
    /// `None`: the addresses serve HTTP without TLS.
    pub(crate) tls: Option<TlsSettings>,
    /// Host names that are served besides those of the addresses.
    pub(crate) hosts: Vec<String>,
    pub(crate) workers: Option<usize>,
    pub(crate) driver_config: driver::Config,
    pub(crate) admin: Option<AdminAt>,
    /// For all workers together.
    pub(crate) receive_bytes_max: u64,
    pub(crate) limits: Limits,
    pub(crate) connections_max: Option<usize>,
    pub(crate) log: LogSettings,
    pub(crate) access_log: AccessLog,
    /// Set if the machine's memory or the limit of a cgroup reduced a default.
    pub(crate) reduced_defaults: Option<ReducedDefaults>,
}

/// The level and the formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) format: LogFormat,
    pub(crate) access_format: AccessLogFormat,
    pub(crate) level: LogLevel,
}

/// Reads a configuration file.
pub(crate) fn read(path: &Path) -> Result<Options, Failure> {
    let file_error = |why: &dyn Display| {
        Failure::usage(format!("the configuration file {} {why}", path.display()))
    };
    let size = std::fs::metadata(path).map(|found| found.len());
    if size.is_ok_and(|bytes| bytes > FILE_BYTES_MAX) {
        return Err(file_error(&"is longer than 1 MiB"));
    }
    let bytes = std::fs::read(path).map_err(|error| {
        file_error(&format_args!(
            "cannot be read: {}",
            failure::error_text(&error)
        ))
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        Failure::usage(format!("{}:{line}: this is not UTF-8 text", path.display()))
    })?;
    parse(&text)
        .map_err(|(line, what)| Failure::usage(format!("{}:{line}: {what}", path.display())))
}

/// Parses a configuration file. An error is a line number and a message.
pub(crate) fn parse(text: &str) -> Result<Options, (usize, String)> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count();
        let shown = text.lines().nth(line).unwrap_or_default();
        let key = shown.split_once('=').map(|(key, _)| key.trim());
        let unquoted = error.message().starts_with("string values must be quoted");
        let what = match error.message() {
            _ if unquoted => "text must be in quotes, as in \"text\"",
            "duplicate field `dir`" => "dir and store are the same option; write one of them",
            message => message,
        };
        // The message ends with the list of all keys, which is too long to show.
        let message = match error.message().split_once(", expected") {
            Some((what, _)) if what.starts_with("unknown field") => {
                let name = what.trim_start_matches("unknown field").trim();
                format!("unknown key {name}; keys are the long flags of onrush --help")
            }
            _ => match key {
                Some(key) if what.starts_with(&format!("{key}: ")) => what.to_owned(),
                Some(key) => match value_to_show(shown, what) {
                    Some(value) => format!("{key}: {value}: {what}"),
                    None => format!("{key}: {what}"),
                },
                None => error.message().to_owned(),
            },
        };
        (line + 1, message)
    })
}

/// The value in `line`, unless `message` contains it or it is too long to be shown.
fn value_to_show<'t>(line: &'t str, message: &str) -> Option<&'t str> {
    const BYTES_MAX: usize = 80;
    let value = line.split_once('=')?.1;
    let value = value
        .split_once(" #")
        .map_or(value, |(value, _)| value)
        .trim();
    let bare = value.trim_matches(['\'', '"']);
    let fits = (1..=BYTES_MAX).contains(&bare.len()) && !value.contains(char::is_control);
    let is_shown = ['\'', '`', '"']
        .iter()
        .any(|quote| message.contains(&format!("{quote}{bare}{quote}")));
    (fits && !is_shown).then_some(value)
}

/// Refuses options that need a folder.
fn check_remote(
    storage: &Storage,
    tls: Option<&TlsSettings>,
    has_durability: bool,
) -> Result<(), Failure> {
    let option = match tls.map(|tls| &tls.source) {
        Some(CertificateSource::SelfSigned(_)) => "tls-self-signed",
        Some(CertificateSource::Acme(_)) => "acme",
        _ if has_durability => "durability",
        _ => return Ok(()),
    };
    Err(Failure::usage(match option {
        "durability" => format!("--durability: {storage} decides itself when a PUT is durable"),
        _ => format!(
            "--{option} keeps the certificate in the served folder, and {storage} is none: use \
             --tls-cert and --tls-key"
        ),
    }))
}

impl Settings {
    /// Fills in the defaults and checks the values. `memory_bytes`: the memory that the process may
    /// use, if that is known. An error is [`Failure::Usage`].
    pub(crate) fn new(options: Options, memory_bytes: Option<u64>) -> Result<Settings, Failure> {
        let log_format = options.log_format();
        let access = AccessSettings::new(&options)?;
        let cache = BuildCacheSettings::new(&options)?;
        let mut allow = access::allow(
            options.allow.as_deref(),
            access.as_ref(),
            options.webdav == Some(true),
        )?;
        allow.put |= cache.is_some() && options.allow.is_none();
        let files = files_options(&options, allow, memory_bytes);
        let tls = TlsSettings::new(&options)?;
        let edge = EdgeSettings::new(&options)?;
        let dir = options.dir.clone().unwrap_or_else(|| PathBuf::from("."));
        let storage = Storage::parse(dir)?;
        if storage.folder().is_none() {
            if cache.is_some() {
                return Err(Failure::usage(format!("cache: {storage} is not a folder")));
            }
            check_remote(&storage, tls.as_ref(), options.durability.is_some())?;
            if options.quota.is_some() {
                return Err(Failure::usage(format!(
                    "--quota needs a folder: others may change {storage} as well"
                )));
            }
            if options.min_free.is_some() {
                return Err(Failure::usage(format!(
                    "--min-free needs a folder; the space of {storage} is not known"
                )));
            }
        }
        let receive_bytes_max = match options.receive_memory {
            Some(size) => size.bytes,
            None => memory::share(memory_bytes, memory::RECEIVE_DIVISOR, RECEIVE_BYTES),
        };
        let cache_is_reduced = files.cache_bytes_max < FilesOptions::default().cache_bytes_max;
        let is_reduced = options.receive_memory.is_none() && receive_bytes_max < RECEIVE_BYTES
            || options.cache_size.is_none() && cache_is_reduced;
        let settings = Settings {
            trusted_files: TrustedFiles::new(&options, &storage, files.allow, files.shown()),
            reduced_defaults: memory_bytes.filter(|_| is_reduced).map(|limit_bytes| {
                ReducedDefaults {
                    limit_bytes,
                    receive_bytes: receive_bytes_max,
                    cache_bytes: files.cache_bytes_max as u64,
                }
            }),
            files,
            quotas: quotas(&options)?,
            rules: site::rules(&options)?,
            access,
            cors: access::cors(&options)?,
            trusted_proxies: TrustedPeers::new(options.trusted_proxy.iter().flatten().copied()),
            tls,
            addresses: addresses(options.bind.as_deref(), options.port().0),
            hosts: (options.host.iter().flatten())
                .map(|name| name.0.clone())
                .collect(),
            workers: options.workers.map(usize::from),
            driver_config: ring_config(options.ring_buffers().0, options.ring_buffer_size().bytes)?,
            admin: options.admin.clone(),
            receive_bytes_max,
            limits: Limits::default()
                .body_bytes_max(u64::MAX) // The guard applies the limit.
                .head_timeout(options.header_timeout().duration())
                .body_timeout(options.body_timeout().duration())
                .write_timeout(options.write_timeout().duration())
                .rate_bytes_per_s_min(options.min_rate().bytes_per_s)
                .idle_timeout(options.idle_timeout().duration())
                .total_timeout(options.total_timeout().duration()),
            connections_max: options.connections_max.map(usize::from),
            log: LogSettings {
                format: log_format,
                access_format: options.access_log_format.unwrap_or(match log_format {
                    LogFormat::Text => AccessLogFormat::Text,
                    LogFormat::Json => AccessLogFormat::Json,
                }),
                level: options.log_level(),
            },
            access_log: match (options.access_log, options.access_log_format) {
                (Some(Switch::On), _) | (None, Some(_)) => AccessLog::On,
                (Some(Switch::Off), _) | (None, None) => AccessLog::Off,
            },
            edge,
            cache,
            storage,
            options,
        };
        settings.check_addresses()?;
        Ok(settings)
    }

    /// The addresses of all listeners, in the order of `onrush::Running::addresses`: those of
    /// [`Settings::addresses`], those without TLS, and those that redirect to HTTPS.
    pub(crate) fn all_addresses(&self) -> Vec<String> {
        let tls = self.tls.iter();
        let others = tls.flat_map(|tls| tls.plain.iter().chain(&tls.redirect));
        self.addresses.iter().chain(others).cloned().collect()
    }

    /// The driver configuration of each of `workers`, with an equal share of the receive memory.
    /// The share holds the ring's buffers twice: once posted to the kernel, once received and not
    /// yet processed.
    pub(crate) fn driver_config(&self, workers: usize) -> driver::Config {
        let config = self.driver_config.clone();
        let ring = usize::from(config.ring_buffers) * (config.ring_buffer_bytes + 64);
        let share = self.receive_bytes_max / workers.max(1) as u64;
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        driver::Config {
            receive_bytes_max: share.max(2 * ring).max(WORKER_BYTES_MIN),
            ..config
        }
    }
}

/// The quotas. Two of the same folder are a mistake: only the smaller one would have an effect.
fn quotas(options: &Options) -> Result<Vec<Quota>, Failure> {
    let mut quotas: Vec<Quota> = Vec::new();
    for QuotaOf(quota) in options.quota.iter().flatten() {
        if quotas.iter().any(|known| known.prefix == quota.prefix) {
            let prefix = crate::stores::quotas::prefix(quota);
            return Err(Failure::usage(format!("quota: {prefix} is given twice")));
        }
        quotas.push(quota.clone());
    }
    Ok(quotas)
}

/// The maximum of `--unfinished-age` in seconds: 31 years.
const AGE_MAX_S: u64 = 1_000_000_000;

fn files_options(options: &Options, allow: Allow, memory_bytes: Option<u64>) -> FilesOptions {
    let default = FilesOptions::default();
    let share = |part, default| memory::share(memory_bytes, part, default as u64) as usize;
    let cache_bytes_max = match options.cache_size {
        Some(size) => usize::try_from(size.bytes).unwrap_or(usize::MAX),
        None => share(memory::CACHE_DIVISOR, default.cache_bytes_max),
    };
    let upload_limits = UploadLimits {
        object_bytes_max: (options.body_max().bytes).min(options.max_object_size().bytes),
        age_max_s: match options.unfinished_age {
            Some(age) => age.duration().as_secs().clamp(1, AGE_MAX_S),
            None => default.upload_limits.age_max_s,
        },
        ..default.upload_limits
    };
    let show = options.show.clone().unwrap_or_default().into_iter();
    let mut files = FilesOptions {
        allow,
        upload_limits,
        hidden: options.hidden.unwrap_or(options.cache.is_some()),
        show: ShownNames::new(show.map(|ShowName(pattern)| pattern).collect()),
        content_addressed: options.cache.is_some(),
        reserve_admin_paths: options.admin == Some(AdminAt::Same),
        cache_bytes_max,
        upload_bytes_max: share(memory::UPLOAD_DIVISOR, default.upload_bytes_max),
        ..default
    };
    options.set_fields(&mut files);
    files
}

fn addresses(bind: Option<&[Bind]>, port: u16) -> Vec<String> {
    let address = |bind: &Bind| match bind {
        Bind::Unix(path) => format!("unix:{path}"),
        Bind::Host(host, own) => format!("{host}:{}", own.unwrap_or(port)),
    };
    match bind {
        Some(bind) if !bind.is_empty() => bind.iter().map(address).collect(),
        _ => vec![format!("127.0.0.1:{port}")],
    }
}

fn ring_config(buffers: u32, bytes: u64) -> Result<driver::Config, Failure> {
    let fits = u16::try_from(buffers).ok();
    let Some(buffers) = fits.filter(|buffers| buffers.is_power_of_two() && *buffers >= 2) else {
        return Err(Failure::usage(format!(
            "ring-buffers: {buffers} is not a power of two from 2 to 32768"
        )));
    };
    if !(512..=1 << 20).contains(&bytes) {
        return Err(Failure::usage(format!(
            "ring-buffer-size: {bytes} is not in the range from 512B to 1MiB"
        )));
    }
    if u64::from(buffers) * bytes > RING_BYTES_MAX {
        return Err(Failure::usage(format!(
            "ring-buffers ({buffers}) times ring-buffer-size ({bytes}) is more than 128MiB"
        )));
    }
    Ok(driver::Config {
        ring_buffers: buffers,
        ring_buffer_bytes: bytes as usize,
        ..driver::Config::default()
    })
}

#[cfg(test)]
mod tests;
