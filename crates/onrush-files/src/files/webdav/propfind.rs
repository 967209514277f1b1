//! PROPFIND (RFC 4918 §9.1) of a resource, or of a folder with its entries. `Depth: infinity` of
//! a folder is refused (`propfind-finite-depth`), unless an option permits it for folders with so
//! many entries; these are counted before the response begins.
//!
//! The entries of a folder are rendered while they are sent, by a task whose pace is that of the
//! client. Memory does not grow with the folder: some names and entries of it, which the budget of
//! listings limits, and one piece of text. Entries are those of a listing.

use super::dead::Properties;
use super::descent::{Descent, Stopped};
use super::lock::active_lock;
use super::xml::{self, Element, Name};
use super::{Resource, WebDav, read_body};
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::locks::Refusal;
use crate::files::object::object_fields::etag;
use crate::files::path;
use crate::files::shared::client_rights::check_right;
use crate::files::shared::multistatus::{self, href, push_status};
use crate::files::shared::permitted::Permitted;
use crate::files::shared::stored_fields::StoredFields;
use crate::rights::Rights;
use crate::shares::Holder;
use onrush::body::BodySender;
use onrush::{Body, Request, Response, WorkerHandle};
use onrush_proto::date;
use onrush_store::{CursorHow, DetailedEntry, Entry, Key, Kind, Meta, Space, Version, Wanted};
use quick_xml::escape::escape;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// The approximate size of a piece.
const PIECE_BYTES: usize = 16 << 10;
/// The bytes that may wait for the client, and one piece more.
const QUEUE_BYTES: usize = 32 << 10;

/// The properties that the server computes (§15). Clients cannot set them.
const LIVE: [&str; 7] = [
    "getcontentlength",
    "getcontenttype",
    "getetag",
    "getlastmodified",
    "lockdiscovery",
    "resourcetype",
    "supportedlock",
];

/// Those that the metadata of an object may change.
const OF_METADATA: [&str; 2] = ["getcontenttype", "getlastmodified"];

/// Those of a folder that only requests by name get (RFC 4331 §3), from clients that may create
/// objects there: others need not know how much space the disk has.
const QUOTA: [&str; 2] = ["quota-available-bytes", "quota-used-bytes"];

const SUPPORTED_LOCK: &str = "<D:lockentry><D:lockscope><D:exclusive/></D:lockscope><D:locktype>\
    <D:write/></D:locktype></D:lockentry><D:lockentry><D:lockscope><D:shared/></D:lockscope>\
    <D:locktype><D:write/></D:locktype></D:lockentry>";

/// Whether clients cannot set a property.
pub(super) fn is_protected(name: &Name) -> bool {
    let mut live = LIVE.iter().chain(&QUOTA).chain(&["creationdate"]);
    live.any(|live| name.is_dav(live))
}

/// What a request asks for.
enum Asked {
    /// All properties, and these.
    All(Vec<Name>),
    /// The names of all properties.
    Names,
    These(Vec<Name>),
}

impl Asked {
    fn parse(body: &[u8]) -> Result<Asked, HttpError> {
        if body.is_empty() {
            return Ok(Asked::All(Vec::new()));
        }
        let root = xml::parse(body)?;
        let names = |of: &str| -> Result<Vec<Name>, HttpError> {
            let mut known = BTreeSet::new();
            let elements = root.dav(of).into_iter().flat_map(Element::elements);
            let names = elements.map(|element| &element.name);
            let names: Vec<Name> = names.filter(|name| known.insert(*name)).cloned().collect();
            match names.len() <= xml::PROPERTIES_MAX {
                true => Ok(names),
                false => Err(xml::TOO_MANY_PROPERTIES),
            }
        };
        let kinds = ["prop", "propname", "allprop"].map(|kind| root.dav(kind).is_some());
        match (root.name.is_dav("propfind"), kinds) {
            (true, [true, false, false]) => Ok(Asked::These(names("prop")?)),
            (true, [false, true, false]) => Ok(Asked::Names),
            (true, [false, false, true]) => Ok(Asked::All(names("include")?)),
            _ => Err(HttpError::new(400, "the body is no propfind")),
        }
    }

