//! The servers: how large they are, what they serve, and where they listen. `main` opens what is
//! served and starts them.

pub(crate) mod announcement;
pub(crate) mod reconfigure;
mod replaceable;

use crate::config::Settings;
use crate::options::values::AdminAt;
use crate::process::descriptors;
use crate::process::failure::{self, Failure};
use crate::restart::inherited::Inherited;
use crate::serving::replaceable::{Boxed, Replaceable};
use onrush::tls::TlsConfig;
use onrush::{Admin, Metrics, Router, Running, RunningSettings, Server};
use onrush_files::{
    Access, AccessControl, BodyLimit, Files, Forwarding, Guard, Hosts, HttpChallenges, Https,
    ListenAddress, PAGE_PATHS, Redirect, RuleSource, SiteRules, Upkeep, add_dashboard,
    admin_not_found, https_port,
};
use onrush_rt::descriptors::Descriptors;
use onrush_rt::net::Address;
use onrush_rt::worker::affinity;
use std::io;
use std::os::unix::fs::FileTypeExt;

/// The maximum number of connections to the admin address over its limit. Each stays open until it
/// has received a 503.
const ADMIN_OVER_LIMIT: usize = 4;

/// The paths of the admin pages that load balancers read without logging in, and of the style and
/// the script of the page.
const OPEN_PATHS: &[&str] = &["/-/health", "/-/ready", PAGE_PATHS[0], PAGE_PATHS[1]];

/// Sizes that depend on the settings and on the limits of this machine.
pub(crate) struct Sizes {
    pub(crate) workers: usize,
    pub(crate) file_threads: usize,
    /// The number that the settings ask for, or fewer.
    connections_max: usize,
    pub(crate) admin_connections_max: usize,
    /// The budget for connections and files.
    pub(crate) descriptors: Descriptors,
}

impl Sizes {
    /// `descriptors`: the limit on open files of this process; `None` if there is no limit.
    pub(crate) fn new(settings: &Settings, descriptors: Option<u64>) -> Sizes {
        let listeners = settings.all_addresses().len();
        let workers = settings.workers.unwrap_or_else(|| {
            let max = descriptors::workers_max(descriptors, listeners);
            affinity().len().min(max)
        });
        let file_threads = descriptors::file_threads(descriptors, settings.files.blocking_threads);
        let admin_connections_max = descriptors::admin_connections_max(descriptors);
        let other = match settings.admin {
            Some(AdminAt::Own(_)) => {
                admin_connections_max + ADMIN_OVER_LIMIT + descriptors::per_worker(1) as usize
            }
            _ => 0,
        };
        let own = descriptors::ProcessUse {
            workers,
            listeners,
            file_threads,
            other,
        };
        let budget = descriptors::budget(descriptors, own);
        let mut sizes = Sizes {
            workers,
            file_threads,
            connections_max: 0,
            admin_connections_max,
            descriptors: budget,
        };
        sizes.change(settings);
        sizes
    }

    /// Takes what can change of other settings.
    pub(crate) fn change(&mut self, settings: &Settings) {
        let possible = self.descriptors.connections_max();
        let wanted = settings.connections_max.unwrap_or(possible);
        if wanted > possible {
            tracing::warn!(
                connections_max = wanted,
                possible,
                "connections-max exceeds what the limit on open files (ulimit -n) permits"
            );
        }
        self.connections_max = wanted.min(possible);
    }

    /// The number of clients that may watch folders. Each keeps a connection, and the others need
    /// some as well.
    pub(crate) fn watchers_max(&self, settings: &Settings) -> usize {
        (settings.files.watchers_max).min(self.connections_max.div_ceil(2))
    }

    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// The settings of the server of the objects that can change while it runs. `current`: those
    /// that it has.
    pub(crate) fn running_settings(
        &self,
        settings: &Settings,
        current: RunningSettings,
    ) -> RunningSettings {
        let mut running = current;
        running.limits = settings.limits;
        running.connections_max = self.connections_max;
        running.access_log = settings.access_log;
        running.rebalance = settings.options.rebalance().is_on();
        running.drain_timeout = settings.options.drain_timeout().duration_or_max();
        running.trusted_proxies = settings.trusted_proxies.clone();
        running
    }
}

/// What is served, besides the settings.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) control: Option<AccessControl>,
    pub(crate) rules: Option<RuleSource>,
    pub(crate) files: Files,
    pub(crate) admin: Admin,
    pub(crate) metrics: Metrics,
    pub(crate) challenges: HttpChallenges,
}

