//! Two stories at once, read by a task without the crate of any executor: `tasks MODEL`.
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use mlxcel_session::{Engine, Model, Options, RequestStream, Result};

async fn read(stories: Vec<RequestStream>) -> Result<()> {
    for story in stories {
        let mut story = story.into_async();
        while let Some(piece) = story.next().await {
            print!("{}", piece?);
        }
        println!(" [{} tokens]", story.tokens().len());
    }
    Ok(())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn main() -> Result<()> {
    let engine = Engine::new(Model::open(std::env::args().nth(1).unwrap_or_default())?)?;
    let begin = |name| engine.generate(&format!("Once there was a fox named {name}."), &Options::new(20));
    let mut task = pin!(read(["Pip", "Mia"].into_iter().map(begin).collect::<Result<_>>()?));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(read) => return read,
            Poll::Pending => std::thread::park(),
        }
    }
}