    /// Whether one of these live properties is asked for, with its value.
    fn has_live(&self, live: &[&str]) -> bool {
        match self {
            Asked::All(_) => true,
            Asked::Names => false,
            Asked::These(names) => names.iter().any(|name| live.iter().any(|l| name.is_dav(l))),
        }
    }

    /// Whether the space of a folder is asked for.
    fn has_quota(&self) -> bool {
        let is_quota = |name: &Name| QUOTA.iter().any(|quota| name.is_dav(quota));
        match self {
            Asked::Names => true,
            Asked::All(names) | Asked::These(names) => names.iter().any(is_quota),
        }
    }

    fn has_dead(&self) -> bool {
        match self {
            Asked::All(_) | Asked::Names => true,
            Asked::These(names) => names.iter().any(|name| !is_protected(name)),
        }
    }
}

/// A resource whose properties are rendered.
struct Subject {
    key: Option<Key>,
    kind: Kind,
    size: u64,
    modified_s: u64,
    version: Option<Version>,
    /// What the client may do there.
    rights: Rights,
    /// The metadata, and the properties of clients. `None`: they were not read yet.
    metadata: Option<Vec<u8>>,
    properties: Option<Vec<u8>>,
}

impl Subject {
    fn new(key: Option<Key>, meta: Option<Meta>, rights: Rights) -> Subject {
        let modified_ns = meta.map_or(0, |meta| meta.modified_ns);
        Subject {
            key,
            kind: meta.map_or(Kind::Directory, |meta| meta.kind),
            size: meta.map_or(0, |meta| meta.size),
            // Times before 1970 are shown as 1970, and so are those of the folders of a bucket,
            // which are not known: some clients refuse a response without (object_store).
            modified_s: u64::try_from(modified_ns / 1_000_000_000).unwrap_or(0),
            version: meta.map(|meta| meta.version),
            rights,
            metadata: None,
            properties: None,
        }
    }

    /// Whether the client may read it, and not only list it.
    fn may_read(&self) -> bool {
        self.rights.contains(Rights::READ)
    }
}

struct Propfind {
    webdav: Arc<WebDav>,
    asked: Asked,
    mount: String,
    now_ms: u64,
    /// The metadata of each object may be read.
    reads_metadata: bool,
    /// The properties of clients are read: some are asked for, and there may be some.
    reads_dead: bool,
}