impl Parts {
    /// Starts the workers. The application can be replaced by one for other settings.
    pub(crate) fn start(
        &self,
        settings: &Settings,
        sizes: &Sizes,
        tls: Option<TlsConfig>,
        inherited: &mut Inherited,
    ) -> Result<(Running, Replaceable), Failure> {
        let addresses = listen_addresses(settings);
        let server = configure_server(settings, &addresses, sizes);
        let mut server = server.blocking_pool(self.files.pool().clone());
        if settings.admin.is_some() {
            server = server.metrics(&self.metrics);
        }
        if let Some(tls) = tls {
            server = server.tls(tls);
        }
        let (application, redirect) = self.application(settings);
        let application = Replaceable::new(application);
        let server = inherited.give(server, false);
        let running = server
            .start(application.clone())
            .map_err(|error| start_failure(&error, &settings.all_addresses()))?;
        if let Some(redirect) = redirect {
            lead_to_https(&redirect, settings, running.addresses());
        }
        Ok((running, application))
    }

    /// The application for other settings, on a server that listens on `addresses`.
    pub(crate) fn application_at(&self, settings: &Settings, addresses: &[Address]) -> Boxed {
        let (application, redirect) = self.application(settings);
        if let Some(redirect) = redirect {
            lead_to_https(&redirect, settings, addresses);
        }
        application
    }

    /// The application, and the redirection of plain requests, which does not know the listeners.
    fn application(&self, settings: &Settings) -> (Boxed, Option<Redirect>) {
        let hosts = Hosts::for_listeners(&listen_addresses(settings), &settings.hosts);
        let mut guarded = Guard::new(hosts.clone(), self.objects(settings)).cors(&settings.cors);
        let tls = settings.tls.as_ref();
        guarded = guarded.needs_certificate(
            tls.is_some_and(|tls| !tls.client_ca.is_empty() && !tls.is_client_optional),
        );
        if settings.access.is_none() {
            guarded = guarded.body_bytes_max(settings.options.body_max().bytes);
        }
        let forwarding = |application: Boxed| match settings.trusted_proxies.is_empty() {
            true => application,
            false => Boxed::new(Forwarding::new(
                application,
                settings.trusted_proxies.clone(),
            )),
        };
        let Some(tls) = &settings.tls else {
            return (forwarding(Boxed::new(guarded)), None);
        };
        let redirect = Redirect::new(hosts, settings.admin == Some(AdminAt::Same));
        let redirect = redirect.challenges(&self.challenges);
        let mut application = Https::new(guarded);
        if !tls.redirect.is_empty() {
            application = application.redirect(&redirect);
        }
        if let Some(max_age_s) = tls.hsts_s {
            application = application.hsts(max_age_s);
        }
        (forwarding(Boxed::new(application)), Some(redirect))
    }

    /// Objects, perhaps with the admin pages, perhaps behind access control.
    fn objects(&self, settings: &Settings) -> Boxed {
        let files = &self.files;
        let is_shared = settings.admin == Some(AdminAt::Same);
        let objects = match is_shared {
            true => {
                let page = |router: Router, path: &&str| router.get(path, files.clone());
                let router = PAGE_PATHS.iter().fold(Router::new(), page);
                let router = add_dashboard(router.fallback(files.clone()), &self.metrics);
                Boxed::new(self.admin.add_to(router))
            }
            false => Boxed::new(files.clone()),
        };
        let has_rules = settings.rules.files().next().is_some();
        let objects = match self.rules.as_ref().filter(|_| has_rules) {
            Some(rules) => Boxed::new(SiteRules::new(rules, objects)),
            None => objects,
        };
        let objects = Boxed::new(Upkeep::new(files, objects));
        // The limit of the body is checked after access control: a client without the right to
        // write gets 401 or 403, whatever the size.
        let bytes_max = settings.options.body_max().bytes;
        let Some(control) = settings.access.as_ref().and(self.control.as_ref()) else {
            return objects;
        };
        let objects = BodyLimit::new(bytes_max, objects);
        let open_paths = if is_shared { OPEN_PATHS } else { PAGE_PATHS };
        let access = Access::new(control, objects)
            .site(settings.files.site)
            .upload_forms(true);
        Boxed::new(access.open_paths(open_paths))
    }

