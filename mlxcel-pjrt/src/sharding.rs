//! How tensors lie on the devices of a mesh.

use mlxcel_stablehlo::TensorType;

/// How a tensor lies on several devices. Those of a mesh of one are all replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Sharding {
    /// Each device has all of it.
    #[default]
    Replicated,
    /// Device `i` has the `i`th part of this dimension.
    Split(usize),
}

impl Sharding {
    /// By this dimension of `ty`, where `devices` parts of it are equal; replicated otherwise.
    pub(crate) fn by(dimension: usize, ty: &TensorType, devices: usize) -> Self {
        match ty.shape.get(dimension) {
            Some(size) if devices > 1 && *size > 0 && size % devices == 0 => Self::Split(dimension),
            _ => Self::Replicated,
        }
    }

    /// The type of what one of `devices` devices has.
    pub(crate) fn part(self, ty: &TensorType, devices: usize) -> TensorType {
        let mut part = ty.clone();
        if let Self::Split(dimension) = self
            && let Some(size) = part.shape.get_mut(dimension)
        {
            *size /= devices;
        }
        part
    }

    /// The attribute `mhlo.sharding` of a tensor of this rank, as XLA reads it.
    pub(crate) fn attribute(self, rank: usize, devices: usize) -> String {
        match self {
            Self::Replicated => "mhlo.sharding = \"{replicated}\"".to_owned(),
            Self::Split(split) => {
                let tiles = (0..rank).map(|at| if at == split { devices } else { 1 }.to_string());
                let tiles = tiles.collect::<Vec<_>>().join(",");
                format!("mhlo.sharding = \"{{devices=[{tiles}]<=[{devices}]}}\"")
            }
        }
    }
}

/// The bytes from one index of each dimension to the next, row-major.
pub(crate) fn strides(ty: &TensorType) -> Vec<usize> {
    let behind = |at: usize| ty.shape.iter().skip(at + 1).product();
    (0..ty.rank()).map(|at| ty.element.bytes_for(behind(at))).collect()
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::ElementType;

    use super::*;

    #[test]
    fn a_dimension_is_sharded_only_into_equal_parts() {
        let ty = TensorType::new(ElementType::BF16, [6, 4]);
        let rows = Sharding::by(0, &ty, 2);
        assert_eq!((rows, rows.part(&ty, 2).shape), (Sharding::Split(0), vec![3, 4]));
        assert_eq!(Sharding::by(0, &ty, 4), Sharding::Replicated);
        assert_eq!(Sharding::by(2, &ty, 2), Sharding::Replicated);
        assert_eq!(Sharding::by(0, &ty, 1), Sharding::Replicated);
        assert_eq!(Sharding::Split(1).attribute(2, 4), "mhlo.sharding = \"{devices=[1,4]<=[4]}\"");
        assert_eq!(strides(&ty), [8, 2]);
    }
}
