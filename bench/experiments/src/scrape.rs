//! Reads samples of the Prometheus text format.

/// The samples of the metric `name`: the labels of each, as text, and its value. Leaves out values
/// that are not whole numbers.
pub(crate) fn samples<'t>(text: &'t str, name: &str) -> impl Iterator<Item = (&'t str, u64)> {
    let sample = move |line: &'t str| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        let is_whole_name = labels.is_empty() || labels.starts_with('{');
        let value = value.parse::<u64>().ok()?;
        is_whole_name.then_some((labels, value))
    };
    text.lines().filter_map(sample)
}

/// The sum of all samples of the metric `name`.
pub(crate) fn sum(text: &str, name: &str) -> u64 {
    samples(text, name).map(|(_, value)| value).sum()
}

/// The value of the label `name`, which must not contain a quotation mark.
pub(crate) fn label<'t>(labels: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_labels_and_values() {
        let text = "# TYPE x counter\nx{worker=\"0\"} 3\nx_total{worker=\"1\"} 4\n\
            x_total{reason=\"end\",worker=\"12\"} 5\nx_total{worker=\"2\"} 0.5\ny 7\n";
        let all: Vec<_> = samples(text, "x_total").collect();
        let second = "{reason=\"end\",worker=\"12\"}";
        assert_eq!(all, [("{worker=\"1\"}", 4), (second, 5)]);
        assert_eq!(
            (label(second, "worker"), label(second, "x")),
            (Some("12"), None)
        );
        assert_eq!((sum(text, "x_total"), sum(text, "y")), (9, 7));
        assert_eq!(sum(text, "z"), 0);
    }
}
