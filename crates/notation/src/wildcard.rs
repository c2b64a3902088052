//! Matching of texts against patterns with wildcards. Each dialect translates its pattern to tokens.

/// A part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WildcardToken {
    /// This character.
    Literal(char),
    /// Any one character.
    AnyCharacter,
    /// Any number of characters, also none.
    AnyText,
}

/// Returns the tokens of a pattern with `*` for any text and `?` for any one character; there is no escape.
pub fn wildcard_tokens(pattern: &str) -> impl Iterator<Item = WildcardToken> + Clone {
    pattern.chars().map(|character| match character {
        '*' => WildcardToken::AnyText,
        '?' => WildcardToken::AnyCharacter,
        literal => WildcardToken::Literal(literal),
    })
}

/// Returns true if a pattern matches the whole of a text. Only the last gap is tried again, so the time is at most
/// proportional to the product of the lengths.
pub fn matches_wildcards(
    mut pattern: impl Iterator<Item = WildcardToken> + Clone,
    text: &str,
) -> bool {
    let mut text = text.chars();
    let mut retry = None;
    loop {
        let mut pattern_rest = pattern.clone();
        let mut text_rest = text.clone();
        let is_matched = match pattern_rest.next() {
            None if text.as_str().is_empty() => return true,
            Some(WildcardToken::AnyText) => {
                if pattern_rest.clone().next().is_none() {
                    return true;
                }
                retry = Some((pattern_rest.clone(), text.clone()));
                pattern = pattern_rest;
                continue;
            }
            Some(WildcardToken::AnyCharacter) => text_rest.next().is_some(),
            Some(WildcardToken::Literal(literal)) => text_rest.next() == Some(literal),
            None => false,
        };
        if is_matched {
            (pattern, text) = (pattern_rest, text_rest);
            continue;
        }
        // The last gap takes one more character, or all up to the character that must follow it.
        let Some((after_gap, gap_end)) = &mut retry else { return false };
        if gap_end.next().is_none() {
            return false;
        }
        if let Some(WildcardToken::Literal(literal)) = after_gap.clone().next() {
            let Some(offset) = gap_end.as_str().find(literal) else { return false };
            *gap_end = gap_end.as_str().get(offset..).unwrap_or_default().chars();
        }
        (pattern, text) = (after_gap.clone(), gap_end.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("h*o", "hello", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*ll*", "hello", true),
            ("*lo*l", "hello", false),
            ("a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("*?", "", false),
            ("?", "é", true),
            ("*é?", "aéé€", true),
            ("hell", "hello", false),
        ] {
            assert_eq!(
                matches_wildcards(wildcard_tokens(pattern), text),
                expected,
                "{pattern} {text}"
            );
        }
    }

    /// Tries all lengths of each gap.
    fn matches_by_trial(pattern: &[char], text: &[char]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            (['*', rest @ ..], _) => {
                (0..=text.len()).any(|length| matches_by_trial(rest, &text[length..]))
            }
            (['?', rest @ ..], [_, text @ ..]) => matches_by_trial(rest, text),
            ([literal, rest @ ..], [first, text @ ..]) => {
                literal == first && matches_by_trial(rest, text)
            }
            _ => false,
        }
    }

    proptest::proptest! {
        #[test]
        fn matches_agree_with_trials(pattern in "[abé*?]{0,8}", text in "[abé]{0,8}") {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            proptest::prop_assert_eq!(
                matches_wildcards(wildcard_tokens(&pattern), &text),
                matches_by_trial(&characters(&pattern), &characters(&text))
            );
        }
    }
}
