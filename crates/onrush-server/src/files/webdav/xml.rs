//! XML of requests: a small tree, parsed strictly, and rendered again.
//!
//! A document type declaration is refused, so there are no entities besides the five that XML
//! defines, and nothing is fetched or expanded. Size, depth, the number of elements, and names are
//! limited. Names are resolved to namespaces, and rendered elements declare the namespaces that
//! they need.

use crate::files::http_error::HttpError;
use quick_xml::NsReader;
use quick_xml::XmlVersion;
use quick_xml::escape::{escape, resolve_predefined_entity, unescape};
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{Namespace, NamespaceResolver, ResolveResult};

/// The maximum size of a document.
pub(super) const BYTES_MAX: usize = 64 << 10;
const DEPTH_MAX: usize = 32;
/// The maximum number of elements and attributes.
const NODES_MAX: usize = 2_000;
/// The maximum length of a namespace, and of a name in it.
const NAME_BYTES_MAX: usize = 256;
/// The maximum size of all names with their namespaces, as they are rendered: a namespace that is
/// declared once belongs to each name that is rendered.
const NAMES_BYTES_MAX: usize = 64 << 10;
/// The maximum number of properties that a request names.
pub(super) const PROPERTIES_MAX: usize = 128;

/// The namespace of WebDAV.
pub(super) const DAV: &str = "DAV:";
/// The namespace of `xml:lang`, whose prefix is always declared.
const XML: &str = "http://www.w3.org/XML/1998/namespace";

const MALFORMED: HttpError = HttpError::new(400, "the body is not well-formed XML");
const TOO_COMPLEX: HttpError = HttpError::new(
    400,
    "the XML has too many elements, attributes or long names",
);
const LONG_NAME: HttpError = HttpError::new(
    400,
    "a name or a namespace of the XML is longer than 256 bytes",
);
pub(super) const TOO_MANY_PROPERTIES: HttpError =
    HttpError::new(400, "the XML names more than 128 properties");

/// The name of an element: a namespace, which may be empty, and a name without a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) local: String,
}

impl Name {
    /// Whether it is this name of WebDAV.
    pub(super) fn is_dav(&self, local: &str) -> bool {
        self.namespace == DAV && self.local == local
    }
}

/// An element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: Name,
    attributes: Vec<(Name, String)>,
    children: Vec<Child>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Child {
    Element(Element),
    Text(String),
}

impl Element {
    /// The elements in it.
    pub(super) fn elements(&self) -> impl Iterator<Item = &Element> {
        self.children.iter().filter_map(|child| match child {
            Child::Element(element) => Some(element),
            Child::Text(_) => None,
        })
    }

    /// The first element in it with this name of WebDAV.
    pub(super) fn dav(&self, local: &str) -> Option<&Element> {
        self.elements().find(|element| element.name.is_dav(local))
    }

    /// Renders attributes, `>` and content. The end tag is not included. The namespace of the
    /// element is the default one there.
    pub(super) fn render_inner(&self, out: &mut String) {
        for (at, (name, value)) in self.attributes.iter().enumerate() {
            let (namespace, local) = (&name.namespace[..], &name.local);
            match namespace {
                "" => push(out, &[" ", local]),
                XML => push(out, &[" xml:", local]),
                namespace => {
                    let prefix = format!("a{at}");
                    let namespace = escape(namespace);
                    push(
                        out,
                        &[
                            " xmlns:", &prefix, "=\"", &namespace, "\" ", &prefix, ":", local,
                        ],
                    );
                }
            }
            push(out, &["=\"", &escape_value(value), "\""]);
        }
        out.push('>');
        for child in &self.children {
            match child {
                Child::Text(text) => out.push_str(&escape(&text[..]).replace('\r', "&#13;")),
                Child::Element(element) => {
                    begin(out, &element.name, Some(&self.name.namespace));
                    element.render_inner(out);
                    end(out, &element.name);
                }
            }
        }
    }
}

/// Appends a start tag up to its name and namespace. `outer`: the default namespace there; `None`
/// if the place is not known.
pub(super) fn begin(out: &mut String, name: &Name, outer: Option<&str>) {
    push(out, &["<", &name.local]);
    if outer != Some(&name.namespace) {
        push(out, &[" xmlns=\"", &escape(&name.namespace[..]), "\""]);
    }
}

pub(super) fn end(out: &mut String, name: &Name) {
    push(out, &["</", &name.local, ">"]);
}

fn push(out: &mut String, texts: &[&str]) {
    texts.iter().for_each(|text| out.push_str(text));
}

/// An attribute value whose white space survives the next parser.
fn escape_value(value: &str) -> String {
    let value = escape(value);
    value
        .replace('\n', "&#10;")
        .replace('\r', "&#13;")
        .replace('\t', "&#9;")
}

