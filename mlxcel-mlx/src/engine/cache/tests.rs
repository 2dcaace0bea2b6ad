//! The content and visible parts of caches, with keys that encode their position.

use super::*;
use crate::array::eval;

const F32: DType = DType::F32;

fn layout(window: Option<usize>) -> CacheLayout {
    CacheLayout { heads: 2, width: 1, has_values: true, window }
}

/// Keys (`[1, 2, count, 1]`) of the positions from `first` on: the position, and in the second head its
/// negative.
fn keys(first: usize, count: usize) -> Array {
    let positions = (first..first + count).map(|position| position as f32);
    let values: Vec<f32> = positions.clone().chain(positions.map(|position| -position)).collect();
    Array::from_slice(&values, &[1, 2, count, 1]).unwrap()
}

/// The positions of keys, which are the same for both heads.
fn positions(keys: &Array) -> Vec<usize> {
    let values = keys.to_vec::<f32>().unwrap();
    let (first, second) = values.split_at(values.len() / 2);
    assert!(first.iter().zip(second).all(|(a, b)| *a == -b));
    first.iter().map(|&position| position as usize).collect()
}

/// Feeds chunks of `counts` tokens; checks what each sees, and returns the cache.
fn fed(layout: &CacheLayout, counts: &[usize]) -> (LayerCache, usize) {
    let (mut cache, mut position): (Option<LayerCache>, usize) = (None, 0);
    for &count in counts {
        let new = keys(position, count);
        let (filled, visible) = layout.extend(cache.as_ref(), position, &new, Some(&new), F32).unwrap();
        let end = position + count;
        let first = layout.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut seen = positions(&visible.keys);
        if visible.order == Order::All {
            assert_eq!(count, 1);
            seen.sort_unstable();
        }
        assert_eq!(seen, (first..end).collect::<Vec<_>>(), "{counts:?} at {position}");
        assert_eq!(positions(visible.values.as_ref().unwrap()).len(), seen.len());
        let limited = layout.window.is_some_and(|window| end > window);
        assert_eq!(matches!(visible.order, Order::Window(_)), limited && count > 1);
        (cache, position) = (Some(filled), end);
    }
    (cache.unwrap(), position)
}

#[test]
fn each_chunk_attends_to_its_window_and_the_last_positions_are_kept() {
    for counts in [
        &[3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1][..],
        &[5],
        &[6, 1],
        &[1; 13],
        &[4, 9, 1, 1],
        &[20, 2, 1, 7],
        &[10, 5, 5, 1],
    ] {
        for window in [None, Some(5), Some(100)] {
            let layout = layout(window);
            let (cache, position) = fed(&layout, counts);
            let kept = layout.kept(position);
            let in_order = positions(&layout.in_order(&cache.keys, position, kept).unwrap());
            assert_eq!(in_order, (position - kept..position).collect::<Vec<_>>(), "{counts:?} {window:?}");
            assert_eq!(kept, window.map_or(position, |window| position.min(window)));
        }
    }
}

#[test]
fn tokens_see_the_positions_of_their_chunk() {
    for counts in [&[1; 13][..], &[4, 9, 1, 1], &[20, 2, 1, 7], &[5, 5, 1, 4, 1], &[3, 2, 6]] {
        // The second keeps all positions, which are one chunk.
        for (window, chunk) in [(Some(5), 5), (None, 100)] {
            let layout = layout(window);
            let (mut cache, mut position): (Option<LayerCache>, usize) = (None, 0);
            for &count in counts {
                let new = keys(position, count);
                let (filled, visible) =
                    layout.extend(cache.as_ref(), position, &new, Some(&new), F32).unwrap();
                let mut seen = Vec::new();
                for (queries, visible) in visible.in_chunks(position, count, chunk).unwrap() {
                    let mut keys = positions(&visible.keys);
                    keys.sort_unstable();
                    let end = keys.last().unwrap() + 1;
                    // Every query sees those up to its own.
                    seen.extend((end - queries..end).map(|own| (keys[0], own)));
                    assert_eq!(visible.order == Order::All, queries == 1);
                    assert_eq!(keys, (keys[0]..end).collect::<Vec<_>>());
                }
                let wanted = (position..position + count).map(|own| (own - own % chunk, own));
                assert_eq!(seen, wanted.collect::<Vec<_>>(), "{counts:?} {window:?}");
                (cache, position) = (Some(filled), position + count);
            }
        }
    }
}

#[test]
fn latent_caches_have_no_values() {
    let layout = CacheLayout { heads: 1, width: 3, has_values: false, window: None };
    let rows = |first: usize, count: usize| {
        let values: Vec<f32> = (first * 3..(first + count) * 3).map(|value| value as f32).collect();
        Array::from_slice(&values, &[1, 1, count, 3]).unwrap()
    };
    let (cache, _) = layout.extend(None, 0, &rows(0, 4), None, F32).unwrap();
    let (cache, visible) = layout.extend(Some(&cache), 4, &rows(4, 1), None, F32).unwrap();
    assert!(cache.values.is_none() && visible.values.is_none());
    assert_eq!(visible.keys.to_vec::<f32>().unwrap(), rows(0, 5).to_vec::<f32>().unwrap());
    assert!(layout.extend(Some(&cache), 5, &rows(5, 1), Some(&rows(5, 1)), F32).is_err());
}

#[test]
fn caches_are_updated_in_place_unless_shared() {
    for layout in [layout(None), layout(Some(STEP))] {
        let mut cache = fed(&layout, &[STEP - 4]).0;
        eval(cache.arrays()).unwrap();
        let address = cache.keys.address().unwrap();
        let step = |cache: LayerCache, position: usize| {
            let new = keys(position, 1);
            let (filled, visible) = layout.extend(Some(&cache), position, &new, Some(&new), F32).unwrap();
            // As in the engine: no other handle on the earlier arrays exists at evaluation.
            drop(cache);
            eval(filled.arrays().chain([&visible.keys])).unwrap();
            filled
        };
        let last = if layout.window.is_some() { STEP + 3 } else { STEP - 1 };
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
fn cache_lengths_grow_geometrically() {
    let all = layout(None);
    let lengths = [1, 256, 257, 2048, 2049, 5000, 100_000].map(|positions| all.length_for(positions));
    assert_eq!(lengths, [256, 256, 512, 2048, 2304, 5376, 100_352]);
    let rotating = layout(Some(300));
    assert_eq!([1, 257, 300, 5000].map(|positions| rotating.length_for(positions)), [256, 300, 300, 300]);
}
