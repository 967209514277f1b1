//! The log: `tracing` events as lines on stderr, as text or JSON. The access log may have another
//! format. Each event is one line without characters that control a terminal, whatever a client
//! sends.

mod combined;

use crate::config::LogSettings;
use crate::logging::combined::Combined;
use crate::options::values::{AccessLogFormat, LogFormat, LogLevel};
use crate::process::failure::{escape, is_printable};
use crate::process::redaction::redact;
use std::any::Any;
use std::fmt::{self, Debug, Write as _};
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, reload};

/// Changes the log of this process.
static CONTROL: OnceLock<LogControl> = OnceLock::new();

/// Changes the log while it is in use.
struct LogControl {
    level: reload::Handle<Targets, Registry>,
    formats: Arc<Formats>,
}

/// The formats in use, which each event reads.
struct Formats {
    access: AtomicU8,
    other: AtomicU8,
}

impl Formats {
    fn set(&self, settings: LogSettings) {
        self.access.store(settings.access_format as u8, Relaxed);
        self.other.store(settings.format as u8, Relaxed);
    }
}

/// Changes the lowest severity that is logged, and the formats.
pub(crate) fn change(settings: LogSettings) {
    if let Some(control) = CONTROL.get() {
        control.formats.set(settings);
        // The subscriber lives as long as the process.
        let _ = control.level.reload(filter(settings.level));
    }
}

/// Writes all events of this process to stderr from now on. Panics are events too.
pub(crate) fn start(settings: LogSettings) {
    let colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // This fails only if a subscriber is set already. The server can run without a log.
    let (subscriber, control) = subscriber(settings, colors, io::stderr);
    let _ = tracing::subscriber::set_global_default(subscriber);
    let _ = CONTROL.set(control);
    std::panic::set_hook(Box::new(|panic| {
        let message = panic_message(panic.payload());
        let place = panic.location().map(tracing::field::display);
        tracing::error!(place, "a thread panicked: {message}");
    }));
}

/// The message of a panic.
fn panic_message(payload: &dyn Any) -> &str {
    let constant = payload.downcast_ref::<&str>().copied();
    let formatted = || payload.downcast_ref::<String>().map(String::as_str);
    constant.or_else(formatted).unwrap_or("no message")
}

fn subscriber<W>(
    settings: LogSettings,
    colors: bool,
    writer: W,
) -> (Box<dyn Subscriber + Send + Sync>, LogControl)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // By default the layer reports write errors with `eprintln!`, which panics if stderr is closed.
    let layer = tracing_subscriber::fmt::layer().log_internal_errors(false);
    let (filter, level) = reload::Layer::new(filter(settings.level));
    let registry = tracing_subscriber::registry().with(filter);
    let formats = Arc::new(Formats {
        access: AtomicU8::new(settings.access_format as u8),
        other: AtomicU8::new(settings.format as u8),
    });
    let forms = Forms {
        text: Text { colors },
        json: tracing_subscriber::fmt::format().json(),
        formats: formats.clone(),
    };
    let subscriber = registry.with(layer.event_format(forms).with_writer(writer));
    (Box::new(subscriber), LogControl { level, formats })
}

/// The crate whose messages of the level `info` are of no use to operators.
const S3_CLIENT: &str = "object_store";

fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // The client of S3 reports each request that it repeats; there is a metric for that.
    let client = match level {
        LevelFilter::INFO => LevelFilter::WARN,
        level => level,
    };
    // The access log has a switch of its own.
    Targets::new()
        .with_default(level)
        .with_target(S3_CLIENT, client)
        .with_target(ACCESS, level.max(LevelFilter::INFO))
}

/// The text format: `TIME LEVEL MESSAGE KEY=VALUE …`.
struct Text {
    colors: bool,
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        SystemTime.format_time(&mut writer)?;
        let level = *event.metadata().level();
        let (color, plain) = match self.colors {
            true => (color(level), "\x1b[0m"),
            false => ("", ""),
        };
        write!(writer, " {color}{level:>5}{plain} ")?;
        if fields.message.is_empty() {
            writer.write_str(event.metadata().target())?;
        } else {
            writer.write_str(&fields.message)?;
        }
        writeln!(writer, "{}", fields.others)
    }
}

fn color(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[2m",
    }
}

/// The fields of an event, rendered and escaped.
#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            escape(value, &mut self.message);
            return;
        }
        let is_bare = |c| is_printable(c) && !matches!(c, ' ' | '"' | '\\');
        let _ = if !value.is_empty() && value.chars().all(is_bare) {
            write!(self.others, " {}={value}", field.name())
        } else {
            write!(self.others, " {}={value:?}", field.name())
        };
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

/// The target of access log events.
const ACCESS: &str = "onrush::access";

/// All formats, and which of them the access log and all other events have.
struct Forms {
    text: Text,
    json: Format<Json>,
    formats: Arc<Formats>,
}

