//! Maps compiler errors to operations of the graph.
//!
//! Diagnostics refer to lines of the compiler's input, each of which is one operation of the graph, in the
//! order of the network, with the names of the weights that it reads.

use mlxcel_core::Error;
use mlxcel_graph::WeightArgument;
use std::error::Error as _;

/// What the compiler calls the program in diagnostics.
const FILE: &str = "program.mlir:";

/// How much of an operation an error keeps.
const LONGEST: usize = 240;

/// `error`, with the operation that it is about (`operation`) and where in the network that stands (`near`),
/// as far as the compiler tells.
pub(super) fn with_operation(error: Error, text: &str, weights: &[WeightArgument]) -> Error {
    let lines: Vec<&str> = text.lines().collect();
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    let places: Vec<usize> = places(error.message()).chain(places(&source)).collect();
    let Some(&first) = places.first() else { return error };
    let Some(operation) = lines.get(first) else { return error };
    let error = error.with_context("operation", shorten(operation.trim(), LONGEST));
    let Some(entry) = lines.iter().position(|line| line.trim_start().starts_with("func.func public ")) else {
        return error;
    };
    // In a function that an operation calls, or in a kernel, the operation is the one that calls it.
    let end =
        lines.iter().skip(entry).position(|line| *line == "  }").map_or(lines.len(), |length| entry + length);
    let body = entry + 1..end;
    let line = places
        .into_iter()
        .find(|line| body.contains(line))
        .or_else(|| user_of_kernel(&lines, first).filter(|line| body.contains(line)));
    let Some(line) = line else { return error };
    error.with_context("near", near(&lines, &body, line, &names(lines[entry], weights)))
}

/// The lines, counted from zero, that diagnostics point to.
fn places(text: &str) -> impl Iterator<Item = usize> + '_ {
    text.match_indices(FILE).filter_map(|(at, _)| {
        let rest = &text[at + FILE.len()..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse::<usize>().ok()?.checked_sub(1)
    })
}

/// The first line that starts the kernel in which `line` stands.
fn user_of_kernel(lines: &[&str], line: usize) -> Option<usize> {
    const BEGIN: &str = "stream.executable private @";
    let start = lines.get(..=line)?.iter().rfind(|line| line.trim_start().starts_with(BEGIN))?;
    let name = start.trim_start().strip_prefix(BEGIN)?.split_whitespace().next()?;
    let used = format!("@{name}::");
    lines.iter().position(|line| line.contains(&used))
}

/// The names of the weights in the text of the program, whose entry point takes them first, with the
/// checkpoint's.
fn names(entry: &str, weights: &[WeightArgument]) -> Vec<(String, String)> {
    let arguments = entry.split('%').skip(1).map(|argument| argument.split(':').next().unwrap_or_default());
    arguments.zip(weights).map(|(name, weight)| (format!("%{name}"), weight.tensor.tensor.clone())).collect()
}

/// Where in the network `line` stands: at the weight that it reads, or between those read before and after
/// it.
fn near(lines: &[&str], body: &std::ops::Range<usize>, line: usize, weights: &[(String, String)]) -> String {
    let read_in = |line: usize| {
        let text = lines.get(line)?;
        weights.iter().find(|(name, _)| mentions(text, name)).map(|(_, tensor)| tensor.as_str())
    };
    if let Some(tensor) = read_in(line) {
        return tensor.to_owned();
    }
    let before = (body.start..line).rev().find_map(read_in);
    let after = (line..body.end).find_map(read_in);
    match (before, after) {
        (Some(before), Some(after)) => format!("between {before} and {after}"),
        (Some(before), None) => format!("after {before}"),
        (None, Some(after)) => format!("before {after}"),
        (None, None) => "the program".to_owned(),
    }
}

