//! Parsing of TOML: errors with their position and the nearest known key.

/// Parses TOML; an error has the form `file:line:column: message`, with the nearest key for an unknown one.
pub fn parse_toml<T: serde::de::DeserializeOwned>(file: &str, text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let message = error.message();
        let hint =
            nearest_key(message).map(|key| format!("; did you mean `{key}`?")).unwrap_or_default();
        format!("{file}:{line}:{column}: {message}{hint}")
    })
}

/// Finds the expected key that is nearest to the unknown one in serde's message.
fn nearest_key(message: &str) -> Option<&str> {
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next().filter(|_| message.starts_with("unknown field"))?;
    names.min_by_key(|candidate| strsim::levenshtein(unknown, candidate))
}
