//! Whether what was decided about a client still holds, for requests that last.
//!
//! The users can be replaced while a request lasts. Then its identity is looked up again among the
//! new ones, by its name and by what it has proved: a user may have been removed, or have lost a
//! right, and a password, a token, a key or a certificate may have been replaced.

use super::password::PasswordHash;
use super::signed_url::{Signature, SigningKey};
use super::users::{UserId, Users};
use crate::rights::{Identity, Origin, PathRights};
use onrush::tls::ClientIdentity;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The users of this moment, which all applications of a server share: one that has been replaced
/// serves requests to their end, with the users that it had.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    /// That of the users.
    serial: AtomicU64,
    users: Mutex<Arc<Users>>,
}

impl Latest {
    /// Makes these the users of this moment.
    pub(crate) fn install(&self, mut users: Users) -> Arc<Users> {
        let mut latest = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.serial = latest.serial + 1;
        let users = Arc::new(users);
        *latest = users.clone();
        self.serial.store(users.serial, Ordering::Release);
        users
    }

    pub(crate) fn users(&self) -> Arc<Users> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.clone()
    }
}

/// The rights that a signed URL gives, as users have them.
pub(crate) type SignedRights = Box<dyn Fn(&Users, UserId) -> PathRights + Send + Sync>;

/// How a client has proved to be a user.
pub(crate) enum Proof {
    /// It is anonymous.
    None,
    Password(Option<Box<PasswordHash>>),
    /// The token.
    Token(Vec<u8>),
    Certificate(ClientIdentity),
    /// The signature, and what it gives.
    SignedUrl(Signature, SignedRights),
}

/// Without secrets.
impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proof::None => "None",
            Proof::Password(_) => "Password",
            Proof::Token(_) => "Token",
            Proof::Certificate(_) => "Certificate",
            Proof::SignedUrl(..) => "SignedUrl",
        })
    }
}

/// Where an identity is from.
#[derive(Debug)]
pub(crate) struct Standing {
    latest: Arc<Latest>,
    /// Of the users who decided.
    serial: u64,
    /// `None`: it is anonymous.
    name: Option<String>,
    proof: Proof,
}

impl Standing {
    /// The identity that `users` have given, with its origin.
    pub(crate) fn attach(
        identity: Identity,
        users: &Users,
        latest: &Arc<Latest>,
        proof: Proof,
    ) -> Identity {
        let standing = Standing {
            latest: latest.clone(),
            serial: users.serial,
            name: identity.name.clone(),
            proof,
        };
        Identity {
            origin: Some(Arc::new(standing)),
            ..identity
        }
    }

    /// The client among other users. `None`: it is none of them.
    fn among(&self, users: &Users) -> Option<Identity> {
        let Some(name) = &self.name else {
            return Some(users.anonymous());
        };
        let id = users.by_name(name)?;
        let user = users.user(id);
        let identity = user.identity.clone();
        match &self.proof {
            Proof::None => None,
            Proof::Password(hash) => {
                (user.password.as_ref() == hash.as_deref()).then_some(identity)
            }
            Proof::Token(token) => (users.by_token(token) == Some(id)).then_some(identity),
            Proof::Certificate(client) => {
                (users.by_certificate(client) == Some(id)).then_some(identity)
            }
            Proof::SignedUrl(signature, rights) => {
                let is_valid = |key: &SigningKey| signature.is_by(key);
                let is_valid = user.signing_key.as_ref().is_some_and(is_valid);
                is_valid.then(|| Identity {
                    rights: rights(users, id),
                    ..identity
                })
            }
        }
    }
}

impl Origin for Standing {
    fn is_current(&self) -> bool {
        self.latest.serial.load(Ordering::Acquire) == self.serial
    }

    fn now(&self) -> Option<Identity> {
        self.among(&self.latest.users())
    }
}

#[cfg(test)]
mod tests {
    use super::super::users::token_hash;
    use super::*;
    use crate::rights::Rights;

    const HASH: &str =
        "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHRzYWx0$hRFx00u7DHfR2lXlRCBbVvHH3sqULpT9jSJVqpHWBIE";

    fn users(text: &str) -> Users {
        Users::parse(text).expect("users")
    }

    #[test]
    fn a_client_is_looked_up_by_what_it_has_proved() {
        let token = token_hash("secret");
        let tokens = format!("tokens = [{{ name = 't', sha256 = '{token}' }}]\n");
        let all = "rights = { '/' = ['all'] }\n";
        let password = format!("password = '{HASH}'\n");
        let first = format!("[users.ann]\n{password}{tokens}{all}");
        let hash = || PasswordHash::parse(HASH).expect("a hash");
        let by_password = || Proof::Password(Some(Box::new(hash())));
        let by_token = || Proof::Token(b"secret".to_vec());
        let read = "rights = { '/' = ['read'] }\n";
        let other = HASH.replace("c2FsdHNhbHRzYWx0", "c2FsdHNhbHRzYWx1");
        // Rights afterwards of a client with the password, and of one with the token.
        for (second, with_password, with_token) in [
            (first.clone(), Some(Rights::ALL), Some(Rights::ALL)),
            (
                format!("[users.aaron]\n[users.ann]\n{password}{tokens}{read}"),
                Some(Rights::READ),
                Some(Rights::READ),
            ),
            (
                format!("[users.ann]\n{password}{all}"),
                Some(Rights::ALL),
                None,
            ),
            (
                format!("[users.ann]\npassword = '{other}'\n{tokens}{all}"),
                None,
                Some(Rights::ALL),
            ),
            (
                format!("[users.ann]\n{all}[users.bob]\n{password}{tokens}{all}"),
                None,
                None,
            ),
            (String::new(), None, None),
        ] {
            for (proof, expected) in [(by_password(), with_password), (by_token(), with_token)] {
                let latest = Arc::new(Latest::default());
                let before = latest.install(users(&first));
                let identity = before.user(0).identity.clone();
                let identity = Standing::attach(identity, &before, &latest, proof);
                assert!(identity.now().is_some_and(|same| *same == identity));
                latest.install(users(&second));
                let rights = identity.now().map(|now| now.rights_at(b"a"));
                assert_eq!(rights, expected, "{second}");
            }
        }
    }

    #[test]
    fn an_anonymous_client_has_the_rights_of_the_new_users() {
        let latest = Arc::new(Latest::default());
        let before = latest.install(users("[anonymous]\nrights = { '/' = ['all'] }\n"));
        let identity = Standing::attach(before.anonymous(), &before, &latest, Proof::None);
        latest.install(users("[users.ann]\n"));
        let now = identity.now().expect("still anonymous");
        assert_eq!((now.rights_at(b"a"), now.can_log_in), (Rights::NONE, true));
    }
}
