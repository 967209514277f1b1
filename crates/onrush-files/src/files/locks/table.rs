//! The locks of all resources (RFC 4918 §6, §7), in memory.
//!
//! All workers share one table. A lock is for a path, whether there is a resource or not, and, with
//! depth infinity, for everything beneath it. A change in progress is in the table as well: it
//! needs the tokens of the locks that cover it, and no lock is granted where a change of another
//! request is in progress. So a lock that was granted is not followed by a change that began before
//! it.
//!
//! Where precompressed siblings are served, a lock covers those of its path as well: a change of
//! one changes what clients receive at the path.
//!
//! The table belongs to one process: locks end with it, and other processes do not see them.

use crate::files::http::codings;
use crate::shares::{self, Full, Share, Shares};
use onrush::compression::Coding;
use rustix::rand::GetRandomFlags;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of locks that cover a resource when one more of it is granted. Each request
/// for the resource looks at them, and `lockdiscovery` shows them.
const LOCKS_OF_KEY_MAX: usize = 32;

/// A token that cannot be guessed: the 128 bits of a UUID (RFC 9562 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) struct Token([u8; 16]);

impl Token {
    /// `None`: the system has no random numbers.
    pub(in crate::files) fn random() -> Option<Token> {
        // Not the generator of aws-lc: its first use on a thread takes 0.1 s.
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty());
        filled.ok().filter(|filled| *filled == bytes.len())?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Some(Token(bytes))
    }

    /// The token with this text; `None` if no lock can have it.
    pub(in crate::files) fn parse(text: &str) -> Option<Token> {
        let digits = text.strip_prefix("urn:uuid:")?.as_bytes();
        if digits.len() != 36 {
            return None;
        }
        let mut token = Token([0; 16]);
        let mut at = 0;
        for (position, &digit) in digits.iter().enumerate() {
            if matches!(position, 8 | 13 | 18 | 23) {
                if digit != b'-' {
                    return None;
                }
                continue;
            }
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None, // A token has one spelling (RFC 4918 §6.5).
            };
            token.0[at / 2] = token.0[at / 2] << 4 | value;
            at += 1;
        }
        Some(token)
    }
}

/// `urn:uuid:f81d4fae-7dec-41d0-a765-00a0c91e6bf6` (RFC 9562 §4).
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("urn:uuid:")?;
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Scope {
    Exclusive,
    Shared,
}

/// A lock that was granted.
#[derive(Clone, Debug)]
pub(in crate::files) struct Lock {
    pub(in crate::files) token: Token,
    pub(in crate::files) scope: Scope,
    /// It covers everything beneath its path.
    pub(in crate::files) is_deep: bool,
    /// What the client says about the owner: XML.
    pub(in crate::files) owner: Arc<str>,
    /// The user whose lock it is. Only this user can use the token.
    pub(in crate::files) user: Option<String>,
    pub(in crate::files) timeout_s: u64,
    /// In the time of `now_ms`.
    pub(in crate::files) expires_ms: u64,
}

/// The client of a request: its user, and the tokens that it has sent in `If`.
#[derive(Clone, Copy, Debug)]
pub(in crate::files) struct Holder<'r> {
    pub(in crate::files) user: Option<&'r str>,
    pub(in crate::files) tokens: &'r [Token],
}

impl Holder<'_> {
    fn has(&self, lock: &Lock) -> bool {
        lock.user.as_deref() == self.user && self.tokens.contains(&lock.token)
    }
}

/// A part of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) struct Touched {
    /// The key without a slash at its ends; empty for the top folder.
    pub(in crate::files) key: Vec<u8>,
    /// Everything beneath changes as well.
    pub(in crate::files) is_deep: bool,
}

impl Touched {
    /// A resource without what is beneath.
    pub(in crate::files) fn alone(key: &[u8]) -> Touched {
        Touched {
            key: key.to_vec(),
            is_deep: false,
        }
    }
}

/// Why a lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) enum Refused {
    /// There is a lock or a change at this key.
    Conflict(Vec<u8>),
    /// There are too many locks, or the client has its share of them.
    Full(Full),
    /// The resource has too many locks.
    FullAtKey,
}

#[derive(Debug)]
pub(in crate::files) struct Locks {
    table: Mutex<Table>,
    shares: Arc<Shares>,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<Vec<u8>, LockEntry>,
    covers_siblings: bool,
}

/// The locks of a path, and the changes in progress there.
#[derive(Debug, Default)]
struct LockEntry {
    locks: Vec<(Lock, Share)>,
    /// Of this resource alone, and of everything beneath it as well.
    changes: [usize; 2],
}

/// A change in progress. It ends when this is dropped.
#[derive(Debug)]
pub(in crate::files) struct Change {
    locks: Arc<Locks>,
    touched: Vec<Touched>,
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut table = self.locks.table();
        for Touched { key, is_deep } in &self.touched {
            if let Some(entry) = table.entries.get_mut(key) {
                entry.changes[usize::from(*is_deep)] -= 1;
            }
            table.remove_unused(key);
        }
    }
}

