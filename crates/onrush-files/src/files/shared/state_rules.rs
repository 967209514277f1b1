//! Which objects are states of Terraform, and what may be done with them. `put::terraform` has
//! their locks.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::http::media_type;
use crate::files::path::{self, Target};
use crate::files::shared::objects::Objects;
use onrush::Request;
use onrush_store::Key;

const SUFFIX: &[u8] = b".tfstate";
const ONLY_WHOLE: HttpError = HttpError::new(
    403,
    "a state of Terraform is changed by POST, PUT and DELETE of its own path only",
);

impl Objects {
    pub(in crate::files) fn is_state_key(&self, key: &Key) -> bool {
        let is_on = self.options.terraform_state && !self.options.sink;
        is_on && key.as_bytes().ends_with(SUFFIX)
    }

    /// Whether a request is for a state.
    pub(in crate::files) fn is_state(&self, request: &Request) -> bool {
        self.options.terraform_state && matches!(self.state_key(request), Ok(Some(_)))
    }

    /// Whether a request changes the lock of a state, and not one of WebDAV, whose locks are XML.
    pub(in crate::files) fn is_state_lock(&self, request: &Request) -> bool {
        let is_json = request
            .header("content-type")
            .is_some_and(|value| media_type::parameters(value, "application/json").is_some());
        is_json && matches!(request.method(), "LOCK" | "UNLOCK") && self.is_state(request)
    }

    pub(in crate::files) fn state_key(&self, request: &Request) -> Result<Option<Key>, HttpError> {
        let target = path::target(request, Operation::Write)?;
        Ok(
            match target.check_visible(&self.options, Operation::Write)? {
                Target::Object(key) if self.is_state_key(&key) => Some(key),
                _ => None,
            },
        )
    }

    /// Refuses a state as the destination of anything but a PUT or POST of its own path.
    pub(in crate::files) fn check_state_way(
        &self,
        request: &Request,
        key: &Key,
    ) -> Result<(), HttpError> {
        if !self.is_state_key(key) {
            return Ok(());
        }
        let is_own = self.state_key(request)?.as_ref() == Some(key);
        match is_own && matches!(request.method(), "PUT" | "POST") {
            true => Ok(()),
            false => Err(ONLY_WHOLE),
        }
    }

    /// Refuses to move a state, whose lock would stay, and to change it with its folder.
    pub(in crate::files) fn check_no_state(&self, key: &Key) -> Result<(), HttpError> {
        match self.is_state_key(key) {
            true => Err(ONLY_WHOLE),
            false => Ok(()),
        }
    }
}
