//! The entries of the access log that a test causes.

use std::collections::BTreeMap;
use std::sync::{Mutex, Once, PoisonError};
use tracing::field::{Field, Visit};

/// One entry: its fields by name.
pub type Entry = BTreeMap<&'static str, String>;

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// A subscriber that records the entries of the access log.
struct Keep;

struct Fields(Entry);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl tracing::Subscriber for Keep {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "onrush::access"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(Entry::new());
        event.record(&mut fields);
        entries().push(fields.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// All entries so far.
pub fn entries() -> std::sync::MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the subscriber.
pub fn keep_entries() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Keep).expect("no earlier subscriber")
    });
}

/// A field that is a number.
pub fn number(entry: &Entry, name: &str) -> u64 {
    let value = entry
        .get(name)
        .unwrap_or_else(|| panic!("{name}: {entry:?}"));
    value.parse().expect("a number")
}

/// Checks the values of some fields.
#[track_caller]
pub fn expect(entry: &Entry, fields: &[(&'static str, &str)]) {
    for (name, value) in fields {
        assert_eq!(
            entry.get(name).map(String::as_str),
            Some(*value),
            "{entry:#?}"
        );
    }
}
