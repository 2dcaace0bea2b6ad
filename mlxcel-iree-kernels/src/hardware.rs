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
}
