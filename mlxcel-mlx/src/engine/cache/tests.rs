//! What caches keep and show, on keys that say their position.

use super::*;

const F32: DType = DType::F32;

fn layout(window: Option<usize>, rotates: bool) -> LayerLayout {
    LayerLayout { kv_heads: 2, head_dim: 1, window, rotates }
}

/// Keys (`[1, 2, count, 1]`) of the positions from `first` on: the position, and in the second head its negative.
fn keys(first: usize, count: usize) -> Array {
    let positions = (first..first + count).map(|position| position as f32);
    let values: Vec<f32> = positions.clone().chain(positions.map(|position| -position)).collect();
    Array::from_slice(&values, &[1, 2, count, 1]).unwrap()
}

/// The positions of keys, of which both heads speak alike.
fn positions(keys: &Array) -> Vec<usize> {
    let values = keys.to_vec::<f32>().unwrap();
    let (first, second) = values.split_at(values.len() / 2);
    assert!(first.iter().zip(second).all(|(a, b)| *a == -b));
    first.iter().map(|&position| position as usize).collect()
}

/// Feeds `counts` tokens after one another; checks what each feed sees, and gives the cache.
fn fed(layout: &LayerLayout, counts: &[usize]) -> (LayerCache, usize) {
    let (mut cache, mut position): (Option<LayerCache>, usize) = (None, 0);
    for &count in counts {
        let new = keys(position, count);
        let (filled, visible) = layout.extend(cache.as_ref(), position, &new, &new, F32).unwrap();
        let end = position + count;
        let first = layout.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut seen = positions(&visible.keys);
        if visible.order == Order::All {
            assert_eq!(count, 1);
            seen.sort_unstable();
        }
        assert_eq!(seen, (first..end).collect::<Vec<_>>(), "{counts:?} at {position}");
        assert_eq!(positions(&visible.values).len(), seen.len());
        let limited = layout.window.is_some_and(|window| end > window);
        assert_eq!(matches!(visible.order, Order::Window(_)), limited && count > 1);
        (cache, position) = (Some(filled), end);
    }
    (cache.unwrap(), position)
}

#[test]
fn every_feed_sees_its_window_and_the_last_positions_are_kept() {
    for counts in [
        &[3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1][..],
        &[5],
        &[6, 1],
        &[1; 13],
        &[4, 9, 1, 1],
        &[20, 2, 1, 7],
        &[10, 5, 5, 1],
    ] {
        for (window, rotates) in [(None, false), (Some(5), false), (Some(5), true), (Some(100), true)] {
            let layout = layout(window, rotates);
            let (cache, position) = fed(&layout, counts);
            let kept = layout.kept(position);
            let in_order = positions(&layout.in_order(&cache.keys, position, kept).unwrap());
            assert_eq!(in_order, (position - kept..position).collect::<Vec<_>>(), "{counts:?} {window:?}");
            assert_eq!(kept, if rotates { position.min(window.unwrap()) } else { position });
        }
    }
}

#[test]
fn bytes_bring_back_what_was_kept() {
    let layers = vec![layout(None, false), layout(Some(5), true), layout(Some(5), false)];
    for counts in [&[3][..], &[5], &[4, 4, 1], &[11, 1, 1]] {
        let (filled, end): (Vec<_>, Vec<_>) = layers.iter().map(|layer| fed(layer, counts)).unzip();
        let (cache, position) = (Cache { layers: filled }, end[0]);
        let layout = Layout { layers: layers.clone(), element: F32 };
        let bytes = cache.read(&layout, position).unwrap();
        let restored = Cache::from_bytes(&layout, position, &bytes).unwrap();
        assert_eq!(restored.read(&layout, position).unwrap(), bytes);
        for ((layer, before), after) in layers.iter().zip(&cache.layers).zip(&restored.layers) {
            let next = |cache: &LayerCache| {
                let new = keys(position, 1);
                let (_, visible) = layer.extend(Some(cache), position, &new, &new, F32).unwrap();
                let mut seen = positions(&visible.keys);
                seen.sort_unstable();
                seen
            };
            assert_eq!(next(after), next(before));
        }
        for wrong in [&bytes[1..], &[&bytes[..], &[0; 8]].concat()] {
            let error = Cache::from_bytes(&layout, position, wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        assert!(Cache::from_bytes(&layout, usize::MAX, &bytes).is_err());
    }
}

#[test]
fn a_cache_is_written_in_place_until_it_is_shared() {
    for layout in [layout(None, false), layout(Some(STEP), true)] {
        let mut cache = fed(&layout, &[STEP - 4]).0;
        eval([&cache.keys, &cache.values]).unwrap();
        let address = cache.keys.address().unwrap();
        let step = |cache: LayerCache, position: usize| {
            let new = keys(position, 1);
            let (filled, visible) = layout.extend(Some(&cache), position, &new, &new, F32).unwrap();
            // As the engine does: nobody holds what was before when it is computed.
            drop(cache);
            eval([&filled.keys, &filled.values, &visible.keys]).unwrap();
            filled
        };
        let last = if layout.rotates { STEP + 3 } else { STEP - 1 };
        for position in STEP - 4..last {
            cache = step(cache, position);
            assert_eq!(cache.keys.address().unwrap(), address, "{layout:?} at {position}");
        }
        let shared = cache.clone();
        cache = step(cache, last);
        assert_ne!(cache.keys.address().unwrap(), address);
        assert_eq!(shared.keys.address().unwrap(), address);
        let kept = |cache: &LayerCache, position: usize| {
            positions(&layout.in_order(&cache.keys, position, 3).unwrap())
        };
        assert_eq!(kept(&shared, last), [last - 3, last - 2, last - 1]);
        assert_eq!(kept(&cache, last + 1), [last - 2, last - 1, last]);
    }
}

#[test]
fn lengths_grow_in_steps_that_grow() {
    let all = layout(None, false);
    let lengths = [1, 256, 257, 2048, 2049, 5000, 100_000].map(|positions| all.length_for(positions));
    assert_eq!(lengths, [256, 256, 512, 2048, 2304, 5376, 100_352]);
    let rotating = layout(Some(300), true);
    assert_eq!([1, 257, 300, 5000].map(|positions| rotating.length_for(positions)), [256, 300, 300, 300]);
}
