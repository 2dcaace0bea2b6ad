//! What a program does with signals: told to end, it leaves no half-made folders behind, and may stop an
//! answer first.

use std::sync::Arc;
use std::thread;

use mlxcel_models::files::remove_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::interrupt::Interrupt;

/// Removes unfinished folders before a signal ends the program. What cannot be removed, or where the system
/// gives no thread, the next program removes.
pub(crate) fn clean_up_on_signals(interrupt: &Interrupt) {
    let interrupt = interrupt.clone();
    // A file that grows beyond its limit is then an error of whoever writes it.
    drop(flag::register(SIGXFSZ, Arc::default()));
    let ignored = ignored();
    let heard = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let Ok(mut signals) = Signals::new(heard) else { return };
    let wait = move || {
        for signal in signals.forever() {
            if signal == SIGINT && interrupt.stop() {
                continue;
            }
            remove_unfinished();
            // It ends the program as it would have been ended without this.
            let _ = emulate_default_handler(signal);
        }
    };
    drop(thread::Builder::new().name("signals".to_owned()).spawn(wait));
}

/// The signals that the parent process set to be ignored, as `nohup` does, as a bit set; empty if the system
/// does not report them.
#[allow(clippy::disallowed_methods, reason = "the kernel's own file")]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
