//! Medians, and how sure they are. Must not know what the numbers are of.

/// How often an interval should hold the true median.
const CONFIDENCE: f64 = 0.95;

/// A sample, summed up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The value in the middle.
    pub median: f64,
    /// The interval for the median, from order statistics: no distribution is assumed.
    pub low: f64,
    /// The upper end of that interval.
    pub high: f64,
    /// How often such an interval holds the true median: at least 0.95, but less for fewer than
    /// six values, where it goes from the least to the greatest of them.
    pub coverage: f64,
    /// The least of all.
    pub min: f64,
    /// The greatest of all.
    pub max: f64,
}

impl Summary {
    /// Of at least one value; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let values = sorted(values);
        let (&min, &max) = (values.first()?, values.last()?);
        let (rank, coverage) = median_rank(values.len());
        Some(Summary {
            median: middle(&values),
            low: values[rank - 1],
            high: values[values.len() - rank],
            coverage,
            min,
            max,
        })
    }
}

/// The values in order.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median; of nothing, not a number.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    middle(&sorted(values))
}

/// Of values in order.
fn middle(values: &[f64]) -> f64 {
    let at = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => f64::NAN,
        1 => values[at],
        _ => (values[at - 1] + values[at]) / 2.0,
    }
}

/// The value that a `share` of all does not pass, of values in order; of nothing, not a number.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let rank = (values.len() as f64 * share).ceil() as usize;
    values
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

/// The greatest rank `k` (from 1) for which the `k`th smallest and the `k`th greatest of `count`
/// values hold the median between them often enough, and how often that is.
///
/// Each value is below the median with probability one half, so the interval misses when fewer than
/// `k` are below it, or fewer than `k` above: twice a tail of the binomial distribution.
fn median_rank(count: usize) -> (usize, f64) {
    let mut probability = 0.5_f64.powi(count as i32);
    let mut tail = probability;
    let mut best = (1, 1.0 - 2.0 * tail);
    for rank in 2..=count / 2 {
        probability *= (count - rank + 2) as f64 / (rank - 1) as f64;
        tail += probability;
        let coverage = 1.0 - 2.0 * tail;
        if coverage < CONFIDENCE {
            break;
        }
        best = (rank, coverage);
    }
    // One value alone covers nothing.
    (best.0, best.1.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn the_interval_of_15_values_is_from_the_4th_to_the_12th() {
        let summary = Summary::of((1..=15).map(f64::from)).expect("values");
        assert_eq!(
            (summary.low, summary.median, summary.high),
            (4.0, 8.0, 12.0)
        );
        // 1 - 2 (1 + 15 + 105 + 455) / 2^15, by hand.
        assert!((summary.coverage - (1.0 - 1152.0 / 32768.0)).abs() < 1e-12);
        assert_eq!((summary.min, summary.max), (1.0, 15.0));
    }

    #[test]
    fn ranks_agree_with_published_tables() {
        let ranks: Vec<usize> = [6, 8, 9, 10, 11, 12, 20, 25, 30]
            .map(|count| median_rank(count).0)
            .to_vec();
        assert_eq!(ranks, [1, 1, 2, 2, 2, 3, 6, 8, 10]);
    }

    #[test]
    fn few_values_give_their_range_and_say_how_little_it_covers() {
        let summary = Summary::of([2.0, 1.0, 4.0]).expect("values");
        assert_eq!((summary.low, summary.high), (1.0, 4.0));
        assert_eq!(summary.coverage, 0.75);
        assert_eq!(median_rank(1), (1, 0.0));
        assert_eq!(median_rank(2), (1, 0.5));
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.99), 198.0);
        assert_eq!(percentile(&values, 0.5), 100.0);
        assert_eq!(percentile(&[7.0], 0.999), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
