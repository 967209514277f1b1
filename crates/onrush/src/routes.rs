//! The routes of one worker: the choice of a handler for a request, and the router's own responses.

use crate::handler::{Pending, Service};
use crate::make::Next;
use crate::params::{Params, PathTree, Template};
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
    /// The router's own response to other methods, behind the layers of this route.
    pub(crate) refusal: Option<Rc<dyn Service>>,
}

/// What a router is on one worker.
pub(crate) struct Routes {
    pub(crate) literal: HashMap<String, Vec<RouteEntry>>,
    pub(crate) patterns: PathTree<RouteEntry>,
    /// Of all routes.
    pub(crate) methods: Vec<Cow<'static, str>>,
    /// The longest path first.
    pub(crate) fallbacks: Vec<(String, Rc<dyn Service>)>,
    /// The longest path first.
    pub(crate) not_allowed: Vec<(String, Rc<dyn Service>)>,
    /// The router's own 404, behind the layers of its prefix. The longest path first.
    pub(crate) refusals: Vec<(String, Rc<dyn Service>)>,
}

/// The router's own response, as an extension of the request that it answers.
pub(crate) struct Refused {
    status: u16,
    /// For `Allow`, except with 404.
    pub(crate) allow: String,
    /// The handler of unknown paths around a nested router, behind whose layers it runs.
    fallback: Option<Rc<dyn Service>>,
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
    if let Some(fallback) = refused.and_then(|refused| refused.fallback.clone()) {
        return Next::new(fallback).run(request).await;
    }
    refused.map_or_else(|| Response::new(404), Refused::response)
}

impl Routes {
    /// The first entry whose template matches and that `take` takes, in order of precedence, with
    /// the spans of its parameters.
    fn find<'r>(
        &'r self,
        path: &str,
        mut take: impl FnMut(&'r RouteEntry) -> bool,
    ) -> Option<(&'r RouteEntry, Vec<Range<u32>>)> {
        let literal = self.literal.get(path).into_iter().flatten();
        for entry in literal {
            if take(entry) {
                return Some((entry, Vec::new()));
            }
        }
        self.patterns.find(path, &mut take)
    }

    fn allow(&self, path: &str) -> String {
        let mut methods: Vec<Cow<'static, str>> = Vec::new();
        let none = self.find(path, |entry| {
            methods.extend(entry.method.clone());
            false
        });
        debug_assert!(none.is_none());
        if path == "*" {
            methods.extend(self.methods.iter().cloned()); // Of the server as a whole (§9.3.7).
        }
        if methods.iter().any(|method| method == "GET") {
            methods.push("HEAD".into());
        }
        methods.push("OPTIONS".into());
        methods.sort_unstable();
        methods.dedup();
        methods.join(", ")
    }

    /// The service of the innermost nested router that has one, and the path of that router.
    fn innermost<'s>(
        services: &'s [(String, Rc<dyn Service>)],
        path: &str,
    ) -> Option<(&'s str, &'s Rc<dyn Service>)> {
        let is_beneath = |(prefix, _): &&(String, _)| match path.strip_prefix(prefix.as_str()) {
            Some(rest) => prefix.is_empty() || rest.is_empty() || rest.starts_with('/'),
            None => false,
        };
        let found = services.iter().find(is_beneath);
        found.map(|(prefix, service)| (&prefix[..], service))
    }

    /// `is_unknown`: no template matches the path.
    fn refuse(&self, request: &Request, is_unknown: bool) -> Refused {
        let is_asterisk = request.path() == "*" && request.method() == "OPTIONS";
        if is_unknown && !is_asterisk {
            return Refused {
                status: 404,
                allow: String::new(),
                fallback: None,
            };
        }
        let status = match request.method() {
            "OPTIONS" => 204,
            _ => 405,
        };
        let allow = self.allow(request.path());
        Refused {
            status,
            allow,
            fallback: None,
        }
    }
}

impl Service for Routes {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        // The first route of the path, whatever its method.
        let mut known = None;
        let chosen = {
            let (path, method) = (request.path(), request.method());
            let get = if method == "HEAD" { "GET" } else { method };
            self.find(path, |entry| {
                known.get_or_insert(entry);
                let is_it = |own: &str| own == method || own == get;
                entry.method.as_deref().is_none_or(is_it)
            })
        };
        if let Some((entry, spans)) = chosen {
            request.set_params(Params {
                template: Some(entry.template.clone()),
                spans,
            });
            return entry.service.start(request, cx, response);
        }
        let path = request.path();
        let mut refused = self.refuse(&request, known.is_none());
        let chosen = match known {
            Some(entry) => {
                let is_options = request.method() == "OPTIONS";
                let own = Routes::innermost(&self.not_allowed, path).filter(|_| !is_options);
                own.map(|(_, service)| service).or(entry.refusal.as_ref())
            }
            None => {
                let own = Routes::innermost(&self.fallbacks, path);
                match (own, Routes::innermost(&self.refusals, path)) {
                    // The layers of a nested router are around the fallback that it inherits.
                    (Some((outer, fallback)), Some((inner, layers)))
                        if inner.len() > outer.len() =>
                    {
                        refused.fallback = Some(fallback.clone());
                        Some(layers)
                    }
                    (own, layers) => own.or(layers).map(|(_, service)| service),
                }
            }
        };
        match chosen {
            Some(service) => {
                request.set_extension(Rc::new(refused));
                service.start(request, cx, response)
            }
            None => {
                *response = Some(refused.response());
                None
            }
        }
    }
}
