//! Hidden states of several passes, pooled into one vector or one behind the other.

use crate::error::{Error, ErrorKind, Result};
use crate::want::{Answer, Pooling, Positions, Want};

/// For engines: pools the hidden states of a row's tokens pass by pass, or keeps each.
///
/// ```
/// use mlxcel_core::{HiddenPool, Pooling};
///
/// let mut pool = HiddenPool::new(Pooling::Mean);
/// pool.add(&[1.0, 2.0]);
/// pool.add(&[3.0, 6.0]);
/// assert_eq!(pool.finish("step")?, [2.0, 4.0]);
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HiddenPool {
    /// `None` keeps each state.
    pooling: Option<Pooling>,
    /// The first or last state, the sum, or all states; summed in double precision, so that long rows are
    /// pooled as exactly as short ones.
    state: Vec<f64>,
    count: usize,
}

impl HiddenPool {
    /// An empty pool.
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling: Some(pooling), state: Vec::new(), count: 0 }
    }

    /// A pool for a row that wants hidden states; else `None`.
    pub fn of(want: &Want<'_>) -> Option<Self> {
        match (want.answer, want.positions) {
            (Answer::Hidden, Positions::Last) => Some(Self::new(Pooling::Last)),
            (Answer::Hidden, Positions::First) => Some(Self::new(Pooling::First)),
            (Answer::Hidden, _) => Some(Self::new(Pooling::Mean)),
            (Answer::EachHidden, _) => Some(Self { pooling: None, state: Vec::new(), count: 0 }),
            _ => None,
        }
    }

    /// Adds the state of the next token.
    pub fn add(&mut self, state: &[f32]) {
        self.add_sum(state, 1);
    }

    /// Adds the sum of the states of the next `count` tokens; for [`Pooling::Last`] the state of the last one
    /// of them, for [`Pooling::First`] that of the first, for [`Answer::EachHidden`] all of them.
    pub fn add_sum(&mut self, sum: &[f32], count: usize) {
        let values = sum.iter().copied().map(f64::from);
        match self.pooling {
            _ if self.count == 0 => self.state = values.collect(),
            None => self.state.extend(values),
            Some(Pooling::Last) => self.state = values.collect(),
            Some(Pooling::First) => {}
            Some(Pooling::Mean) => self.state.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
        }
        self.count += count;
    }

    /// The pooled state, or all states, in float32.
    ///
    /// # Errors
    ///
    /// Of `operation`: [`ErrorKind::Device`] if an element is not a finite number, [`ErrorKind::Internal`] if
    /// no state was added.
    pub fn finish(self, operation: &'static str) -> Result<Vec<f32>> {
        if self.count == 0 {
            return Err(Error::new(ErrorKind::Internal, operation, "there are no hidden states to pool"));
        }
        let count = if self.pooling == Some(Pooling::Mean) { self.count as f64 } else { 1.0 };
        let pooled: Vec<f32> = self.state.iter().map(|value| (value / count) as f32).collect();
        if pooled.iter().all(|value| value.is_finite()) {
            return Ok(pooled);
        }
        Err(Error::new(ErrorKind::Device, operation, "a hidden state is not a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_pooling_keep_a_state_and_mean_pooling_divides_by_tokens() {
        let pooled = |pooling| {
            let mut pool = HiddenPool::new(pooling);
            pool.add_sum(&[3.0, -1.0], 3);
            pool.add(&[1.0, 5.0]);
            pool.finish("step").unwrap()
        };
        assert_eq!((pooled(Pooling::Last), pooled(Pooling::Mean)), (vec![1.0, 5.0], vec![1.0, 1.0]));
        assert_eq!(pooled(Pooling::First), [3.0, -1.0]);
    }

    #[test]
    fn each_state_is_kept_in_order() {
        let mut pool = HiddenPool::of(&Want::each_hidden()).unwrap();
        pool.add_sum(&[3.0, -1.0, 2.0, 2.0], 2);
        pool.add(&[1.0, 5.0]);
        assert_eq!(pool.finish("step").unwrap(), [3.0, -1.0, 2.0, 2.0, 1.0, 5.0]);
    }

    #[test]
    fn nan_states_are_device_errors_and_missing_states_are_internal_errors() {
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut pool = HiddenPool::new(Pooling::Mean);
            pool.add(&[1.0, wrong]);
            pool.add(&[1.0, 0.0]);
            assert_eq!(pool.finish("step").unwrap_err().kind(), ErrorKind::Device);
        }
        assert_eq!(HiddenPool::new(Pooling::Last).finish("step").unwrap_err().kind(), ErrorKind::Internal);
    }
}
