//! Routes: templates of paths to handlers. Must not know how requests arrive.

use crate::handler::{Application, Handler, Service, Started, erase};
use crate::request::Request;
use crate::response::Response;
use onrush_rt::worker::Local;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Chooses a handler by method and path.
///
/// A template is a path whose segments may be parameters: `{name}` takes one segment that is not
/// empty, `{*name}` as the last one takes the rest, also an empty one. A literal segment wins over a
/// parameter, a parameter over a rest. Paths are compared as sent, undecoded.
///
/// A path that is known with another method is answered 405 with `Allow`; `OPTIONS` is answered
/// from the routes; `HEAD` goes to the `GET` handler. Anything else is 404 or the fallback's.
///
/// ```
/// use onrush::{Request, Response, Router};
/// async fn thing(request: Request) -> Response {
///     Response::text(format!("thing {}", request.param("id").unwrap_or("?")))
/// }
/// let router = Router::new().get("/things/{id}", thing);
/// # let _ = router;
/// ```
#[derive(Clone, Default)]
pub struct Router {
    routes: Vec<Route>,
    fallback: Option<Arc<dyn Make>>,
}

#[derive(Clone)]
struct Route {
    /// `None`: any method.
    method: Option<&'static str>,
    template: Arc<Template>,
    make: Arc<dyn Make>,
}

/// Makes one worker's instance of a handler.
trait Make: Send + Sync {
    fn make(&self, local: &Local) -> Rc<dyn Service>;
}

impl<H: Handler + Clone + Send + Sync> Make for H {
    fn make(&self, _: &Local) -> Rc<dyn Service> {
        erase(self.clone())
    }
}

impl Router {
    /// No routes.
    pub fn new() -> Router {
        Router::default()
    }

    /// `handler` for `GET` and `HEAD` of paths that fit `template`.
    pub fn get(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("GET"), template, handler)
    }

    /// `handler` for `POST`.
    pub fn post(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("POST"), template, handler)
    }

    /// `handler` for `PUT`.
    pub fn put(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("PUT"), template, handler)
    }

    /// `handler` for `DELETE`.
    pub fn delete(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("DELETE"), template, handler)
    }

    /// `handler` for a method by its name.
    pub fn method(
        self,
        method: &'static str,
        template: &str,
        handler: impl Handler + Clone + Send + Sync,
    ) -> Router {
        self.add(Some(method), template, handler)
    }

    /// `handler` for every method; it answers 405 and `OPTIONS` itself.
    pub fn any(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(None, template, handler)
    }

    /// `handler` for everything that fits no route.
    pub fn fallback(mut self, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.fallback = Some(Arc::new(handler));
        self
    }

    /// # Panics
    /// When the template does not begin with `/`, has an unclosed brace, or a rest that is not
    /// last: a mistake in the program, told at its start.
    fn add(
        mut self,
        method: Option<&'static str>,
        template: &str,
        handler: impl Handler + Clone + Send + Sync,
    ) -> Router {
        let template = Arc::new(Template::parse(template));
        self.routes.push(Route {
            method,
            template,
            make: Arc::new(handler),
        });
        self
    }
}

impl Application for Router {
    fn instantiate(&self, local: &Local) -> Rc<dyn Service> {
        let mut literal: HashMap<String, Vec<Entry>> = HashMap::new();
        let mut patterns = Vec::new();
        for route in &self.routes {
            let entry = Entry {
                method: route.method,
                template: route.template.clone(),
                service: route.make.make(local),
            };
            if route.template.is_literal() {
                literal
                    .entry(route.template.text.clone())
                    .or_default()
                    .push(entry);
            } else {
                patterns.push(entry);
            }
        }
        // Stable, so that of two equally specific routes the first one given wins.
        patterns.sort_by_key(|a| a.template.rank());
        let fallback = self.fallback.as_ref().map(|make| make.make(local));
        Rc::new(Routes {
            literal,
            patterns,
            fallback,
        })
    }
}

struct Entry {
    method: Option<&'static str>,
    template: Arc<Template>,
    service: Rc<dyn Service>,
}

struct Routes {
    literal: HashMap<String, Vec<Entry>>,
    patterns: Vec<Entry>,
    fallback: Option<Rc<dyn Service>>,
}

impl Routes {
    /// Entries whose template fits, best first, with what their parameters matched.
    fn fitting<'a, 'p>(
        &'a self,
        path: &'p str,
    ) -> impl Iterator<Item = (&'a Entry, Vec<Range<u32>>)> + use<'a, 'p> {
        let literal = self
            .literal
            .get(path)
            .into_iter()
            .flatten()
            .map(|e| (e, Vec::new()));
        let patterns = self
            .patterns
            .iter()
            .filter_map(move |e| Some((e, e.template.fit(path)?)));
        literal.chain(patterns)
    }

