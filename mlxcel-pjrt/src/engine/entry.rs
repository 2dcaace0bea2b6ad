//! The entry point by which PJRT runs a module: `main`, with what a plugin has to know of each argument.

use std::fmt::Write as _;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::{ElementType, Module, Printer, TensorType};

use crate::sharding::Sharding;

/// An argument of the entry point.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    /// A tensor of its own, which the result of this number takes over, if one does.
    Tensor { ty: TensorType, sharding: Sharding, becomes: Option<usize> },
    /// A part of the one tensor that all small inputs come in, dense and one after another; its elements have 32 bits.
    Packed(TensorType),
}

/// What `main` takes and gives.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// In the order in which the function behind it takes them. The packed ones are one tensor, at the place of the first.
    pub(super) arguments: Vec<Argument>,
    /// The results of the function.
    pub(super) results: Vec<(TensorType, Sharding)>,
    /// On how many devices it runs.
    pub(super) devices: usize,
}

/// How many words all packed arguments take.
fn packed_words(arguments: &[Argument]) -> usize {
    let words = |argument: &Argument| match argument {
        Argument::Packed(ty) => ty.elements(),
        Argument::Tensor { .. } => 0,
    };
    arguments.iter().map(words).sum()
}

impl Entry {
    /// The type of the tensor that packed arguments come in.
    pub(super) fn packed_type(&self) -> TensorType {
        TensorType::new(ElementType::I32, [packed_words(&self.arguments)])
    }

    /// `module` as text, with a `main` that runs its function `entry`. Products are of the highest precision where `exact`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] where the module is not what the entry says.
    pub(super) fn write(&self, mut module: Module, entry: &str, exact: bool) -> Result<String> {
        let internal = |message: &'static str| Error::new(ErrorKind::Internal, "write program", message);
        let function = module.functions.iter_mut().find(|function| function.name == entry);
        let function = function.ok_or_else(|| internal("the module lacks its entry point"))?;
        if function.arguments.len() != self.arguments.len() {
            return Err(internal("the module takes another number of arguments"));
        }
        function.public = false;
        for argument in &mut function.arguments {
            argument.aliases_result = None;
        }
        let main = self.main(entry).ok_or_else(|| internal("a small input has elements of another width"))?;
        Ok(Printer::new(&module).declarations(&main).highest_precision(exact).to_string())
    }

    /// The text of `main`; nothing where a packed argument has no 32-bit elements.
    fn main(&self, entry: &str) -> Option<String> {
        let packed = self.packed_type();
        let (mut declared, mut body, mut passed, mut types) =
            (Vec::new(), String::new(), Vec::new(), Vec::new());
        let mut taken = 0;
        for (index, argument) in self.arguments.iter().enumerate() {
            match argument {
                Argument::Tensor { ty, sharding, becomes } => {
                    let alias = becomes.map(|result| format!("tf.aliasing_output = {result} : i32"));
                    let attributes = self.attributes(ty, *sharding, alias);
                    declared.push(format!("%a{index}: {ty}{attributes}"));
                    passed.push(format!("%a{index}"));
                    types.push(ty.to_string());
                }
                Argument::Packed(ty) => {
                    if taken == 0 {
                        declared.push(format!(
                            "%step: {packed}{}",
                            self.attributes(&packed, Sharding::Replicated, None)
                        ));
                    }
                    let words = ty.elements();
                    let flat = |element| TensorType::new(element, [words]);
                    let (from, to) = (flat(ElementType::I32), flat(ty.element));
                    if ty.element.bits() != 32 {
                        return None;
                    }
                    // Writing to a string does not fail.
                    let _ = writeln!(
                        body,
                        "    %s{index} = stablehlo.slice %step [{taken}:{}] : ({packed}) -> {from}",
                        taken + words
                    );
                    let _ = writeln!(
                        body,
                        "    %b{index} = stablehlo.bitcast_convert %s{index} : ({from}) -> {to}"
                    );
                    let _ = writeln!(body, "    %p{index} = stablehlo.reshape %b{index} : ({to}) -> {ty}");
                    passed.push(format!("%p{index}"));
                    types.push(ty.to_string());
                    taken += words;
                }
            }
        }
        let results: Vec<String> = self.results.iter().map(|(ty, _)| ty.to_string()).collect();
        let attributed: Vec<String> = self
            .results
            .iter()
            .map(|(ty, sharding)| format!("{ty}{}", self.attributes(ty, *sharding, None)))
            .collect();
        let given: Vec<String> = match results.len() {
            1 => vec!["%r".to_owned()],
            count => (0..count).map(|index| format!("%r#{index}")).collect(),
        };
        let count = if results.len() == 1 { String::new() } else { format!(":{}", results.len()) };
        let (declared, passed, types) = (declared.join(", "), passed.join(", "), types.join(", "));
        let (attributed, given, results) = (attributed.join(", "), given.join(", "), results.join(", "));
        Some(format!(
            "  func.func public @main({declared}) -> ({attributed}) {{\n{body}    \
             %r{count} = func.call @{entry}({passed}) : ({types}) -> ({results})\n    \
             return {given} : {results}\n  }}\n"
        ))
    }

    fn attributes(&self, ty: &TensorType, sharding: Sharding, alias: Option<String>) -> String {
        let sharding = (self.devices > 1).then(|| sharding.attribute(ty.rank(), self.devices));
        let attributes: Vec<String> = alias.into_iter().chain(sharding).collect();
        if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::{DotDimensions, ModuleBuilder};

    use super::*;

    #[test]
    fn small_inputs_come_in_one_tensor_and_states_are_given_up() {
        let (matrix, vector) =
            (TensorType::new(ElementType::F32, [2, 2]), TensorType::new(ElementType::I32, [3]));
        let mut module = ModuleBuilder::new("demo");
        let built = module.function("step", |b| {
            let [x, y] = [b.argument("x", matrix.clone())?, b.argument("y", matrix.clone())?];
            let ids = b.argument("ids", vector.clone())?;
            let dimensions = DotDimensions {
                lhs_contracting: vec![1],
                rhs_contracting: vec![0],
                ..DotDimensions::default()
            };
            Ok(vec![b.dot_general(x, y, dimensions, ElementType::F32)?, ids])
        });
        built.unwrap();
        let tensor = |sharding, becomes| Argument::Tensor { ty: matrix.clone(), sharding, becomes };
        let entry = Entry {
            arguments: vec![
                tensor(Sharding::Split(1), Some(0)),
                Argument::Packed(matrix.clone()),
                Argument::Packed(vector.clone()),
            ],
            results: vec![(matrix.clone(), Sharding::Split(1)), (vector.clone(), Sharding::Replicated)],
            devices: 2,
        };
        let module = module.finish();
        let text = entry.write(module.clone(), "step", true).unwrap();
        for line in [
            "func.func public @main(%a0: tensor<2x2xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = \
             \"{devices=[1,2]<=[2]}\"}, %step: tensor<7xi32> {mhlo.sharding = \"{replicated}\"})",
            "%s2 = stablehlo.slice %step [4:7] : (tensor<7xi32>) -> tensor<3xi32>",
            "%b1 = stablehlo.bitcast_convert %s1 : (tensor<4xi32>) -> tensor<4xf32>",
            "%r:2 = func.call @step(%a0, %p1, %p2)",
            "func.func private @step(",
            "precision = [HIGHEST, HIGHEST]",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!entry.write(module.clone(), "step", false).unwrap().contains("HIGHEST"));
        assert!(entry.write(module, "main", false).is_err());
    }
}