/// Parses a document. Fails with 400.
pub(super) fn parse(document: &[u8]) -> Result<Element, HttpError> {
    let text = std::str::from_utf8(document).map_err(|_| MALFORMED)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if !text.chars().all(is_char) {
        return Err(MALFORMED);
    }
    let mut reader = NsReader::from_str(text);
    reader.config_mut().check_comments = true;
    let mut open: Vec<Element> = Vec::new();
    let mut root = None;
    let mut limits = Limits::default();
    loop {
        let event = reader.read_event().map_err(|_| MALFORMED)?;
        match event {
            Event::Start(tag) | Event::Empty(tag) if root.is_some() => {
                let _ = tag; // A second root.
                return Err(MALFORMED);
            }
            Event::Start(tag) => {
                if open.len() >= DEPTH_MAX {
                    return Err(TOO_COMPLEX);
                }
                open.push(element(&tag, reader.resolver(), &mut limits)?);
            }
            Event::Empty(tag) => {
                let element = element(&tag, reader.resolver(), &mut limits)?;
                close(&mut open, &mut root, element);
            }
            Event::End(_) => {
                let closed = open.pop().ok_or(MALFORMED)?;
                close(&mut open, &mut root, closed);
            }
            Event::Text(text) => {
                let text = text.xml10_content().map_err(|_| MALFORMED)?;
                push_text(&mut open, &text)?;
            }
            Event::CData(text) => {
                let text = text.xml10_content().map_err(|_| MALFORMED)?;
                push_text(&mut open, &text)?;
            }
            Event::GeneralRef(reference) => {
                let name = reference.decode().map_err(|_| MALFORMED)?;
                let character = reference.resolve_char_ref().map_err(|_| MALFORMED)?;
                match character {
                    Some(character) if is_char(character) => {
                        push_text(&mut open, character.encode_utf8(&mut [0; 4]))?;
                    }
                    Some(_) => return Err(MALFORMED),
                    None => {
                        let text = resolve_predefined_entity(&name).ok_or(MALFORMED)?;
                        push_text(&mut open, text)?;
                    }
                }
            }
            Event::DocType(_) => {
                return Err(HttpError::new(
                    400,
                    "the XML has a document type declaration",
                ));
            }
            Event::Comment(_) | Event::PI(_) | Event::Decl(_) => {}
            Event::Eof => break,
        }
    }
    match (root, open.is_empty()) {
        (Some(root), true) => Ok(root),
        _ => Err(MALFORMED),
    }
}

/// Puts a complete element into the one that is open.
fn close(open: &mut [Element], root: &mut Option<Element>, closed: Element) {
    match open.last_mut() {
        Some(outer) => outer.children.push(Child::Element(closed)),
        None => *root = Some(closed),
    }
}

fn push_text(open: &mut [Element], text: &str) -> Result<(), HttpError> {
    match open.last_mut() {
        Some(Element { children, .. }) => {
            match children.last_mut() {
                Some(Child::Text(before)) => before.push_str(text),
                _ => children.push(Child::Text(text.to_owned())),
            }
            Ok(())
        }
        None if text.trim().is_empty() => Ok(()),
        None => Err(MALFORMED),
    }
}

/// What a document has so far.
#[derive(Default)]
struct Limits {
    nodes: usize,
    names_bytes: usize,
}

impl Limits {
    /// Counts an element or an attribute.
    fn add_node(&mut self) -> Result<(), HttpError> {
        self.nodes += 1;
        match self.nodes <= NODES_MAX {
            true => Ok(()),
            false => Err(TOO_COMPLEX),
        }
    }

    /// Counts a name.
    fn add_name(&mut self, name: &Name) -> Result<(), HttpError> {
        let (namespace, local) = (&name.namespace[..], &name.local[..]);
        if namespace.len() > NAME_BYTES_MAX || local.len() > NAME_BYTES_MAX {
            return Err(LONG_NAME);
        }
        self.names_bytes += escape(namespace).len() + local.len();
        match self.names_bytes <= NAMES_BYTES_MAX {
            true => Ok(()),
            false => Err(TOO_COMPLEX),
        }
    }
}

fn element(
    tag: &BytesStart<'_>,
    resolver: &NamespaceResolver,
    limits: &mut Limits,
) -> Result<Element, HttpError> {
    limits.add_node()?;
    let (namespace, local) = resolver.resolve_element(tag.name());
    let name = name(namespace, local.as_ref(), limits)?;
    let mut attributes = Vec::new();
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|_| MALFORMED)?;
        limits.add_node()?;
        if let Some(_declared) = attribute.key.as_namespace_binding() {
            continue;
        }
        let (namespace, local) = resolver.resolve_attribute(attribute.key);
        let name = self::name(namespace, local.as_ref(), limits)?;
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        let value = value.map_err(|_| MALFORMED)?;
        if !value.chars().all(is_char) {
            return Err(MALFORMED);
        }
        attributes.push((name, value.into_owned()));
    }
    Ok(Element {
        name,
        attributes,
        children: Vec::new(),
    })
}

