//! The hardware of a target, for kernels.

use mlxcel_core::Result;
use mlxcel_iree_kernels::{Hardware, Instructions, Schedule};

use super::CompileTarget;
use super::cpu::Code;
use super::processor::BACKEND as CPU;

impl CompileTarget {
    /// The hardware that programs for this target are generated for, with `schedule`, else with that of the
    /// processor's model.
    ///
    /// # Errors
    /// The errors of a target of a CPU backend that names no processor.
    pub(crate) fn hardware(&self, schedule: Option<Schedule>) -> Result<Hardware> {
        Ok(match self.backend() {
            CPU => {
                let code = Code::of(self)?;
                let instructions = Instructions::of(&code.features);
                let schedule = schedule.or_else(|| Schedule::of(code.cpu));
                Hardware::Processor(instructions.map(|instructions| match schedule {
                    Some(schedule) => instructions.scheduled(schedule),
                    None => instructions,
                }))
            }
            "vulkan-spirv" | "metal-spirv" => Hardware::Spirv,
            _ => Hardware::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_iree_kernels::VectorSet;

    use super::*;
    use crate::backend::resolved;

    fn of(target: &str) -> Option<Instructions> {
        resolved(target).hardware().unwrap().instructions()
    }

    #[test]
    fn a_set_requires_all_of_its_features() {
        let sets = |target| of(target).map(|instructions| (instructions.set, instructions.lanes()));
        assert_eq!(sets("llvm-cpu:cascadelake"), Some((VectorSet::Avx512, 16)));
        assert_eq!(sets("llvm-cpu:x86-64-v3"), Some((VectorSet::Avx2, 8)));
        assert_eq!(
            sets("llvm-cpu:knl"),
            Some((VectorSet::Avx2, 8)),
            "AVX-512F without BW, DQ and VL is not the set"
        );
        assert_eq!(sets("llvm-cpu:cascadelake,-avx512bw"), Some((VectorSet::Avx2, 8)));
        assert_eq!(sets("llvm-cpu:apple-m1"), Some((VectorSet::Neon, 4)));
        assert_eq!(sets("llvm-cpu:x86-64-v2"), None);
        assert_eq!(sets("llvm-cpu:x86-64-v3,-f16c"), None);
        assert_eq!(sets("cuda:sm_89"), None);
    }

    #[test]
    fn the_schedule_is_that_of_the_named_processor() {
        let schedule = |target| of(target).unwrap().schedule.to_string();
        assert_eq!(schedule("llvm-cpu:znver4"), "streams=1 ahead=8192 bf16=pairs");
        assert_eq!(schedule("llvm-cpu:sapphirerapids"), "streams=4 ahead=1024 bf16=floats");
        assert_eq!(schedule("llvm-cpu:x86-64-v4"), "streams=4 ahead=1024 bf16=floats");
        assert_eq!(schedule("llvm-cpu:neoverse-v2"), "streams=4 ahead=1024 bf16=pairs");
    }

    #[test]
    fn extensions_of_the_set_follow_from_features_alone() {
        let beyond = |target| {
            let instructions = of(target).unwrap();
            (instructions.bf16_dot, instructions.int8_dot, instructions.int8_mm)
        };
        assert_eq!(beyond("llvm-cpu:x86-64-v4"), (false, false, false));
        assert_eq!(beyond("llvm-cpu:cascadelake"), (false, true, false));
        assert_eq!(beyond("llvm-cpu:znver4"), (true, true, false));
        assert_eq!(beyond("llvm-cpu:alderlake"), (false, true, false));
        assert_eq!(beyond("llvm-cpu:apple-m1"), (false, true, false));
        assert_eq!(beyond("llvm-cpu:neoverse-v2"), (true, true, true));
        assert_eq!(beyond("llvm-cpu:aarch64/generic"), (false, false, false));
    }

    #[test]
    fn accelerators_have_no_kernels() {
        assert_eq!(resolved("vulkan-spirv:ampere").hardware().unwrap(), Hardware::Spirv);
        assert_eq!(resolved("metal-spirv:macos").hardware().unwrap(), Hardware::Spirv);
        assert_eq!(resolved("cuda:sm_89").hardware().unwrap(), Hardware::Other);
    }
}