impl WebDav {
    pub(in crate::files) async fn propfind(
        self: Arc<WebDav>,
        mut request: Request,
    ) -> Result<Response, Refusal> {
        let (has_entries, is_infinite) = match request.header("depth") {
            Some(b"0") => (false, false),
            Some(b"1") => (true, false),
            // Without the field, the depth is infinite (RFC 4918, section 9.1).
            None => (true, true),
            Some(depth) if depth.eq_ignore_ascii_case(b"infinity") => (true, true),
            Some(_) => return Err(HttpError::new(400, "Depth is 0 or 1").into()),
        };
        let body = read_body(&mut request).await?;
        let asked = Asked::parse(&body)?;
        let resource = self.resource(&request, Operation::Read)?;
        let found = match resource.key {
            Some(_) => self.find(&resource).await?,
            None => (self.objects.store.root_meta().await)
                .map_err(|error| self.objects.store_failure(error, Operation::Read, None))?,
        };
        if found.is_none() && resource.key.is_some() {
            return Err(HttpError::NOT_FOUND.into());
        }
        let permitted = Permitted::new(&request, &self.objects.options)?;
        let Resource { key, has_slash } = resource;
        let subject = Subject::new(key, found, permitted.here());
        let is_folder = subject.kind == Kind::Directory;
        let entries_max = is_infinite.then_some(self.objects.options.propfind_entries_max);
        if is_folder && entries_max == Some(0) {
            return Err(infinite());
        }
        if is_folder && has_entries {
            check_right(&request, Rights::LIST)?;
        }
        let mount = path::split(&request)?.mount.to_owned();
        let location = href(&mount, subject.key.as_ref(), subject.kind);
        let features = self.objects.store.features();
        let propfind = Propfind {
            reads_dead: features.properties_bytes_max > 0 && asked.has_dead(),
            asked,
            mount,
            now_ms: request.worker().now_ms(),
            reads_metadata: !(is_folder && has_entries) || features.local_metadata,
            webdav: self.clone(),
        };
        let mut text = multistatus::BEGIN.to_owned();
        propfind.render(&mut text, &subject).await;
        let response = if is_folder && has_entries {
            let how = CursorHow {
                metadata: propfind.reads_metadata && propfind.asked.has_live(&OF_METADATA),
                properties: propfind.reads_dead,
                ..CursorHow::default()
            };
            let Subject { key, version, .. } = subject;
            let failed = |error| {
                self.objects
                    .store_failure(error, Operation::Read, key.as_ref())
            };
            let begin = |how| {
                let holder = Holder::of(&request);
                let descent =
                    Descent::new(&self.objects, holder, permitted.clone(), how, entries_max);
                descent.begin(key.clone(), version)
            };
            if entries_max.is_some() {
                // They are counted first: a response that has begun cannot be refused any more.
                let counted = begin(CursorHow::default()).await.map_err(failed)?;
                counted.count().await.map_err(|stopped| match stopped {
                    Stopped::TooMany => infinite(),
                    Stopped::Because(error) => failed(error).into(),
                })?;
            }
            let entries = begin(how).await.map_err(failed)?;
            let (sender, body) = Body::channel(QUEUE_BYTES);
            let worker = request.worker().clone();
            let sent = propfind.send(sender, text, entries, worker);
            request.worker().spawn(sent).detach();
            multistatus::response(body)
        } else {
            text.push_str(multistatus::END);
            multistatus::response(text)
        };
        Ok(match is_folder && !has_slash {
            true => response.with_header("Content-Location", location),
            false => response,
        })
    }
}

fn infinite() -> Refusal {
    Refusal::Condition {
        status: 403,
        name: "propfind-finite-depth",
        href: None,
    }
}

impl Propfind {
    /// Sends the entries of a folder after `text`. An error ends the connection, so that the client
    /// does not take a part for the whole.
    async fn send(
        self,
        mut sender: BodySender,
        text: String,
        entries: Descent,
        worker: WorkerHandle,
    ) {
        match self.entries(&mut sender, text, entries, worker).await {
            Ok(()) => sender.finish(),
            Err(error) => sender.abort(error),
        }
    }

    async fn entries(
        mut self,
        sender: &mut BodySender,
        mut text: String,
        mut entries: Descent,
        worker: WorkerHandle,
    ) -> io::Result<()> {
        let failed = |_| io::Error::other("the folder cannot be listed any more, or has grown");
        while let Some((key, one, rights)) = entries.next().await.map_err(failed)? {
            self.render(&mut text, &of_entry(key, one, rights)).await;
            if text.len() >= PIECE_BYTES {
                sender.send(std::mem::take(&mut text)).await?;
                self.now_ms = worker.now_ms();
            }
        }
        text.push_str(multistatus::END);
        sender.send(text).await
    }

