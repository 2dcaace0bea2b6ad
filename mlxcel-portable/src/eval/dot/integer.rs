//! Products of integers: exact, wrapped to the result's width.

use super::super::buffer::zeros;
use super::super::error::Result;
use super::super::lanes::store_i64;
use super::super::run::Frame;
use super::weight::Weight;
use super::{Dot, Sizes};

impl Dot {
    pub(super) fn run_integer(&self, frame: &Frame<'_>, out: &mut [u8]) -> Result<()> {
        let Sizes { batch, m, n, k } = self.sizes;
        let Weight::Rows(w) = &self.w else {
            debug_assert!(false, "integers are planned as rows");
            return Ok(());
        };
        let w = w.bind(|slot| frame.bytes(slot));
        let mut x = zeros(batch * m * k)?;
        self.x.bind(|slot| frame.bytes(slot)).evaluator().write_i64(0, &mut x);
        let x = &x;
        // A task is a stretch of the result whose elements share a row of the left operand.
        let line = if self.swapped { m } else { n };
        let lines = out.chunks_mut(self.element.bytes_for(line)).enumerate();
        frame.workers.for_each(
            lines,
            || (w.evaluator(), vec![0; k], vec![0; line]),
            |(evaluator, row, sums), (number, place): (usize, &mut [u8])| {
                let (batch, left) =
                    if self.swapped { (number / n, number % n) } else { (number / m, number % m) };
                for (right, sum) in sums.iter_mut().enumerate() {
                    let (x_row, w_row) = if self.swapped { (right, left) } else { (left, right) };
                    if !self.swapped || right == 0 {
                        evaluator.write_i64((batch * n + w_row) * k, row);
                    }
                    let x = &x[(batch * m + x_row) * k..][..k];
                    *sum = row.iter().zip(x).fold(0i64, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)));
                }
                store_i64(sums, self.element, place);
            },
        );
        Ok(())
    }
}
