//! What programs run on, as far as what is written for it depends on that.

use crate::Instructions;

/// What is known of the hardware that a program is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hardware {
    /// A processor, and what kernels may use of it; none where it has no set of instructions that they are written for, and the compiler's
    /// own code runs.
    Processor(Option<Instructions>),
    /// A device that is programmed in SPIR-V: Vulkan and Metal.
    Spirv,
    /// Every other device, for which the compiler's own code runs.
    Other,
}

impl Hardware {
    /// What kernels may use; none where there are no kernels.
    pub fn instructions(self) -> Option<Instructions> {
        match self {
            Self::Processor(instructions) => instructions,
            Self::Spirv | Self::Other => None,
        }
    }

    /// How many lanes the panels have in which programs expect their weights, as
    /// [`WeightLayout::of`](crate::layout::WeightLayout::of) is told; none where they expect them as they are stored.
    pub fn weight_lanes(self) -> Option<usize> {
        self.instructions().map(|instructions| instructions.lanes())
    }
}
