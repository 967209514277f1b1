//! The XML of a client (PROPPATCH, the owner of a LOCK, PROPFIND), and what other clients receive
//! of it: well-formed for an independent parser, with the same names, attributes and text.

use onrush_rt::blocking::BlockingPool;
use onrush_server::files::received;
use onrush_server::{Files, FilesOptions};
use onrush_store::testing::MemoryStore;
use roxmltree::{Document, Node, NodeType};
use std::{collections::BTreeMap, sync::Arc};

const DAV: &str = "DAV:";

/// The properties of a folder that the server computes.
const LIVE: [&str; 4] = [
    "getlastmodified",
    "lockdiscovery",
    "resourcetype",
    "supportedlock",
];

thread_local! {
    static FILES: Files = {
        let options = FilesOptions {
            webdav: true,
            ..FilesOptions::default()
        };
        Files::on_store(Arc::new(MemoryStore::new()), BlockingPool::threads(1, 16), options)
    };
}

/// A namespace, or none, and a name.
type Name = (String, String);

/// An element. Comments and processing instructions are no part of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tree {
    attributes: BTreeMap<Name, String>,
    children: Vec<Child>,
}

#[derive(Debug, PartialEq, Eq)]
enum Child {
    Element(Name, Tree),
    Text(String),
}

/// Checks one input.
///
/// # Panics
/// If what the module promises does not hold.
pub fn check_input(input: &[u8]) {
    let documents = documents(input);
    let parsed: Vec<Document<'_>> = documents.iter().map(|text| parse(text)).collect();
    let Some(all) = parsed.first() else {
        return;
    };
    // Line ends are translated before anything is parsed (XML 1.0 §2.11). roxmltree 0.21 keeps some
    // (findings/roxmltree-line-ends.sh).
    let text = str::from_utf8(input).expect("others are refused");
    let text = &text.replace("\r\n", "\n").replace('\r', "\n");
    // Another parser may refuse more.
    let Ok(sent) = Document::parse(text.strip_prefix('\u{feff}').unwrap_or(text)) else {
        return;
    };
    let root = sent.root_element();
    match root.tag_name().name() {
        "propertyupdate" => {
            let expected = sent_properties(root);
            if !expected.keys().any(is_live) {
                assert_eq!(shown_properties(all), expected, "{text}");
            }
        }
        "lockinfo" => {
            let owner = |node: Node<'_, '_>| dav(node, "owner").map(tree);
            let lock = all.descendants().find(|node| is_dav(*node, "activelock"));
            assert_eq!(owner(lock.expect("a lock")), owner(root), "{text}");
        }
        _ => {}
    }
}

/// What clients receive of this XML. The first one has all properties.
pub fn documents(input: &[u8]) -> Vec<String> {
    FILES.with(|files| received(files, input))
}

fn parse(text: &str) -> Document<'_> {
    Document::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn is_dav(node: Node<'_, '_>, local: &str) -> bool {
    node.has_tag_name((DAV, local))
}

fn dav<'a, 'i>(node: Node<'a, 'i>, local: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| is_dav(*child, local))
}

/// Whether the server refuses to set it.
fn is_live((namespace, local): &Name) -> bool {
    const OTHERS: [&str; 6] = [
        "getcontentlength",
        "getcontenttype",
        "getetag",
        "creationdate",
        "quota-available-bytes",
        "quota-used-bytes",
    ];
    namespace == DAV && LIVE.iter().chain(&OTHERS).any(|live| live == local)
}

/// The properties that a resource without any has after a `propertyupdate` (RFC 4918 §9.2).
/// Those that the server computes are among them, also if they are removed.
fn sent_properties(root: Node<'_, '_>) -> BTreeMap<Name, Tree> {
    let mut properties = BTreeMap::new();
    for instruction in root.children().filter(Node::is_element) {
        let is_set = is_dav(instruction, "set");
        if !is_set && !is_dav(instruction, "remove") {
            continue;
        }
        let named = dav(instruction, "prop");
        let named = named.into_iter().flat_map(|prop| prop.children());
        for property in named.filter(Node::is_element) {
            let name = name(property);
            match is_set || is_live(&name) {
                true => properties.insert(name, tree(property)),
                false => properties.remove(&name),
            };
        }
    }
    properties
}

/// The properties of clients in a response to a PROPFIND.
fn shown_properties(document: &Document<'_>) -> BTreeMap<Name, Tree> {
    let response = dav(document.root_element(), "response").expect("a response");
    let found = dav(response, "propstat").and_then(|propstat| dav(propstat, "prop"));
    let found = found.expect("properties").children();
    let properties = found.filter(Node::is_element);
    let properties = properties.map(|node| (name(node), tree(node)));
    properties.filter(|(name, _)| !is_live(name)).collect()
}

fn name(node: Node<'_, '_>) -> Name {
    let tag = node.tag_name();
    let namespace = tag.namespace().unwrap_or_default();
    (namespace.to_owned(), tag.name().to_owned())
}

fn tree(node: Node<'_, '_>) -> Tree {
    let mut found = Tree::default();
    for attribute in node.attributes() {
        let namespace = attribute.namespace().unwrap_or_default().to_owned();
        let name = (namespace, attribute.name().to_owned());
        found.attributes.insert(name, attribute.value().to_owned());
    }
    for child in node.children() {
        match (child.node_type(), found.children.last_mut()) {
            (NodeType::Element, _) => {
                let element = Child::Element(name(child), tree(child));
                found.children.push(element);
            }
            (NodeType::Text, Some(Child::Text(before))) => {
                before.push_str(child.text().unwrap_or_default());
            }
            (NodeType::Text, _) => {
                let text = child.text().unwrap_or_default().to_owned();
                found.children.push(Child::Text(text));
            }
            _ => {}
        }
    }
    found
}
