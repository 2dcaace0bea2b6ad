//! The memory that JSON takes, measured: one test, so that nothing else in the process takes any.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use mlxcel_models::files::parse_json;
use serde_json::Value;

/// A figure of this process in kB.
fn status(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap()
}

#[test]
fn parsed_json_stays_within_the_documented_memory() {
    const SIZE: usize = 2 << 20;
    // As dense as is taken: elements, objects, objects in objects, fields, lists.
    let repeated = |part: &str| format!("[{}0]", part.repeat(SIZE / part.len()));
    let fields: Vec<String> = (0..SIZE / 9).map(|number| format!("\"{number:04x}\":0")).collect();
    let texts = [
        repeated("0     ,"),
        repeated("{\"\":0}                 ,"),
        repeated("{\"\":{\"\":{\"\":0                                 }}}         ,"),
        repeated("[]           ,"),
        format!("{{{}}}", fields.join(",")),
    ];
    for text in texts {
        let before = status("VmRSS");
        // Resets the high-water mark.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let value: Value = parse_json("config.json", text.as_bytes(), "no JSON").unwrap();
        let taken = (status("VmHWM") - before) << 10;
        assert!(taken <= 64 * text.len() + (1 << 20), "{taken} bytes for {}", &text[..40]);
        drop(value);
    }
}
