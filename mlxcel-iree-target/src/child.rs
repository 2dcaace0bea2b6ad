//! Child processes that end with this process.
//!
//! This is the crate's only module with `unsafe` code.

use std::process::Command;

/// Puts the child into its own process group, so that it can be killed together with its descendants, and, if
/// the system supports it, has it killed when this process dies: outside our group it does not receive the
/// terminal's Ctrl-C.
///
/// The child dies with the *thread* that starts it, so that thread has to wait for it.
pub(super) fn tie_to_this_process(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        use std::os::unix::process::CommandExt;
        // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe calls are
        // sound: it makes one system call, and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
    }
}
