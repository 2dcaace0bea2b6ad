//! What the types of the builder rule out.

#[test]
fn misuse_that_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
