//! The time in which Chromium loads a page with many small files over HTTP/2, compared with that
//! over HTTP/1.1 from the same server, which is a round trip of 20 ms away.

use super::Step;
use crate::{
    bench::{Bench, NO_TIME},
    delay::Delay,
    peers::{Launch, Role},
    plan::Subject,
    row::{About, Metrics, Round, Row, Target},
    server::{Server, free_port, pinned},
    work::Place,
};
use std::{fmt::Write, fs, net::SocketAddr, path::Path, process::Command, time::Duration};
use xtask::shell::{Outcome, capture, which};

/// Files beside the page itself, and the length of each.
const STYLES: u32 = 4;
const SCRIPTS: u32 = 6;
const IMAGES: u32 = 50;
const FILES: u32 = STYLES + SCRIPTS + IMAGES;
const FILE_BYTES: usize = 2048;

/// The time to the server and back.
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// Target for the ratio.
const RATIO_MAX: f64 = 0.6;

/// Estimated time for one page, with the start of the browser.
const PAGE: Duration = Duration::from_secs(3);

/// Cores of the browser, which has many processes. The server has one of them.
const CORES: &str = "0-1";

/// Connections that a browser opens to a server that speaks HTTP/1.1.
const ONE_CONNECTIONS: u32 = 6;

/// Keeps the time since the navigation in ms, and the number of files, when the page is loaded.
const MEASURE: &str = "addEventListener('load', () => {\
    const files = performance.getEntriesByType('resource').length;\
    window.took = `${performance.now().toFixed(2)} ${files}`;\
    });";

/// Loads the page twice, from the origin of this one and then from another one, whose port is the
/// fragment of the address. So the second page finds a browser that has started, but neither its
/// files in a cache nor an open connection. The title becomes what the second one has measured.
const TWICE: &str = "<!doctype html><html><head><title>loads</title>\
    <link rel=\"icon\" href=\"data:,\"></head><body><script>\
    const frame = (url, then) => {\
    const made = document.createElement('iframe');\
    made.onload = () => then(made.contentWindow);\
    made.src = url;\
    document.body.append(made);\
    };\
    const other = `https://127.0.0.1:${location.hash.slice(1)}/page.html`;\
    frame('page.html', () => frame(other, (page) => {\
    document.title = `took ${page.took} .`;\
    }));\
    </script></body></html>";

/// The version of HTTP that the browser speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

pub(super) struct Task {
    subject: Subject,
}

pub(super) fn steps(bench: &Bench) -> Vec<Step> {
    let drivers = bench.field.drivers.iter();
    let subjects = drivers.filter_map(|&driver| bench.field.ours(driver));
    let step = |subject: Subject| Step {
        profile: "h2",
        title: format!("{}: {}", scenario(), subject.label),
        weight: 4,
        task: super::Task::Page(Task { subject }),
    };
    subjects.map(step).collect()
}

fn scenario() -> String {
    let ms = ROUND_TRIP.as_millis();
    format!("page with {FILES} files, round trip of {ms} ms")
}

impl Task {
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let side = |version: &str| {
            let mut side = bench.side(&self.subject, Role::TlsFiles);
            side.name = format!("{}, {version}", side.name);
            side
        };
        let mut row = Row {
            profile: "h2",
            scenario: scenario(),
            about: About::Feature,
            unit: "ms/page",
            server: side("HTTP/2"),
            reference: side("HTTP/1.1"),
            access_log: "off",
            target: Some(Target::AtMost(RATIO_MAX)),
            ..Row::default()
        };
        if let Err(reason) = self.measure(bench, &mut row) {
            row.voids.push(reason);
        }
        vec![row]
    }

    fn measure(&self, bench: &mut Bench, row: &mut Row) -> Outcome {
        which("chromium").ok_or("chromium is not installed")?;
        let folder = bench.work.empty(Place::Memory)?;
        write_page(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let launch = Launch {
            role: Role::TlsFiles,
            port: free_port()?,
            folder,
            scratch: bench.work.empty(Place::Memory)?,
            connections: 16,
        };
        let mut command = (self.subject.peer.launch)(&bench.setup, &launch)?;
        // Otherwise its pages may not run scripts.
        command.arg("--site");
        let server = Server::start(&command, launch.port)?;
        for round in 0..bench.effort.rounds {
            if bench.clock.row_is_over(2 * PAGE) {
                break;
            }
            let (scenario, label) = (&row.scenario, &self.subject.label);
            crate::progress(&format!("h2 · {scenario}: {label}, {}", round + 1));
            match pages(bench, server.address, round % 2 == 1) {
                Ok([two, one]) => row.rounds.push(Round {
                    server: Metrics::only(two),
                    reference: Metrics::only(one),
                }),
                Err(_) if bench.clock.interrupted() => break,
                Err(reason) => row.voids.push(reason),
            }
        }
        match row.rounds.is_empty() && row.voids.is_empty() {
            true => Err(NO_TIME.to_owned()),
            false => Ok(()),
        }
    }
}

