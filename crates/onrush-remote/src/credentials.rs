//! The key in the credentials file of the AWS tools (`~/.aws/credentials`).
//!
//! `object_store` reads the environment only. The file is used if the environment names no key, no
//! web identity and no credentials of a container.

use crate::service::OpenError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Variables that name credentials of another kind. They precede the file.
const OTHERS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];
const DEFAULT_PROFILE: &str = "default";

/// A key of a profile.
#[derive(Debug, Default, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    secret: Option<String>,
    token: Option<String>,
}

/// Adds the key of the file, if it is needed and there is one. Fails if a file or a profile that a
/// variable names does not exist or has no key.
pub(crate) fn add(builder: AmazonS3Builder) -> Result<AmazonS3Builder, OpenError> {
    if OTHERS.iter().any(|name| env::var_os(name).is_some()) {
        return Ok(builder);
    }
    let named = env::var_os("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".aws/credentials"));
    let profile = env::var("AWS_PROFILE").ok();
    let is_named = named.is_some() || profile.is_some();
    let Some(path) = named.or(home) else {
        return Ok(builder);
    };
    let fail = |reason: &str| Err(OpenError::new(format!("{}: {reason}", path.display())));
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => return Ok(builder),
        Err(error) => return fail(&error.to_string()),
    };
    let profile = profile.as_deref().unwrap_or(DEFAULT_PROFILE);
    match parse(&text, profile) {
        Some(Key {
            id: Some(id),
            secret: Some(secret),
            token,
        }) => {
            let builder = builder
                .with_access_key_id(id)
                .with_secret_access_key(secret);
            Ok(match token {
                Some(token) => builder.with_config(AmazonS3ConfigKey::Token, token),
                None => builder,
            })
        }
        None if !is_named => Ok(builder),
        None => fail(&format!("there is no profile {profile}")),
        Some(_) => fail(&format!(
            "the profile {profile} has no aws_access_key_id or no aws_secret_access_key"
        )),
    }
}

/// The key of a profile: lines `name = value` after the line `[profile]`.
fn parse(text: &str, profile: &str) -> Option<Key> {
    let mut found: Option<Key> = None;
    let mut is_inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            is_inside = name.trim() == profile;
            if is_inside {
                found.get_or_insert_default();
            }
        } else if let (true, Some(key), Some((name, value))) =
            (is_inside, &mut found, line.split_once('='))
        {
            let field = match name.trim() {
                "aws_access_key_id" => &mut key.id,
                "aws_secret_access_key" => &mut key.secret,
                "aws_session_token" => &mut key.token,
                _ => continue, // Comments as well.
            };
            *field = Some(value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_keys() {
        let text = "# a comment\n[default]\naws_access_key_id = a\naws_secret_access_key=b=c\n\n\
            [ other ]\r\naws_access_key_id=d\r\nregion = x\n[empty]";
        let key = |id: &str, secret: Option<&str>| Key {
            id: Some(id.to_owned()),
            secret: secret.map(str::to_owned),
            token: None,
        };
        assert_eq!(parse(text, "default"), Some(key("a", Some("b=c"))));
        assert_eq!(parse(text, "other"), Some(key("d", None)));
        assert_eq!(parse(text, "empty"), Some(Key::default()));
        assert_eq!(parse(text, "absent"), None);
    }
}
