//! Path templates, and the parts of a path that their parameters matched.

use onrush_rt::worker::WorkerContext;
use std::collections::HashMap;
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

/// The text of the template whose handler runs on this worker, for logs.
pub(crate) fn present_route() -> Option<String> {
    text_of(WorkerContext::current()?.poll_monitor().tag())
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
        let template = Template {
            text: text.to_owned(),
            id: id_of(text),
            segments,
        };
        for (place, name) in template.names().enumerate() {
            assert!(
                !template.names().take(place).any(|other| other == name),
                "two parameters have the name {name}: {text:?}"
            );
        }
        template
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

    fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Parameter(name) | Segment::Rest(name) => Some(name.as_str()),
        })
    }
}

/// Values by templates, as a tree of their segments: a path is compared with few templates, however
/// many there are.
#[derive(Debug)]
pub(crate) struct PathTree<T> {
    literals: HashMap<String, PathTree<T>>,
    /// The longest of these in bytes: what a client makes longer is not hashed at each node.
    literal_bytes_max: usize,
    parameter: Option<Box<PathTree<T>>>,
    /// Of templates whose last segment is a rest.
    rest: Vec<T>,
    /// Of templates that end here.
    values: Vec<T>,
}

impl<T> Default for PathTree<T> {
    fn default() -> PathTree<T> {
        PathTree {
            literals: HashMap::new(),
            literal_bytes_max: 0,
            parameter: None,
            rest: Vec::new(),
            values: Vec::new(),
        }
    }
}

impl<T> PathTree<T> {
    /// The values of a template, in the order in which [`PathTree::find`] passes them.
    pub(crate) fn values_of(&mut self, template: &Template) -> &mut Vec<T> {
        let mut node = self;
        for segment in &template.segments {
            node = match segment {
                Segment::Literal(text) => {
                    node.literal_bytes_max = node.literal_bytes_max.max(text.len());
                    node.literals.entry(text.clone()).or_default()
                }
                Segment::Parameter(_) => node.parameter.get_or_insert_default(),
                Segment::Rest(_) => return &mut node.rest, // It is the last one.
            };
        }
        &mut node.values
    }

    /// Passes each value whose template matches `path` to `take`, with the spans of its parameters,
    /// until it returns `true`. Returns that value and its spans. At each segment, a literal one
    /// has precedence over a parameter, and a parameter over a rest.
    pub(crate) fn find<'t>(
        &'t self,
        path: &str,
        take: &mut impl FnMut(&'t T) -> bool,
    ) -> Option<(&'t T, Vec<Range<u32>>)> {
        let mut spans = Vec::new();
        let found = self.find_from(path, 0, &mut spans, take)?;
        Some((found, spans))
    }

    /// [`PathTree::find`] for the segments from the byte `at` on, a slash.
    fn find_from<'t>(
        &'t self,
        path: &str,
        at: usize,
        spans: &mut Vec<Range<u32>>,
        take: &mut impl FnMut(&'t T) -> bool,
    ) -> Option<&'t T> {
        if at == path.len() {
            return self.values.iter().find(|value| take(value));
        }
        let rest = path.get(at..)?.strip_prefix('/')?;
        let start = at + 1;
        let end = start
            + rest
                .bytes()
                .position(|byte| byte == b'/')
                .unwrap_or(rest.len());
        if end - start <= self.literal_bytes_max
            && let Some(node) = self.literals.get(&path[start..end])
            && let Some(found) = node.find_from(path, end, spans, take)
        {
            return Some(found);
        }
        if let Some(node) = self.parameter.as_ref().filter(|_| end > start) {
            spans.push(start as u32..end as u32);
            if let Some(found) = node.find_from(path, end, spans, take) {
                return Some(found);
            }
            spans.pop();
        }
        spans.push(start as u32..path.len() as u32);
        let found = self.rest.iter().find(|value| take(value));
        if found.is_none() {
            spans.pop();
        }
        found
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
        let mut tree = PathTree::default();
        tree.values_of(&Template::parse(template)).push(());
        let (_, spans) = tree.find(path, &mut |_| true)?;
        let text = |span: &Range<u32>| &path[span.start as usize..span.end as usize];
        Some(spans.iter().map(text).collect())
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
    fn the_most_specific_template_comes_first() {
        let templates = [
            "/a/b/c", "/a/b/{x}", "/a/{x}/c", "/a/{*r}", "/{x}/b/c", "/{*r}",
        ];
        let mut tree = PathTree::default();
        for template in templates.iter().rev() {
            tree.values_of(&Template::parse(template)).push(*template);
        }
        let mut order = Vec::new();
        let none = tree.find("/a/b/c", &mut |template: &&str| {
            order.push(*template);
            false
        });
        assert_eq!((none, &order[..]), (None, &templates[..]));
        let (found, spans) = tree.find("/a/1/c", &mut |_| true).expect("a match");
        assert_eq!((*found, &spans[0], spans.len()), ("/a/{x}/c", &(3..4), 1));
        // A branch that leads nowhere leaves no span behind.
        let (found, spans) = tree.find("/a/1/d", &mut |_| true).expect("a match");
        assert_eq!((*found, &spans[0], spans.len()), ("/a/{*r}", &(3..6), 1));
    }

    #[test]
    #[should_panic(expected = "must be the last")]
    fn a_rest_in_the_middle_is_refused() {
        Template::parse("/{*rest}/more");
    }
}
