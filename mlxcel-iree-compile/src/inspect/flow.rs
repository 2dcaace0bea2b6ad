//! Parses the compiler's `flow` phase: the kernels, their loads and stores, and how often each is dispatched.
//!
//! The text is for people and may change with the compiler, whose release is fixed; what is not understood
//! counts as nothing, and a test holds the count of dispatches against the compiler's own statistics.

use std::collections::BTreeMap;

use mlxcel_stablehlo::ElementType;

use super::Dispatch;

/// Bytes that a kernel loads and stores.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    read: u64,
    written: u64,
}

/// The dispatches in the text of the phase, equal ones as one.
pub(super) fn read(text: &str) -> Vec<Dispatch> {
    let kernels = kernels(text);
    let mut calls: BTreeMap<&str, Dispatch> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, signature)) = dispatched(line) else { continue };
        let known = calls.entry(name).or_insert_with(|| {
            let traffic = kernels.get(name).copied().unwrap_or_else(|| of_signature(signature));
            Dispatch {
                name: name.to_owned(),
                calls: 0,
                bytes_read: traffic.read,
                bytes_written: traffic.written,
            }
        });
        known.calls += 1;
    }
    calls.into_values().collect()
}

/// The kernel that a line starts, and the signature.
fn dispatched(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once("flow.dispatch @")?;
    let end = rest.find(['(', '['])?;
    let (_, name) = rest[..end].rsplit_once("::@")?;
    let (_, signature) = rest.rsplit_once(" : ")?;
    Some((name, signature))
}

/// What is moved by each kernel that says what it loads, by its name.
fn kernels(text: &str) -> BTreeMap<&str, Traffic> {
    let mut kernels = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) =
            line.trim_start().strip_prefix("func.func @").and_then(|rest| rest.split('(').next())
        else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        // A function ends with the brace below its first letter.
        let body: Vec<&str> =
            lines.by_ref().take_while(|line| !line[indent.min(line.len())..].starts_with('}')).collect();
        if let Some(traffic) = of_body(&body) {
            kernels.insert(name, traffic);
        }
    }
    kernels
}

/// What the body of a kernel moves; none where it does not load and store tensors, as kernels do that are
/// written by hand.
fn of_body(body: &[&str]) -> Option<Traffic> {
    let mut traffic = Traffic::default();
    let mut picked = 0;
    let mut any = false;
    for line in body {
        let line = line.trim_start();
        if let Some((value, rest)) = line.split_once(" = iree_tensor_ext.dispatch.tensor.load ") {
            any = true;
            let size = rest.rsplit_once("-> ").map_or(0, |(_, ty)| tensor_bytes(ty));
            if is_only_picked_from(value, body) { picked += size } else { traffic.read += size }
        } else if let Some(rest) = line.strip_prefix("iree_tensor_ext.dispatch.tensor.store ") {
            any = true;
            let ty = rest
                .split_once(" : ")
                .map_or("", |(_, types)| types.split(" -> ").next().unwrap_or_default());
            traffic.written += tensor_bytes(ty);
        }
    }
    traffic.read += picked.min(traffic.written);
    any.then_some(traffic)
}

/// Whether `value` (`%7`) is used by picking single elements, and in no other way.
fn is_only_picked_from(value: &str, body: &[&str]) -> bool {
    let mut uses = body.iter().filter(|line| {
        let after = line.match_indices(value).map(|(at, _)| line[at + value.len()..].chars().next());
        let is_definition = line.trim_start().starts_with(value) && line.contains("tensor.load");
        !is_definition
            && after.into_iter().any(|next| !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_'))
    });
    let mut any = false;
    uses.all(|line| {
        any = true;
        line.contains("tensor.extract ")
    }) && any
}

/// What a dispatch moves by its signature, `(operands) -> results`: all of each.
fn of_signature(signature: &str) -> Traffic {
    let (operands, results) = signature.split_once("->").unwrap_or((signature, ""));
    let bytes = |list: &str| list.match_indices("tensor<").map(|(at, _)| tensor_bytes(&list[at..])).sum();
    Traffic { read: bytes(operands), written: bytes(results) }
}

/// The bytes of a type such as `tensor<2x256xbf16>`; none for anything else.
fn tensor_bytes(ty: &str) -> u64 {
    let Some(inner) = ty.trim().strip_prefix("tensor<").and_then(|rest| rest.split(['>', ',']).next()) else {
        return 0;
    };
    let mut parts: Vec<&str> = inner.split('x').collect();
    let element = parts.pop().and_then(element);
    let elements = parts.iter().try_fold(1usize, |product, size| product.checked_mul(size.parse().ok()?));
    match (element, elements) {
        (Some(element), Some(elements)) => element.bytes_for(elements) as u64,
        _ => 0,
    }
}

/// The element type of this name.
fn element(name: &str) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|element| element.mlir() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
  flow.executable private @picks {
    builtin.module {
      func.func @picks_64_f32(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<i32>>) {
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [], sizes = [] : !x -> tensor<i32>
        %1 = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0] : !x -> tensor<1000x64xbf16>
        %10 = iree_tensor_ext.dispatch.tensor.load %arg2, offsets = [0] : !x -> tensor<64xbf16>
        %5 = linalg.generic {} ins(%10 : tensor<64xbf16>) {
          %extracted = tensor.extract %1[%2, %3] : tensor<1000x64xbf16>
        }
        %6 = arith.addi %0, %0 : tensor<i32>
        iree_tensor_ext.dispatch.tensor.store %5, %arg3, offsets = [0] : tensor<64xf32> -> !x<tensor<64xf32>>
        return
      }
    }
  }
  util.func public @step() {
    %9 = flow.dispatch @picks::@picks_64_f32(%30, %0, %1) : (tensor<i32>, tensor<1000x64xbf16>) -> tensor<64xf32>
    %8 = flow.dispatch @picks::@picks_64_f32(%30, %0, %1) : (tensor<i32>, tensor<1000x64xbf16>) -> tensor<64xf32>
    %7 = flow.dispatch @own_executable::@own(%x, %w) : (tensor<1x64xf32>, tensor<96x64xbf16>) -> tensor<1x96xf32>
    %6:2 = flow.dispatch @two::@two[%c1](%x) : (tensor<?xf32>) -> (tensor<4xi1>, %kept as tensor<8xf16>)
  }
";

    #[test]
    fn kernels_are_counted_with_the_bytes_they_load() {
        let found = read(TEXT);
        let one = |name: &str| {
            let found = found.iter().find(|dispatch| dispatch.name == name).unwrap();
            (found.calls, found.bytes_read, found.bytes_written)
        };
        assert_eq!(found.len(), 3);
        assert_eq!(one("picks_64_f32"), (2, 4 + 128 + 256, 256));
        assert_eq!(one("own"), (1, 256 + 96 * 64 * 2, 384));
        assert_eq!(one("two"), (1, 0, 4 + 16));
    }

    #[test]
    fn unknown_operations_count_as_zero() {
        assert!(read("").is_empty());
        assert!(read("flow.dispatch @half").is_empty());
        assert_eq!(tensor_bytes("tensor<3x?xf32>"), 0);
        assert_eq!(tensor_bytes("tensor<99999999999999999999x2xf32>"), 0);
        assert_eq!(tensor_bytes("index"), 0);
        assert_eq!(tensor_bytes("tensor<2x3xf32, #encoding>"), 24);
    }
}