impl Locks {
    /// No locks. `shares` has the number that there may be.
    pub(in crate::files) fn new(shares: &Arc<Shares>) -> Locks {
        Locks {
            table: Mutex::default(),
            shares: shares.clone(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether precompressed siblings are served, so that a lock covers them.
    pub(in crate::files) fn set_covers_siblings(&self, covers_siblings: bool) {
        self.table().covers_siblings = covers_siblings;
    }

    /// The key that a precompressed sibling at `key` belongs to.
    pub(in crate::files) fn original<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        self.table().original(key)
    }

    /// Removes the locks of users who are removed.
    pub(in crate::files) fn remove_of_users(&self, is_removed: impl Fn(&str) -> bool) {
        let mut table = self.table();
        let is_removed = |lock: &Lock| lock.user.as_deref().is_some_and(&is_removed);
        table.retain(|lock| !is_removed(lock));
    }

    /// Begins a change. Fails with the key of a lock whose token is missing.
    pub(in crate::files) fn begin_change(
        self: &Arc<Locks>,
        touched: Vec<Touched>,
        holder: Holder<'_>,
        now_ms: u64,
    ) -> Result<Change, Vec<u8>> {
        let mut table = self.table();
        for Touched { key, is_deep } in &touched {
            let mut covering = table.covering(key, now_ms).peekable();
            let first = covering.peek().map(|(at, _)| at.to_vec());
            if let Some(first) = first
                && !covering.any(|(_, lock)| holder.has(lock))
            {
                return Err(first);
            }
            if *is_deep {
                let beneath = table.beneath(key).find(|(_, entry)| {
                    let mut live = entry.live(now_ms).peekable();
                    live.peek().is_some() && !live.any(|lock| holder.has(lock))
                });
                if let Some((at, _)) = beneath {
                    return Err(at.clone());
                }
            }
        }
        for Touched { key, is_deep } in &touched {
            let entry = table.entries.entry(key.clone()).or_default();
            entry.changes[usize::from(*is_deep)] += 1;
        }
        Ok(Change {
            locks: self.clone(),
            touched,
        })
    }

    /// Grants a lock to a client, unless there is one or a change that it conflicts with.
    pub(in crate::files) fn grant(
        &self,
        key: &[u8],
        lock: Lock,
        client: shares::Holder,
        now_ms: u64,
    ) -> Result<(), Refused> {
        let mut table = self.table();
        let conflicts =
            |other: &Lock| lock.scope == Scope::Exclusive || other.scope == Scope::Exclusive;
        let above = ancestors(key).find(|at| {
            let changes = table.entries.get(*at).map_or([0, 0], |entry| entry.changes);
            changes[1] > 0 || (*at == key && changes[0] > 0)
        });
        let above = above.or_else(|| {
            let mut covering = table.covering(key, now_ms);
            covering.find(|(_, lock)| conflicts(lock)).map(|(at, _)| at)
        });
        if let Some(at) = above {
            return Err(Refused::Conflict(at.to_vec()));
        }
        let is_in_use =
            |entry: &LockEntry| entry.changes != [0, 0] || entry.live(now_ms).any(conflicts);
        if lock.is_deep {
            let beneath = table.beneath(key).find(|(_, entry)| is_in_use(entry));
            if let Some((at, _)) = beneath {
                return Err(Refused::Conflict(at.clone()));
            }
        }
        let sibling = table.siblings(key).find(|(_, entry)| is_in_use(entry));
        if let Some((at, _)) = sibling {
            return Err(Refused::Conflict(at));
        }
        if table.covering(key, now_ms).count() >= LOCKS_OF_KEY_MAX {
            return Err(Refused::FullAtKey);
        }
        let remove_expired = || table.retain(|lock| lock.expires_ms > now_ms);
        let share = self.shares.take_after(client, 1, remove_expired);
        let share = share.map_err(Refused::Full)?;
        let entry = table.entries.entry(key.to_vec()).or_default();
        entry.locks.push((lock, share));
        Ok(())
    }

    /// Extends a lock that covers this key and that the client has. Returns it and its key.
    pub(in crate::files) fn refresh(
        &self,
        key: &[u8],
        holder: Holder<'_>,
        timeout_s: u64,
        now_ms: u64,
    ) -> Option<(Vec<u8>, Lock)> {
        let mut table = self.table();
        let found = table.covering(key, now_ms);
        let found = found.filter(|(_, lock)| holder.has(lock));
        let (at, token) = found.map(|(at, lock)| (at.to_vec(), lock.token)).next()?;
        let entry = table.entries.get_mut(&at)?;
        let mut locks = entry.locks.iter_mut().map(|(lock, _)| lock);
        let lock = locks.find(|lock| lock.token == token)?;
        lock.timeout_s = timeout_s;
        lock.expires_ms = now_ms + timeout_s * 1000;
        Some((at, lock.clone()))
    }

    /// Removes a lock that covers this key and whose token the client has named, if it is that of
    /// the client, or `may_break` says of its key that the client may remove those of others.
    pub(in crate::files) fn release(
        &self,
        key: &[u8],
        holder: Holder<'_>,
        may_break: impl Fn(&[u8], &Lock) -> bool,
        now_ms: u64,
    ) -> bool {
        let mut table = self.table();
        let found = table.covering(key, now_ms);
        let mut found = found.filter(|(at, lock)| {
            let is_named = holder.tokens.contains(&lock.token);
            is_named && (holder.has(lock) || may_break(at, lock))
        });
        let Some((at, token)) = found.next().map(|(at, lock)| (at.to_vec(), lock.token)) else {
            return false;
        };
        drop(found);
        table.remove_locks(&at, |lock| lock.token == token);
        true
    }

    /// The locks that cover a key, with their keys.
    pub(in crate::files) fn covering(&self, key: &[u8], now_ms: u64) -> Vec<(Vec<u8>, Lock)> {
        let table = self.table();
        let covering = table.covering(key, now_ms);
        covering
            .map(|(at, lock)| (at.to_vec(), lock.clone()))
            .collect()
    }

    /// Whether the lock with this token covers a key.
    pub(in crate::files) fn is_covered_by(&self, key: &[u8], token: Token, now_ms: u64) -> bool {
        let table = self.table();
        let mut covering = table.covering(key, now_ms);
        covering.any(|(_, lock)| lock.token == token)
    }
}

impl Change {
    /// Removes the locks of a resource that is gone, and of everything beneath it. They are those
    /// of before the change, which covers all of that: no lock is granted there until it ends.
    pub(in crate::files) fn forget(&self, key: &[u8]) {
        let mut table = self.locks.table();
        let mut gone: Vec<Vec<u8>> = table.beneath(key).map(|(at, _)| at.clone()).collect();
        gone.push(key.to_vec());
        for at in gone {
            table.remove_locks(&at, |_| true);
        }
    }
}

impl Table {
    /// The locks that cover a key: its own, the deep ones above it, and those of the object whose
    /// sibling it is.
    fn covering<'t>(
        &'t self,
        key: &'t [u8],
        now_ms: u64,
    ) -> impl Iterator<Item = (&'t [u8], &'t Lock)> {
        let original = self.original(key);
        ancestors(key).chain(original).flat_map(move |at| {
            let entry = self.entries.get(at).into_iter();
            let live = entry.flat_map(move |entry| entry.live(now_ms));
            let covers = move |lock: &&Lock| at == key || Some(at) == original || lock.is_deep;
            live.filter(covers).map(move |lock| (at, lock))
        })
    }

    /// The key that a sibling at `key` belongs to.
    fn original<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let found = codings::of_sibling(key).filter(|_| self.covers_siblings);
        found.map(|(_, original)| original)
    }

