//! Path templates, and the parts of a path that their parameters matched.

use std::ops::Range;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Debug)]
enum Segment {
    Literal(String),
    Parameter(String),
    Rest(String),
}

/// The tag of user code that runs without a route.
pub(crate) const UNROUTED: u32 = 0;

/// The texts of all templates of the process. A worker publishes the number of the template that it
/// runs, because that is one store.
static TEXTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn id_of(text: &str) -> u32 {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let index = texts.iter().position(|known| known == text);
    let index = index.unwrap_or_else(|| {
        texts.push(text.to_owned());
        texts.len() - 1
    });
    UNROUTED + 1 + index as u32
}

/// The text of the template with this [`Template::id`]; `None` for [`UNROUTED`].
pub(crate) fn text_of(id: u32) -> Option<String> {
    let texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let index = id.checked_sub(UNROUTED + 1)?;
    texts.get(index as usize).cloned()
}

/// A parsed template.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) text: String,
    /// Identifies the text: see [`text_of`].
    pub(crate) id: u32,
    segments: Vec<Segment>,
}

impl Segment {
    /// A segment of the template `text`.
    #[track_caller]
    fn parse(part: &str, text: &str) -> Segment {
        match part.strip_prefix('{') {
            None => {
                assert!(
                    !part.contains(['{', '}']),
                    "a parameter is a whole segment, as in /things/{{id}}: {text:?}"
                );
                for (sign, form) in [(':', "{id}"), ('*', "{*path}")] {
                    assert!(
                        !part.starts_with(sign),
                        "a parameter is written as {form}, not with {sign:?}: {text:?}"
                    );
                }
                Segment::Literal(part.to_owned())
            }
            Some(name) => {
                let Some(name) = name.strip_suffix('}') else {
                    panic!("a parameter ends with a brace, as in /things/{{id}}: {text:?}");
                };
                assert!(
                    !name.contains(['{', '}']) && !name.trim_start_matches('*').is_empty(),
                    "a parameter has a name, as in /things/{{id}}: {text:?}"
                );
                match name.strip_prefix('*') {
                    Some(name) => Segment::Rest(name.to_owned()),
                    None => Segment::Parameter(name.to_owned()),
                }
            }
        }
    }
}

impl Template {
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Template {
        assert!(
            text.starts_with('/'),
            "the template does not begin with a slash: {text:?}"
        );
        // A loop: a closure is not `track_caller`.
        let mut segments = Vec::new();
        for part in text[1..].split('/') {
            segments.push(Segment::parse(part, text));
        }
        let rest = segments.iter().position(|s| matches!(s, Segment::Rest(_)));
        assert!(
            rest.is_none_or(|at| at + 1 == segments.len()),
            "a rest must be the last segment: {text:?}"
        );
        Template {
            text: text.to_owned(),
            id: id_of(text),
            segments,
        }
    }

    pub(crate) fn is_literal(&self) -> bool {
        self.segments
            .iter()
            .all(|s| matches!(s, Segment::Literal(_)))
    }

    /// Whether both match the same paths.
    pub(crate) fn matches_like(&self, other: &Template) -> bool {
        let same = |(one, other): (&Segment, &Segment)| match (one, other) {
            (Segment::Literal(one), Segment::Literal(other)) => one == other,
            (Segment::Parameter(_), Segment::Parameter(_)) => true,
            (Segment::Rest(_), Segment::Rest(_)) => true,
            _ => false,
        };
        let segments = self.segments.iter().zip(&other.segments);
        self.segments.len() == other.segments.len() && segments.into_iter().all(same)
    }

    /// Orders templates by how specific they are, segment by segment.
    pub(crate) fn rank(&self) -> Vec<u8> {
        let rank = |segment: &Segment| match segment {
            Segment::Literal(_) => 0,
            Segment::Parameter(_) => 1,
            Segment::Rest(_) => 2,
        };
        self.segments.iter().map(rank).collect()
    }

    /// The ranges of the parameters in `path`; `None` if the path does not match.
    pub(crate) fn fit(&self, path: &str) -> Option<Vec<Range<u32>>> {
        let mut spans = Vec::new();
        let mut at = 0;
        for segment in &self.segments {
            let rest = path.get(at..)?.strip_prefix('/')?;
            let start = at + 1;
            if let Segment::Rest(_) = segment {
                spans.push(start as u32..path.len() as u32);
                at = path.len();
                continue;
            }
            let end = rest.bytes().position(|byte| byte == b'/');
            let end = start + end.unwrap_or(rest.len());
            at = end;
            match segment {
                Segment::Literal(text) if path[start..end] == **text => {}
                Segment::Parameter(_) if end > start => spans.push(start as u32..end as u32),
                _ => return None,
            }
        }
        (at == path.len()).then_some(spans)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Parameter(name) | Segment::Rest(name) => Some(name.as_str()),
        })
    }
}

/// The selected route, and the ranges of its parameters in the path.
#[derive(Debug, Default)]
pub(crate) struct Params {
    pub(crate) template: Option<Rc<Template>>,
    pub(crate) spans: Vec<Range<u32>>,
}

impl Params {
    pub(crate) fn get<'p>(&self, name: &str, path: &'p str) -> Option<&'p str> {
        let index = self.template.as_ref()?.names().position(|n| n == name)?;
        let span = self.spans.get(index)?;
        path.get(span.start as usize..span.end as usize)
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.template.is_some()
    }

    pub(crate) fn template(&self) -> Option<&str> {
        Some(&self.template.as_ref()?.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit<'p>(template: &str, path: &'p str) -> Option<Vec<&'p str>> {
        let spans = Template::parse(template).fit(path)?;
        Some(
            spans
                .iter()
                .map(|s| &path[s.start as usize..s.end as usize])
                .collect(),
        )
    }

    #[test]
    fn templates_fit_whole_paths_only() {
        assert_eq!(fit("/", "/"), Some(vec![]));
        assert_eq!(fit("/a/{x}/b", "/a/1/b"), Some(vec!["1"]));
        assert_eq!(fit("/a/{x}/b", "/a//b"), None);
        assert_eq!(fit("/a/{x}", "/a/1/b"), None);
        assert_eq!(fit("/a/{x}", "/a"), None);
        assert_eq!(fit("/f/{*rest}", "/f/a/b/"), Some(vec!["a/b/"]));
        assert_eq!(fit("/f/{*rest}", "/f/"), Some(vec![""]));
        assert_eq!(fit("/f/{*rest}", "/f"), None);
        assert_eq!(fit("/{*rest}", "/"), Some(vec![""]));
        assert_eq!(fit("/a", "*"), None);
    }

    #[test]
    #[should_panic(expected = "must be the last")]
    fn a_rest_in_the_middle_is_refused() {
        Template::parse("/{*rest}/more");
    }
}
