//! What mlx-lm's converter does to the tensors of a family, for writing checkpoints that it and this crate
//! read.

/// How a family's tensors are named and treated in a converted checkpoint, as mlx-lm does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conversion {
    /// Ends of the paths of modules that have 8 bits whatever the others have: routers, and matrices that
    /// suffer most.
    pub sensitive: &'static [&'static str],
    /// The module of a layer's stacked experts.
    pub experts: &'static str,
    /// The names of the experts' gate, up and down projections.
    pub projections: [&'static str; 3],
    /// Parts of the names of published tensors, and what they become. They stay as they are where all tensors
    /// have the converter's names already.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Ends of the paths of published modules, and what they become.
    pub renamed_modules: &'static [(&'static str, &'static str)],
    /// Whether the checkpoint stores factors of norms less one, which the converter adds. The converter then
    /// also moves the taps of convolutions to the second dimension, and drops the layers that predict
    /// further tokens.
    pub shifted_norms: bool,
}

impl Conversion {
    /// What holds for a family that the converter does not treat in a way of its own.
    pub const USUAL: Self = Self {
        sensitive: &[],
        experts: "switch_mlp",
        projections: ["gate_proj", "up_proj", "down_proj"],
        renamed: &[],
        renamed_modules: &[],
        shifted_norms: false,
    };

    /// The usual conversion, with 8 bits for the modules whose paths end so.
    pub(super) const fn sensitive(ends: &'static [&'static str]) -> Self {
        Self { sensitive: ends, ..Self::USUAL }
    }

    /// What the converter calls a tensor or module with this name.
    pub fn name(&self, published: &str) -> String {
        const WEIGHT: &str = ".weight";
        let module = published.strip_suffix(WEIGHT).unwrap_or(published);
        let ending = &published[module.len()..];
        let own = self.renamed_modules.iter().find_map(|(from, to)| Some((module.strip_suffix(from)?, to)));
        if let Some((before, to)) = own {
            return format!("{before}{to}{ending}");
        }
        let renamed =
            self.renamed.iter().find(|(from, to)| published.contains(from) && !published.contains(to));
        match renamed {
            Some((from, to)) => published.replace(from, to),
            None => published.to_owned(),
        }
    }

    /// That of the family of a `model_type`; the usual one for an unknown type.
    pub fn of(model_type: &str) -> Self {
        super::find(model_type).map_or(Self::USUAL, |family| family.conversion)
    }
}
