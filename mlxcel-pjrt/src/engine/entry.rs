//! The entry point by which PJRT runs a module: `main`, with the attributes that a plugin needs for each
//! argument.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::{ElementType, Module, Printer, TensorType};

use super::xla_cpu;
use crate::sharding::Sharding;

/// An argument of the entry point.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    /// A tensor of its own, which the result of this number takes over, if one does.
    Tensor { ty: TensorType, sharding: Sharding, becomes: Option<usize> },
    /// A part of the one tensor that all small inputs come in, dense and one after another; its elements have
    /// 32 bits.
    Packed(TensorType),
}

/// What `main` takes and gives.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// In the order in which the function behind it takes them. The packed ones are one tensor, at the place
    /// of the first.
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

    /// `module` as text, with a `main` that runs its function `entry`. Products are of the highest precision
    /// where `exact`. Fails with [`ErrorKind::Internal`] where the module is not what the entry says.
    pub(super) fn write(&self, mut module: Module, entry: &str, exact: bool) -> Result<String> {
        let internal = |message: &'static str| Error::new(ErrorKind::Internal, "write program", message);
        let function = module.functions.iter_mut().find(|function| function.name == entry);
        let function = function.ok_or_else(|| internal("the module lacks its entry point"))?;
        if function.arguments.len() != self.arguments.len() {
            return Err(internal("the module has another number of arguments"));
        }
        function.public = false;
        for argument in &mut function.arguments {
            argument.aliases_result = None;
        }
        let main = self.main(entry).ok_or_else(|| internal("a small input has another element width"))?;
        let printer = Printer::new(&module).declarations(&main).highest_precision(exact);
        Ok(printer.custom_calls(&xla_cpu::barrier).to_string())
    }

    /// The text of `main`; nothing where a packed argument has no 32-bit elements.
    fn main(&self, entry: &str) -> Option<String> {
        let packed = self.packed_type();
        let (mut declared, mut body, mut types) = (Vec::new(), String::new(), Vec::new());
        let mut taken = 0;
        for (index, argument) in self.arguments.iter().enumerate() {
            match argument {
                Argument::Tensor { ty, sharding, becomes } => {
                    let alias = becomes.map(|result| format!("tf.aliasing_output = {result} : i32"));
                    declared.push(format!("%a{index}: {ty}{}", self.attributes(ty, *sharding, alias)));
                    types.push(ty.to_string());
                }
                Argument::Packed(ty) if ty.element.bits() == 32 => {
                    if taken == 0 {
                        let attributes = self.attributes(&packed, Sharding::Replicated, None);
                        declared.push(format!("%step: {packed}{attributes}"));
                    }
                    let words = ty.elements();
                    let [from, to] =
                        [ElementType::I32, ty.element].map(|element| TensorType::new(element, [words]));
                    let end = taken + words;
                    body += &format!(
                        "    %s{index} = stablehlo.slice %step [{taken}:{end}] : ({packed}) -> {from}
    %b{index} = stablehlo.bitcast_convert %s{index} : ({from}) -> {to}
    %a{index} = stablehlo.reshape %b{index} : ({to}) -> {ty}
"
                    );
                    types.push(ty.to_string());
                    taken = end;
                }
                Argument::Packed(_) => return None,
            }
        }
        let count = self.results.len();
        let listed = |item: &dyn Fn(usize) -> String, count: usize| -> String {
            (0..count).map(item).collect::<Vec<_>>().join(", ")
        };
        let passed = listed(&|index| format!("%a{index}"), types.len());
        let given = listed(&|index| format!("%r#{index}"), count);
        let results = listed(&|index| self.results[index].0.to_string(), count);
        let attributed =
            self.results.iter().map(|(ty, sharding)| format!("{ty}{}", self.attributes(ty, *sharding, None)));
        let attributed = attributed.collect::<Vec<_>>().join(", ");
        let (declared, types) = (declared.join(", "), types.join(", "));
        Some(format!(
            "  func.func public @main({declared}) -> ({attributed}) {{\n{body}    \
             %r:{count} = func.call @{entry}({passed}) : ({types}) -> ({results})\n    \
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
    use mlxcel_stablehlo::DotDimensions;

    use super::*;

    #[test]
    fn small_inputs_share_one_tensor_and_states_are_donated() {
        let (matrix, vector) =
            (TensorType::new(ElementType::F32, [2, 2]), TensorType::new(ElementType::I32, [3]));
        let built = Module::of_function("demo", "step", |b| {
            let [x, y] = [b.argument("x", matrix.clone())?, b.argument("y", matrix.clone())?];
            let ids = b.argument("ids", vector.clone())?;
            let dimensions = DotDimensions {
                lhs_contracting: vec![1],
                rhs_contracting: vec![0],
                ..DotDimensions::default()
            };
            Ok(vec![b.dot_general(x, y, dimensions, ElementType::F32)?, ids])
        });
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
        let module = built.unwrap();
        let text = entry.write(module.clone(), "step", true).unwrap();
        for line in [
            "func.func public @main(%a0: tensor<2x2xf32> {tf.aliasing_output = 0 : i32, mhlo.sharding = \
             \"{devices=[1,2]<=[2]}\"}, %step: tensor<7xi32> {mhlo.sharding = \"{replicated}\"})",
            "%s2 = stablehlo.slice %step [4:7] : (tensor<7xi32>) -> tensor<3xi32>",
            "%b1 = stablehlo.bitcast_convert %s1 : (tensor<4xi32>) -> tensor<4xf32>",
            "%r:2 = func.call @step(%a0, %a1, %a2)",
            "func.func private @step(",
            "precision = [HIGHEST, HIGHEST]",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!entry.write(module.clone(), "step", false).unwrap().contains("HIGHEST"));
        assert!(entry.write(module, "main", false).is_err());
    }
}