    /// The siblings of a key that are in the table.
    fn siblings<'t>(&'t self, key: &'t [u8]) -> impl Iterator<Item = (Vec<u8>, &'t LockEntry)> {
        let codings = Coding::ALL.into_iter().filter(|_| self.covers_siblings);
        codings.filter_map(move |coding| {
            let at = [key, codings::extension(coding).as_bytes()].concat();
            let entry = self.entries.get(&at)?;
            Some((at, entry))
        })
    }

    /// What is beneath a key.
    fn beneath<'t>(&'t self, key: &'t [u8]) -> impl Iterator<Item = (&'t Vec<u8>, &'t LockEntry)> {
        let mut prefix = key.to_vec();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        let range = self.entries.range(prefix.clone()..);
        range
            .take_while(move |(at, _)| at.starts_with(&prefix))
            .filter(move |(at, _)| &at[..] != key)
    }

    fn remove_locks(&mut self, key: &[u8], is_removed: impl Fn(&Lock) -> bool) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.locks.retain(|(lock, _)| !is_removed(lock));
        }
        self.remove_unused(key);
    }

    fn remove_unused(&mut self, key: &[u8]) {
        let is_unused = |entry: &LockEntry| entry.locks.is_empty() && entry.changes == [0, 0];
        if self.entries.get(key).is_some_and(is_unused) {
            self.entries.remove(key);
        }
    }

    fn retain(&mut self, is_retained: impl Fn(&Lock) -> bool) {
        self.entries.retain(|_, entry| {
            entry.locks.retain(|(lock, _)| is_retained(lock));
            !entry.locks.is_empty() || entry.changes != [0, 0]
        });
    }
}

impl LockEntry {
    fn live(&self, now_ms: u64) -> impl Iterator<Item = &Lock> {
        let is_live = move |lock: &&Lock| lock.expires_ms > now_ms;
        self.locks.iter().map(|(lock, _)| lock).filter(is_live)
    }
}

/// A key and the folders above it, the top folder first.
fn ancestors(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let top = (!key.is_empty()).then_some(&b""[..]);
    let slashes = key.iter().enumerate();
    let ends = slashes.filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    top.into_iter()
        .chain(ends.map(|end| &key[..end]))
        .chain([key])
}

/// The key of the folder above; `None` for the top folder.
pub(in crate::files) fn parent(key: &[u8]) -> Option<&[u8]> {
    match key.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => Some(&key[..slash]),
        None if key.is_empty() => None,
        None => Some(b""),
    }
}

#[cfg(test)]
mod tests;
