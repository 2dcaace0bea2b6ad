//! What the types of the builder rule out.

#[test]
fn compile_time_misuse_is_rejected() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
