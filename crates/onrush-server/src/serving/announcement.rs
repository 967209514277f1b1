//! What the program logs and prints when it is ready.

use crate::config::Settings;
use crate::process::failure;
use onrush::Running;
use onrush_files::FilesOptions;
use onrush_rt::net::Address;
use std::io::{self, Write};

/// A server that has started.
pub(crate) struct Announcement<'r> {
    pub(crate) running: &'r Running,
    pub(crate) admin: Option<&'r Running>,
    /// Of a self-signed certificate.
    pub(crate) fingerprint: Option<String>,
}

impl Announcement<'_> {
    /// Logs the addresses with other properties of the server, and prints the addresses to stdout:
    /// those of the objects, then those that redirect, that of the admin server, and the
    /// fingerprint.
    pub(crate) fn make(&self, settings: &Settings, connections_max: usize) {
        let shown = |address: &Address, scheme: &str| match address {
            Address::Tcp(address) => format!("{scheme}://{address}"),
            unix @ Address::Unix(_) => failure::one_line(&unix.to_string()),
        };
        let (first, others) = (self.running.addresses()).split_at(settings.addresses.len());
        let plain = settings.tls.as_ref().map_or(0, |tls| tls.plain.len());
        let (plain, redirecting) = others.split_at(plain);
        let scheme = if settings.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let first = first.iter().map(|address| shown(address, scheme));
        let plain = plain.iter().map(|address| shown(address, "http"));
        let addresses: Vec<String> = first.chain(plain).collect();
        let redirecting: Vec<String> = (redirecting.iter())
            .map(|address| shown(address, "http"))
            .collect();
        // Which features of io_uring are in use is in the debug log. Why epoll is used is shown
        // here.
        let driver = self.running.driver();
        let reason = (driver.name() != "io_uring").then(|| driver.reason());
        let edge = settings.edge.as_ref().map(|edge| edge.dir.display());
        let edge = edge.map(|dir| failure::one_line(&dir.to_string()));
        tracing::info!(
            address = addresses.join(" "),
            redirect = (!redirecting.is_empty()).then(|| redirecting.join(" ")),
            certificate_sha256 = self.fingerprint,
            store = %settings.storage,
            edge,
            cache_bytes = settings.cache.map(|cache| cache.bytes_max),
            allowed = allowed(&settings.files),
            driver = driver.name(),
            reason,
            connections_max,
            workers = self.running.workers(),
            "serving"
        );
        let mut lines = addresses.join("\n") + "\n";
        for address in redirecting {
            lines += &format!("redirect {address}\n");
        }
        if let Some(admin) = self.admin {
            lines += &format!("admin {}/-/\n", shown(admin.address(), "http"));
        }
        if let Some(fingerprint) = &self.fingerprint {
            lines += &format!("certificate sha256 {fingerprint}\n");
        }
        // stdout may be closed.
        let mut out = io::stdout().lock();
        let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    }
}

/// The permitted operations, for the log.
pub(crate) fn allowed(files: &FilesOptions) -> String {
    let allow = files.allow;
    let operations = [
        ("get", true),
        ("put (discarded)", files.sink),
        ("put", allow.put && !files.sink),
        ("delete", allow.delete),
        ("delete-folders", allow.delete && allow.delete_folders),
    ];
    let permitted = operations.into_iter().filter(|(_, permitted)| *permitted);
    permitted
        .map(|(name, _)| name)
        .collect::<Vec<_>>()
        .join(", ")
}