impl<S, N> FormatEvent<S, N> for Forms
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        const JSON: u8 = LogFormat::Json as u8;
        const ACCESS_JSON: u8 = AccessLogFormat::Json as u8;
        const COMBINED: u8 = AccessLogFormat::Combined as u8;
        let is_access = event.metadata().target() == ACCESS;
        let mut entry = String::new();
        let mut to = Writer::new(&mut entry);
        let other = self.formats.other.load(Relaxed);
        match (is_access, self.formats.access.load(Relaxed)) {
            (true, ACCESS_JSON) => self.format_json(context, &mut to, event)?,
            (true, COMBINED) => format_combined(&mut to, event)?,
            (false, _) if other == JSON => self.format_json(context, &mut to, event)?,
            _ => self.text.format_event(context, to, event)?,
        }
        writer.write_str(&redact(&entry))
    }
}

impl Forms {
    fn format_json<S, N>(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: &mut Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
        N: for<'a> FormatFields<'a> + 'static,
    {
        let mut object = String::new();
        (self.json).format_event(context, Writer::new(&mut object), event)?;
        write_json(&object, writer)
    }
}

fn format_combined(writer: &mut Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let mut entry = Combined::default();
    event.record(&mut entry);
    let now = UNIX_EPOCH.elapsed().unwrap_or_default();
    let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    entry.write(now_us, writer)
}

/// Writes JSON, and escapes control characters that JSON permits in strings: DEL and U+0080 to
/// U+009F. Terminals interpret them. They occur only inside strings.
fn write_json(object: &str, writer: &mut Writer<'_>) -> fmt::Result {
    let is_escaped = |c: char| c.is_control() && c != '\n';
    if !object.contains(is_escaped) {
        return writer.write_str(object);
    }
    for c in object.chars() {
        match is_escaped(c) {
            true => write!(writer, "\\u{:04x}", u32::from(c))?,
            false => writer.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::redaction::tests::SIGNED;
    use testing::log::Log;

    fn logged(format: LogFormat, ansi: bool, act: impl FnOnce()) -> String {
        let access_format = match format {
            LogFormat::Text => AccessLogFormat::Text,
            LogFormat::Json => AccessLogFormat::Json,
        };
        logged_as(format, access_format, ansi, act)
    }

    fn logged_as(
        format: LogFormat,
        access_format: AccessLogFormat,
        ansi: bool,
        act: impl FnOnce(),
    ) -> String {
        let settings = LogSettings {
            format,
            access_format,
            level: LogLevel::Info,
        };
        let subscriber = |log: Log| subscriber(settings, ansi, move || log.clone()).0;
        testing::log::logged(subscriber, act)
    }

    #[test]
    fn the_formats_change_while_the_log_is_in_use() {
        let log = Log::default();
        let writer = log.clone();
        let mut settings = LogSettings {
            format: LogFormat::Text,
            access_format: AccessLogFormat::Text,
            level: LogLevel::Info,
        };
        let (subscriber, control) = subscriber(settings, false, move || writer.clone());
        testing::log::with_subscriber(subscriber, || {
            let events = || {
                tracing::info!("other");
                tracing::info!(target: "onrush::access", method = "GET", target = "/x");
            };
            events();
            assert!(!log.take().contains('{'));
            settings.access_format = AccessLogFormat::Combined;
            settings.format = LogFormat::Json;
            control.formats.set(settings);
            events();
            let both = log.take();
            assert!(
                both.starts_with("{\"") && both.contains("\"GET /x "),
                "{both}"
            );
        });
    }

    /// The threads of other tests have no subscriber.
    #[test]
    fn an_event_that_another_thread_has_come_to_first_is_logged() {
        let event = || tracing::info!("reached");
        let line = logged(LogFormat::Text, false, || {
            std::thread::spawn(event).join().unwrap();
            event();
        });
        assert_eq!(line.matches("reached").count(), 1, "{line}");
    }

    const NASTY: &str = "a\r\nb\x1b[2Jc\x7f\u{9b}31m\0 \"\\ \u{202e}d";

    fn nasty_event() {
        tracing::info!(target: "onrush::access", target = %NASTY, plain = "x/y", text = NASTY,
            number = 3, nothing = Option::<u8>::None, empty = "");
    }

    #[test]
    fn text_is_one_line_of_printable_characters() {
        let line = logged(LogFormat::Text, false, nasty_event);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(
            line.trim_end_matches('\n').chars().all(is_printable),
            "{line:?}"
        );
        assert!(
            line.contains("  INFO onrush::access target=\"a\\r\\nb\\u{1b}[2J"),
            "{line}"
        );
        assert!(
            line.contains(" plain=x/y ") && line.contains(" number=3 "),
            "{line}"
        );
        assert!(line.ends_with(" empty=\"\"\n"), "{line}");
        let message = logged(LogFormat::Text, false, || {
            tracing::warn!(n = 1, "it's {NASTY}")
        });
        assert!(
            message.contains("  WARN it's a\\r\\nb\\u{1b}[2J"),
            "{message}"
        );
        assert!(message.ends_with(" n=1\n") && message.matches('\n').count() == 1);
    }

    #[test]
    fn json_is_one_object_per_line() {
        let lines = logged(LogFormat::Json, false, || {
            nasty_event();
            tracing::info!("plain");
        });
        assert!(
            !lines.contains(|c: char| c.is_control() && c != '\n'),
            "{lines:?}"
        );
        let objects: Vec<serde_json::Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("an object"))
            .collect();
        assert_eq!(objects.len(), 2);
        assert_eq!(
            objects[0]["fields"]["target"], NASTY,
            "no character is lost"
        );
        assert_eq!(objects[0]["target"], "onrush::access");
        assert_eq!(objects[0]["fields"]["number"], 3);
        assert_eq!(objects[1]["fields"]["message"], "plain");
    }

    #[test]
    fn access_log_may_have_its_own_format() {
        let events = || {
            tracing::info!(target: "onrush::access", method = "GET", target = "/\u{9b}\"",
                version = "HTTP/1.1", peer = tracing::field::display("192.0.2.1:7"),
                status = 200_u16, body_bytes = 0_u64, duration_us = 5_u64);
            tracing::warn!("other\u{9b}");
        };
        let combined = logged_as(LogFormat::Json, AccessLogFormat::Combined, true, events);
        let (entry, other) = combined.split_once('\n').expect("lines");
        assert!(entry.starts_with("192.0.2.1 - - ["), "{entry}");
        let end = "] \"GET /\\xc2\\x9b\\\" HTTP/1.1\" 200 - \"-\" \"-\"";
        assert!(entry.ends_with(end), "{entry}");
        assert!(
            other.starts_with("{") && other.contains("other\\u009b"),
            "{other}"
        );
        let text = logged_as(LogFormat::Text, AccessLogFormat::Json, true, events);
        let (entry, other) = text.split_once('\n').expect("lines");
        let entry: serde_json::Value = serde_json::from_str(entry).expect("an object");
        assert_eq!(entry["fields"]["target"], "/\u{9b}\"");
        assert!(
            other.contains("\x1b[33m WARN\x1b[0m other\\u{9b}"),
            "{other}"
        );
    }

    #[test]
    fn signatures_are_redacted_in_each_format() {
        let event = || {
            let bytes = [b"\xff", SIGNED.as_bytes()].concat();
            tracing::info!(target: "onrush::access", method = "GET", target = SIGNED,
                referer = SIGNED, referer_bytes = &bytes[..], request_bytes = &bytes[..],
                request = SIGNED);
            tracing::info!(target: "onrush::access", method = "GET", target = SIGNED);
        };
        for (format, access) in [
            (LogFormat::Text, AccessLogFormat::Text),
            (LogFormat::Json, AccessLogFormat::Json),
            (LogFormat::Text, AccessLogFormat::Combined),
        ] {
            let lines = logged_as(format, access, false, event);
            assert!(lines.contains("onrush-signature=REDACTED"), "{lines}");
            for secret in ["c2VjcmV0", "99, 50, 86, 106", "99,50,86,106"] {
                assert!(!lines.contains(secret), "{lines}");
            }
            for line in lines.lines().filter(|_| access == AccessLogFormat::Json) {
                serde_json::from_str::<serde_json::Value>(line).expect("an object");
            }
        }
    }

    #[test]
    fn secrets_are_redacted_in_each_event() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let lines = logged(format, false, || {
                tracing::error!(
                    url = "https://ann:s3cr@h/?to%6ben=s3cr",
                    "GET /a?sig=s3cr failed"
                );
            });
            assert!(
                !lines.contains("s3cr") && lines.contains("failed"),
                "{lines}"
            );
        }
    }

    #[test]
    fn only_levels_have_a_color_and_only_on_terminals() {
        let event = || tracing::error!(x = 1, "text");
        assert!(logged(LogFormat::Text, true, event).contains("\x1b[31mERROR\x1b[0m text x=1\n"));
        assert!(!logged(LogFormat::Text, false, event).contains('\x1b'));
    }

    #[test]
    fn panic_messages_are_found() {
        let caught = |act: fn()| std::panic::catch_unwind(act).expect_err("it panics");
        assert_eq!(panic_message(&*caught(|| panic!("constant"))), "constant");
        assert_eq!(panic_message(&*caught(|| panic!("{}", 1 + 1))), "2");
        assert_eq!(
            panic_message(&*caught(|| std::panic::panic_any(1))),
            "no message"
        );
    }

    #[test]
    fn levels_are_filtered() {
        let lines = logged(LogFormat::Text, false, || {
            tracing::debug!("no");
            tracing::info!(target: "object_store::client::retry", "no");
            tracing::warn!("yes");
        });
        assert_eq!(lines.matches('\n').count(), 1, "{lines}");
    }
}
