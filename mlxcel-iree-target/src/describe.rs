//! Programs and models in the words of a manifest.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_graph::{ENTRY, Outputs, Program, ProgramShape};
use mlxcel_models::{Checkpoint, Decoder};

use crate::manifest::{ModelDescription, ProgramDescription, Tensor, outputs_name};

const OPERATION: &str = "describe a program";

/// The results in front of the states.
fn results(outputs: Outputs) -> &'static [&'static str] {
    match outputs {
        Outputs::Last | Outputs::Every => &["best", "logits"],
        Outputs::Hidden => &["hidden"],
    }
}

/// The description of a model.
pub fn model(checkpoint: &Checkpoint, decoder: &Decoder) -> ModelDescription {
    ModelDescription {
        model_type: decoder.model_type.clone(),
        fingerprint: checkpoint.fingerprint(),
        vocabulary_size: decoder.vocabulary_size,
        hidden_size: decoder.hidden_size,
        layers: decoder.layers.len(),
        parameters: decoder.parameters(),
        weight_bytes: decoder.weight_bytes(),
        stop_tokens: checkpoint.stop_tokens().to_vec(),
        summary: decoder.to_string(),
    }
}

/// The description of the program for `shape`.
///
/// # Errors
/// [`ErrorKind::Internal`] for a module without the entry point.
pub fn program(program: &Program, shape: &ProgramShape) -> Result<ProgramDescription> {
    let function = program.module.function(ENTRY).ok_or_else(|| {
        Error::new(ErrorKind::Internal, OPERATION, "the program has no entry point")
            .with_context("program", shape)
    })?;
    let tensor = |name: &str, ty: &mlxcel_stablehlo::TensorType| Tensor {
        name: name.to_owned(),
        element_type: ty.element.mlir().to_owned(),
        shape: ty.shape.clone(),
        takes_over: None,
    };
    let inputs: Vec<_> = function.arguments.iter().skip(program.weights.len()).collect();
    let described = function.result_types().enumerate().map(|(index, ty)| {
        let replaced =
            inputs.iter().find(|input| input.aliases_result == Some(index)).map(|input| &input.name);
        let name =
            results(shape.outputs).get(index).copied().or(replaced.map(String::as_str)).unwrap_or_default();
        Tensor { takes_over: replaced.cloned(), ..tensor(name, ty) }
    });
    Ok(ProgramDescription {
        name: shape.to_string(),
        rows: shape.rows.clone(),
        length: shape.length,
        outputs: outputs_name(shape.outputs).to_owned(),
        inputs: inputs.iter().map(|input| tensor(&input.name, function.value_type(input.value))).collect(),
        results: described.collect(),
    })
}

/// The name of a program's file, without extension: letters, digits, `+`, `-`.
pub fn file_stem(shape: &ProgramShape) -> String {
    shape.to_string().replace('@', "-at-").replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mlxcel_core::Precision;
    use mlxcel_graph::{Numerics, decoder_program, state_layouts};

    use super::*;

    #[test]
    fn a_program_is_described_by_what_it_takes_and_gives() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
        let decoder = Checkpoint::open(folder).unwrap().decoder().unwrap();
        let numerics = Numerics::new(Precision::Native, &decoder).unwrap();
        let shape = ProgramShape { rows: vec![64, 1], length: 256, outputs: Outputs::Every };
        let layouts = state_layouts(&decoder, numerics, 64).unwrap();
        let written = decoder_program(&decoder, numerics, &layouts, &shape).unwrap();
        let described = program(&written, &shape).unwrap();
        let signature = |tensors: &[Tensor]| -> Vec<String> {
            let one = |tensor: &Tensor| format!("{} {} {:?}", tensor.name, tensor.element_type, tensor.shape);
            tensors.iter().map(one).collect()
        };
        assert_eq!(described.name, "64+1@256 every position");
        assert_eq!(file_stem(&shape), "64+1-at-256-every-position");
        assert_eq!(
            signature(&described.inputs),
            [
                "tokens i32 [65]",
                "positions i32 [2]",
                "last i32 [2]",
                "cos.0 f32 [65, 8]",
                "sin.0 f32 [65, 8]",
                "state.0.0 bf16 [3, 2, 2, 256, 16]",
                "state.1.0 bf16 [3, 2, 2, 256, 16]",
            ]
        );
        let vocabulary = decoder.vocabulary_size;
        assert_eq!(
            signature(&described.results)[..2],
            ["best i32 [65, 2]".to_owned(), format!("logits f32 [65, {vocabulary}]")]
        );
        let over: Vec<_> = described.results.iter().map(|result| result.takes_over.as_deref()).collect();
        assert_eq!(over, [None, None, Some("state.0.0"), Some("state.1.0")]);
        assert_eq!(described.results[3].name, "state.1.0");

        let shape = ProgramShape { rows: vec![1], length: 256, outputs: Outputs::Hidden };
        let written = decoder_program(&decoder, numerics, &layouts, &shape).unwrap();
        let described = program(&written, &shape).unwrap();
        assert_eq!((&*described.outputs, file_stem(&shape)), ("hidden", "1-at-256-hidden-states".to_owned()));
        let names: Vec<_> = described.results.iter().map(|result| &*result.name).collect();
        assert_eq!(names, ["hidden", "state.0.0"]);
        assert_eq!(described.results[0].shape, [1, decoder.hidden_size]);
    }
}
