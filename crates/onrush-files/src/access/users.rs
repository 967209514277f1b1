//! The users of a server, and the file that they are from.
//!
//! The file is TOML, so that a person can read and edit it:
//!
//! ```toml
//! [users.ann]
//! password = "$argon2id$v=19$m=19456,t=2,p=1$…"
//! tokens = [{ name = "ci", sha256 = "…" }]
//! certificates = ["cn:ann", "email:ann@example.org"]
//! signing-key = "…"
//! rights = { "/" = ["read", "list"], "/ann" = ["all"] }
//!
//! [anonymous]
//! rights = { "/pub" = ["read", "list"] }
//! ```
//!
//! A password has an Argon2id hash, because people choose it. A token has 256 random bits, so a
//! SHA-256 is as good as a slow hash: there is nothing to guess.

use super::certificate_name::CertificateName;
use super::password::PasswordHash;
use super::signed_url::SigningKey;
use crate::hex::hex;
use crate::rights::{Identity, PathRights, Rights};
use onrush::tls::ClientIdentity;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The longest name of a user, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// All users and their rights. Cheap to look up, and never changed: a reload makes another one.
#[derive(Debug, Default)]
pub struct Users {
    /// Which of the users that a server has had they are.
    pub(crate) serial: u64,
    anonymous: PathRights,
    users: Vec<User>,
    by_name: HashMap<String, UserId>,
    by_token: HashMap<[u8; 32], UserId>,
    by_certificate: HashMap<CertificateName, UserId>,
}

/// The position of a user in [`Users`].
pub(crate) type UserId = usize;

/// A user.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) identity: Identity,
    pub(crate) password: Option<PasswordHash>,
    pub(crate) signing_key: Option<SigningKey>,
    pub(crate) tokens: Vec<String>,
    pub(crate) certificates: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[derive(Default)]
struct FileForm {
    users: BTreeMap<String, UserForm>,
    anonymous: AnonymousForm,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct AnonymousForm {
    rights: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct UserForm {
    password: Option<String>,
    tokens: Vec<TokenForm>,
    certificates: Vec<String>,
    signing_key: Option<String>,
    rights: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenForm {
    name: String,
    sha256: String,
}

impl Users {
    /// Reads a file. An error is one line that names the file and says what to do. Other users must
    /// not be able to read it. This blocks.
    pub fn read(path: &Path) -> Result<Users, String> {
        let text = read_private(path)?;
        Users::parse(&text).map_err(|error| format!("{}{error}", path.display()))
    }

    /// Parses the text of a file. An error begins with the line, as in `:3: …`, or with `: `.
    pub fn parse(text: &str) -> Result<Users, String> {
        let form: FileForm = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text.get(..start).unwrap_or_default().matches('\n').count() + 1;
            // The message may repeat a line of the file, which may be a secret.
            format!(":{line}: {}", error.message())
        })?;
        let anonymous = path_rights(&form.anonymous.rights);
        let mut users = Users {
            anonymous: anonymous.map_err(|error| format!(": anonymous: {error}"))?,
            ..Users::default()
        };
        for (name, user) in form.users {
            let shown = name.escape_debug().to_string();
            let added = users.add_form(name, user);
            added.map_err(|error| format!(": users.{shown}: {error}"))?;
        }
        Ok(users)
    }

    fn add_form(&mut self, name: String, form: UserForm) -> Result<(), String> {
        let password = form
            .password
            .as_deref()
            .map(PasswordHash::parse)
            .transpose()?;
        let signing_key = form
            .signing_key
            .as_deref()
            .map(SigningKey::parse)
            .transpose()?;
        let id = self.add(name, password, path_rights(&form.rights)?)?;
        self.users[id].signing_key = signing_key;
        self.users[id].certificates = form.certificates.len();
        for token in form.tokens {
            let hash = parse_sha256(&token.sha256).ok_or_else(|| {
                format!(
                    "the token '{}' has no valid sha256",
                    token.name.escape_debug()
                )
            })?;
            if self.by_token.insert(hash, id).is_some() {
                return Err("a token is listed twice".to_owned());
            }
            self.users[id].tokens.push(token.name);
        }
        for text in form.certificates {
            if self.by_certificate.insert(text.parse()?, id).is_some() {
                return Err(format!("'{}' is listed twice", text.escape_debug()));
            }
        }
        Ok(())
    }

    /// Adds a user with a password, which may have tokens and certificates in a file only. Fails if
    /// the name is invalid or in use.
    pub fn add(
        &mut self,
        name: String,
        password: Option<PasswordHash>,
        rights: PathRights,
    ) -> Result<usize, String> {
        check_name(&name)?;
        let id = self.users.len();
        if self.by_name.insert(name.clone(), id).is_some() {
            return Err(format!("the user '{name}' exists already"));
        }
        self.users.push(User {
            identity: Identity {
                name: Some(name),
                rights,
                can_log_in: true,
                origin: None,
            },
            password,
            signing_key: None,
            tokens: Vec::new(),
            certificates: 0,
        });
        Ok(id)
    }

    /// The rights of clients that do not log in.
    pub fn anonymous_rights(&mut self) -> &mut PathRights {
        &mut self.anonymous
    }

    /// The rules of clients that do not log in, as by [`PathRights::rules`].
    pub fn anonymous_rules(&self) -> impl Iterator<Item = (String, Rights)> {
        self.anonymous.rules()
    }

    /// Whether there are no users.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// The number of users.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there is a user of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The key of a user for signed URLs.
    pub fn signing_key(&self, name: &str) -> Option<&SigningKey> {
        self.users[self.by_name(name)?].signing_key.as_ref()
    }

    /// All users, in the order of the file.
    pub fn all(&self) -> impl Iterator<Item = UserFacts<'_>> {
        self.users.iter().map(UserFacts)
    }

