//! How a family writes tool calls.

/// How a family writes calls: `open`, the calls with `separator` between them, `close`.
#[derive(Debug)]
pub(crate) struct Style {
    pub(crate) name: &'static str,
    /// What its chat templates spell out, all of it.
    pub(crate) spelled: &'static [&'static str],
    /// Whether a template of this style shows the tools to the model by itself.
    pub(crate) shows_tools: bool,
    /// What is written as a token of its own, where the vocabulary has that.
    pub(crate) marks: &'static [&'static str],
    pub(crate) open: &'static str,
    pub(crate) call: Call,
    /// The last part of what a call between tags begins with, if models leave out now and then what stands
    /// before it; else empty.
    pub(crate) short: &'static str,
    pub(crate) separator: &'static str,
    pub(crate) close: &'static str,
    /// Whether one answer has several calls.
    #[cfg_attr(not(feature = "structured"), allow(dead_code, reason = "grammars alone need it"))]
    pub(crate) parallel: bool,
    /// What the prompt has written of the first call.
    #[cfg_attr(not(feature = "structured"), allow(dead_code, reason = "grammars alone need it"))]
    pub(crate) prompted: &'static str,
    /// Whether its templates print arguments that are text already.
    pub(crate) text_arguments: bool,
}

impl Style {
    /// Calls behind one another, of a family whose templates show the tools.
    pub(crate) const fn new(name: &'static str, spelled: &'static [&'static str], call: Call) -> Self {
        Self {
            name,
            spelled,
            shows_tools: true,
            marks: &[],
            open: "",
            call,
            short: "",
            separator: "",
            close: "",
            parallel: true,
            prompted: "",
            text_arguments: false,
        }
    }

    /// As [`new`](Self::new), with commas between the calls.
    pub(crate) const fn list(
        name: &'static str,
        spelled: &'static [&'static str],
        open: &'static str,
        call: Call,
        close: &'static str,
    ) -> Self {
        Self { open, separator: ", ", close, ..Self::new(name, spelled, call) }
    }
}

/// How one call is written. Space around the texts is written as it stands, and read in any amount.
#[derive(Debug)]
pub(crate) enum Call {
    /// `before`, a JSON object with the name and the arguments in fields, `after`.
    Object { before: &'static str, name: &'static str, arguments: &'static str, after: &'static str },
    /// `before`, the bare name, its id, `between`, the arguments as a JSON object, `after`.
    Named { before: &'static str, id: Id, between: &'static str, after: &'static str },
    /// As `Named`, in the channels of gpt-oss, which are read with the reasoning.
    Channel { before: &'static str, between: &'static str },
    /// `before`, the bare name, `between`, the arguments, each between tags, `after`.
    Tagged { before: &'static str, between: &'static str, argument: Argument, after: &'static str },
    /// `before`, the bare name, `between`, the arguments as elements, `after`. An element is its value between
    /// `<NAME>` and `</NAME>`, each behind `mark`. Values nest: an object has an element for each field, and a
    /// list one of the name [`ITEM`] for each item.
    Elements { before: &'static str, between: &'static str, mark: &'static str, after: &'static str },
    /// `before`, the bare name, `open`, the arguments, each a name, `assign` and a literal, with commas between
    /// them, `after`.
    Keywords {
        before: &'static str,
        open: &'static str,
        assign: &'static str,
        literals: Literals,
        after: &'static str,
    },
}

/// The name of the elements of a list.
pub(crate) const ITEM: &str = "item";

/// How values are written that are neither plain text nor JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Literals {
    /// As in Python; JSON's `true`, `false` and `null` are read, too.
    Python,
    /// As JSON without spaces, but for strings, which are written as they are between two of this mark, and for
    /// names of fields, which are bare and sorted.
    Marked(&'static str),
}

/// The id that a family writes behind the name of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    None,
    /// Letters and digits behind this text, or nothing.
    May(&'static str),
    /// The number of the call in the conversation, behind `:`; with the name and `functions.` it is the id that
    /// templates render.
    Number,
}

/// How an argument is written between tags: `open`, its name, `named`, `middle`, its value, `close`. A string
/// is written as it is, any other value as JSON. Line feeds around the value that `middle` and `close` have
/// are not part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument {
    pub(crate) open: &'static str,
    pub(crate) named: &'static str,
    pub(crate) middle: &'static str,
    pub(crate) close: &'static str,
    /// What else ends a value, for models that leave `close` out.
    pub(crate) ends: &'static [&'static str],
    /// What follows the name of a string and of any other value, where a family says which it is.
    pub(crate) kinds: Option<[&'static str; 2]>,
}

impl Argument {
    /// A value directly between the tags.
    pub(crate) const fn new(open: &'static str, named: &'static str, close: &'static str) -> Self {
        Self { open, named, middle: "", close, ends: &[], kinds: None }
    }
}

impl Call {
    /// What a call begins with.
    pub(crate) fn before(&self) -> &'static str {
        match self {
            Self::Object { before, .. }
            | Self::Named { before, .. }
            | Self::Channel { before, .. }
            | Self::Tagged { before, .. }
            | Self::Elements { before, .. }
            | Self::Keywords { before, .. } => before,
        }
    }
}

impl Style {
    /// What a text begins to be a call with; nothing where the call is the whole answer, as where it is only a
    /// list.
    pub(crate) fn trigger(&self) -> &'static str {
        let begin = if self.open.is_empty() { self.call.before() } else { self.open }.trim();
        let mark = self.marks.iter().find(|mark| begin.starts_with(**mark));
        mark.copied().unwrap_or(if begin == "[" { "" } else { begin })
    }

    /// All that a text begins to be a call with: [`trigger`](Self::trigger), and what is left of it by models
    /// that leave out a part.
    pub(crate) fn triggers(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        [self.trigger(), self.short].into_iter().filter(|trigger| !trigger.is_empty())
    }
}
