//! An error with its causes as text.

/// Returns an error's message joined with those of its causes; a cause whose text ends the message already is left out.
#[must_use]
pub fn error_chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        // Transparent errors repeat the message of their cause.
        if !text.ends_with(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct LayeredError(&'static str, Option<Box<LayeredError>>);

    impl fmt::Display for LayeredError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for LayeredError {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn causes_follow_and_none_is_repeated() {
        let root = || Some(Box::new(LayeredError("disk is full", None)));
        for (message, expected) in [
            ("cannot save", "cannot save: disk is full"),
            ("disk is full", "disk is full"),
            ("cannot save: disk is full", "cannot save: disk is full"),
        ] {
            assert_eq!(error_chain_text(&LayeredError(message, root())), expected);
        }
        assert_eq!(error_chain_text(&LayeredError("alone", None)), "alone");
    }
}
