//! How much work a peer may cause that leads to nothing: resets, pings, settings, empty frames.
//!
//! Each such frame takes from an [`Allowance`]. Completed requests and time give back. A peer that
//! does such things now and then (a ping for each call, a page that is left while it loads) never
//! reaches the end; one that does only such things ends its connection with `ENHANCE_YOUR_CALM`.

/// What is left for frames that lead to nothing.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u32,
    max: u32,
    per_second: u32,
    /// When time has given back last, in seconds.
    at_s: u32,
}

impl Allowance {
    pub(super) const fn new(max: u32, per_second: u32) -> Allowance {
        Allowance {
            left: max,
            max,
            per_second,
            at_s: 0,
        }
    }

    /// Takes `cost`. Returns whether it was there.
    pub(super) fn take(&mut self, cost: u32, now_s: u32) -> bool {
        let passed_s = now_s.saturating_sub(self.at_s);
        if passed_s > 0 {
            self.give(passed_s.saturating_mul(self.per_second));
            self.at_s = now_s;
        }
        let left = self.left.checked_sub(cost);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Gives back.
    pub(super) fn give(&mut self, amount: u32) {
        self.left = self.left.saturating_add(amount).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::Allowance;

    #[test]
    fn time_and_use_give_back() {
        let mut allowance = Allowance::new(3, 2);
        assert!(allowance.take(3, 0));
        assert!(!allowance.take(1, 0));
        allowance.give(1);
        assert!(allowance.take(1, 0));
        assert!(allowance.take(2, 1));
        assert!(!allowance.take(1, 1));
        assert!(allowance.take(3, 1000));
        assert!(!allowance.take(1, 1000));
    }
}
