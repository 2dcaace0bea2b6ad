//! The routes while the models are loading.

use axum::Router;
use mlxcel_server::{Server, Startup};
use serde_json::Value;

use crate::harness::{answer, ask, begin, engine, requests};

#[tokio::test]
async fn a_server_lives_while_its_models_load_and_is_ready_when_they_are_there() {
    let startup = Startup::new();
    let root = startup.router();
    let mounted = Router::new().nest("/llm", startup.router());
    for (router, prefix) in [(&root, ""), (&mounted, "/llm")] {
        let status = async |path: &str| ask(router, &format!("{prefix}{path}"), None).await.0;
        assert_eq!(status("/health/live").await, 200);
        assert_eq!([status("/health/ready").await, status("/health").await], [503, 503]);
        assert_eq!([status("/v1/models").await, status("/metrics").await], [503, 503]);
        for (path, body) in requests(3) {
            let response = begin(router, &format!("{prefix}{path}"), Some(body)).await;
            assert_eq!(response.status().as_u16(), 503, "{path}");
            assert_eq!(response.headers()["retry-after"], "1", "{path}");
        }
    }
    let (_, text) = ask(&root, "/health/ready", None).await;
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["status"], "loading");

    let running = Server::new("pip", engine()).start().unwrap();
    startup.ready(&running);
    for (router, prefix) in [(&root, ""), (&mounted, "/llm")] {
        for path in ["/health/live", "/health/ready", "/v1/models"] {
            assert_eq!(ask(router, &format!("{prefix}{path}"), None).await.0, 200, "{prefix}{path}");
        }
        let [(path, body), ..] = requests(3);
        answer(router, &format!("{prefix}{path}"), Some(body)).await;
        assert_eq!(ask(router, &format!("{prefix}/nothing"), None).await.0, 404);
    }
    let (_, metrics) = ask(&mounted, "/llm/metrics", None).await;
    assert!(metrics.contains("path=\"/v1/completions\",status=\"200\""), "{metrics}");
    assert!(metrics.contains("mlxcel_kv_cache_usage_ratio{model=\"pip\"} 0\n"), "{metrics}");
}
