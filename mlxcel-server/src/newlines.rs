//! The newlines between the parts of an answer, which belong to the model's format.

/// Leaves out the newlines around reasoning, and the white space before calls.
#[derive(Default)]
pub(crate) struct Newlines {
    /// Whether calls may follow text.
    has_tools: bool,
    has_begun: bool,
    /// The newlines that may be the last ones of the reasoning.
    held: String,
    /// Whether only reasoning and newlines came.
    is_before_answer: bool,
    /// The white space that a call may follow.
    spaces: String,
}

impl Newlines {
    /// Of an answer that may have calls if it `has_tools`.
    pub(crate) fn new(has_tools: bool) -> Self {
        Self { has_tools, ..Self::default() }
    }

    /// A part of the reasoning as clients get it; `None` if nothing remains.
    pub(crate) fn reasoning(&mut self, text: &str) -> Option<String> {
        self.is_before_answer = true;
        let text = if self.has_begun { text } else { text.trim_start_matches('\n') };
        let kept = text.trim_end_matches('\n');
        if kept.is_empty() {
            self.held.push_str(text);
            return None;
        }
        self.has_begun = true;
        let given = format!("{}{kept}", self.held);
        self.held.clear();
        self.held.push_str(&text[kept.len()..]);
        Some(given)
    }

    /// The same for a part of the text.
    pub(crate) fn answer(&mut self, text: &str) -> Option<String> {
        let text = if self.is_before_answer { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return None;
        }
        self.is_before_answer = false;
        let kept = if self.has_tools { text.trim_end() } else { text };
        if kept.is_empty() {
            self.spaces.push_str(text);
            return None;
        }
        let given = format!("{}{kept}", self.spaces);
        self.spaces.clear();
        self.spaces.push_str(&text[kept.len()..]);
        Some(given)
    }

    /// A call follows.
    pub(crate) fn call(&mut self) {
        self.spaces.clear();
    }

    /// The white space that no call followed.
    pub(crate) fn end(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.spaces)).filter(|spaces| !spaces.is_empty())
    }
}
