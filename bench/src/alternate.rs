//! Alternation: sides of a comparison take turns, so that what else the machine does hits all of them.

use crate::Outcome;

/// Median and range of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The median.
    pub(crate) median: f64,
    /// What a quarter of them do not exceed.
    pub(crate) lower_quartile: f64,
    /// The least.
    pub(crate) low: f64,
    /// The greatest.
    pub(crate) high: f64,
    /// How many there were.
    pub(crate) count: usize,
}

impl Spread {
    /// Summarizes measurements; all zero without any.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            at(middle)
        } else {
            (at(middle.saturating_sub(1)) + at(middle)) / 2.0
        };
        Self {
            median,
            lower_quartile: at(values.len() / 4),
            low: at(0),
            high: at(values.len().saturating_sub(1)),
            count: values.len(),
        }
    }
}

/// One side of a comparison: measures once whenever it is called.
pub(crate) type Side<'a, T> = &'a mut dyn FnMut() -> Outcome<T>;

/// Warms each side up once, then lets them measure in turn, `rounds` times; gives each side's measurements.
///
/// # Errors
/// The first failure of a side.
pub(crate) fn alternate<T, const N: usize>(
    rounds: usize,
    mut sides: [Side<'_, T>; N],
) -> Outcome<[Vec<T>; N]> {
    for side in &mut sides {
        side()?;
    }
    let mut measured: [Vec<T>; N] = std::array::from_fn(|_| Vec::with_capacity(rounds));
    for _ in 0..rounds {
        for (side, values) in sides.iter_mut().zip(&mut measured) {
            values.push(side()?);
        }
    }
    Ok(measured)
}

/// Divides the measurements of one side by those of another, round by round.
pub(crate) fn ratio<T>(ours: &[T], theirs: &[T], value: impl Fn(&T) -> f64) -> Spread {
    let pairs = ours.iter().zip(theirs).map(|(ours, theirs)| value(ours) / value(theirs));
    Spread::of(pairs.filter(|ratio| ratio.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.low, spread.high, spread.count), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of([1.0, 2.0]).median, 1.5);
        assert_eq!(Spread::of([]).count, 0);
        assert_eq!(ratio(&[2.0, 9.0], &[1.0, 3.0], |value| *value).median, 2.5);
    }

    #[test]
    fn sides_take_turns_after_a_warm_up() {
        let log = std::cell::RefCell::new(String::new());
        let side = |name: char| {
            let log = &log;
            move || {
                log.borrow_mut().push(name);
                Ok(1.0)
            }
        };
        let measured = alternate(2, [&mut side('a'), &mut side('b')]).unwrap();
        assert_eq!(log.borrow().as_str(), "ababab");
        assert_eq!(measured, [vec![1.0, 1.0], vec![1.0, 1.0]]);
    }
}
