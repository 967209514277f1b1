//! The times at which requests are due: a Poisson process, as with independent clients. The same
//! seed yields the same times, so two servers get the same load. This module reads no clock.

/// An infinite sequence of times, in nanoseconds from a start.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    random: fastrand::Rng,
    mean_ns: f64,
    /// The last time. Fractions of a nanosecond add up over many requests.
    last_ns: f64,
}

impl Arrivals {
    /// Creates a sequence with `rate` requests per second on average. `rate` is more than 0.
    pub(crate) fn new(rate: f64, seed: u64) -> Arrivals {
        Arrivals {
            random: fastrand::Rng::with_seed(seed),
            mean_ns: 1e9 / rate,
            last_ns: 0.0,
        }
    }

    /// The next time.
    pub(crate) fn next_ns(&mut self) -> u64 {
        // In (0, 1], so the logarithm is finite.
        let uniform = 1.0 - self.random.f64();
        self.last_ns -= self.mean_ns * uniform.ln();
        self.last_ns as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(count: usize, rate: f64, seed: u64) -> Vec<u64> {
        let mut arrivals = Arrivals::new(rate, seed);
        (0..count).map(|_| arrivals.next_ns()).collect()
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(first(100, 1e4, 7), first(100, 1e4, 7));
        assert_ne!(first(100, 1e4, 7), first(100, 1e4, 8));
    }

    #[test]
    fn time_goes_forward_at_the_rate() {
        let moments = first(100_000, 50_000.0, 1);
        assert!(moments.is_sorted());
        let seconds = *moments.last().expect("moments") as f64 / 1e9;
        assert!((1.98..2.02).contains(&seconds), "{seconds}");
    }

    #[test]
    fn gaps_are_exponential() {
        let moments = first(100_000, 1e6, 3);
        let gaps: Vec<f64> = moments
            .windows(2)
            .map(|two| (two[1] - two[0]) as f64)
            .collect();
        let share_over = |ns: f64| {
            let over = gaps.iter().filter(|gap| **gap > ns).count();
            over as f64 / gaps.len() as f64
        };
        // A share of e⁻¹ of the gaps exceeds the mean, and e⁻³ exceeds three times the mean.
        assert!((share_over(1000.0) - 0.368).abs() < 0.01);
        assert!((share_over(3000.0) - 0.050).abs() < 0.005);
    }
}
