//! Text of foreign origin in messages: short, and without control characters.

/// How many characters of a foreign text a message quotes.
const MOST: usize = 600;

/// `text` for a message: control characters are escaped, so that they cannot steer a terminal or forge a line of a log, and what
/// is beyond some hundred characters is left out.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == MOST {
            plain.push('…');
            break;
        }
        if is_plain(character) {
            plain.push(character);
        } else {
            plain.extend(character.escape_default());
        }
    }
    plain
}

/// Whether a character does nothing but show: no control character, and none that turns the direction of writing.
fn is_plain(character: char) -> bool {
    let steers =
        matches!(character, '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    !character.is_control() && !steers
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_quoted_text_is_short_and_steers_nothing() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{202e}é"), "a\\u{1b}[2Jb\\nc\\u{202e}é");
        assert!(plain(&"\u{7}".repeat(1 << 20)).len() < 4000);
    }
}
