//! Generation under grammars, with a model of random logits.

mod bounds;
mod generations;
mod harness;
mod masks;
mod schemas;
mod suite;
mod tools;
