//! Who sent a body, and the room that it takes.

use std::sync::Arc;

use mlxcel_session::{Error, ErrorKind, Share};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who sent a body.
pub(crate) struct Sender {
    /// Whom the request counts for.
    pub(crate) share: Share,
    /// The room that the body takes until this is dropped; none if it was left before.
    room: Option<OwnedSemaphorePermit>,
}

impl Sender {
    /// The sender of a body that takes this room.
    pub(crate) fn new(share: Share, room: OwnedSemaphorePermit) -> Self {
        Self { share, room: Some(room) }
    }

    /// Leaves the room of bodies that are parsed, for what takes no more memory than the body did.
    pub(crate) fn leave_room(&mut self) {
        self.room = None;
    }

    /// Moves the body to the room `waiting`, so that others are parsed while it waits.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceExhausted`] if that is full.
    pub(crate) fn wait_in(&mut self, waiting: &Arc<Semaphore>) -> Result<(), Error> {
        let Some(room) = &mut self.room else { return Ok(()) };
        let bytes = u32::try_from(room.num_permits()).unwrap_or(u32::MAX);
        *room = Arc::clone(waiting).try_acquire_many_owned(bytes).map_err(|error| {
            let reason = "requests that wait for adapters take all memory for that; try again later";
            Error::new(ErrorKind::ResourceExhausted, "wait for adapter", reason).with_source(error)
        })?;
        Ok(())
    }
}
