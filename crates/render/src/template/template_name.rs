//! Names of templates: the output language that a name tells, and names relative to a template.

/// The output language of a template, derived from its name: `list.json.j2` writes JSON, most write HTML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateLanguage {
    Html,
    Xml,
    Json,
    Script,
    Style,
    /// Text that is never interpreted as markup.
    Text,
}

impl TemplateLanguage {
    /// Parses the name of a template, optionally with its method (`list.json.POST.j2`) or the number of a variant.
    pub(super) fn from_template_name(name: &str) -> Self {
        let name = name.split('#').next().unwrap_or(name);
        let file = name.rsplit('/').next().unwrap_or(name);
        let file = file.strip_suffix(".j2").unwrap_or(file);
        let file = match file.rsplit_once('.') {
            Some((rest, method)) if method.bytes().all(|byte| byte.is_ascii_uppercase()) => rest,
            _ => file,
        };
        // A name without a dot may be the label of a type that renders pages, whatever it is.
        match file.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "xml" | "svg" | "rss" | "atom" => Self::Xml,
            "json" => Self::Json,
            "js" | "mjs" => Self::Script,
            "css" => Self::Style,
            "txt" | "csv" | "ics" => Self::Text,
            _ => Self::Html,
        }
    }

    /// Returns true if templates of the two languages cannot include each other.
    pub(super) fn is_incompatible(self, other: Self) -> bool {
        let is_markup = |language| matches!(language, Self::Html | Self::Xml);
        self != other && !(is_markup(self) && is_markup(other))
    }
}

/// Resolves the name in `{% include %}` and `{% import %}` relative to the folder of the including script.
pub(super) fn resolve_template_name(name: &str, parent: &str) -> String {
    if name.starts_with('/') {
        return name.to_owned();
    }
    let folder = parent.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut segments: Vec<&str> = folder.split('/').collect();
    for segment in name.split('/') {
        match segment {
            "." => {}
            ".." => segments.truncate(segments.len().saturating_sub(1).max(1)),
            segment => segments.push(segment),
        }
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_languages() {
        for (name, expected) in [
            ("/apps/a/a.j2", TemplateLanguage::Html),
            ("/apps/a/a.html.j2", TemplateLanguage::Html),
            ("/apps/a/html.j2", TemplateLanguage::Html),
            ("/apps/a/json.j2", TemplateLanguage::Html),
            ("/apps/a/txt/txt.j2", TemplateLanguage::Html),
            ("/apps/a/a.json.POST.j2", TemplateLanguage::Json),
            ("/apps/a/print.js.j2", TemplateLanguage::Script),
            ("/apps/a/a.css.j2#3", TemplateLanguage::Style),
            ("/apps/a/feed.rss.j2", TemplateLanguage::Xml),
            ("/apps/a/a.txt.j2", TemplateLanguage::Text),
            ("/apps/a.js/a.pdf.j2", TemplateLanguage::Html),
        ] {
            assert_eq!(TemplateLanguage::from_template_name(name), expected, "{name}");
        }
    }

    #[test]
    fn joins_names_of_templates() {
        let parent = "/apps/site/page/page.html.j2";
        assert_eq!(resolve_template_name("head.j2", parent), "/apps/site/page/head.j2");
        assert_eq!(resolve_template_name("../macros.j2", parent), "/apps/site/macros.j2");
        assert_eq!(resolve_template_name("./a/b.j2", parent), "/apps/site/page/a/b.j2");
        assert_eq!(resolve_template_name("/apps/x.j2", parent), "/apps/x.j2");
        assert_eq!(resolve_template_name("../../../../../x.j2", parent), "/x.j2");
    }
}