    /// Starts the server for metrics and health if it has its own address.
    pub(crate) fn start_admin(
        &self,
        settings: &Settings,
        sizes: &Sizes,
        inherited: &mut Inherited,
    ) -> Result<Option<(Running, Replaceable)>, Failure> {
        let Some(AdminAt::Own(address)) = &settings.admin else {
            return Ok(None);
        };
        let address = ListenAddress::resolve(address);
        let server = Server::bind(address.to_bind())
            .workers(1)
            .pinned(false)
            .driver(settings.options.driver().into())
            .http2(settings.options.http2().is_on())
            .connections_max(sizes.admin_connections_max);
        let application = Replaceable::new(self.admin_application(settings, &address));
        let running = inherited.give(server, true).start(application.clone());
        let running = running.map_err(|error| match start_failure(&error, &[]) {
            Failure::Usage(message) => Failure::usage(format!("--admin: {message}")),
            Failure::Run(message) => Failure::run(format!("--admin: {message}")),
        })?;
        tracing::info!(address = %running.address(), "serving admin");
        Ok(Some((running, application)))
    }

    /// The pages of the admin server for other settings.
    pub(crate) fn admin_at(&self, settings: &Settings) -> Option<Boxed> {
        match &settings.admin {
            Some(AdminAt::Own(address)) => {
                Some(self.admin_application(settings, &ListenAddress::resolve(address)))
            }
            Some(AdminAt::Same) | None => None,
        }
    }

    fn admin_application(&self, settings: &Settings, address: &ListenAddress) -> Boxed {
        let hosts = Hosts::for_listener(address, &settings.hosts);
        let router = Router::new().fallback(admin_not_found);
        let pages = (self.admin).add_to(add_dashboard(router, &self.metrics));
        Boxed::new(Guard::new(hosts, pages))
    }
}

fn listen_addresses(settings: &Settings) -> Vec<ListenAddress> {
    (settings.all_addresses().iter())
        .map(|address| ListenAddress::resolve(address))
        .collect()
}

/// Tells the redirection on which addresses the server listens.
fn lead_to_https(redirect: &Redirect, settings: &Settings, addresses: &[Address]) {
    let Some(tls) = &settings.tls else { return };
    let (encrypted, others) = addresses.split_at(settings.addresses.len());
    let (plain, redirecting) = others.split_at(tls.plain.len());
    let to = |address: &Address| {
        let port = (tls.https_port).or_else(|| https_port(address, encrypted));
        port.map(|port| (address.clone(), port))
    };
    let redirecting: Vec<_> = redirecting.iter().filter_map(to).collect();
    redirect.set_listeners(plain, &redirecting);
}

/// The failure of a server that did not start on `addresses`. An address that is not one, or whose
/// name is unknown, is wrong usage.
fn start_failure(error: &io::Error, addresses: &[String]) -> Failure {
    let reason = failure::error_text(error);
    if reason.starts_with("io_uring is refused") {
        return Failure::run(format!("{reason}; --driver auto uses epoll instead"));
    }
    match error.kind() {
        io::ErrorKind::InvalidInput => Failure::usage(reason),
        io::ErrorKind::AddrInUse => match addresses.iter().find(|path| is_no_socket(path)) {
            Some(path) => Failure::run(format!("{path} exists and is not a socket")),
            None => Failure::run(reason),
        },
        _ => Failure::run(reason),
    }
}

/// Whether the address is a Unix socket and its file exists and is something else. Such a file is
/// not replaced.
fn is_no_socket(address: &str) -> bool {
    let found = address.strip_prefix("unix:").map(std::fs::symlink_metadata);
    found.is_some_and(|found| found.is_ok_and(|found| !found.file_type().is_socket()))
}

/// The server for `addresses`, which are [`Settings::all_addresses`].
fn configure_server(settings: &Settings, addresses: &[ListenAddress], sizes: &Sizes) -> Server {
    let (first, plain) = addresses.split_at(settings.addresses.len());
    let mut first = first.iter().map(ListenAddress::to_bind);
    let server = Server::bind(first.next().unwrap_or_default());
    let server = first.fold(server, Server::also_bind);
    let plain = plain.iter().map(ListenAddress::to_bind);
    let server = plain.fold(server, Server::also_bind_plain);
    let server = server
        .backlog(settings.options.backlog().0)
        .defer_accept(settings.options.defer_accept())
        .http2(settings.options.http2().is_on())
        // What a client has asked for is done, also if it does not wait for the response.
        .half_close(true)
        .driver(settings.options.driver().into())
        .workers(sizes.workers)
        .placement(settings.options.placement().into())
        .rebalance(settings.options.rebalance().is_on())
        .connections_max(sizes.connections_max)
        .descriptors(&sizes.descriptors)
        .driver_config(settings.driver_config(sizes.workers))
        .limits(settings.limits)
        .drain_timeout(settings.options.drain_timeout().duration_or_max())
        .access_log(settings.access_log);
    match settings.options.proxy_protocol() {
        true => server.proxy_protocol(settings.trusted_proxies.clone()),
        false => server,
    }
}