/// Whether `text` names the value `name`, and not one whose name begins like it.
fn mentions(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let next = text[at + name.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Up to `most` characters of `text`.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{ErrorKind, Precision};
    use mlxcel_graph::{Numerics, Outputs, ProgramShape, decoder_program, state_layouts, weight_arguments};
    use mlxcel_iree_kernels::lower;
    use mlxcel_models::Decoder;

    use super::*;
    use crate::testing::{checkpoint, resolved};

    fn decoder() -> Decoder {
        checkpoint("llama").decoder().unwrap()
    }

    fn text(tokens: usize) -> String {
        text_for("llvm-cpu:x86-64-v3", tokens)
    }

    fn text_for(target: &str, tokens: usize) -> String {
        let decoder = decoder();
        let numerics = Numerics::new(Precision::Exact, &decoder).unwrap();
        let shape = ProgramShape { rows: vec![tokens], length: 256, outputs: Outputs::Last };
        let layouts = state_layouts(&decoder, numerics, 64).unwrap();
        let module = decoder_program(&decoder, numerics, &layouts, &shape).unwrap().module;
        lower(&module, resolved(target).hardware().unwrap(), Precision::Exact).unwrap().text
    }

    /// The contexts `operation` and `near` of a diagnostic about the first line from `from` on that has
    /// `words`.
    fn described(text: &str, words: &str, more: &str) -> [String; 2] {
        let line = text.lines().position(|line| line.contains(words)).unwrap() + 1;
        let message = format!("program.mlir:{line}:5: error: no");
        let error = Error::new(ErrorKind::Compile, "compile", message).with_source(more.to_owned());
        let error = with_operation(error, text, &weight_arguments(&decoder()).unwrap());
        ["operation", "near"].map(|key| error.context(key).unwrap_or_default().to_owned())
    }

    #[test]
    fn an_operation_is_located_by_neighbouring_weights() {
        let text = text(64);
        let [operation, near] = described(&text, "flow.dispatch @mlxcel_attention", "");
        assert!(operation.contains("mlxcel_attention"), "{operation}");
        assert_eq!(
            near,
            "between model.layers.0.self_attn.v_proj.weight and model.layers.0.self_attn.o_proj.weight"
        );
        let weight = "%model_layers_2_mlp_down_proj_weight_BF16__64__128_)";
        let line = text
            .lines()
            .find(|line| line.contains("%model_layers_2_mlp_down_proj") && !line.contains("func.func"));
        assert!(line.is_some(), "{weight}");
        let [_, near] = described(&text, line.unwrap(), "");
        assert_eq!(near, "model.layers.2.mlp.down_proj.weight");
    }

    #[test]
    fn a_called_function_is_located_by_its_caller() {
        // Without kernels what is composed of operations is a function.
        let text = text_for("llvm-cpu:x86-64-v2", 64);
        let caller = text
            .lines()
            .position(|line| line.contains("%model_layers_1_mlp_up_proj") && !line.contains("func.func"));
        let note = format!("program.mlir:{}:7: note: called from", caller.unwrap() + 1);
        let private = text.lines().position(|line| line.contains("func.func private")).unwrap();
        let inside = text.lines().nth(private + 1).unwrap();
        let [operation, near] = described(&text, inside, &note);
        assert_eq!(operation, shorten(inside.trim(), LONGEST));
        assert_eq!(near, "model.layers.1.mlp.up_proj.weight");
    }

    #[test]
    fn a_kernel_is_located_by_its_first_use() {
        let [operation, near] = described(&text(1), "vector.fma", "");
        assert!(operation.contains("vector.fma"));
        assert_eq!(near, "model.layers.0.input_layernorm.weight");
    }

    #[test]
    fn other_errors_are_unchanged() {
        for message in [
            "the compiler was killed",
            "program.mlir:0:1: error",
            "program.mlir:99999999:1: error",
            "program.mlir:",
        ] {
            let weights = weight_arguments(&decoder()).unwrap();
            let error =
                with_operation(Error::new(ErrorKind::Compile, "compile", message), &text(1), &weights);
            assert_eq!((error.context("operation"), error.context("near")), (None, None));
        }
    }
}