    /// The identity of a client that does not log in.
    pub fn anonymous(&self) -> Identity {
        Identity {
            name: None,
            rights: self.anonymous.clone(),
            can_log_in: !self.users.is_empty(),
            origin: None,
        }
    }

    pub(crate) fn user(&self, id: UserId) -> &User {
        &self.users[id]
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<UserId> {
        self.by_name.get(name).copied()
    }

    /// The user with this token. Its SHA-256 is looked up in a table. That takes no constant time,
    /// but a client cannot choose the hash of a token, so the time tells it nothing.
    pub(crate) fn by_token(&self, token: &[u8]) -> Option<UserId> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        self.by_token.get(&hash).copied()
    }

    pub(crate) fn has_certificates(&self) -> bool {
        !self.by_certificate.is_empty()
    }

    /// The user with this certificate. `None` also if its names are those of several users.
    pub(crate) fn by_certificate(&self, client: &ClientIdentity) -> Option<UserId> {
        let common = client.common_name();
        let common = common.map(|name| CertificateName::Common(name.to_owned()));
        let others = client.alternative_names().iter().cloned();
        let names = common.into_iter().chain(others.map(CertificateName::of));
        let mut found = None;
        for name in names {
            match (self.by_certificate.get(&name), found) {
                (Some(id), Some(other)) if *id != other => return None,
                (Some(id), _) => found = Some(*id),
                (None, _) => {}
            }
        }
        found
    }

    /// A hash to verify for unknown users, so that they take as long as known ones.
    pub(crate) fn any_password(&self) -> Option<&PasswordHash> {
        self.users.iter().find_map(|user| user.password.as_ref())
    }
}

/// What may be shown of a user.
#[derive(Debug)]
pub struct UserFacts<'u>(&'u User);

impl UserFacts<'_> {
    /// The name.
    pub fn name(&self) -> &str {
        self.0.identity.name().unwrap_or_default()
    }

    /// The rights.
    pub fn rights(&self) -> &PathRights {
        &self.0.identity.rights
    }

    /// The ways to log in, such as `password, 2 tokens`; `none` if there is none.
    pub fn logins(&self) -> String {
        let number = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {what}s")),
        };
        let password = self.0.password.as_ref().map(|_| "password".to_owned());
        let tokens = number(self.0.tokens.len(), "token");
        let certificates = number(self.0.certificates, "certificate");
        let all: Vec<String> = [password, tokens, certificates]
            .into_iter()
            .flatten()
            .collect();
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    }

    /// The names of the tokens.
    pub fn tokens(&self) -> &[String] {
        &self.0.tokens
    }
}

/// Checks a name: it is a field of the log and a part of `Authorization`, so it has no spaces,
/// colons and control characters.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_alphanumeric() || "._-@+".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return Err("a user name has 1 to 64 bytes: letters, digits and . _ - @ +".to_owned());
    }
    Ok(())
}