    /// Appends the element `response` of a resource.
    async fn render(&self, out: &mut String, subject: &Subject) {
        let stored = self.stored_fields(subject).await;
        let dead = self.dead(subject).await;
        let space = self.space(subject).await;
        out.push_str("<D:response><D:href>");
        out.push_str(&href(&self.mount, subject.key.as_ref(), subject.kind));
        out.push_str("</D:href>");
        let (mut found, mut missing) = (String::new(), String::new());
        match &self.asked {
            Asked::Names => {
                for live in LIVE.iter().filter(|live| subject.has(live)) {
                    push(&mut found, &["<D:", live, "/>"]);
                }
                for quota in QUOTA.iter().filter(|_| space.is_some()) {
                    push(&mut found, &["<D:", quota, "/>"]);
                }
                for property in dead.iter() {
                    xml::begin(&mut found, &property.name, None);
                    found.push_str("/>");
                }
            }
            Asked::All(more) => {
                for live in LIVE {
                    self.live(&mut found, live, subject, stored.as_ref());
                }
                dead.iter().for_each(|property| property.render(&mut found));
                for name in more {
                    if push_quota(&mut found, name, space) {
                        continue;
                    }
                    let is_there = LIVE
                        .iter()
                        .any(|live| name.is_dav(live) && subject.has(live))
                        || dead.get(name).is_some();
                    if !is_there {
                        xml::begin(&mut missing, name, None);
                        missing.push_str("/>");
                    }
                }
            }
            Asked::These(names) => {
                for name in names {
                    let is_found = match LIVE.iter().find(|live| name.is_dav(live)) {
                        Some(live) => self.live(&mut found, live, subject, stored.as_ref()),
                        None if push_quota(&mut found, name, space) => true,
                        None => dead.get(name).map(|one| one.render(&mut found)).is_some(),
                    };
                    if !is_found {
                        xml::begin(&mut missing, name, None);
                        missing.push_str("/>");
                    }
                }
            }
        }
        if !found.is_empty() || missing.is_empty() {
            propstat(out, &found, 200);
        }
        if !missing.is_empty() {
            propstat(out, &missing, 404);
        }
        out.push_str("</D:response>\n");
    }

    /// Appends a live property. Returns whether the resource has it.
    fn live(
        &self,
        out: &mut String,
        live: &str,
        subject: &Subject,
        stored: Option<&StoredFields>,
    ) -> bool {
        if !subject.has(live) {
            return false;
        }
        push(out, &["<D:", live, ">"]);
        match (live, &subject.key, subject.version) {
            ("getcontentlength", ..) => out.push_str(&subject.size.to_string()),
            ("getcontenttype", Some(key), _) => {
                let of_name = self.webdav.objects.options.types.content_type(key.name());
                let stored = stored.and_then(StoredFields::content_type);
                out.push_str(&escape(stored.unwrap_or(of_name)));
            }
            ("getetag", _, Some(version)) => {
                out.push_str(&escape(String::from_utf8_lossy(&etag(&version))));
            }
            ("getlastmodified", ..) => {
                let of_client = stored.and_then(StoredFields::modified_s);
                let modified_s = of_client.unwrap_or(subject.modified_s);
                out.push_str(&String::from_utf8_lossy(&date::format(modified_s)));
            }
            ("resourcetype", ..) if subject.kind == Kind::Directory => {
                out.push_str("<D:collection/>");
            }
            ("supportedlock", ..) => out.push_str(SUPPORTED_LOCK),
            ("lockdiscovery", key, _) => {
                let key = key.as_ref().map(Key::as_bytes).unwrap_or_default();
                let may_read = subject.may_read();
                for (at, lock) in self.webdav.locking.locks.covering(key, self.now_ms) {
                    active_lock(out, &path::href(&self.mount, &at), &lock, may_read);
                }
            }
            _ => {}
        }
        push(out, &["</D:", live, ">"]);
        true
    }

