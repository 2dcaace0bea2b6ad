//! The hardware that programs are generated for.

use crate::instructions::Instructions;

/// What is known of the hardware that a program is generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hardware {
    /// A CPU and the instructions that kernels may use; none if there are no kernels for its instruction
    /// sets, and the compiler's own code runs.
    Processor(Option<Instructions>),
    /// A device programmed in SPIR-V: Vulkan and Metal.
    Spirv,
    /// Every other device, for which the compiler's own code runs.
    Other,
}

impl Hardware {
    /// The instructions that kernels may use; none if there are no kernels.
    pub fn instructions(self) -> Option<Instructions> {
        match self {
            Self::Processor(instructions) => instructions,
            Self::Spirv | Self::Other => None,
        }
    }
}
