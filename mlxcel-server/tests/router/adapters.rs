//! Requests that wait for adapters.

use std::fs;
use std::path::Path;
use std::time::Duration;

use mlxcel_server::Server;
use mlxcel_session::{AdapterLimits, AdapterPool, CancelToken, Engine, Model, OpenOptions};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::ask;

/// The width of the bundled model.
const WIDTH: usize = 192;
/// Longer than what does not wait takes.
const LONG: Duration = Duration::from_secs(60);

/// Writes an adapter of rank 1 that changes nothing.
fn write(folder: &Path) {
    let (mut bytes, mut header) = (Vec::new(), Map::new());
    for (matrix, shape) in [("lora_A", [1, WIDTH]), ("lora_B", [WIDTH, 1])] {
        let start = bytes.len();
        bytes.resize(start + 4 * WIDTH, 0_u8);
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()] });
        header.insert(format!("base_model.model.model.layers.0.self_attn.q_proj.{matrix}.weight"), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat();
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"] });
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

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
        write(&folder.path().join(name));
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
