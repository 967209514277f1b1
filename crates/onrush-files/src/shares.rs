//! What clients share and one of them could use up: changes without a client, memory of listings,
//! unfinished uploads, logins that wait.
//!
//! Of each budget, a holder may have half of what the others leave, and at least one unit. So a
//! client that takes all it gets leaves half to the next one, and each further one that does so
//! halves the rest. A holder is a user, or an address for a client without one. What is in the
//! table is what is held, so it needs no limit of its own.

use crate::client_address::client_address;
use crate::rights::Identity;
use onrush::Request;
use onrush::metrics::{MetricType, TextWriter};
use onrush_rt::net::client_network;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The user or address that has a share: a keyed hash, so that it is small, and no client can
/// choose that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder(u64);

impl Holder {
    /// The user of a request, or its address. A signed URL is a request of the user who has signed
    /// it.
    pub(crate) fn of(request: &Request) -> Holder {
        let user = request.extension::<Identity>().and_then(Identity::name);
        match user {
            Some(name) => Holder::user(name),
            None => Holder::address(client_address(request)),
        }
    }

    pub(crate) fn user(name: &str) -> Holder {
        Holder::hash(Some(name), None)
    }

    /// A client without a user. `None`: its address is not known, or it uses a Unix socket.
    pub(crate) fn address(address: Option<IpAddr>) -> Holder {
        Holder::hash(None, address.map(client_network))
    }

    /// As a number, for a store.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    fn hash(user: Option<&str>, network: Option<IpAddr>) -> Holder {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Holder(KEY.hash_one((user, network)))
    }
}

/// Why there is nothing to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The holder has its share.
    Own,
    /// All is in use.
    All,
}

/// What each holder has of a budget.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    used: u64,
    held: HashMap<Holder, u64>,
}

impl Ledger {
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    fn held(&self, holder: Holder) -> u64 {
        self.held.get(&holder).copied().unwrap_or(0)
    }

    /// Whether a holder that gave back `before` may have `units` of `total` instead.
    pub(crate) fn check(
        &self,
        holder: Holder,
        before: u64,
        units: u64,
        total: u64,
    ) -> Result<(), Full> {
        let used = self.used.saturating_sub(before);
        if used.saturating_add(units) > total {
            return Err(Full::All);
        }
        self.check_share(holder, before, units, total)
    }

    /// The same, whether or not others have more than there is.
    fn check_share(&self, holder: Holder, before: u64, units: u64, total: u64) -> Result<(), Full> {
        let own = self.held(holder);
        let share = total.saturating_sub(self.used - own) / 2;
        let after = own.saturating_sub(before).saturating_add(units);
        match after > share.max(1) {
            true => Err(Full::Own),
            false => Ok(()),
        }
    }

    /// A holder gives back `before` and takes `units`.
    pub(crate) fn replace(&mut self, holder: Holder, before: u64, units: u64) {
        let own = self.held(holder);
        let after = own.saturating_sub(before).saturating_add(units);
        self.used = (self.used - own).saturating_add(after);
        match after {
            0 => drop(self.held.remove(&holder)),
            _ => drop(self.held.insert(holder, after)),
        }
    }
}

/// A budget of which holders take units. All workers use it.
#[derive(Debug)]
pub(crate) struct Shares {
    /// The label in the metrics.
    budget: &'static str,
    total: AtomicU64,
    ledger: Mutex<Ledger>,
    /// Copy of [`Ledger::used`].
    used: AtomicU64,
    refused: Refused,
}

/// Units that are taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    holder: Holder,
    units: u64,
}

impl Shares {
    pub(crate) fn new(budget: &'static str, total: usize) -> Arc<Shares> {
        Arc::new(Shares {
            budget,
            total: AtomicU64::new(total as u64),
            ledger: Mutex::default(),
            used: AtomicU64::new(0),
            refused: Refused::default(),
        })
    }

