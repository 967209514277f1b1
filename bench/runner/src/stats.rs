//! Medians and their confidence intervals, computed with `statrs`.

use statrs::{
    distribution::{Binomial, DiscreteCDF},
    statistics::{Data, Max, Min, OrderStatistics},
};

/// Minimum probability with which an interval contains the true median.
const CONFIDENCE: f64 = 0.95;

/// Summary of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// Lower end of the confidence interval of the median. The interval is determined by order
    /// statistics and assumes no distribution.
    pub low: f64,
    /// Upper end of that interval.
    pub high: f64,
    /// Probability with which such an interval contains the true median: at least 0.95. With fewer
    /// than six values it is less, and the interval is the range of all values.
    pub coverage: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
}

impl Summary {
    /// Summarises the values that are numbers. `None` if there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut data = data(values);
        if data.is_empty() {
            return None;
        }
        let (rank, coverage) = median_rank(data.len());
        Some(Summary {
            median: data.median(),
            low: data.order_statistic(rank),
            high: data.order_statistic(data.len() + 1 - rank),
            coverage,
            min: data.min(),
            max: data.max(),
        })
    }
}

/// The values that are numbers.
fn data(values: impl IntoIterator<Item = f64>) -> Data<Vec<f64>> {
    Data::new(values.into_iter().filter(|value| !value.is_nan()).collect())
}

/// The values in ascending order.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median of the values that are numbers; NaN if there is none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    data(values).median()
}

/// The lowest of the sorted `values` that at least a `share` of them do not exceed (the nearest
/// rank; `statrs` interpolates). NaN if there are no values.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let rank = (values.len() as f64 * share).ceil() as usize;
    let value = values.get(rank.saturating_sub(1));
    value.copied().unwrap_or(f64::NAN)
}

/// The highest rank `k` (from 1) for which the `k`th lowest and the `k`th highest of `count` values
/// enclose the true median with the required confidence, and the probability that they do.
///
/// Each value is below the true median with probability one half. The interval misses it if fewer
/// than `k` values are below it, or fewer than `k` above: twice a tail of the binomial
/// distribution.
fn median_rank(count: usize) -> (usize, f64) {
    let below = Binomial::new(0.5, count as u64).expect("one half is a probability");
    let coverage = |rank: usize| 1.0 - 2.0 * below.cdf(rank as u64 - 1);
    let sufficient = |rank: &usize| coverage(*rank) >= CONFIDENCE;
    let rank = (1..=count / 2).rev().find(sufficient).unwrap_or(1);
    // A single value covers nothing.
    (rank, coverage(rank).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([f64::NAN, 1.0, 5.0, 3.0]), 3.0);
        assert!(median([]).is_nan());
        assert!(median([f64::NAN; 15]).is_nan());
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN]), None);
    }

    #[test]
    fn the_interval_of_15_values_is_from_the_4th_to_the_12th() {
        let summary = Summary::of((1..=15).map(f64::from)).expect("values");
        assert_eq!(
            (summary.low, summary.median, summary.high),
            (4.0, 8.0, 12.0)
        );
        // 1 - 2 (1 + 15 + 105 + 455) / 2^15, computed by hand.
        assert!((summary.coverage - (1.0 - 1152.0 / 32768.0)).abs() < 1e-9);
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
    fn the_interval_of_few_values_is_their_range() {
        let summary = Summary::of([2.0, 1.0, 4.0]).expect("values");
        assert_eq!((summary.low, summary.high), (1.0, 4.0));
        assert!((summary.coverage - 0.75).abs() < 1e-9);
        for (count, coverage) in [(1, 0.0), (2, 0.5)] {
            let (rank, found) = median_rank(count);
            assert!(rank == 1 && (found - coverage).abs() < 1e-9, "{found}");
        }
    }

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.99), 198.0);
        assert_eq!(percentile(&values, 0.5), 100.0);
        assert_eq!(percentile(&[7.0], 0.999), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
