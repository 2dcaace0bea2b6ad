//! What a bundle says of its targets, before anything is compiled.

use std::path::Path;

use mlxcel_core::Precision;
use mlxcel_graph::GraphModelOptions;
use mlxcel_iree_target::ProgramOptions;
use mlxcel_iree_target::manifest::STABLEHLO;
use mlxcel_models::Checkpoint;

use super::BundleOptions;
use super::targets::BundleTarget;
use crate::toolchain::Toolchain;

#[test]
fn weights_are_laid_out_for_each_targets_kernels() {
    let decoder =
        Checkpoint::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama"))
            .unwrap()
            .decoder()
            .unwrap();
    let mut graph = GraphModelOptions::default();
    graph.precision = Precision::Exact;
    let expected = [
        ("llvm-cpu:x86-64-v4", "panels-16"),
        ("llvm-cpu:x86-64-v3", "panels-8"),
        ("llvm-cpu:neoverse-n1", "panels-4"),
        ("llvm-cpu:x86-64-v2", "rows"),
        ("cuda:sm_86", "rows"),
        (STABLEHLO, "rows"),
    ];
    let options = BundleOptions::default().with_targets(expected.map(|(target, _)| target));
    let (toolchain, wanted) = (Toolchain::default(), ProgramOptions::default());
    let targets = BundleTarget::all(&toolchain, &wanted, &options, &decoder, &mut graph).unwrap();
    let found: Vec<String> = targets.iter().map(|target| target.layouts().unwrap().to_string()).collect();
    assert_eq!(found, expected.map(|(_, layout)| layout));
}
