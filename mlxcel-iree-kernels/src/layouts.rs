//! Weight layouts of a program, determined only by the lowering that chose the kernels.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Result};

use super::layout::{Packer, TensorRole, WeightLayout, matrices};

/// The panels of a weight. Prints as in manifests, such as `panels-16 bf16`.
///
/// The name identifies the byte order: changing the order requires a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Panels {
    /// The rows of a panel.
    pub lanes: usize,
    /// What the elements of the weight's tensor are.
    pub contents: TensorRole,
}

impl Panels {
    /// The packer of a tensor of `shape` and this many bytes into these panels; `None` if its bytes stay
    /// unchanged.
    pub fn packer(&self, shape: &[usize], bytes: usize) -> Option<Packer> {
        let layout = WeightLayout::of(self.contents, shape, Some(self.lanes));
        let rows: usize = shape.iter().rev().skip(1).product();
        Packer::new(layout, self.contents, bytes.checked_div(rows)?)
    }

    /// The bytes of `stored`, a whole tensor of `shape`, in these panels.
    pub fn pack(&self, shape: &[usize], stored: &[u8]) -> Vec<u8> {
        let mut packed = stored.to_vec();
        let matrix = stored.len().checked_div(matrices(shape)).unwrap_or_default().max(1);
        if let Some(packer) = self.packer(shape, stored.len()) {
            for (source, target) in stored.chunks(matrix).zip(packed.chunks_mut(matrix)) {
                packer.pack(source, target);
            }
        }
        packed
    }
}

impl fmt::Display for Panels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panels-{} {}", self.lanes, self.contents)
    }
}

impl FromStr for Panels {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self> {
        let unknown = || {
            Error::new(ErrorKind::Unsupported, "read a layout", "unknown weight layout")
                .with_context("layout", text.escape_debug())
        };
        let (lanes, contents) =
            text.strip_prefix("panels-").and_then(|rest| rest.split_once(' ')).ok_or_else(unknown)?;
        let panels = Self {
            lanes: lanes.parse().map_err(|_| unknown())?,
            contents: TensorRole::named(contents).ok_or_else(unknown)?,
        };
        // For matrices, all layouts that exist.
        let known = WeightLayout::of(panels.contents, &[1, 1], Some(panels.lanes)) != WeightLayout::Rows;
        if known && panels.to_string() == text { Ok(panels) } else { Err(unknown()) }
    }
}

/// The layouts of the arguments that a program reads, by name: in panels, or as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layouts(BTreeMap<String, Option<Panels>>);

impl Layouts {
    /// The panels of the argument; none if it is as stored.
    pub fn get(&self, argument: &str) -> Option<Panels> {
        self.0.get(argument).copied().flatten()
    }

    /// The arguments in panels, by name.
    pub fn in_panels(&self) -> impl Iterator<Item = (&str, Panels)> {
        self.0.iter().filter_map(|(name, panels)| Some((name.as_str(), (*panels)?)))
    }

    /// Whether every argument is as stored.
    pub fn is_as_stored(&self) -> bool {
        self.in_panels().next().is_none()
    }

    /// Refuses another program of the model if it reads a weight with this layout in a different one. Weights
    /// that it does not read may have any layout.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`], naming the weight.
    pub fn check(&self, program: &Self) -> Result<()> {
        let name = |panels: Option<Panels>| {
            panels.map_or_else(|| "as stored".to_owned(), |panels| panels.to_string())
        };
        match program.0.iter().find(|(argument, panels)| self.get(argument) != **panels) {
            None => Ok(()),
            Some((argument, &panels)) => {
                let message = "a program reads a weight in another layout than the model's other programs";
                Err(Error::new(ErrorKind::Internal, "lower program", message)
                    .with_context("weight", argument)
                    .with_context("lies", name(self.get(argument)))
                    .with_context("read", name(panels)))
            }
        }
    }
}

impl fmt::Display for Layouts {
    /// `rows` if everything is as stored, otherwise the panels, such as `panels-16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.in_panels().next() {
            Some((_, panels)) => write!(f, "panels-{}", panels.lanes),
            None => f.write_str("rows"),
        }
    }
}

impl FromIterator<(String, Option<Panels>)> for Layouts {
    fn from_iter<T: IntoIterator<Item = (String, Option<Panels>)>>(arguments: T) -> Self {
        Self(arguments.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::ElementType;

    use super::*;

    const BF16: Panels = Panels { lanes: 16, contents: TensorRole::Dense(ElementType::BF16) };

    #[test]
    fn panels_have_names_that_are_read_back() {
        for lanes in [4, 8, 16] {
            for contents in [
                TensorRole::Dense(ElementType::F16),
                TensorRole::QuantizedWords { bits: 4 },
                TensorRole::QuantizedWords { bits: 6 },
                TensorRole::QuantizedFloats,
                TensorRole::GroupParameters(ElementType::U8),
                TensorRole::GroupParameters(ElementType::BF16),
            ] {
                let panels = Panels { lanes, contents };
                assert_eq!(panels.to_string().parse::<Panels>().unwrap(), panels);
            }
        }
        assert_eq!(BF16.to_string(), "panels-16 bf16");
        for unknown in
            ["rows", "panels-16", "panels-5 bf16", "panels-16 u99", "panels-16 tiles", "panels-016 bf16"]
        {
            assert_eq!(unknown.parse::<Panels>().unwrap_err().kind(), ErrorKind::Unsupported, "{unknown}");
        }
    }

    #[test]
    fn a_program_that_reads_a_weight_in_another_layout_is_refused_by_name() {
        let layouts = |entries: &[(&str, Option<Panels>)]| -> Layouts {
            entries.iter().map(|&(name, panels)| (name.to_owned(), panels)).collect()
        };
        let model = layouts(&[("head", Some(BF16)), ("norm", None)]);
        model.check(&layouts(&[("norm", None)])).unwrap();
        model.check(&layouts(&[("head", Some(BF16)), ("tokens", None)])).unwrap();
        for wrong in [("head", None), ("norm", Some(BF16)), ("tokens", Some(BF16))] {
            let error = model.check(&layouts(&[wrong])).unwrap_err();
            assert_eq!((error.kind(), error.context("weight")), (ErrorKind::Internal, Some(wrong.0)));
        }
        assert!(!model.is_as_stored() && layouts(&[("norm", None)]).is_as_stored());
    }
}
