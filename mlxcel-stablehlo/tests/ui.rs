//! What the types of the builder rule out.

/// Trybuild compiles all dependencies once more.
mod nightly {
    #[test]
    fn compile_time_misuse_is_rejected() {
        trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
    }
}
