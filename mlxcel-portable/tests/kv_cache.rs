//! KV caches of other types than the precision's.

use std::path::Path;

use mlxcel_core::{
    Backend, ErrorKind, InferenceSession, LoadOptions, Precision, Row, SequenceId, SessionOptions,
    StepOutput, Want,
};
use mlxcel_portable::{KvCacheType, PortableBackend};

fn session(kv_cache: KvCacheType) -> Box<dyn InferenceSession> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/storyteller-4bit");
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let model = PortableBackend::new().with_kv_cache(kv_cache).load(&folder.into(), &options).unwrap();
    model.open_session(&SessionOptions::default()).unwrap()
}

fn logits(session: &mut dyn InferenceSession, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let mut out = StepOutput::default();
    session.step(&[Row::new(sequence, tokens, Want::logits())], &Default::default(), &mut out).unwrap();
    out.take().remove(0).unwrap().into_logits().unwrap()
}

/// The largest difference over a text, relative to the largest logit.
fn error(kv_cache: KvCacheType) -> f32 {
    let (mut full, mut other) = (session(KvCacheType::Precision), session(kv_cache));
    let (a, b) = (full.open().unwrap(), other.open().unwrap());
    let mut worst = 0f32;
    for start in 0..10 {
        let tokens: Vec<u32> = (0..16).map(|i| (37 * (16 * start + i) + 5 * start) % 700).collect();
        let wanted = logits(&mut *full, a, &tokens);
        let got = logits(&mut *other, b, &tokens);
        let largest = wanted.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        let off = wanted.iter().zip(&got).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
        worst = worst.max(off / largest);
    }
    worst
}

#[test]
fn narrower_caches_change_logits_little() {
    let errors = [KvCacheType::F32, KvCacheType::F16, KvCacheType::Bf16, KvCacheType::Int8].map(error);
    println!("relative errors of f32, f16, bf16, int8: {errors:?}");
    assert_eq!(errors[0].to_bits(), 0);
    assert!(errors[1] < 1e-3 && errors[2] < 1e-2 && errors[3] < 3e-2, "{errors:?}");
    assert!(errors[1..].iter().all(|&error| error > 0.0), "{errors:?}");
}

#[test]
fn int8_caches_are_forked_rewound_and_restored() {
    let mut session = session(KvCacheType::Int8);
    let first = session.open().unwrap();
    logits(&mut *session, first, &[5, 6, 7, 8]);
    let fork = session.fork(first).unwrap();
    let snapshot = session.snapshot(first).unwrap();
    let restored = session.restore(&snapshot).unwrap();
    let wanted = logits(&mut *session, first, &[9, 10]);
    assert_eq!(logits(&mut *session, fork, &[9, 10]), wanted);
    assert_eq!(logits(&mut *session, restored, &[9, 10]), wanted);
    session.rewind(first, 4).unwrap();
    assert_eq!(logits(&mut *session, first, &[9, 10]), wanted);

    let mut other = self::session(KvCacheType::Precision);
    assert_eq!(other.restore(&snapshot).unwrap_err().kind(), ErrorKind::InvalidInput);
}
