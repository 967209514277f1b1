//! XML of requests: a small tree, parsed strictly, and rendered again.
//!
//! A document type declaration is refused, so there are no entities besides the five that XML
//! defines, and nothing is fetched or expanded. Size, depth, the number of elements, and names are
//! limited. Names are resolved to namespaces, and rendered elements declare the namespaces that
//! they need.
//!
//! What one client stores, others receive as a part of their responses. So what cannot be rendered
//! in a form that every parser accepts is refused: names with characters that some parsers do not
//! take for letters, the reserved namespaces, and two attributes with the same name in a namespace.

use crate::files::http::http_error::HttpError;
use quick_xml::NsReader;
use quick_xml::XmlVersion;
use quick_xml::escape::{escape, resolve_predefined_entity, unescape};
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{Namespace, NamespaceResolver, ResolveResult};
use std::ops::RangeInclusive;

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
/// The namespace of `xml:lang`, whose prefix is always declared. No element may have it as its
/// default namespace (Namespaces in XML 1.0, §3).
const XML: &str = "http://www.w3.org/XML/1998/namespace";
/// The namespace of declarations, which nothing may be in.
const XMLNS: &str = "http://www.w3.org/2000/xmlns/";
/// The attributes of the namespace of `xml:` without rules that concern a whole document.
const XML_ATTRIBUTES: [&str; 3] = ["lang", "space", "base"];

/// Letters of names besides those of ASCII: a part of those that the fourth and the fifth edition
/// of XML 1.0 have in common. Many parsers, such as expat, know those of the fourth.
const LETTERS: [RangeInclusive<char>; 26] = [
    // Latin.
    '\u{c0}'..='\u{d6}',
    '\u{d8}'..='\u{f6}',
    '\u{f8}'..='\u{131}',
    '\u{134}'..='\u{13e}',
    '\u{141}'..='\u{148}',
    '\u{14a}'..='\u{17e}',
    '\u{180}'..='\u{1c3}',
    // Greek.
    '\u{388}'..='\u{38a}',
    '\u{38c}'..='\u{38c}',
    '\u{38e}'..='\u{3a1}',
    '\u{3a3}'..='\u{3ce}',
    // Cyrillic.
    '\u{401}'..='\u{40c}',
    '\u{40e}'..='\u{44f}',
    '\u{451}'..='\u{45c}',
    '\u{45e}'..='\u{481}',
    // Armenian, Hebrew, Arabic, Georgian.
    '\u{531}'..='\u{556}',
    '\u{561}'..='\u{586}',
    '\u{5d0}'..='\u{5ea}',
    '\u{621}'..='\u{63a}',
    '\u{641}'..='\u{64a}',
    '\u{10d0}'..='\u{10f6}',
    // Kana, Bopomofo, ideographs, Hangul.
    '\u{3041}'..='\u{3094}',
    '\u{30a1}'..='\u{30fa}',
    '\u{3105}'..='\u{312c}',
    '\u{4e00}'..='\u{9fa5}',
    '\u{ac00}'..='\u{d7a3}',
];

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
    if name.namespace == XML {
        return Err(MALFORMED);
    }
    let mut attributes: Vec<(Name, String)> = Vec::new();
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|_| MALFORMED)?;
        limits.add_node()?;
        if let Some(_declared) = attribute.key.as_namespace_binding() {
            continue;
        }
        let (namespace, local) = resolver.resolve_attribute(attribute.key);
        let name = self::name(namespace, local.as_ref(), limits)?;
        // Some parsers take each attribute with this name for a declaration.
        let is_reserved = name.local == "xmlns"
            || name.namespace == XML && !XML_ATTRIBUTES.contains(&&name.local[..]);
        // Also if the prefixes differ (Namespaces in XML 1.0, §6.3).
        if is_reserved || attributes.iter().any(|(other, _)| *other == name) {
            return Err(MALFORMED);
        }
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
    if !is_name(local) || !namespace.chars().all(is_of_namespace) || namespace == XMLNS {
        return Err(MALFORMED);
    }
    let name = Name {
        namespace: namespace.into_owned(),
        local: local.to_owned(),
    };
    limits.add_name(&name)?;
    Ok(name)
}

/// Whether a text is a name without a colon (Namespaces in XML 1.0, `NCName`) of characters that
/// all parsers accept.
fn is_name(text: &str) -> bool {
    let is_letter = |c| LETTERS.iter().any(|range| range.contains(&c));
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_' || is_letter(c);
    let is_next = |c: char| is_start(c) || c.is_ascii_digit() || matches!(c, '-' | '.');
    text.starts_with(is_start) && text.chars().all(is_next)
}

/// Whether a namespace may have a character: those of a URI (RFC 3986, §2), and others that are not
/// ASCII. Parsers such as expat separate a namespace from a name by another character.
fn is_of_namespace(c: char) -> bool {
    match c.is_ascii() {
        true => c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=%".contains(c),
        false => is_char(c) && !c.is_whitespace() && !c.is_control(),
    }
}

/// Whether XML 1.0 permits a character (§2.2).
fn is_char(c: char) -> bool {
    !matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
pub(super) mod tests;
