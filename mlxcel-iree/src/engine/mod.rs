//! Running decoder programs with weights and the states of sequences on the device, wherever the programs
//! come from ([`ProgramSource`]).

mod ahead;
mod device_check;
mod executor;
#[cfg(feature = "compile")]
#[cfg(unix)]
pub(crate) mod kept;
mod pieces;
mod programs;
mod residents;
pub(crate) mod weights;
mod work;

#[cfg(feature = "compile")]
#[cfg(test)]
mod ahead_tests;
#[cfg(feature = "compile")]
#[cfg(test)]
mod growth_tests;
#[cfg(feature = "compile")]
#[cfg(unix)]
#[cfg(test)]
mod kept_tests;
#[cfg(feature = "compile")]
#[cfg(test)]
mod load_tests;
#[cfg(feature = "compile")]
#[cfg(test)]
mod row_counts_tests;
#[cfg(feature = "compile")]
#[cfg(test)]
mod state_tests;
#[cfg(feature = "compile")]
#[cfg(test)]
mod tests;

use device_check::check as check_device;
pub(crate) use executor::IreeExecutor;
pub(crate) use programs::{Made, ProgramSource, Programs};
pub(crate) use weights::LaidOutWeights;
