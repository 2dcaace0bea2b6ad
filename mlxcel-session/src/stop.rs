//! Stop strings.

use std::collections::HashMap;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use mlxcel_core::{Error, ErrorKind, Result};

/// The most bytes of all stop strings of a text.
const MOST_BYTES: usize = 64 << 10;

/// Ends a text at the first of some strings, however the text is cut into pieces.
///
/// Text that may be the beginning of such a string is held back until it is known not to be one, so no part
/// of a stop string is ever given. Of several strings the one that is complete first ends the text, and the
/// longest where several are complete at once. Each byte of the text is looked at once, however many strings
/// there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    /// None without strings.
    search: Option<Search>,
    /// Text that may be the beginning of a stop string.
    held: String,
    matched: Option<usize>,
}

/// The automaton of the strings, and where in it the text is.
#[derive(Clone, Debug)]
struct Search {
    automaton: NFA,
    state: StateID,
    /// How many bytes of a string have been read in each state: so many at the end of the text may be its
    /// beginning.
    lengths: HashMap<StateID, usize>,
}

impl Search {
    fn new(strings: &[String]) -> Result<Self> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            Error::new(ErrorKind::Internal, "generate", "the stop strings cannot be searched for")
                .with_source(error)
        };
        let automaton = NFA::new(strings).map_err(|error| failed(error.into()))?;
        let start = automaton.start_state(Anchored::No).map_err(|error| failed(error.into()))?;
        let mut lengths = HashMap::new();
        for string in strings {
            let mut state = start;
            for (index, byte) in string.bytes().enumerate() {
                state = automaton.next_state(Anchored::No, state, byte);
                lengths.insert(state, index + 1);
            }
        }
        Ok(Self { automaton, state: start, lengths })
    }

    /// Reads `piece`; gives a string that it completes, the longest of several, and how many bytes of `piece`
    /// end with it.
    fn read(&mut self, piece: &str, strings: &[String]) -> Option<(usize, usize)> {
        for (index, byte) in piece.bytes().enumerate() {
            self.state = self.automaton.next_state(Anchored::No, self.state, byte);
            if self.automaton.is_match(self.state) {
                let found = (0..self.automaton.match_len(self.state))
                    .map(|nth| self.automaton.match_pattern(self.state, nth).as_usize());
                let longest = found.max_by_key(|&string| (strings[string].len(), std::cmp::Reverse(string)));
                return longest.map(|string| (string, index + 1));
            }
        }
        None
    }

    /// How many bytes at the end of the text may be the beginning of a string.
    fn pending(&self) -> usize {
        self.lengths.get(&self.state).copied().unwrap_or(0)
    }
}

impl StopStrings {
    pub(crate) fn new(strings: &[String]) -> Result<Self> {
        let invalid = |message| {
            Error::new(ErrorKind::InvalidInput, "generate", message).with_context("field", "stop_strings")
        };
        if strings.iter().any(String::is_empty) {
            return Err(invalid("a stop string must not be empty"));
        }
        if strings.iter().map(String::len).sum::<usize>() > MOST_BYTES {
            return Err(invalid("the stop strings are too long").with_context("most_bytes", MOST_BYTES));
        }
        let search = if strings.is_empty() { None } else { Some(Search::new(strings)?) };
        Ok(Self { strings: strings.to_vec(), search, held: String::new(), matched: None })
    }

    /// The stop string that ended the text.
    pub(crate) fn matched(&self) -> Option<&str> {
        self.matched.map(|index| self.strings[index].as_str())
    }

    /// Adds `piece` to the text; gives what is certain not to belong to a stop string.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        let Some(search) = &mut self.search else { return piece.to_owned() };
        let found = search.read(piece, &self.strings);
        if let Some((string, end)) = found {
            self.matched = Some(string);
            let mut given = std::mem::take(&mut self.held);
            given.push_str(&piece[..end]);
            given.truncate(given.len() - self.strings[string].len());
            return given;
        }
        self.held.push_str(piece);
        let rest = self.held.split_off(self.held.len() - search.pending());
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text; gives the withheld text.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `stops` leave of a text that comes in `pieces`, and which of them ended it.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut strings = StopStrings::new(&stops).unwrap();
        let mut text: String = pieces.iter().map(|piece| strings.push(piece)).collect();
        text.push_str(&strings.finish());
        (text, strings.matched().map(str::to_owned))
    }

    #[test]
    fn the_first_complete_stop_string_ends_the_text() {
        assert_eq!(run(&["END"], &["on", "e E", "N", "Dless"]), ("one ".into(), Some("END".into())));
        assert_eq!(run(&["END"], &["one E", "NE", "N"]), ("one ENEN".into(), None));
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".into(), Some("bc".into())));
        assert_eq!(run(&["cd", "abcd"], &["xabcd"]), ("x".into(), Some("abcd".into())));
        assert_eq!(run(&["é"], &["caf", "é!"]), ("caf".into(), Some("é".into())));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
        assert_eq!(StopStrings::new(&[String::new()]).unwrap_err().context("field"), Some("stop_strings"));
    }

    #[test]
    fn stop_strings_have_a_limit_together() {
        let stops = |bytes: usize| StopStrings::new(&["a".repeat(bytes), "b".repeat(100)]);
        assert_eq!(stops(MOST_BYTES).unwrap_err().context("field"), Some("stop_strings"));
        let mut long = stops(MOST_BYTES - 100).unwrap();
        let given: usize = (0..20_000).map(|_| long.push("aaa").len()).sum();
        assert_eq!((given, long.matched()), (0, None));
        assert_eq!(long.push("x").len(), 60_001);
    }

    proptest! {
        #[test]
        fn streaming_never_leaks_part_of_a_stop_string(
            text in "[abé]{0,24}",
            stops in proptest::collection::vec("[abé]{1,4}", 1..4),
            cuts in proptest::collection::vec(0usize..25, 0..8),
        ) {
            let mut strings = StopStrings::new(&stops).unwrap();
            let chars: Vec<char> = text.chars().collect();
            let mut given = String::new();
            let mut borders: Vec<usize> = cuts.into_iter().map(|cut| cut.min(chars.len())).collect();
            borders.extend([0, chars.len()]);
            borders.sort_unstable();
            // The returned text never exceeds that of a text that ends there.
            let first_end = (0..=text.len())
                .filter(|&end| text.is_char_boundary(end))
                .find(|&end| stops.iter().any(|stop| text[..end].ends_with(stop.as_str())));
            let start = first_end.map(|end| {
                let longest = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(String::len).max();
                end - longest.unwrap()
            });
            for pair in borders.windows(2) {
                given.push_str(&strings.push(&chars[pair[0]..pair[1]].iter().collect::<String>()));
                prop_assert!(start.is_none_or(|start| given.len() <= start), "{given:?} of {text:?}");
            }
            given.push_str(&strings.finish());
            prop_assert_eq!(&given, &text[..start.unwrap_or(text.len())]);
            prop_assert_eq!(strings.matched().is_some(), start.is_some());
        }
    }
}
