//! The kernels of a program: each is written once, however many calls it has.

use std::any::type_name;
use std::collections::HashMap;
use std::fmt::{self, Write};

use mlxcel_stablehlo::print::CustomCall;
use mlxcel_stablehlo::{Attribute, Builder, Error, ErrorKind, TensorType, Value};

use super::value::{Operand, Type};
use super::view::View;
use super::writer::Writer;

/// What a kernel computes, in numbers. A kernel is made of these alone, so equal descriptions have one kernel;
/// others may have the same one.
pub(crate) trait Description: fmt::Debug {
    /// The kernel.
    fn kernel(&self) -> Kernel;
}

/// A kernel under construction: a function over the buffers of its operands and results, which runs once for
/// each workgroup.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// What it computes, as part of an identifier, such as `linear_bf16_1x2048x8192`: the name in profiles.
    label: String,
    /// The number of workgroups in each dimension.
    workgroups: [usize; 3],
    /// The names of the buffers: operands, then results without an operand's buffer.
    bindings: Vec<String>,
    /// For each result the operand whose buffer it overwrites, if any.
    tied: Vec<Option<usize>>,
    /// The names of a call's scalar arguments, of type `i32`.
    uniforms: Vec<String>,
    /// The operands that are weights in panels.
    in_panels: Vec<usize>,
    /// The kernel's operations.
    pub(crate) body: Writer,
}

impl Kernel {
    /// A kernel without operands and results.
    pub(crate) fn new(label: impl Into<String>, workgroups: [usize; 3]) -> Self {
        Self {
            label: label.into(),
            workgroups,
            bindings: Vec::new(),
            tied: Vec::new(),
            uniforms: Vec::new(),
            in_panels: Vec::new(),
            body: Writer::default(),
        }
    }

    /// The next operand; all operands come before the first result.
    pub(crate) fn operand(&mut self, word: &str) -> Binding {
        let name = self.body.fresh(&format!("{word}_binding"));
        self.bindings.push(name.clone());
        Binding(name)
    }

    /// The next operand, a weight in [panels](super::layout::WeightLayout::Panels).
    pub(crate) fn panel_operand(&mut self, word: &str) -> Binding {
        self.in_panels.push(self.bindings.len());
        self.operand(word)
    }

    /// The next result, in its own buffer.
    pub(crate) fn result(&mut self, word: &str) -> Binding {
        self.tied.push(None);
        self.operand(word)
    }

    /// The next result, which overwrites operand `operand`.
    pub(crate) fn tied_result(&mut self, operand: usize) {
        self.tied.push(Some(operand));
    }

    /// The next scalar argument, of type `i32`: a number that differs between calls of one kernel, such as
    /// the layer.
    pub(crate) fn uniform(&mut self, word: &str) -> Operand {
        let name = self.body.fresh(&format!("{word}_uniform"));
        self.uniforms.push(name.clone());
        Operand::new(name, Type::I32)
    }

    /// A buffer as elements of this type. The same bytes can have several views.
    pub(crate) fn view(
        &mut self,
        word: &str,
        binding: &Binding,
        shape: &[usize],
        element: &'static str,
    ) -> View {
        let zero = self.body.index(0);
        View::new(&mut self.body, word, shape, element, |ty| {
            format!("stream.binding.subspan {binding}[{zero}] : !stream.binding -> {ty}")
        })
    }

    /// The index of this workgroup in one dimension.
    pub(crate) fn workgroup(&mut self, dimension: usize) -> Operand {
        self.body.set(
            "workgroup",
            Type::INDEX,
            format_args!("stream.dispatch.workgroup.id[{dimension}] : index"),
        )
    }

    /// The executable of the kernel, with the entry point `name`.
    fn executable(&self, name: &str) -> String {
        let [x, y, z] = self.workgroups;
        let bindings = self.bindings.iter().map(|binding| format!("{binding}: !stream.binding"));
        let uniforms = self.uniforms.iter().map(|uniform| format!("{uniform}: i32"));
        let parameters: Vec<String> = bindings.chain(uniforms).collect();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "  stream.executable private @{name}_executable {{
    stream.executable.export public @{name} workgroups() -> (index, index, index) {{
      %x = arith.constant {x} : index
      %y = arith.constant {y} : index
      %z = arith.constant {z} : index
      stream.return %x, %y, %z : index, index, index
    }}
    builtin.module {{
      func.func @{name}({})
          attributes {{translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<Default>>}} {{
{}        return
      }}
    }}
  }}
",
            parameters.join(", "),
            self.body.finish(),
        );
        text
    }
}

/// A buffer argument of a kernel.
#[derive(Debug)]
pub(crate) struct Binding(String);

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kernels of a program so far.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    /// The name of each, by its description: to write a kernel takes longer than anything else in lowering,
    /// and every layer calls the same ones.
    described: HashMap<String, String>,
    /// The name of each, by its text with a placeholder name.
    names: HashMap<String, String>,
    /// For each name, which results overwrite which operands.
    tied: HashMap<String, Vec<Option<usize>>>,
    /// For each name, which operands are weights in panels.
    in_panels: HashMap<String, Vec<usize>>,
    /// The text of all, in the order of their first calls.
    executables: String,
}

