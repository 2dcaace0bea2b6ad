//! Generation under grammars, with a model of random logits.

mod bounds;
mod generations;
mod harness;
mod published_calls;
mod rendered_calls;
mod schemas;
mod suite;
mod thoughts;
mod toolbox;
mod tools;
