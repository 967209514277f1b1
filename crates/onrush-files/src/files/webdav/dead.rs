//! Properties that clients have set ("dead", RFC 4918 §4.2), and the form in which the store keeps
//! them.
//!
//! The form is a record for each property, ordered by name: the namespace, the name, and the rest
//! of the element without its end tag, each ended by a zero byte, which XML cannot contain. A
//! namespace that is that of the record before is a byte 1.

use super::xml::{self, Element, Name};

const SAME: &str = "\u{1}";

/// A property: its name, and its attributes and content as XML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) name: Name,
    inner: String,
}

impl Property {
    pub(super) fn new(element: &Element) -> Property {
        let mut inner = String::new();
        element.render_inner(&mut inner);
        Property {
            name: element.name.clone(),
            inner,
        }
    }

    /// Appends the element.
    pub(super) fn render(&self, out: &mut String) {
        xml::begin(out, &self.name, None);
        out.push_str(&self.inner);
        xml::end(out, &self.name);
    }
}

/// All properties of a resource, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Properties(Vec<Property>);

impl Properties {
    /// Records that are malformed are left out: another program has written them.
    pub(super) fn parse(stored: &[u8]) -> Properties {
        let mut properties = Properties::default();
        let Ok(text) = std::str::from_utf8(stored) else {
            return properties;
        };
        let mut parts = text.split_terminator('\0');
        let mut before = String::new();
        while let (Some(namespace), Some(local), Some(inner)) =
            (parts.next(), parts.next(), parts.next())
        {
            if namespace != SAME {
                before = namespace.to_owned();
            }
            let mut text = String::new();
            let name = Name {
                namespace: before.clone(),
                local: local.to_owned(),
            };
            xml::begin(&mut text, &name, None);
            text.push_str(inner);
            xml::end(&mut text, &name);
            if let Ok(element) = xml::parse(text.as_bytes())
                && element.name == name
            {
                properties.set(Property::new(&element));
            }
        }
        properties
    }

    pub(super) fn to_stored(&self) -> Vec<u8> {
        let mut stored = String::new();
        let mut before = None;
        for Property { name, inner } in &self.0 {
            let namespace = match before == Some(&name.namespace) {
                true => SAME,
                false => &name.namespace,
            };
            before = Some(&name.namespace);
            for part in [namespace, &name.local, inner] {
                stored.push_str(part);
                stored.push('\0');
            }
        }
        stored.into_bytes()
    }

    pub(super) fn set(&mut self, property: Property) {
        match self.find(&property.name) {
            Ok(at) => self.0[at] = property,
            Err(at) => self.0.insert(at, property),
        }
    }

    pub(super) fn remove(&mut self, name: &Name) {
        if let Ok(at) = self.find(name) {
            self.0.remove(at);
        }
    }

    pub(super) fn get(&self, name: &Name) -> Option<&Property> {
        self.find(name).ok().map(|at| &self.0[at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Property> {
        self.0.iter()
    }

    fn find(&self, name: &Name) -> Result<usize, usize> {
        self.0.binary_search_by(|property| property.name.cmp(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_rendered_as_before() {
        let mut stored = 0;
        for document in xml::tests::documents() {
            let Ok(root) = xml::parse(document.as_bytes()) else {
                continue;
            };
            let mut properties = Properties::default();
            let elements = root.elements().map(Property::new);
            elements.for_each(|property| properties.set(property));
            let again = Properties::parse(&properties.to_stored());
            assert_eq!(again, properties, "{document}");
            let mut text = String::new();
            again.iter().for_each(|property| property.render(&mut text));
            assert!(roxmltree::Document::parse(&text).is_ok(), "{text}");
            stored += 1;
        }
        assert!(stored > 500, "{stored}");
    }

    #[test]
    fn stored_properties_are_the_same_and_short() {
        let document = "<a xmlns='http://example.com/ns'><p1 x='1'>v&amp;<i/></p1><p2/>\
            <p0 xmlns=''>none</p0></a>";
        let root = xml::parse(document.as_bytes()).expect("valid");
        let mut properties = Properties::default();
        for element in root.elements() {
            properties.set(Property::new(element));
        }
        let stored = properties.to_stored();
        assert_eq!(Properties::parse(&stored), properties);
        let text = String::from_utf8(stored).expect("text");
        assert_eq!(text.matches("example").count(), 1, "{text}");
        let name = properties.iter().nth(1).expect("p1").name.clone();
        let mut rendered = String::new();
        properties.get(&name).expect("p1").render(&mut rendered);
        assert_eq!(
            rendered,
            "<p1 xmlns=\"http://example.com/ns\" x=\"1\">v&amp;<i></i></p1>"
        );
        properties.remove(&name);
        assert_eq!(properties.get(&name), None);
        for wrong in [
            &b"\xff"[..],
            b"a",
            b"a\0b\0",
            b"a\0<\0>\0",
            b"\0b\0><c>\0",
            b"\0b c\0>\0",
        ] {
            assert_eq!(Properties::parse(wrong), Properties::default());
        }
    }
}