    fn allow(&self, path: &str) -> String {
        let mut methods: Vec<&str> = self
            .fitting(path)
            .filter_map(|(entry, _)| entry.method)
            .collect();
        if methods.contains(&"GET") {
            methods.push("HEAD");
        }
        methods.push("OPTIONS");
        methods.sort_unstable();
        methods.dedup();
        methods.join(", ")
    }

    fn refuse(&self, request: &Request) -> Response {
        let path = request.path();
        if self.fitting(path).next().is_none() {
            return Response::text("not found\n").with_status(404);
        }
        let status = if request.method() == "OPTIONS" {
            204
        } else {
            405
        };
        Response::new(status).header("Allow", self.allow(path))
    }
}

impl Service for Routes {
    fn start(&self, mut request: Request) -> Started {
        let chosen = {
            let (path, method) = (request.path(), request.method());
            let get = if method == "HEAD" { "GET" } else { method };
            let takes = |e: &Entry| e.method.is_none_or(|m| m == method || m == get);
            self.fitting(path).find(|(entry, _)| takes(entry))
        };
        if let Some((entry, spans)) = chosen {
            request.set_params(Params {
                template: Some(entry.template.clone()),
                spans,
            });
            return entry.service.start(request);
        }
        match &self.fallback {
            Some(service) if self.fitting(request.path()).next().is_none() => {
                service.start(request)
            }
            _ => Started::Ready(self.refuse(&request)),
        }
    }
}

#[derive(Debug)]
enum Segment {
    Literal(String),
    Parameter(String),
    Rest(String),
}

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Template {
    text: String,
    segments: Vec<Segment>,
}

impl Template {
    fn parse(text: &str) -> Template {
        assert!(
            text.starts_with('/'),
            "a route begins with a slash: {text:?}"
        );
        let segment = |part: &str| match part.strip_prefix('{') {
            None => {
                assert!(!part.contains('}'), "a brace without its partner: {text:?}");
                Segment::Literal(part.to_owned())
            }
            Some(name) => {
                let name = name
                    .strip_suffix('}')
                    .expect("a parameter ends with a brace");
                match name.strip_prefix('*') {
                    Some(name) => Segment::Rest(name.to_owned()),
                    None => Segment::Parameter(name.to_owned()),
                }
            }
        };
        let segments: Vec<Segment> = text[1..].split('/').map(segment).collect();
        let rest = segments.iter().position(|s| matches!(s, Segment::Rest(_)));
        assert!(
            rest.is_none_or(|at| at + 1 == segments.len()),
            "a rest comes last: {text:?}"
        );
        Template {
            text: text.to_owned(),
            segments,
        }
    }

    fn is_literal(&self) -> bool {
        self.segments
            .iter()
            .all(|s| matches!(s, Segment::Literal(_)))
    }

    /// Orders templates by how specific they are, segment by segment.
    fn rank(&self) -> Vec<u8> {
        let rank = |segment: &Segment| match segment {
            Segment::Literal(_) => 0,
            Segment::Parameter(_) => 1,
            Segment::Rest(_) => 2,
        };
        self.segments.iter().map(rank).collect()
    }

    /// Where in `path` each parameter is, when the path fits.
    fn fit(&self, path: &str) -> Option<Vec<Range<u32>>> {
        let mut spans = Vec::new();
        let mut at = 0;
        for segment in &self.segments {
            let rest = path.get(at..)?.strip_prefix('/')?;
            let start = at + 1;
            let end = start + rest.find('/').unwrap_or(rest.len());
            at = end;
            match segment {
                Segment::Literal(text) if path[start..end] == **text => {}
                Segment::Parameter(_) if end > start => spans.push(start as u32..end as u32),
                Segment::Rest(_) => {
                    spans.push(start as u32..path.len() as u32);
                    at = path.len();
                }
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

/// Which route was taken, and where its parameters are in the path.
#[derive(Debug, Default)]
pub(crate) struct Params {
    template: Option<Arc<Template>>,
    spans: Vec<Range<u32>>,
}

impl Params {
    pub(crate) fn get<'p>(&self, name: &str, path: &'p str) -> Option<&'p str> {
        let index = self.template.as_ref()?.names().position(|n| n == name)?;
        let span = self.spans.get(index)?;
        path.get(span.start as usize..span.end as usize)
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
    #[should_panic(expected = "comes last")]
    fn a_rest_in_the_middle_is_refused() {
        Template::parse("/{*rest}/more");
    }
}
