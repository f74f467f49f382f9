//! What a node waits for before it serves: a sentence, for whoever asks meanwhile.

use tokio::sync::watch;

/// The sentence. Clone = another handle; it may be read from any thread.
#[derive(Clone, Debug)]
pub struct Waiting(watch::Sender<String>);

impl Waiting {
    /// A node that has just begun.
    pub fn new() -> Waiting {
        Waiting(watch::Sender::new("it recovers its disk".to_owned()))
    }

    /// From now on it waits for this.
    pub fn set(&self, why: String) {
        self.0.send_if_modified(|known| {
            let is_news = *known != why;
            *known = why;
            is_news
        });
    }

    /// Why it does not serve yet.
    pub fn why(&self) -> String {
        format!("the node does not serve yet: {}", *self.0.borrow())
    }
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting::new()
    }
}
