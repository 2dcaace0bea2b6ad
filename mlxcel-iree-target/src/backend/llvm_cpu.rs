//! The CPU backend, `llvm-cpu`.

use mlxcel_core::Result;
use mlxcel_stablehlo::ElementType;

use super::{CompileBackend, expect_driver, mismatch};
use crate::target::cpu::{Code, FAMILIES, GENERIC};
use crate::target::{CompileTarget, DeviceDescription, HOST, Processor};

/// The stack that generated code may use in a worker: reductions over wide rows keep more of a row there than
/// the compiler's default, and the threads of our devices have the space.
const STACK_BYTES: usize = 256 * 1024;

/// The backend `llvm-cpu`.
#[derive(Debug)]
pub(super) struct LlvmCpu;

impl CompileBackend for LlvmCpu {
    fn name(&self) -> &str {
        "llvm-cpu"
    }

    fn known_architectures(&self) -> Vec<String> {
        let full = |family: &'static str, cpu: &'static str| match cpu {
            GENERIC => format!("{family}/{cpu}"),
            _ => cpu.to_owned(),
        };
        let cpus = FAMILIES.into_iter().flat_map(|family| family.cpus().map(|cpu| full(family.name, cpu)));
        std::iter::once(HOST.to_owned()).chain(cpus).collect()
    }

    fn detect_target(&self) -> Result<CompileTarget> {
        Processor::detect().target()
    }

    fn resolve(&self, target: &CompileTarget) -> Result<CompileTarget> {
        let code = match target.architecture() {
            HOST => target.features().try_fold(Code::of(&self.detect_target()?)?, Code::with)?,
            _ => Code::of(target)?,
        };
        code.target(self.name())
    }

    fn options(&self, target: &CompileTarget) -> Result<Vec<String>> {
        let code = Code::of(target)?;
        let ruled_out = code.family.features_of(code.cpu).unwrap_or_default();
        let ruled_out = ruled_out.difference(&code.features).map(|name| format!("-{name}"));
        let features: Vec<String> =
            code.features.iter().map(|name| format!("+{name}")).chain(ruled_out).collect();
        let mut options = vec![
            "--iree-hal-target-device=local".to_owned(),
            "--iree-hal-local-target-device-backends=llvm-cpu".to_owned(),
            format!("--iree-llvmcpu-target-triple={}", code.family.triple),
            format!("--iree-llvmcpu-target-cpu={}", code.cpu),
        ];
        if !features.is_empty() {
            options.push(format!("--iree-llvmcpu-target-cpu-features={}", features.join(",")));
        }
        options.push(format!("--iree-llvmcpu-stack-allocation-limit={STACK_BYTES}"));
        Ok(options)
    }

    fn element_types(&self, _target: &CompileTarget) -> Vec<ElementType> {
        vec![ElementType::F32, ElementType::BF16, ElementType::F16]
    }

    fn drivers(&self) -> &[&str] {
        &["local-task", "local-sync"]
    }

    fn check_device(&self, target: &CompileTarget, device: &DeviceDescription) -> Result<()> {
        expect_driver(self.drivers(), target, device)?;
        match &device.processor {
            Some(processor) => processor.expect(target, &Code::of(target)?),
            None => Err(mismatch("the device's processor is not known", target, device)),
        }
    }
}
