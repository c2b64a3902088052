//! The languages of scripts, by the suffix of their file names.

/// A language in which scripts are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ScriptLanguage {
    /// MiniJinja templates: `title.html.j2`.
    MiniJinja,
    /// HTL, the language of AEM's components: `title.html`.
    Htl,
}

impl ScriptLanguage {
    /// Returns the language of a file name or path; `None` if it is not a script.
    pub(crate) fn from_file_name(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1 {
            "j2" => Some(Self::MiniJinja),
            "html" => Some(Self::Htl),
            _ => None,
        }
    }
}

/// Returns true if a file is a JavaScript, which draws nothing itself: HTL scripts use it.
pub(crate) fn is_javascript_name(name: &str) -> bool {
    name.ends_with(".js")
}
