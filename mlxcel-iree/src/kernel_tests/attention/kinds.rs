//! Rings, soft caps, sinks and keys without positions.

use super::*;

/// Checks rows at positions, in caches of some length, that see a window or a chunk.
fn check_windows(windows: impl Iterator<Item = (Vec<usize>, Vec<usize>, usize, usize)>, chunked: bool) {
    let case = |(rows, positions, length, window)| {
        let window = Some(window);
        Case { rows, positions, length, window, chunked, cache: BF16, ..Case::default() }
    };
    check(&windows.map(case).collect::<Vec<_>>(), &crate::testing::host());
}

#[test]
fn a_ring_holds_the_positions_of_a_window() {
    // Before the ring is full, over its end with keys and with tokens, and many times around; the last with
    // just enough slots.
    let single = [3, 63, 64, 80, 4096].map(|position| (vec![1], vec![position], 64, 40));
    let chunks = [0, 30, 60, 96, 1000].map(|position| (vec![24], vec![position], 64, 41));
    let rows = [(vec![16, 1, 1], vec![100, 5, 63], 64, 40), (vec![1], vec![129], 33, 33)];
    check_windows(single.into_iter().chain(chunks).chain(rows), false);
}

#[test]
fn chunks_end_what_tokens_see() {
    let single = [0, 39, 40, 41, 4096].map(|position| (vec![1], vec![position], 64, 40));
    let chunks = [0, 30, 39, 1000].map(|position| (vec![24], vec![position], 64, 41));
    // Several chunks in one pass, in a cache that is no ring; and just enough slots.
    let rows = [
        (vec![64, 1], vec![5, 63], 128, 20),
        (vec![16, 1, 1], vec![100, 5, 63], 64, 40),
        (vec![1], vec![129], 33, 33),
    ];
    check_windows(single.into_iter().chain(chunks).chain(rows), true);
}

#[test]
fn soft_caps_sinks_and_keys_without_positions_have_kernels() {
    let base =
        |rows: Vec<usize>, cache| Case { positions: vec![37; rows.len()], rows, cache, ..Case::default() };
    let cases = [
        Case { soft_cap: Some(0.7), ..base(vec![1], F32) },
        Case { soft_cap: Some(2.0), ..base(vec![9, 1], I8) },
        Case { sinks: Some(BF16), ..base(vec![1], F32) },
        Case { sinks: Some(F32), heads: 6, width: 12, pairs: 4, ..base(vec![7, 1, 1], BF16) },
        Case { pairs: 0, ..base(vec![1], I8) },
        Case { pairs: 0, ..base(vec![20], F16) },
        // All at once, and in parts of which one has the sinks.
        Case { soft_cap: Some(1.0), sinks: Some(F16), pairs: 0, window: Some(20), ..base(vec![5, 1], I8) },
        Case {
            positions: vec![9000],
            sinks: Some(F32),
            window: Some(5000),
            length: 8192,
            ..base(vec![1], F32)
        },
        Case { positions: vec![3], sinks: Some(F32), length: 8192, ..base(vec![1], F32) },
    ];
    check(&cases, &crate::testing::host());
}

#[test]
fn a_window_is_cut_into_parts_by_its_own_size() {
    let lowered = |window| {
        let case = Case { window, length: 16384, ..Case::default() };
        lower(&module(&[case]), &crate::testing::resolved("llvm-cpu:x86-64-v3"), Precision::Native).unwrap()
    };
    assert!(lowered(None).contains("attention_join"));
    assert!(!lowered(Some(1024)).contains("attention_join"));
}
