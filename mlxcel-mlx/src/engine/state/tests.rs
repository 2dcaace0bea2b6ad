//! Sequence states, written and read back.

use super::*;

const F32: DType = DType::F32;

fn layout() -> Layout {
    let cache = |window| CacheLayout { heads: 2, width: 1, has_values: true, window };
    let group = |state, layers| GroupLayout { state, layers };
    Layout {
        groups: vec![
            group(StateLayout::Cache(cache(None)), 1),
            group(StateLayout::Fixed(vec![2, 3]), 2),
            group(StateLayout::Cache(cache(Some(5))), 1),
            group(StateLayout::Cache(CacheLayout { heads: 1, width: 2, has_values: false, window: None }), 1),
        ],
        element: F32,
    }
}

fn slots(layout: &Layout) -> Vec<StateSlot> {
    let group = |(group, layout): (usize, &GroupLayout)| {
        (0..layout.layers).map(move |layer| StateSlot { group, layer }).collect::<Vec<_>>()
    };
    layout.groups.iter().enumerate().flat_map(group).collect()
}

/// Numbers that encode their index.
fn numbers(first: usize, shape: &[usize]) -> Array {
    let values: Vec<f32> = (first..).take(shape.iter().product()).map(|value| value as f32).collect();
    Array::from_slice(&values, shape).unwrap()
}

/// States after chunks of `counts` tokens.
fn fed(layout: &Layout, counts: &[usize]) -> (States, usize) {
    let (mut states, mut position) = (States::default(), 0);
    for &count in counts {
        let mut next = States::default();
        for slot in slots(layout) {
            let state = match layout.at(slot).unwrap() {
                StateLayout::Cache(cache) => {
                    let before = match states.get(slot) {
                        Some(LayerState::Cache(before)) => Some(before),
                        _ => None,
                    };
                    let new = numbers(100 * position, &cache.shape(count));
                    let values = cache.has_values.then_some(&new);
                    LayerState::Cache(cache.extend(before, position, &new, values, F32).unwrap().0)
                }
                StateLayout::Fixed(shape) => LayerState::Fixed(numbers(position + slot.layer, shape)),
            };
            next.push(slot, state).unwrap();
        }
        (states, position) = (next, position + count);
    }
    (states, position)
}

#[test]
fn states_round_trip_through_bytes() {
    let layout = layout();
    for counts in [&[3][..], &[5], &[4, 4, 1], &[11, 1, 1]] {
        let (states, position) = fed(&layout, counts);
        let bytes = states.read(&layout, position).unwrap();
        let kept = 4 * (position * 2 * 2 + 2 * 6 + position.min(5) * 2 * 2 + position * 2);
        assert_eq!(bytes.len(), kept);
        let restored = States::from_bytes(&layout, position, &bytes).unwrap();
        assert_eq!(restored.read(&layout, position).unwrap(), bytes);
        assert_eq!(restored.bytes(), states.bytes());
        for wrong in [&bytes[1..], &[&bytes[..], &[0; 8]].concat()] {
            let error = States::from_bytes(&layout, position, wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        assert!(States::from_bytes(&layout, usize::MAX, &bytes).is_err());
    }
    assert_eq!(States::from_bytes(&layout, 0, &[]).unwrap().bytes(), 0);
}

#[test]
fn recurrent_states_are_restored_and_caches_are_kept() {
    let layout = layout();
    let (mut states, position) = fed(&layout, &[4]);
    let (before, bytes) = (states.recurrent(&layout), states.read(&layout, position).unwrap());
    let later = fed(&layout, &[4, 1]).0.recurrent(&layout);
    states.put_back(later);
    assert_ne!(states.read(&layout, position).unwrap(), bytes);
    states.put_back(before);
    assert_eq!(states.read(&layout, position).unwrap(), bytes);
}

#[test]
fn states_are_in_layer_order() {
    let mut states = States::default();
    let mut push =
        |group, layer| states.push(StateSlot { group, layer }, LayerState::Fixed(numbers(0, &[1]))).is_ok();
    assert!(push(1, 0) && push(0, 0) && push(1, 1));
    assert!(!push(1, 1) && !push(0, 2));
}
