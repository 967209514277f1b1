//! Seeded random numbers, and keys whose popularity follows Zipf's law.

/// SplitMix64: small, and the same on every machine.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Above 0 and at most 1.
    pub(super) fn share(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Less than `count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// The time to the next event of a Poisson process, whose mean this is.
    pub(super) fn pause(&mut self, mean: f64) -> f64 {
        -self.share().ln() * mean
    }
}

/// Ranks from 1 to `count`, where rank r has a probability proportional to r to the power of
/// `-skew`.
///
/// Sampled by rejection from the continuous distribution (Hörmann and Derflinger, 1996), so that
/// no table of 10^11 entries is needed.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    count: f64,
    skew: f64,
    /// The integral up to the first and to the last rank.
    first: f64,
    last: f64,
    /// Ranks this close above their sample are accepted at once.
    margin: f64,
    /// The sum of all weights.
    total: f64,
}

impl Zipf {
    pub(super) fn new(count: f64, skew: f64) -> Zipf {
        let mut zipf = Zipf {
            count,
            skew,
            first: 0.0,
            last: 0.0,
            margin: 0.0,
            total: 0.0,
        };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(count + 0.5);
        zipf.margin = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        // Of the first ones exactly, of the others as an integral.
        let exact = count.min(1000.0);
        zipf.total = zipf.last - zipf.integral(exact + 0.5);
        zipf.total += (1..=exact as u32)
            .map(|rank| zipf.weight(f64::from(rank)))
            .sum::<f64>();
        zipf
    }

    pub(super) fn rank(&self, random: &mut Random) -> f64 {
        loop {
            let height = self.last + random.share() * (self.first - self.last);
            let at = self.inverse(height);
            let rank = at.round().clamp(1.0, self.count);
            let is_below = height >= self.integral(rank + 0.5) - self.weight(rank);
            if rank - at <= self.margin || is_below {
                return rank;
            }
        }
    }

    /// The probability of a rank.
    pub(super) fn probability(&self, rank: f64) -> f64 {
        self.weight(rank) / self.total
    }

    fn weight(&self, rank: f64) -> f64 {
        rank.powf(-self.skew)
    }

    /// The integral of the weight from 1 to `at`.
    fn integral(&self, at: f64) -> f64 {
        let power = 1.0 - self.skew;
        match power.abs() < 1e-9 {
            true => at.ln(),
            false => (at.powf(power) - 1.0) / power,
        }
    }

    fn inverse(&self, integral: f64) -> f64 {
        let power = 1.0 - self.skew;
        match power.abs() < 1e-9 {
            true => integral.exp(),
            false => (1.0 + integral * power).max(0.0).powf(1.0 / power),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_all_numbers() {
        let of = |seed| {
            let mut random = Random::new(seed);
            [
                random.bits(),
                random.below(1000) as u64,
                random.pause(1.0).to_bits(),
            ]
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn pauses_have_their_mean() {
        let mut random = Random::new(1);
        let sum: f64 = (0..20_000).map(|_| random.pause(3.0)).sum();
        assert!((sum / 20_000.0 - 3.0).abs() < 0.1, "{sum}");
    }

    #[test]
    fn ranks_have_their_probabilities() {
        for skew in [0.8, 1.0, 1.2] {
            let zipf = Zipf::new(50.0, skew);
            let mut random = Random::new(3);
            let mut seen = [0u32; 51];
            for _ in 0..50_000 {
                seen[zipf.rank(&mut random) as usize] += 1;
            }
            for rank in [1, 2, 3, 10, 50] {
                let expected = zipf.probability(rank as f64) * 50_000.0;
                let error = (f64::from(seen[rank]) - expected).abs();
                assert!(
                    error < 5.0 * expected.sqrt(),
                    "{skew} {rank}: {}",
                    seen[rank]
                );
            }
            let sum: f64 = (1..=50).map(|rank| zipf.probability(f64::from(rank))).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        }
    }

    #[test]
    fn the_probabilities_of_many_ranks_add_up() {
        // The harmonic number of 10^11.
        let all = 1.0 / Zipf::new(1e11, 1.0).probability(1.0);
        assert!((all - (1e11f64.ln() + 0.577_215_7)).abs() < 1e-3, "{all}");
    }
}
