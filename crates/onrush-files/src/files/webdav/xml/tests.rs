//! Documents are parsed strictly, and what is rendered is well-formed for other parsers as well.

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
    assert_eq!(of(&"&amp;".repeat(256), "b", 70), Some(TOO_COMPLEX));
    let attributes: String = (0..NODES_MAX).map(|at| format!(" b{at}=''")).collect();
    let attributes = parse(format!("<a{attributes}/>").as_bytes());
    assert_eq!(attributes.err(), Some(TOO_COMPLEX));
}

/// What an independent parser finds in an element, in the form of [`Element`].
fn found(node: roxmltree::Node<'_, '_>) -> Element {
    let name = |namespace: Option<&str>, local: &str| Name {
        namespace: namespace.unwrap_or_default().to_owned(),
        local: local.to_owned(),
    };
    let attributes = node.attributes().map(|attribute| {
        let name = name(attribute.namespace(), attribute.name());
        (name, attribute.value().to_owned())
    });
    let children = node.children().map(|child| match child.text() {
        Some(text) if child.is_text() => Child::Text(text.to_owned()),
        _ => Child::Element(found(child)),
    });
    let tag = node.tag_name();
    Element {
        name: name(tag.namespace(), tag.name()),
        attributes: attributes.collect(),
        children: children.collect(),
    }
}

/// The only property in a multistatus, as an independent parser finds it.
fn received(property: &str) -> Element {
    let text = format!("<D:prop xmlns:D=\"DAV:\">{property}</D:prop>");
    let document = roxmltree::Document::parse(&text);
    let document = document.unwrap_or_else(|error| panic!("{error}: {text}"));
    found(document.root_element().first_child().expect("a property"))
}

/// Numbers that look random: a linear congruential generator (Knuth, MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn one<'o>(&mut self, of: &[&'o str]) -> &'o str {
        of[self.below(of.len())]
    }

    fn name(&mut self) -> String {
        const PIECES: [&str; 22] = [
            "a",
            "b1",
            "_",
            "-",
            ".",
            "é",
            "×",
            "·",
            "中",
            "\u{300}",
            "\u{37e}",
            "\u{2070}",
            "\u{10000}",
            "xml",
            "xmlns",
            "Я",
            "0",
            "ß",
            "\u{f900}",
            "\u{e00}",
            "ı",
            "z",
        ];
        let pieces = 1 + self.below(2);
        (0..pieces).map(|_| self.one(&PIECES)).collect()
    }

    fn attributes(&mut self) -> String {
        const PREFIXES: [&str; 8] = ["", "", "p:", "q:", "xml:", "xmlns:", "D:", "none:"];
        const VALUES: [&str; 8] = [
            "v",
            "&amp;&lt;",
            "&#10;\n\t",
            "&quot;",
            "]]&gt;",
            "\u{85}",
            "DAV:",
            "&#13;",
        ];
        let count = self.below(4);
        let mut text = String::new();
        for _ in 0..count {
            let (prefix, value) = (self.one(&PREFIXES), self.one(&VALUES));
            let name = match self.below(3) {
                0 => self
                    .one(&["lang", "id", "space", "a0", "a1", "xmlns"])
                    .to_owned(),
                _ => self.name(),
            };
            push(&mut text, &[" ", prefix, &name, "=\"", value, "\""]);
        }
        text
    }

    /// An element whose prefixes are declared in it.
    fn element(&mut self, depth: usize) -> String {
        const SPACES: [&str; 12] = [
            "u:1", "u:1", "u:2", "DAV:", "", "u:é", "u: 1", "u:}", "u:&#10;", "u:|", XML, XMLNS,
        ];
        let prefix = self.one(&["", "", "p:", "q:", "D:", "xml:", "xmlns:"]);
        let name = self.name();
        let mut text = format!("<{prefix}{name}");
        for declared in [" xmlns=", " xmlns:p=", " xmlns:q="] {
            if self.below(4) > 0 {
                push(&mut text, &[declared, "\"", self.one(&SPACES), "\""]);
            }
        }
        text.push_str(&self.attributes());
        text.push('>');
        for _ in 0..self.below(3) {
            match self.below(3) {
                0 if depth < 3 => text.push_str(&self.element(depth + 1)),
                1 => text.push_str("<![CDATA[<&]]>"),
                _ => text.push_str("text &amp; &#13; \u{fffd}"),
            }
        }
        push(&mut text, &["</", prefix, &name, ">"]);
        text
    }
}

/// Documents with a property each. Many are to be refused.
pub(in crate::files::webdav) fn documents() -> impl Iterator<Item = String> {
    let mut random = Random(1);
    (0..20_000).map(move |_| {
        let property = random.element(0);
        format!("<D:prop xmlns:D=\"DAV:\" xmlns:p=\"u:p\" xmlns:q=\"u:p\">{property}</D:prop>")
    })
}

#[test]
fn what_is_rendered_is_well_formed_for_other_parsers() {
    let (mut accepted, mut refused) = (0, 0);
    for document in documents() {
        let Ok(root) = parse(document.as_bytes()) else {
            refused += 1;
            continue;
        };
        let property = root.elements().next().expect("a property");
        let mut text = String::new();
        begin(&mut text, &property.name, None);
        property.render_inner(&mut text);
        end(&mut text, &property.name);
        assert_eq!(received(&text), *property, "{document}");
        assert_eq!(parse(text.as_bytes()).as_ref(), Ok(property), "{document}");
        accepted += 1;
    }
    assert!(accepted > 500 && refused > 5_000, "{accepted} {refused}");
}

#[test]
fn names_that_not_all_parsers_accept_are_refused() {
    for document in [
        format!("<a xmlns='{XML}'/>"),
        format!("<a xmlns='{XMLNS}'/>"),
        format!("<a xmlns:p='{XML}'/>"),
        format!("<p:a xmlns:p='{}'/>", XML.replace('n', "&#110;")),
        format!("<a xmlns:p='{}' p:b=''/>", XMLNS.replace('n', "&#110;")),
        "<xml:a/>".to_owned(),
        "<xmlns:a/>".to_owned(),
        "<a xmlns:xmlns='u:'/>".to_owned(),
        "<a xmlns:xml='u:'/>".to_owned(),
        "<a xml:id='1'/>".to_owned(),
        "<a xmlns:p='u:' p:xmlns='1'/>".to_owned(),
        "<a xmlns:p='u:' xmlns:q='u:' p:b='' q:b=''/>".to_owned(),
        "<a xmlns='u:}'/>".to_owned(),
        "<a xmlns='u: b'/>".to_owned(),
        "<a xmlns='u:&#10;'/>".to_owned(),
        "<a×/>".to_owned(),
        "<·a/>".to_owned(),
        "<a\u{300}/>".to_owned(),
        "<\u{10000}/>".to_owned(),
        "<a \u{2070}='1'/>".to_owned(),
    ] {
        assert_eq!(
            parse(document.as_bytes()).err(),
            Some(MALFORMED),
            "{document}"
        );
    }
    for letters in LETTERS {
        for letter in [*letters.start(), *letters.end()] {
            let element = rendered(&format!("<{letter}/>"));
            assert!(roxmltree::Document::parse(&element).is_ok(), "{element}");
        }
    }
}
