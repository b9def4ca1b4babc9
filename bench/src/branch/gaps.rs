//! Which of a guest's gaps is the pause, and how long the ones after it are.

/// After a branch, a source takes a copy-on-write fault for each page it writes; this long it is looked at by itself.
const EARLY_US: f64 = 100_000.0;

/// The guest's gaps from the branch on, in microseconds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Gaps {
    pub(super) pause: f64,
    pub(super) early: f64,
    pub(super) after: f64,
}

impl Gaps {
    /// From gaps by when they ended, counted from the request by a clock that may be off by so much. The longest that began
    /// before the branch was answered is the pause, and there may be none that was long enough to be told.
    pub(super) fn of(gaps: &[(f64, f64)], answered_us: f64, clock_us: f64) -> Self {
        let about = gaps.iter().enumerate().filter(|(_, (end, gap))| *end > -clock_us && end - gap < answered_us);
        let pause = about.max_by(|(_, (_, one)), (_, (_, two))| one.total_cmp(two));
        let (next, resumed, pause) = pause.map_or((0, 0.0, 0.0), |(index, (end, gap))| (index + 1, *end, *gap));
        let mut found = Self { pause, ..Self::default() };
        for (end, gap) in gaps.iter().skip(next).filter(|(end, _)| *end > resumed) {
            found.after = found.after.max(*gap);
            if *end < resumed + EARLY_US {
                found.early = found.after;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_those_after_the_pause() {
        let gaps =
            [(-5000.0, 2500.0), (700.0, 90.0), (1000.0, 800.0), (2000.0, 90.0), (500_000.0, 300.0), (500_900.0, 20.0)];
        assert_eq!(Gaps::of(&gaps, 1100.0, 2000.0), Gaps { pause: 800.0, early: 90.0, after: 300.0 });
        assert_eq!(Gaps::of(&gaps[4..], 1100.0, 2000.0), Gaps { pause: 0.0, early: 0.0, after: 300.0 });
    }
}