impl Kernels {
    /// Calls the kernel of `description` with these operands; its results have these types.
    ///
    /// # Errors
    /// Those of [`call_at`](Self::call_at).
    pub(crate) fn call<'f, D: Description>(
        &mut self,
        b: &mut Builder<'f>,
        description: &D,
        operands: &[Value<'f>],
        results: Vec<TensorType>,
    ) -> mlxcel_stablehlo::Result<Vec<Value<'f>>> {
        self.call_at(b, description, operands, results, &[])
    }

    /// Calls the kernel of `description` with these [uniforms](Kernel::uniform).
    ///
    /// # Errors
    /// The kernel's [defect](Writer::defect), and those of [`Builder::custom_call`].
    pub(crate) fn call_at<'f, D: Description>(
        &mut self,
        b: &mut Builder<'f>,
        description: &D,
        operands: &[Value<'f>],
        results: Vec<TensorType>,
        uniforms: &[i32],
    ) -> mlxcel_stablehlo::Result<Vec<Value<'f>>> {
        let key = format!("{} {description:?}", type_name::<D>());
        let name = match self.described.get(&key) {
            Some(name) => name.clone(),
            None => {
                let name = self.add(description.kernel())?;
                self.described.insert(key, name.clone());
                name
            }
        };
        let uniforms: Vec<_> = (uniforms.iter().enumerate())
            .map(|(i, &value)| (format!("uniform{i}"), Attribute::Int(value.into())))
            .collect();
        b.custom_call(&name, operands, results, &uniforms, false)
    }

    /// Adds `kernel` unless its text is there, and returns its name.
    fn add(&mut self, kernel: Kernel) -> mlxcel_stablehlo::Result<String> {
        if let Some(defect) = kernel.body.defect() {
            return Err(Error::new(ErrorKind::Structure, format!("kernel {}", kernel.label), defect));
        }
        let number = self.names.len();
        let name = self.names.entry(kernel.executable("kernel")).or_insert_with(|| {
            let name = format!("mlxcel_{}_{number}", kernel.label);
            self.executables.push_str(&kernel.executable(&name));
            self.tied.insert(name.clone(), kernel.tied);
            self.in_panels.insert(name.clone(), kernel.in_panels);
            name
        });
        Ok(name.clone())
    }

    /// The executables, for a module's declarations.
    pub(crate) fn executables(&self) -> &str {
        &self.executables
    }

    /// The operands of kernel `name` that are weights in panels.
    pub(crate) fn in_panels(&self, name: &str) -> &[usize] {
        self.in_panels.get(name).map_or(&[], Vec::as_slice)
    }

    /// How a call of a kernel is printed; none for other calls.
    pub(crate) fn dispatch(&self, call: &CustomCall<'_>) -> Option<String> {
        let (name, tied) = (call.target, self.tied.get(call.target)?);
        let (parameters, results) = call.signature.rsplit_once(" -> ")?;
        let types: Vec<&str> = results.trim_start_matches('(').trim_end_matches(')').split(", ").collect();
        let results: Option<Vec<&str>> = types
            .iter()
            .zip(tied)
            .map(|(&ty, tied)| match tied {
                Some(operand) => call.operands.get(*operand).copied(),
                None => Some(ty),
            })
            .collect();
        let results = match &results?[..] {
            [one] => (*one).to_owned(),
            several => format!("({})", several.join(", ")),
        };
        let target = format!("flow.dispatch @{name}_executable::@{name}");
        let operands = call.operands.join(", ");
        if call.attributes.is_empty() {
            return Some(format!("{target}({operands}) : {parameters} -> {results}"));
        }
        // Numbers are operands of type i32, so they are made first: in a region, which the compiler inlines.
        let mut text = format!("scf.execute_region -> ({}) {{\n", types.join(", "));
        let mut names = vec![operands];
        let mut parameters = parameters.trim_end_matches(')').to_owned();
        for (i, (_, value)) in call.attributes.iter().enumerate() {
            let Attribute::Int(value) = value else { return None };
            let _ = writeln!(text, "      %uniform_{i} = arith.constant {value} : i32");
            names.push(format!("%uniform_{i}"));
            parameters.push_str(", i32");
        }
        let operands = names.join(", ");
        let count = types.len();
        let _ = writeln!(text, "      %called:{count} = {target}({operands}) : {parameters}) -> {results}");
        let called: Vec<String> = (0..count).map(|i| format!("%called#{i}")).collect();
        let _ = write!(text, "      scf.yield {} : {}\n    }}", called.join(", "), types.join(", "));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::{ElementType, Module, ModuleBuilder, Printer};

    use super::*;

    #[derive(Debug)]
    struct Scale {
        factor: &'static str,
        is_defect: bool,
    }

    impl Scale {
        fn by(factor: &'static str) -> Self {
            Self { factor, is_defect: false }
        }
    }

    impl Description for Scale {
        fn kernel(&self) -> Kernel {
            let mut kernel = Kernel::new("scale", [2, 1, 1]);
            let (x, y) = (kernel.operand("x"), kernel.operand("y"));
            kernel.tied_result(1);
            let out = kernel.result("out");
            for (binding, word) in [(&x, "x"), (&y, "y"), (&out, "out")] {
                kernel.view(word, binding, &[4], "f32");
            }
            let factor = kernel.body.constant(self.factor, Type::F32);
            if self.is_defect {
                let at = kernel.body.index(1);
                kernel.body.arith("sum", "addf", &factor, &at);
            }
            kernel
        }
    }

    #[derive(Debug)]
    struct Shift;

    impl Description for Shift {
        fn kernel(&self) -> Kernel {
            let mut kernel = Kernel::new("shift", [1, 1, 1]);
            kernel.operand("x");
            kernel.tied_result(0);
            kernel.uniform("layer");
            kernel
        }
    }

    #[test]
    fn kernels_of_equal_texts_have_one_name_however_they_are_described() {
        let mut kernels = Kernels::default();
        let name = kernels.add(Scale::by("2.0").kernel()).unwrap();
        assert_eq!(kernels.add(Scale::by("2.0").kernel()).unwrap(), name);
        assert_ne!(kernels.add(Scale::by("3.0").kernel()).unwrap(), name);
        assert_eq!(kernels.executables().matches("stream.executable private").count(), 2);
    }

    #[test]
    fn equal_kernels_are_written_once_and_results_are_tied_to_operands() {
        let mut kernels = Kernels::default();
        let ty = TensorType::new(ElementType::F32, [4]);
        let module = Module::of_function("test", "main", |b| {
            let (x, y) = (b.argument("x", ty.clone())?, b.argument("y", ty.clone())?);
            let results = || vec![ty.clone(), ty.clone()];
            let first = kernels.call(b, &Scale::by("2.0"), &[x, y], results())?;
            let second = kernels.call(b, &Scale::by("3.0"), &first, results())?;
            kernels.call(b, &Scale::by("2.0"), &second, results())
        })
        .unwrap();
        assert_eq!(kernels.executables().matches("stream.executable private").count(), 2);
        let dispatch = |call: &CustomCall<'_>| kernels.dispatch(call);
        let text = Printer::new(&module).custom_calls(&dispatch).to_string();
        let line = "%1:2 = flow.dispatch @mlxcel_scale_1_executable::@mlxcel_scale_1(%0#0, %0#1) : (tensor<4xf32>, tensor<4xf32>) -> (%0#1, tensor<4xf32>)\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("%2:2 = flow.dispatch @mlxcel_scale_0_executable"), "{text}");
    }

    #[test]
    fn a_kernel_with_a_defect_is_refused_by_name() {
        let defect = Scale { factor: "2.0", is_defect: true };
        let mut kernels = Kernels::default();
        let error = ModuleBuilder::new("test")
            .function("main", |b| {
                let x = b.argument("x", TensorType::new(ElementType::F32, [4]))?;
                let results = vec![b.ty(x).clone(), b.ty(x).clone()];
                kernels.call(b, &defect, &[x, x], results)
            })
            .unwrap_err();
        assert!(kernels.executables().is_empty());
        let error = crate::lower::refused(error);
        assert_eq!(error.kind(), mlxcel_core::ErrorKind::Internal);
        let source = std::error::Error::source(&error).unwrap().to_string();
        let defect = "arith.addf takes floats of one type, not (%constant_1: f32, %c1: index)";
        assert_eq!(source, format!("kernel scale: {defect}, in `main`"));
    }

    #[test]
    fn calls_of_one_kernel_differ_by_scalar_arguments() {
        let mut kernels = Kernels::default();
        let ty = TensorType::new(ElementType::F32, [4]);
        let module = Module::of_function("test", "main", |b| {
            let x = b.argument("x", ty.clone())?;
            let first = kernels.call_at(b, &Shift, &[x], vec![ty.clone()], &[0])?;
            kernels.call_at(b, &Shift, &first, vec![ty.clone()], &[-7])
        })
        .unwrap();
        assert_eq!(kernels.executables().matches("stream.executable private").count(), 1);
        assert!(
            kernels.executables().contains("(%x_binding_0: !stream.binding, %layer_uniform_0: i32)"),
            "{}",
            kernels.executables()
        );
        let dispatch = |call: &CustomCall<'_>| kernels.dispatch(call);
        let text = Printer::new(&module).custom_calls(&dispatch).to_string();
        let call = "%1 = scf.execute_region -> (tensor<4xf32>) {
      %uniform_0 = arith.constant -7 : i32
      %called:1 = flow.dispatch @mlxcel_shift_0_executable::@mlxcel_shift_0(%0, %uniform_0) : (tensor<4xf32>, i32) -> %0
      scf.yield %called#0 : tensor<4xf32>
    }
";
        assert!(text.contains(call), "{text}");
    }
}
