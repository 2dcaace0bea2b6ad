//! Decoder programs on PJRT: an [`Executor`](mlxcel_graph::Executor) of the one session of graph engines.

mod entry;
mod executor;
mod programs;
mod states;
#[cfg(test)]
mod tests;
mod weights;
mod xla_cpu;

pub(crate) use executor::PjrtExecutor;
pub(crate) use programs::Programs;
pub(crate) use weights::on_devices;
