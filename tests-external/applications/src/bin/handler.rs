//! Streams answers as server-sent events from a handler of an axum application: `handler MODEL`.
use std::error::Error;
use std::sync::Arc;

use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use axum::{Router, extract::State, http::StatusCode, routing::post};
use futures_util::StreamExt;
use mlxcel_session::{Engine, Model, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn tell(State(engine): State<Arc<Engine>>, prompt: String) -> impl IntoResponse {
    // Encoding takes processor time, which threads of the executor do not have.
    let story = tokio::task::spawn_blocking(move || engine.generate(&prompt, &Options::new(20)));
    match story.await.map_err(|panic| panic.to_string()).and_then(|story| story.map_err(|e| e.to_string())) {
        Ok(story) => {
            Ok(Sse::new(story.into_async().map(|piece| piece.map(|text| Event::default().data(text)))))
        }
        Err(message) => Err((StatusCode::BAD_REQUEST, message)),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Arc::new(Engine::new(Model::open(std::env::args().nth(1).unwrap_or_default())?)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    let application = Router::new().route("/tell", post(tell)).with_state(engine);
    tokio::spawn(async { axum::serve(listener, application).await });
    let request = "POST /tell HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 16\r\n\r\nOnce upon a time";
    client.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    client.read_to_string(&mut response).await?;
    println!("{response}");
    Ok(())
}
