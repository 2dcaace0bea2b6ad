//! Descriptions of programs and models for manifests.

use mlxcel_graph::{ProgramShape, Signature};
use mlxcel_models::{Checkpoint, Decoder};

use crate::manifest::{ModelDescription, ProgramDescription, Tensor};

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

/// The description of the program for `shape` with this signature.
pub fn program(signature: &Signature, shape: &ProgramShape) -> ProgramDescription {
    let inputs = signature.inputs.iter().map(|input| Tensor::new(&input.name, &input.ty));
    let states = signature.states.iter().map(|state| Tensor::new(&state.name, &state.ty));
    let results = signature.results.iter().enumerate().map(|(index, result)| Tensor {
        takes_over: signature.taken_over(index).map(|state| state.name.clone()),
        ..Tensor::new(result.meaning.to_string(), &result.ty)
    });
    ProgramDescription {
        name: shape.to_string(),
        shape: shape.clone(),
        inputs: inputs.chain(states).collect(),
        results: results.collect(),
    }
}

/// The name of a program's file, without extension: letters, digits, `+`, `-`.
pub fn file_stem(shape: &ProgramShape) -> String {
    shape.to_string().replace('@', "-at-").replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mlxcel_core::Precision;
    use mlxcel_graph::{Numerics, Outputs, state_layouts};

    use super::*;

    #[test]
    fn a_program_is_described_by_its_inputs_and_results() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
        let decoder = Checkpoint::open(folder).unwrap().decoder().unwrap();
        let numerics = Numerics::new(Precision::Native, &decoder).unwrap();
        let shape = ProgramShape { rows: vec![64, 1], length: 256, outputs: Outputs::Every };
        let layouts = state_layouts(&decoder, numerics, 64).unwrap();
        let described = program(&Signature::new(&decoder, &layouts, &shape).unwrap(), &shape);
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
        let described = program(&Signature::new(&decoder, &layouts, &shape).unwrap(), &shape);
        assert_eq!(file_stem(&shape), "1-at-256-hidden-states");
        let names: Vec<_> = described.results.iter().map(|result| &*result.name).collect();
        assert_eq!(names, ["hidden", "state.0.0"]);
        assert_eq!(described.results[0].shape, [1, decoder.hidden_size]);
    }
}
