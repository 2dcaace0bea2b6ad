//! The tensors of a packed module, which share its name as a prefix.

use mlxcel_core::{Error, ErrorKind, Result};

use super::OPERATION;
use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::WeightRef;
use crate::element::ElementType;
use crate::packing::{Arrangement, Derived, Packing, Part};

/// A matrix whose tensors are `{name}.…`.
#[derive(Clone, Copy)]
pub(super) struct Module<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) name: &'a str,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// A tensor, its name, and the file that holds it.
pub(super) struct Stored<'a> {
    pub(super) name: String,
    pub(super) view: TensorView<'a>,
    location: &'a str,
}

impl<'a> Module<'a> {
    /// The module called `name`, which must be one matrix of `shape`.
    pub(super) fn new(checkpoint: &'a Checkpoint, name: &'a str, shape: &[usize]) -> Result<Self> {
        match *shape {
            [rows, columns] if rows > 0 && columns > 0 => Ok(Self { checkpoint, name, rows, columns }),
            _ => {
                let message = format!("stacks of {shape:?} in this form are not supported, matrices are");
                Err(Error::unsupported(OPERATION, message).with_context("tensor", name))
            }
        }
    }

    /// Whether there is a tensor `{name}.{suffix}`.
    pub(super) fn has(&self, suffix: &str) -> bool {
        self.checkpoint.has(&format!("{}.{suffix}", self.name))
    }

    /// The tensor `{name}.{suffix}`.
    pub(super) fn tensor(&self, suffix: &str) -> Result<Stored<'a>> {
        Stored::of(self.checkpoint, format!("{}.{suffix}", self.name))
    }

    /// The tensor `{name}.{suffix}`, if there is one with elements.
    pub(super) fn filled(&self, suffix: &str) -> Result<Option<Stored<'a>>> {
        if !self.has(suffix) {
            return Ok(None);
        }
        let stored = self.tensor(suffix)?;
        Ok((!stored.view.bytes.is_empty()).then_some(stored))
    }

    /// Fails if its rows cannot be packed so.
    pub(super) fn check(&self, packing: &Packing) -> Result<()> {
        packing.check(self.columns).map_err(|error| error.with_context("tensor", self.name))
    }

    /// The part of a packing that an arrangement reads out of the tensor called `tensor`.
    pub(super) fn part(
        &self,
        packing: &Packing,
        part: Part,
        tensor: &str,
        arrangement: Arrangement,
    ) -> WeightRef {
        let width = packing.width(part, self.columns);
        let shape = if part == Part::Order { vec![width] } else { vec![self.rows, width] };
        let derived = Derived { arrangement, part, shape: shape.clone() };
        let shown = if part == Part::Codes { vec![self.rows, self.columns] } else { shape };
        WeightRef::new(tensor, packing.element(part), shown).with_derivation(derived)
    }

    /// The group size of a packing for stored groups of `stored` columns, the last of which may be shorter:
    /// one that divides them and the rows. Kernels and engines support groups of up to 128, so larger
    /// ones are described as several groups with one scale.
    pub(super) fn group_size(&self, stored: usize) -> usize {
        const KNOWN: [usize; 3] = [128, 64, 32];
        let common = common_divisor(self.columns, stored.min(self.columns).max(1));
        let parts = KNOWN.into_iter().find(|part| common > *part && common.is_multiple_of(*part));
        parts.filter(|_| common > KNOWN[0]).unwrap_or(common)
    }

    /// How many columns share one of `scales`, of which a row has as many as there are `groups`; the settings
    /// declare it where the last group is shorter.
    pub(super) fn stored_group(
        &self,
        scales: &Stored<'_>,
        groups: usize,
        declared: Option<usize>,
    ) -> Result<usize> {
        let whole = groups > 0 && self.columns.is_multiple_of(groups);
        let fits = |size: &usize| *size > 0 && self.columns.div_ceil(*size) == groups;
        let group = declared.filter(fits).or_else(|| whole.then(|| self.columns / groups));
        group.ok_or_else(|| scales.refuse(format!("{groups} groups cannot have {} columns", self.columns)))
    }

    /// The scales of each row, how many groups share them, and the columns of a group.
    pub(super) fn scales(&self, declared: Option<usize>) -> Result<(Stored<'a>, [usize; 2])> {
        let scales = self.tensor("scales")?;
        let [groups, _] = scales.matrix()?;
        let stored = self.stored_group(&scales, groups, declared)?;
        scales.expect(&FLOATS, &[groups, self.rows], "a scale for each group and row")?;
        Ok((scales, [groups, stored]))
    }
}

impl<'a> Stored<'a> {
    /// The tensor called `name`.
    pub(super) fn of(checkpoint: &'a Checkpoint, name: String) -> Result<Self> {
        let (view, location) = checkpoint.located(&name)?;
        Ok(Self { name, view, location })
    }

    /// The error for a tensor that contradicts the settings or the others of its module.
    pub(super) fn refuse(&self, message: String) -> Error {
        Error::new(ErrorKind::Corrupt, OPERATION, message)
            .with_context("tensor", &self.name)
            .with_context("path", self.location)
    }

    /// The error for a tensor that makes sense and that nothing here reads.
    pub(super) fn unsupported(&self, message: String) -> Error {
        Error::unsupported(OPERATION, message)
            .with_context("tensor", &self.name)
            .with_context("path", self.location)
    }

    /// Refuses a tensor of other elements or of another shape than `why` makes it.
    pub(super) fn expect(&self, elements: &[ElementType], shape: &[usize], why: &str) -> Result<()> {
        if self.view.shape == shape && elements.contains(&self.view.element_type) {
            return Ok(());
        }
        let names = elements.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        Err(self.refuse(format!(
            "the tensor is {} {:?} and should be {names} {shape:?}: {why}; download it again, or convert the model again",
            self.view.element_type, self.view.shape
        )))
    }

    /// The sizes of a tensor that has two dimensions.
    pub(super) fn matrix(&self) -> Result<[usize; 2]> {
        <[usize; 2]>::try_from(&self.view.shape[..]).map_err(|_| {
            self.refuse(format!("the tensor is {:?} and should have two dimensions", self.view.shape))
        })
    }
}

/// Floats that scales may be.
const FLOATS: [ElementType; 3] = [ElementType::F16, ElementType::BF16, ElementType::F32];

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_common() {
        assert_eq!([common_divisor(192, 128), common_divisor(128, 128), common_divisor(7, 3)], [64, 128, 1]);
    }

    #[test]
    fn wide_groups_are_several_that_engines_know() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/architectures/llama");
        let checkpoint = Checkpoint::open(fixture).unwrap();
        let size = |columns: usize, stored: usize| {
            Module { checkpoint: &checkpoint, name: "m", rows: 1, columns }.group_size(stored)
        };
        assert_eq!([size(256, 256), size(2880, 2880), size(160, 160), size(176, 176)], [128, 64, 32, 176]);
        assert_eq!([size(256, 64), size(192, 96), size(192, 128)], [64, 96, 64]);
    }
}