fn name(
    namespace: ResolveResult<'_>,
    local: &[u8],
    limits: &mut Limits,
) -> Result<Name, HttpError> {
    let namespace = match namespace {
        ResolveResult::Unbound => "",
        ResolveResult::Bound(Namespace(bytes)) => {
            std::str::from_utf8(bytes).map_err(|_| MALFORMED)?
        }
        ResolveResult::Unknown(_) => return Err(MALFORMED),
    };
    let namespace = unescape(namespace).map_err(|_| MALFORMED)?;
    let local = std::str::from_utf8(local).map_err(|_| MALFORMED)?;
    if !is_name(local) || !namespace.chars().all(is_char) {
        return Err(MALFORMED);
    }
    let name = Name {
        namespace: namespace.into_owned(),
        local: local.to_owned(),
    };
    limits.add_name(&name)?;
    Ok(name)
}

/// Whether a text is a name without a colon (Namespaces in XML 1.0, `NCName`), where all characters
/// that are not ASCII count as letters.
fn is_name(text: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii();
    let is_next = |c: char| is_start(c) || c.is_ascii_digit() || matches!(c, '-' | '.');
    text.starts_with(is_start) && text.chars().all(is_next)
}

/// Whether XML 1.0 permits a character (§2.2).
fn is_char(c: char) -> bool {
    !matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(document: &str) -> String {
        let root = parse(document.as_bytes()).expect("valid");
        let mut out = String::new();
        begin(&mut out, &root.name, None);
        root.render_inner(&mut out);
        end(&mut out, &root.name);
        out
    }

    #[test]
    fn what_is_rendered_means_the_same() {
        for (document, expected) in [
            ("<a/>", "<a xmlns=\"\"></a>"),
            (
                "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?> <D:a xmlns:D=\"DAV:\"><b/> \
                 <D:c>&#65;&amp;<![CDATA[<]]>&#x10000;</D:c></D:a><!-- x -->",
                "<a xmlns=\"DAV:\"><b xmlns=\"\"></b> <c>A&amp;&lt;\u{10000}</c></a>",
            ),
            (
                "<a xmlns='u:1' xmlns:p='u:2' x='1' p:y='2 &quot;' xml:lang='en'><p:b/></a>",
                "<a xmlns=\"u:1\" x=\"1\" xmlns:a1=\"u:2\" a1:y=\"2 &quot;\" xml:lang=\"en\">\
                 <b xmlns=\"u:2\"></b></a>",
            ),
            ("<a xmlns='u:?a&amp;b'/>", "<a xmlns=\"u:?a&amp;b\"></a>"),
            ("<a>&#13;\r\n</a>", "<a xmlns=\"\">&#13;\n</a>"),
        ] {
            let once = rendered(document);
            assert_eq!(once, expected, "{document}");
            assert_eq!(parse(once.as_bytes()), parse(document.as_bytes()));
        }
    }

    #[test]
    fn malformed_and_expanding_documents_are_refused() {
        let deep = "<a>".repeat(40) + &"</a>".repeat(40);
        let wide = format!("<a>{}</a>", "<b/>".repeat(3000));
        for document in [
            "",
            " ",
            "text",
            "<a>",
            "<a></b>",
            "</a>",
            "<a/><b/>",
            "<a/>text",
            "<a>&b;</a>",
            "<a>&#0;</a>",
            "<a>\u{1}</a>",
            "<a b='&c;'/>",
            "<a b='1' b='2'/>",
            "<p:a/>",
            "<a p:b='1'/>",
            "<D:a xmlns:D='DAV:'><p:b xmlns:p=''/></D:a>",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
            "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
            "<1a/>",
            "<a\"/>",
            "<a><b<c/></a>",
            &deep,
            &wide,
        ] {
            assert!(parse(document.as_bytes()).is_err(), "{document}");
        }
        assert!(parse(b"<a>\xff</a>").is_err());
    }

    #[test]
    fn long_and_multiplied_names_are_refused() {
        let of = |namespace: &str, name: &str, count: usize| {
            let names: String = (0..count).map(|at| format!("<{name}{at}/>")).collect();
            parse(format!("<a xmlns='{namespace}'>{names}</a>").as_bytes()).err()
        };
        let long = "n".repeat(NAME_BYTES_MAX);
        assert_eq!(of(&long, "b", 128), None);
        assert_eq!(of(&(long.clone() + "n"), "b", 1), Some(LONG_NAME));
        assert_eq!(of("u:", &long, 1), Some(LONG_NAME));
        assert_eq!(of(&long, "b", 300), Some(TOO_COMPLEX));
        // What is escaped is longer.
        assert_eq!(of(&"&gt;".repeat(256), "b", 70), Some(TOO_COMPLEX));
        let attributes: String = (0..NODES_MAX).map(|at| format!(" b{at}=''")).collect();
        let attributes = parse(format!("<a{attributes}/>").as_bytes());
        assert_eq!(attributes.err(), Some(TOO_COMPLEX));
    }
}
