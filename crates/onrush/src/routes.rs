//! The routes of one worker: the choice of a handler for a request, and the router's own responses.

use crate::handler::{Pending, Service};
use crate::params::{Params, Template};
use crate::request::Request;
use crate::response::Response;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::task::Context;

/// A route of one worker.
pub(crate) struct RouteEntry {
    pub(crate) method: Option<Cow<'static, str>>,
    pub(crate) template: Rc<Template>,
    pub(crate) service: Rc<dyn Service>,
}

/// What a router is on one worker.
pub(crate) struct Routes {
    pub(crate) literal: HashMap<String, Vec<RouteEntry>>,
    pub(crate) patterns: Vec<RouteEntry>,
    /// The longest path first.
    pub(crate) fallbacks: Vec<(String, Rc<dyn Service>)>,
    /// The longest path first.
    pub(crate) not_allowed: Vec<(String, Rc<dyn Service>)>,
    pub(crate) refusal: Option<Rc<dyn Service>>,
}

/// The router's own response, as an extension of the request that it answers.
pub(crate) struct Refused {
    status: u16,
    /// For `Allow`, except with 404.
    pub(crate) allow: String,
}

impl Refused {
    fn response(&self) -> Response {
        match self.status {
            404 => Response::text("not found\n").with_status(404),
            status => Response::new(status).with_header("Allow", &self.allow),
        }
    }
}

/// Answers a request that no handler takes, behind the layers.
pub(crate) async fn refused(request: Request) -> Response {
    let refused = request.extension::<Refused>();
    refused.map_or_else(|| Response::new(404), Refused::response)
}

impl Routes {
    /// Entries whose template matches, in order of precedence, with the spans of their parameters.
    fn fitting<'a, 'p>(
        &'a self,
        path: &'p str,
    ) -> impl Iterator<Item = (&'a RouteEntry, Vec<Range<u32>>)> + use<'a, 'p> {
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
            .filter_map(|(entry, _)| entry.method.as_deref())
            .collect();
        if methods.contains(&"GET") {
            methods.push("HEAD");
        }
        methods.push("OPTIONS");
        methods.sort_unstable();
        methods.dedup();
        methods.join(", ")
    }

    /// The service of the innermost nested router that has one.
    fn innermost<'s>(
        services: &'s [(String, Rc<dyn Service>)],
        path: &str,
    ) -> Option<&'s Rc<dyn Service>> {
        let is_beneath = |(prefix, _): &&(String, _)| match path.strip_prefix(prefix.as_str()) {
            Some(rest) => prefix.is_empty() || rest.is_empty() || rest.starts_with('/'),
            None => false,
        };
        let found = services.iter().find(is_beneath);
        found.map(|(_, service)| service)
    }

    /// `is_unknown`: no template matches the path.
    fn refuse(&self, request: &Request, is_unknown: bool) -> Refused {
        if is_unknown {
            let allow = String::new();
            return Refused { status: 404, allow };
        }
        let status = match request.method() {
            "OPTIONS" => 204,
            _ => 405,
        };
        let allow = self.allow(request.path());
        Refused { status, allow }
    }
}

impl Service for Routes {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        let chosen = {
            let (path, method) = (request.path(), request.method());
            let get = if method == "HEAD" { "GET" } else { method };
            let takes = |e: &RouteEntry| {
                let is_it = |own: &str| own == method || own == get;
                e.method.as_deref().is_none_or(is_it)
            };
            self.fitting(path).find(|(entry, _)| takes(entry))
        };
        if let Some((entry, spans)) = chosen {
            request.set_params(Params {
                template: Some(entry.template.clone()),
                spans,
            });
            return entry.service.start(request, cx, response);
        }
        let is_unknown = self.fitting(request.path()).next().is_none();
        let own = match is_unknown {
            true => Routes::innermost(&self.fallbacks, request.path()),
            false if request.method() == "OPTIONS" => None,
            false => Routes::innermost(&self.not_allowed, request.path()),
        };
        match own {
            Some(service) => {
                if !is_unknown {
                    request.set_extension(Rc::new(self.refuse(&request, false)));
                }
                service.start(request, cx, response)
            }
            None => {
                let refused = self.refuse(&request, is_unknown);
                if let Some(service) = &self.refusal {
                    request.set_extension(Rc::new(refused));
                    return service.start(request, cx, response);
                }
                *response = Some(refused.response());
                None
            }
        }
    }
}