    /// Changes what there is. What is taken stays taken.
    pub(crate) fn set_total(&self, total: usize) {
        self.total.store(total as u64, Relaxed);
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `units` for a holder.
    pub(crate) fn take(self: &Arc<Self>, holder: Holder, units: usize) -> Result<Share, Full> {
        self.take_checked(holder, units as u64, Ledger::check)
    }

    /// Takes a unit of a holder's share, whether or not others have more than there is: something
    /// else limits that.
    pub(crate) fn take_own(self: &Arc<Self>, holder: Holder) -> Result<Share, Full> {
        self.take_checked(holder, 1, Ledger::check_share)
    }

    fn take_checked(
        self: &Arc<Self>,
        holder: Holder,
        units: u64,
        check: fn(&Ledger, Holder, u64, u64, u64) -> Result<(), Full>,
    ) -> Result<Share, Full> {
        let mut ledger = self.ledger();
        if let Err(full) = check(&ledger, holder, 0, units, self.total.load(Relaxed)) {
            drop(ledger);
            self.refused.count(full);
            return Err(full);
        }
        Ok(self.taken(&mut ledger, holder, units))
    }

    /// The same, but if there is not enough, `free` may give back what others have taken first.
    pub(crate) fn take_after(
        self: &Arc<Self>,
        holder: Holder,
        units: usize,
        free: impl FnOnce(),
    ) -> Result<Share, Full> {
        let total = self.total.load(Relaxed);
        let checked = self.ledger().check(holder, 0, units as u64, total);
        if checked.is_err() {
            free();
        }
        self.take(holder, units)
    }

    /// Whether a holder may begin something for which it may have to take a unit later. A holder
    /// that has none always may: others cannot prevent it.
    pub(crate) fn check_share(&self, holder: Holder) -> Result<(), Full> {
        if self.used.load(Relaxed) == 0 {
            return Ok(());
        }
        let checked = self
            .ledger()
            .check_share(holder, 0, 1, self.total.load(Relaxed));
        checked.inspect_err(|full| self.refused.count(*full))
    }

    /// Takes a unit whether or not there is one, for what is in progress.
    pub(crate) fn take_late(self: &Arc<Self>, holder: Holder) -> Share {
        self.taken(&mut self.ledger(), holder, 1)
    }

    fn taken(self: &Arc<Self>, ledger: &mut Ledger, holder: Holder, units: u64) -> Share {
        ledger.replace(holder, 0, units);
        self.used.store(ledger.used(), Relaxed);
        Share {
            shares: self.clone(),
            holder,
            units,
        }
    }
}

impl Share {
    pub(crate) fn units(&self) -> usize {
        usize::try_from(self.units).unwrap_or(usize::MAX)
    }

    /// Takes so many units instead. Returns false and changes nothing if there are not enough.
    /// Giving back always succeeds.
    pub(crate) fn resize(&mut self, units: usize) -> bool {
        let (units, total) = (units as u64, self.shares.total.load(Relaxed));
        let mut ledger = self.shares.ledger();
        let checked = match units <= self.units {
            true => Ok(()),
            false => ledger.check(self.holder, self.units, units, total),
        };
        if checked.is_ok() {
            ledger.replace(self.holder, self.units, units);
            self.shares.used.store(ledger.used(), Relaxed);
            self.units = units;
        }
        checked.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut ledger = self.shares.ledger();
        ledger.replace(self.holder, self.units, 0);
        self.shares.used.store(ledger.used(), Relaxed);
    }
}

/// The number of refusals of a budget.
#[derive(Debug, Default)]
pub(crate) struct Refused([AtomicU64; 2]);

impl Refused {
    pub(crate) fn count(&self, full: Full) {
        self.0[full as usize].fetch_add(1, Relaxed);
    }

    fn counts(&self) -> [(&'static str, u64); 2] {
        let [own, all] = &self.0;
        [("share", own.load(Relaxed)), ("all", all.load(Relaxed))]
    }
}

/// The state of a budget, for the metrics.
pub(crate) struct SharesState<'a> {
    pub(crate) budget: &'static str,
    pub(crate) used: u64,
    pub(crate) total: u64,
    pub(crate) refused: &'a Refused,
}

impl Shares {
    pub(crate) fn state(&self) -> SharesState<'_> {
        SharesState {
            budget: self.budget,
            used: self.used.load(Relaxed),
            total: self.total.load(Relaxed),
            refused: &self.refused,
        }
    }
}