    /// What the `PUT` of an object has stored, if it is asked for.
    async fn stored_fields(&self, subject: &Subject) -> Option<StoredFields> {
        let is_asked = self.asked.has_live(&OF_METADATA);
        let is_read = self.reads_metadata && subject.may_read() && subject.kind == Kind::File;
        let key = subject.key.as_ref().filter(|_| is_asked && is_read)?;
        if let Some(metadata) = &subject.metadata {
            return StoredFields::parse(metadata);
        }
        let store = &self.webdav.objects.store;
        let object = match store.try_get(key) {
            Some(object) => object,
            None => store.open(key, Wanted::Properties).await,
        };
        // An object that was deleted meanwhile is shown as it was.
        StoredFields::parse(&object.ok()?.metadata().await.ok()?)
    }

    /// The space of a folder, if it is asked for and the client may use it.
    async fn space(&self, subject: &Subject) -> Option<Space> {
        let may_create = subject.rights.contains(Rights::CREATE);
        if subject.kind != Kind::Directory || !may_create || !self.asked.has_quota() {
            return None;
        }
        let found = self.webdav.objects.store.space(subject.key.as_ref()).await;
        found.ok().flatten() // A folder that was deleted meanwhile has none.
    }

    async fn dead(&self, subject: &Subject) -> Properties {
        let is_read = subject.may_read() && self.reads_dead;
        match (&subject.properties, &subject.key) {
            (Some(stored), _) if is_read => Properties::parse(stored),
            (None, Some(key)) if is_read => {
                let stored = self.webdav.objects.store.properties(key).await;
                Properties::parse(&stored.unwrap_or_default())
            }
            _ => Properties::default(),
        }
    }
}

/// The response about a folder that has these stored properties, for `received`. `None`: what is
/// asked for is refused.
#[cfg(feature = "testing")]
pub(super) async fn rendered(
    webdav: &Arc<WebDav>,
    key: &Key,
    asked: &[u8],
    properties: Vec<u8>,
) -> Option<String> {
    let propfind = Propfind {
        asked: Asked::parse(asked).ok()?,
        mount: "/".to_owned(),
        now_ms: 0,
        reads_metadata: false,
        reads_dead: true,
        webdav: webdav.clone(),
    };
    let subject = Subject {
        properties: Some(properties),
        ..Subject::new(Some(key.clone()), None, Rights::ALL)
    };
    let mut text = multistatus::BEGIN.to_owned();
    propfind.render(&mut text, &subject).await;
    text.push_str(multistatus::END);
    Some(text)
}

fn of_entry(key: Key, one: DetailedEntry, rights: Rights) -> Subject {
    let Entry {
        kind,
        size,
        modified_ns,
        version,
        ..
    } = one.entry;
    let meta = Meta {
        kind,
        size,
        modified_ns,
        changed_ns: None,
        version,
    };
    Subject {
        metadata: one.metadata,
        properties: one.properties,
        ..Subject::new(Some(key), Some(meta), rights)
    }
}

impl Subject {
    /// Whether it has a live property.
    fn has(&self, live: &str) -> bool {
        match live {
            "getcontentlength" | "getcontenttype" | "getetag" => self.kind == Kind::File,
            _ => true,
        }
    }
}

fn push(out: &mut String, texts: &[&str]) {
    texts.iter().for_each(|text| out.push_str(text));
}

/// Appends a property of the space of a folder. Returns whether it is one that the folder has.
fn push_quota(out: &mut String, name: &Name, space: Option<Space>) -> bool {
    let quota = QUOTA.into_iter().find(|quota| name.is_dav(quota));
    let (Some(quota), Some(space)) = (quota, space) else {
        return false;
    };
    let bytes = match quota {
        "quota-available-bytes" => space.available_bytes,
        _ => space.used_bytes,
    };
    let bytes = bytes.to_string();
    push(out, &["<D:", quota, ">", &bytes, "</D:", quota, ">"]);
    true
}

/// Appends the element `propstat` (§14.22).
pub(super) fn propstat(out: &mut String, properties: &str, status: u16) {
    push(out, &["<D:propstat><D:prop>", properties, "</D:prop>"]);
    push_status(out, status);
    out.push_str("</D:propstat>");
}
