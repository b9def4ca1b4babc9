//! What many rounds come to.

use serde_json::{Value, json};

/// The least and the median of some rounds. On a machine that does other things too the least says more: it is the
/// round that was disturbed least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self { min: at(0), median: at(values.len() / 2) }
    }

    pub(crate) fn over(self, other: Self) -> Self {
        Self { min: self.min / other.min, median: self.median / other.median }
    }

    pub(crate) fn json(self) -> Value {
        json!({"min": rounded(self.min), "median": rounded(self.median)})
    }
}

pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_sorted_rounds() {
        let spread = Spread::of([5.0, 1.0, 3.0].into_iter());
        assert_eq!((spread.min, spread.median), (1.0, 3.0));
        assert_eq!(spread.over(Spread { min: 2.0, median: 2.0 }).json(), json!({"min": 0.5, "median": 1.5}));
    }
}