/// Loads the page over HTTP/2 and over HTTP/1.1, or in the other order. Returns both times in ms.
fn pages(bench: &mut Bench, server: SocketAddr, flip: bool) -> Outcome<[f64; 2]> {
    let mut order = [Version::Two, Version::One];
    if flip {
        order.reverse();
    }
    let mut ms = [f64::NAN; 2];
    for version in order {
        let profile = bench.work.empty(Place::Memory)?;
        let loaded = load(server, &profile, version);
        let _ = fs::remove_dir_all(profile);
        ms[usize::from(version == Version::One)] = loaded?;
    }
    Ok(ms)
}

/// Writes the page and its files.
fn write_page(folder: &Path) -> std::io::Result<()> {
    let mut page = format!(
        "<!doctype html><html><head><title>loads</title><link rel=\"icon\" href=\"data:,\">\n\
         <script>{MEASURE}</script>\n"
    );
    let padded = |text: &str, end: &str| {
        let padding = FILE_BYTES.saturating_sub(text.len() + end.len());
        format!("{text}{}{end}", "x".repeat(padding))
    };
    for number in 0..STYLES {
        let name = format!("{number}.css");
        let text = format!(".c{number} {{ color: black; }} /* ");
        fs::write(folder.join(&name), padded(&text, " */"))?;
        let _ = writeln!(page, "<link rel=\"stylesheet\" href=\"{name}\">");
    }
    for number in 0..SCRIPTS {
        let name = format!("{number}.js");
        let text = format!("window.loaded{number} = true; // ");
        fs::write(folder.join(&name), padded(&text, ""))?;
        let _ = writeln!(page, "<script defer src=\"{name}\"></script>");
    }
    page += "</head><body>\n";
    for number in 0..IMAGES {
        let name = format!("{number}.svg");
        let text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" height=\"9\"><!--";
        fs::write(folder.join(&name), padded(text, "--></svg>"))?;
        let _ = writeln!(page, "<img src=\"{name}\" width=\"9\" height=\"9\">");
    }
    page += "</body></html>\n";
    fs::write(folder.join("page.html"), page)?;
    fs::write(folder.join("twice.html"), TWICE)
}

/// Loads the page in a new browser. Returns the ms from navigation to the event `load`, with the
/// opening of its connections.
fn load(server: SocketAddr, profile: &Path, version: Version) -> Outcome<f64> {
    let delay = || Delay::start(server, ROUND_TRIP).map_err(|error| error.to_string());
    let (first, second) = (delay()?, delay()?);
    let mut chromium = Command::new("chromium");
    chromium
        .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-dev-shm-usage", "--ignore-certificate-errors"])
        .args(["--no-first-run", "--disable-background-networking"])
        // A page may read what one of another origin has measured.
        .args(["--disable-web-security"])
        .args(["--dump-dom", "--timeout=30000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .env("HOME", profile);
    if version == Version::One {
        chromium.arg("--disable-http2");
    }
    let port = second.address.port();
    chromium.arg(format!("https://{}/twice.html#{port}", first.address));
    let (_, text) = capture(&mut pinned(&chromium, CORES))?;
    let (ms, files) = took(&text).ok_or_else(|| {
        let begin: String = text.chars().take(200).collect();
        format!("the browser has not measured the page: {begin}")
    })?;
    let expected = match version {
        Version::One => ONE_CONNECTIONS,
        Version::Two => 1,
    };
    match (files, second.accepted()) {
        (FILES, connections) if connections == expected => Ok(ms),
        (FILES, other) => Err(format!("{other} connections instead of {expected}")),
        (other, _) => Err(format!("{other} files instead of {FILES}")),
    }
}

/// What [`TWICE`] has written.
fn took(page: &str) -> Option<(f64, u32)> {
    let (_, rest) = page.split_once("<title>took ")?;
    let mut words = rest.split(' ');
    let ms = words.next()?.parse().ok()?;
    Some((ms, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_file() {
        let folder = testing::TempDir::new();
        write_page(folder.path()).expect("writes");
        let page = fs::read_to_string(folder.path().join("page.html")).expect("a page");
        let mut files = 0;
        for entry in fs::read_dir(folder.path()).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            if !name.ends_with(".html") {
                assert!(page.contains(&format!("=\"{name}\"")), "{name}");
                let bytes = entry.metadata().expect("metadata").len();
                assert_eq!(bytes as usize, FILE_BYTES, "{name}");
                files += 1;
            }
        }
        assert_eq!(files, FILES);
    }

    #[test]
    fn the_title_of_the_page_is_the_measurement() {
        let page = "<html><head><title>took 123.25 60 .</title>";
        assert_eq!(took(page), Some((123.25, 60)));
        assert_eq!(took("<html><head><title>loads</title>"), None);
    }
}
