//! The languages of scripts.

/// The differences between languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptDialect {
    /// BeanShell and Java: division of integers gives an integer.
    Java,
    /// Groovy: line breaks end statements, `==` compares strings by value, `"$x"` interpolates.
    Groovy,
}

impl ScriptDialect {
    /// Parses the language name of a JSR223 element.
    pub(crate) fn find(language: &str) -> Option<Self> {
        match language.trim().to_ascii_lowercase().as_str() {
            "" | "groovy" => Some(Self::Groovy),
            "beanshell" | "bsh" | "java" => Some(Self::Java),
            _ => None,
        }
    }
}
