//! A mark that [`Files`](crate::files::Files) sets for an application in front of it: the response
//! is not about what the path names.

use onrush::Request;
use std::cell::Cell;
use std::rc::Rc;

/// Whether the response is a page in place of an object that the path does not name, though it may
/// soon.
#[derive(Debug, Default)]
pub(crate) struct StandIn(Cell<bool>);

impl StandIn {
    /// Attaches a mark to a request, before it is passed on.
    pub(crate) fn attach(request: &mut Request) -> Rc<StandIn> {
        let mark = Rc::new(StandIn::default());
        request.set_extension(mark.clone());
        mark
    }

    /// Marks the response to a request. Without effect if no application has attached a mark.
    pub(in crate::files) fn mark(request: &Request) {
        if let Some(StandIn(mark)) = request.extension() {
            mark.set(true);
        }
    }

    /// Whether the response is marked.
    pub(crate) fn is_set(&self) -> bool {
        self.0.get()
    }
}
