//! Numbers as people read them. What is no number is a dash.

/// Shown where there is no figure.
pub(crate) const NOTHING: &str = "–";

/// A regret, in percent.
pub(crate) fn percent(part: f64) -> String {
    if part.is_finite() { format!("{:.1} %", part * 100.0) } else { NOTHING.to_owned() }
}

/// A time in µs, three significant digits.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if !us.is_finite() => NOTHING.to_owned(),
        us if us >= 100.0 => format!("{us:.0}"),
        us if us >= 10.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// A ratio.
pub(crate) fn ratio(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}") } else { NOTHING.to_owned() }
}

/// Bytes in MB.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// What a column is sorted by: the figure itself, or nothing.
pub(crate) fn sort_key(value: f64) -> String {
    if value.is_finite() { format!("{value}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_nothing_is_a_dash() {
        assert_eq!([1.234, 12.34, 123.4, 12345.6].map(micros), ["1.23", "12.3", "123", "12346"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(micros), ["–", "–"]);
        assert_eq!((percent(0.0123), percent(f64::NAN)), ("1.2 %".to_owned(), "–".to_owned()));
        assert_eq!((ratio(1.005), ratio(f64::INFINITY)), ("1.00".to_owned(), "–".to_owned()));
    }
}
