//! PROPPATCH (RFC 4918 §9.2): sets and removes properties, all or none.
//!
//! The store keeps them ([`Store::replace_properties`](onrush_store::Store::replace_properties)).
//! Where it cannot, and for properties that the server computes, each property has its own status
//! in the response.

use super::dead::{Properties, Property};
use super::propfind::{is_protected, propstat};
use super::xml::{self, Element, Name};
use super::{WebDav, read_body};
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::locks::Refusal;
use crate::files::path;
use crate::files::shared::client_rights::check_right;
use crate::files::shared::multistatus::{self, href};
use crate::rights::Rights;
use onrush::{Request, Response};
use onrush_store::{Key, Kind, StoreError};

/// The number of attempts when other requests change the same properties.
const ATTEMPTS: usize = 8;

pub(super) enum Instruction {
    Set(Property),
    Remove(Name),
}

impl Instruction {
    fn name(&self) -> &Name {
        match self {
            Instruction::Set(property) => &property.name,
            Instruction::Remove(name) => name,
        }
    }
}

impl WebDav {
    pub(in crate::files) async fn proppatch(
        &self,
        mut request: Request,
    ) -> Result<Response, Refusal> {
        check_right(&request, Rights::WRITE)?;
        let body = read_body(&mut request).await?;
        check_right(&request, Rights::WRITE)?; // The body may have taken long.
        let instructions = parse(&body)?;
        let resource = self.resource(&request, Operation::Write)?;
        let found = self.find(&resource).await?;
        if found.is_none() && resource.key.is_some() {
            return Err(HttpError::NOT_FOUND.into());
        }
        let is_possible = self.objects.store.features().properties_bytes_max > 0;
        let status = match &resource.key {
            _ if has_protected(&instructions) => 424,
            Some(key) if is_possible => self.patch(key, &instructions).await?,
            // The top folder, or a store that keeps none.
            _ => 403,
        };
        let mount = path::split(&request)?.mount;
        let kind = found.map_or(Kind::Directory, |found| found.kind);
        let location = href(mount, resource.key.as_ref(), kind);
        Ok(multistatus::response(render(
            &location,
            &instructions,
            status,
        )))
    }

    /// Makes all changes, and returns the status of each.
    async fn patch(&self, key: &Key, instructions: &[Instruction]) -> Result<u16, HttpError> {
        let failed = |error| {
            self.objects
                .store_failure(error, Operation::Write, Some(key))
        };
        for _ in 0..ATTEMPTS {
            let stored = self.objects.store.properties(key).await.map_err(failed)?;
            let new = changed(&stored, instructions);
            match self
                .objects
                .store
                .replace_properties(key, &stored, &new)
                .await
            {
                Ok(()) => return Ok(200),
                Err(StoreError::PreconditionFailed) => {}
                Err(StoreError::TooLarge) => return Ok(507),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(409)
    }
}

pub(super) fn has_protected(instructions: &[Instruction]) -> bool {
    instructions.iter().any(|one| is_protected(one.name()))
}

/// The stored properties after all changes.
pub(super) fn changed(stored: &[u8], instructions: &[Instruction]) -> Vec<u8> {
    let mut properties = Properties::parse(stored);
    for instruction in instructions {
        match instruction {
            Instruction::Set(property) => properties.set(property.clone()),
            Instruction::Remove(name) => properties.remove(name),
        }
    }
    properties.to_stored()
}

/// The document of the response. `status`: of the properties that are not protected.
pub(super) fn render(location: &str, instructions: &[Instruction], status: u16) -> String {
    let mut text = multistatus::BEGIN.to_owned();
    text.push_str("<D:response><D:href>");
    text.push_str(location);
    text.push_str("</D:href>");
    for instruction in instructions {
        let mut name = String::new();
        xml::begin(&mut name, instruction.name(), None);
        name.push_str("/>");
        let status = match is_protected(instruction.name()) {
            true => 403,
            false => status,
        };
        propstat(&mut text, &name, status);
    }
    text.push_str("</D:response>\n");
    text.push_str(multistatus::END);
    text
}

/// The instructions of a `propertyupdate` (§14.19), in order.
pub(super) fn parse(body: &[u8]) -> Result<Vec<Instruction>, HttpError> {
    let root = xml::parse(body)?;
    let mut instructions = Vec::new();
    for element in root.elements() {
        let instruction: fn(&Element) -> Instruction = match () {
            () if element.name.is_dav("set") => |one| Instruction::Set(Property::new(one)),
            () if element.name.is_dav("remove") => |one| Instruction::Remove(one.name.clone()),
            () => continue,
        };
        let properties = element.dav("prop").into_iter().flat_map(Element::elements);
        for property in properties {
            if instructions.len() == xml::PROPERTIES_MAX {
                return Err(xml::TOO_MANY_PROPERTIES);
            }
            instructions.push(instruction(property));
        }
    }
    match root.name.is_dav("propertyupdate") && !instructions.is_empty() {
        true => Ok(instructions),
        false => Err(HttpError::new(400, "the body is no propertyupdate")),
    }
}