/// Writes the metrics of all budgets.
pub(crate) fn collect(states: &[SharesState<'_>], text: &mut TextWriter) {
    let help = "What clients have of a budget that they share, in places or bytes.";
    text.family("onrush_shares_used", MetricType::Gauge, help);
    for state in states {
        text.sample(&[("budget", state.budget)], state.used);
    }
    let help = "The size of a budget that clients share, in places or bytes.";
    text.family("onrush_shares_max", MetricType::Gauge, help);
    for state in states {
        text.sample(&[("budget", state.budget)], state.total);
    }
    let help = "Requests that got nothing: their client had its share, or all was in use.";
    text.family("onrush_shares_refused", MetricType::Counter, help);
    for state in states {
        for (full, count) in state.refused.counts() {
            text.sample(&[("budget", state.budget), ("full", full)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &Arc<Shares>, holder: Holder) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(holder, 1).ok()).collect()
    }

    #[test]
    fn each_holder_gets_half_of_what_the_others_leave() {
        let shares = Shares::new("places", 100);
        let holder = |number: u32| Holder::user(&number.to_string());
        let mut all = Vec::new();
        for (number, expected) in [50, 25, 12, 6, 3, 2, 1, 1].into_iter().enumerate() {
            let taken = take_all(&shares, holder(number as u32));
            assert_eq!(taken.len(), expected, "{number}");
            all.push(taken);
        }
        assert!(all.iter().map(Vec::len).sum::<usize>() == 100);
        assert_eq!(shares.take(holder(9), 1).err(), Some(Full::All));
        // What the first one gives back is for the others as well.
        all[0].truncate(10);
        assert_eq!(take_all(&shares, holder(1)).len(), 7);
        drop(all);
        assert_eq!(shares.take(holder(9), 51).err(), Some(Full::Own));
        assert!(shares.take(holder(9), 50).is_ok());
        assert_eq!(shares.ledger().held.len(), 0);
    }

    /// Others may have begun more than there is before the first one was counted.
    #[test]
    fn a_holder_without_a_share_always_gets_one_later() {
        let shares = Shares::new("changes", 100);
        let (many, one) = (Holder::user("many"), Holder::address(None));
        let taken: Vec<Share> = (0..500).map(|_| shares.take_late(many)).collect();
        assert_eq!(shares.check_share(many), Err(Full::Own));
        assert_eq!(shares.check_share(one), Ok(()));
        let late = shares.take_own(one).expect("its share");
        assert_eq!(shares.take_own(one).err(), Some(Full::Own));
        assert_eq!(shares.check_share(one), Err(Full::Own));
        drop(taken);
        assert_eq!(shares.check_share(one), Ok(()));
        drop(late);
        assert_eq!(shares.state().used, 0);
    }

    #[test]
    fn a_user_is_not_an_address_and_a_network_is_one_holder() {
        let address = |text: &str| Holder::address(text.parse().ok());
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:2"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"));
        assert_ne!(Holder::user(""), Holder::address(None));
    }

    #[test]
    fn a_share_grows_as_far_as_one_may_be_taken() {
        let shares = Shares::new("bytes", 100);
        let holder = Holder::user("a");
        let mut share = shares.take(holder, 10).expect("a share");
        let other = shares.take(holder, 5);
        assert!(share.resize(45) && !share.resize(46));
        assert_eq!(shares.state().used, 50);
        shares.set_total(20);
        assert!(!share.resize(46) && share.resize(40));
        drop(other);
        assert!(share.resize(0));
        assert_eq!(shares.state().used, 0);
        drop(share);
        assert_eq!((shares.state().used, shares.ledger().held.len()), (0, 0));
    }

    #[test]
    fn a_part_that_is_replaced_does_not_count_twice() {
        let (mut ledger, holder) = (Ledger::default(), Holder::user("a"));
        ledger.replace(holder, 0, 400);
        assert_eq!(ledger.check(holder, 400, 500, 1000), Ok(()));
        assert_eq!(ledger.check(holder, 400, 501, 1000), Err(Full::Own));
        assert_eq!(ledger.check(holder, 0, 601, 1000), Err(Full::All));
        ledger.replace(holder, 400, 0);
        assert_eq!((ledger.used(), ledger.held.len()), (0, 0));
    }
}
