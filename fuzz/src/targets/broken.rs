//! A target that ends badly in each way, for tests of what catches it.

use crate::outcome::Outcome;
use crate::target::{Format, Target};

/// No one of [`Target::all`].
pub(super) const TARGET: Target = Target {
    name: "broken",
    about: "ends as its input says",
    format: Format::Decisions,
    run,
    memory: 16,
    seconds: 1,
    stack: 512,
    longest: 16,
    ..Target::USUAL
};

#[allow(clippy::panic, reason = "it is the purpose")]
fn run(input: &[u8]) -> Outcome {
    match input {
        b"panic" => panic!("as it was told"),
        b"stack" => Outcome::new(depth(1)),
        b"memory" => Outcome::new(vec![1u8; 64 << 20].len()),
        b"hang" => loop {
            std::hint::spin_loop();
        },
        _ => Outcome::new("well"),
    }
}

fn depth(number: u64) -> u64 {
    let frame = std::hint::black_box([number; 64]);
    if number == 0 { 0 } else { depth(number + 1) + frame[(number % 64) as usize] }
}
