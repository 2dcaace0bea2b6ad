//! Stop strings.

use mlxcel_core::{Error, ErrorKind, Result};

/// Ends a text at the first of some strings, however the text is cut into pieces.
///
/// Text that may be the beginning of such a string is held back until it is known not to be one, so no part of a stop string is
/// ever given. Of several strings the one that is complete first ends the text, and the longest where several are complete at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    matched: Option<usize>,
}

impl StopStrings {
    pub(crate) fn new(strings: &[String]) -> Result<Self> {
        if strings.iter().any(String::is_empty) {
            return Err(Error::new(ErrorKind::InvalidInput, "generate", "a stop string must not be empty")
                .with_context("field", "stop_strings"));
        }
        Ok(Self { strings: strings.to_vec(), held: String::new(), matched: None })
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
        if self.strings.is_empty() {
            return piece.to_owned();
        }
        self.held.push_str(piece);
        let found = self.strings.iter().enumerate().filter_map(|(index, string)| {
            let start = self.held.find(string.as_str())?;
            Some((start + string.len(), start, index))
        });
        let keep_from = match found.min() {
            Some((_, start, index)) => {
                self.matched = Some(index);
                start
            }
            None => self.beginning(),
        };
        let rest = self.held.split_off(keep_from);
        let given = std::mem::replace(&mut self.held, rest);
        if self.matched.is_some() {
            self.held.clear();
        }
        given
    }

    /// Ends the text; gives the withheld text.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the longest end of the held text starts that a stop string begins with.
    fn beginning(&self) -> usize {
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        (from..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.strings.iter().any(|string| string.starts_with(&self.held[at..])))
            .unwrap_or(self.held.len())
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
