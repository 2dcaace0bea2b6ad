//! Offline work: many requests, a bounded number of them at a time, with results in order.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use mlxcel_core::Result;

use super::{Engine, Request, RequestStream};
use crate::options::Options;
use crate::prompt::AsPrompt;
use crate::stream::Completion;

/// How long a request waits for room that requests of others take.
const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

impl Engine {
    /// Completes the prompt of each of `items`, which may be any number, with the options that `options`
    /// returns for it: an iterator over each item with its completion, in order. It holds as many
    /// requests in flight as keep all sequences busy, and takes the next item when a result is taken.
    ///
    /// An item whose request fails is yielded with the error, and the others go on. To resume interrupted
    /// work, skip as many items as have results. Dropping the iterator cancels what is in flight.
    ///
    /// ```no_run
    /// use mlxcel_session::{Engine, Model, Options};
    ///
    /// let engine = Engine::new(Model::open("models/storyteller")?)?;
    /// let done = 0;
    /// let beginnings = ["Pip", "Mia", "Ivy", "Otto"].map(|name| format!("Once there was a fox named {name}."));
    /// for (beginning, story) in engine.map(beginnings.iter().skip(done), |_| Options::new(60)) {
    ///     println!("{beginning}{}", story?.text);
    /// }
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    pub fn map<I, F>(&self, items: I, options: F) -> EngineMap<I::IntoIter, F>
    where
        I: IntoIterator<Item: AsPrompt>,
        F: FnMut(&I::Item) -> Options,
    {
        let limits = self.life.queue.limits;
        let most = limits.sequences.saturating_add(limits.sequences.min(limits.queue));
        EngineMap { engine: self.clone(), items: items.into_iter(), options, most, begun: VecDeque::new() }
    }
}

/// Completions of many items, in order; created by [`Engine::map`].
pub struct EngineMap<I: Iterator, F> {
    engine: Engine,
    items: I,
    options: F,
    /// The most requests in flight.
    most: usize,
    /// Items whose requests are in flight, in order.
    begun: VecDeque<(I::Item, Result<RequestStream>)>,
}

impl<I, F> Iterator for EngineMap<I, F>
where
    I: Iterator<Item: AsPrompt>,
    F: FnMut(&I::Item) -> Options,
{
    type Item = (I::Item, Result<Completion>);

    fn next(&mut self) -> Option<Self::Item> {
        while self.begun.len() < self.most
            && let Some(item) = self.items.next()
        {
            // Results are read one after another, and none of the others waits for that.
            let request = Request::new(item.as_prompt()).with_options((self.options)(&item));
            let stream = self.engine.submit_paced(request, PATIENCE, usize::MAX);
            self.begun.push_back((item, stream));
        }
        let (item, stream) = self.begun.pop_front()?;
        Some((item, stream.and_then(RequestStream::complete)))
    }
}

impl<I: Iterator, F> fmt::Debug for EngineMap<I, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineMap")
            .field("in_flight", &self.begun.len())
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}