/// Rights from the form of the file.
fn path_rights(rules: &BTreeMap<String, Vec<String>>) -> Result<PathRights, String> {
    let mut rights = PathRights::default();
    for (prefix, names) in rules {
        if rights.has_rule(prefix) {
            return Err(format!("'{}' is listed twice", prefix.escape_debug()));
        }
        let parsed = match names.is_empty() {
            true => Rights::NONE,
            false => names.join(",").parse()?,
        };
        rights.set(prefix, parsed)?;
    }
    Ok(rights)
}

/// The text of a file that other users cannot read.
pub fn read_private(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let fail = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{shown} does not exist; onrush user add NAME --auth-file {shown} creates it")
        }
        _ => format!("{shown} cannot be read: {error}"),
    };
    // Without O_NONBLOCK, opening a FIFO waits for a writer. It has no effect on files.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = (OpenOptions::new().read(true).custom_flags(flags)).open(path);
    let file = file.map_err(fail)?;
    let found = file.metadata().map_err(fail)?;
    let mode = found.permissions().mode() & 0o777;
    if !found.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    if mode & 0o077 != 0 {
        return Err(format!(
            "{shown} is accessible to other users (mode {mode:03o}); run: chmod 600 {shown}"
        ));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown} is longer than 16 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8 text"))
}

fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut hash = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
    }
    Some(hash)
}

/// The SHA-256 of a token in the form of the file.
pub fn token_hash(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str =
        "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHRzYWx0$hRFx00u7DHfR2lXlRCBbVvHH3sqULpT9jSJVqpHWBIE";

    #[test]
    fn a_file_names_users_and_their_rights() {
        let token = token_hash("secret");
        let text = format!(
            "[users.ann]\npassword = \"{HASH}\"\ntokens = [{{ name = 'ci', sha256 = '{token}' }}]\n\
             certificates = ['cn:ann', 'dns:Ann.example', 'ip:::1']\n\
             rights = {{ '/' = ['read', 'list'], '/ann' = ['all'] }}\n\
             [users.bob]\n[anonymous]\nrights = {{ '/pub' = ['read'] }}\n"
        );
        let users = Users::parse(&text).unwrap();
        let facts: Vec<_> = users
            .all()
            .map(|user| (user.name().to_owned(), user.logins()))
            .collect();
        let ann = "password, 1 token, 3 certificates".to_owned();
        assert_eq!(
            facts,
            [
                ("ann".to_owned(), ann),
                ("bob".to_owned(), "none".to_owned())
            ]
        );
        assert_eq!(users.by_token(b"secret"), users.by_name("ann"));
        assert_eq!(users.by_token(b"secre"), None);
        assert_eq!(users.user(0).identity.rights_at(b"ann/x"), Rights::ALL);
        assert_eq!(users.user(1).identity.rights_at(b"ann/x"), Rights::NONE);
        assert_eq!(users.anonymous().rights_at(b"pub"), Rights::READ);
        assert!(Users::parse("").unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        for (text, error) in [
            ("[users]\nann = 1\n", ":2: "),
            ("[users.ann]\npasswort = 'x'\n", ":2: unknown field"),
            ("[users.ann]\npassword = 'hunter2'\n", ": users.ann: "),
            ("[users.'a b']\n", ": users.a b: a user name has"),
            ("[users.'']\n", "a user name has"),
            (
                "[users.ann]\nrights = { 'x' = ['read'] }\n",
                "write a path such as /photos",
            ),
            (
                "[users.ann]\nrights = { '/x' = ['reed'] }\n",
                "a right is read",
            ),
            (
                "[users.ann]\nrights = { '/x' = [], '/x/' = [] }\n",
                "'/x/' is listed twice",
            ),
            (
                "[users.ann]\ncertificates = ['ann']\n",
                "write a certificate as",
            ),
            (
                "[users.a]\ncertificates = ['cn:x']\n[users.b]\ncertificates = ['cn:x']\n",
                "users.b: 'cn:x' is",
            ),
            (
                "[users.ann]\ntokens = [{ name = 'x', sha256 = 'abc' }]\n",
                "has no valid sha256",
            ),
            ("[users.ann]\nsigning-key = 'abc'\n", "signing-key"),
            (
                "[anonymous]\nrights = { '/' = ['all', 'x'] }\n",
                ": anonymous: ",
            ),
        ] {
            let found = Users::parse(text).expect_err(text);
            assert!(found.contains(error), "{text}: {found}");
            assert!(
                !found.contains('\n') && !found.contains("hunter2"),
                "{found}"
            );
        }
    }
}
