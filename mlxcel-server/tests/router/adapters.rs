//! Requests that wait for adapters.

use std::time::Duration;

use mlxcel_server::Server;
use mlxcel_session::{AdapterLimits, AdapterPool, CancelToken, Engine, Model, OpenOptions};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::adapter::write_adapter;
use crate::harness::ask;

/// Longer than what does not wait takes.
const LONG: Duration = Duration::from_secs(60);

/// A request of a megabyte.
fn body(model: &str) -> Value {
    json!({ "model": model, "prompt": "Once", "max_tokens": 2, "user": "x".repeat(1_000_000) })
}

#[tokio::test]
async fn requests_that_wait_for_adapters_leave_room_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let storyteller = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
    let options = OpenOptions::default().with_adapters(AdapterLimits::new(1, 1));
    let model = Model::open_with(storyteller, &options).unwrap();
    let pool = AdapterPool::new(&model).unwrap();
    for name in ["a", "b"] {
        let queries = [("model.layers.0.self_attn.q_proj", 192, 192)];
        write_adapter(&folder.path().join(name), &queries, 1, 1.0, 1);
        pool.add(name, folder.path().join(name)).unwrap();
    }
    let held = pool.acquire("a", Duration::ZERO, &CancelToken::new()).unwrap();
    let engine = Engine::new(model).unwrap();
    let router = Server::new("pip", engine).with_adapters("pip", pool).router().unwrap();

    let mut waiting = JoinSet::new();
    for _ in 0..9 {
        let router = router.clone();
        waiting.spawn(async move { ask(&router, "/v1/completions", Some(body("pip:b"))).await.0 });
    }
    // Their memory is bounded: there is room for eight.
    let refused = timeout(LONG, waiting.join_next()).await.unwrap();
    assert_eq!(refused.unwrap().unwrap(), 429);
    let other = ask(&router, "/v1/completions", Some(body("pip")));
    assert_eq!(timeout(LONG, other).await.unwrap().0, 200);
    drop(held);
    assert_eq!(waiting.join_all().await, [200; 8]);
}
