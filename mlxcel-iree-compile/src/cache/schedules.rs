//! Measured schedules of kernels, kept beside the programs that are written by them.

use std::path::{Path, PathBuf};

use mlxcel_core::{Error, Result};
use mlxcel_iree_kernels::Schedule;
use mlxcel_iree_target::{ResolvedTarget, hex};
use mlxcel_models::files::read_regular;

use super::key::Parts;
use super::{Cache, entry};
use crate::trial::TrialWeights;

/// The folder of the schedules.
pub(super) const FOLDER: &str = "schedules";

/// Changes with what a schedule means.
const FORMAT: &str = "mlxcel schedule 1";

/// More bytes than any schedule is printed as.
const LONGEST: u64 = 256;

impl Cache {
    /// The schedule that was measured for programs on `target` over these weights, if one was.
    pub(crate) fn schedule(&self, target: &ResolvedTarget, weights: &TrialWeights) -> Option<Schedule> {
        let path = schedule_path(self.folder.as_deref()?, target, weights);
        let text = String::from_utf8(read_regular(&path, LONGEST).ok()?).ok()?;
        match text.trim_end().parse() {
            Ok(schedule) => Some(schedule),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a measured schedule is damaged and is not used");
                None
            }
        }
    }

    /// Keeps a measured schedule; returns whether there is a folder for it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](mlxcel_core::ErrorKind::Io) and
    /// [`ErrorKind::ResourceExhausted`](mlxcel_core::ErrorKind::ResourceExhausted) if the folder cannot be
    /// written.
    pub fn keep_schedule(
        &self,
        target: &ResolvedTarget,
        weights: &TrialWeights,
        schedule: &Schedule,
    ) -> Result<bool> {
        let Some(folder) = &self.folder else { return Ok(false) };
        let path = schedule_path(folder, target, weights);
        entry::write_text(&path, &format!("{schedule}\n"))
            .map_err(|error| Error::io("keep a kernel schedule in the cache", &path, error))?;
        Ok(true)
    }
}

fn schedule_path(folder: &Path, target: &ResolvedTarget, weights: &TrialWeights) -> PathBuf {
    let mut parts = Parts::new();
    parts.add(FORMAT);
    parts.add(target.fingerprint());
    target.options().iter().for_each(|option| parts.add(option));
    parts.add(&weights.to_string());
    folder.join(FOLDER).join(hex(&parts.finish()[..16]))
}
