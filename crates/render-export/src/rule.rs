//! Rules that assign parts of a site their own folder and prefix, as the `rfs-rules` of OpenCms do: several sites in
//! one export, each served from its own folder.
//!
//! Input: the path of a resource in content. Output: the first rule whose pattern matches the whole path.

use regex::Regex;

/// A rule for the resources whose paths match a pattern.
#[derive(Debug, Clone)]
pub struct ExportRule {
    source_pattern: Regex,
    /// URL prefix of its files: a path such as `/export`, or a server such as `http://www.example.org`.
    pub prefix: String,
    /// The folder of its files in the tree, without leading or trailing slashes; empty for the root.
    pub folder: String,
    /// Whether links between its pages are relative; `None` for the global setting.
    pub has_relative_links: Option<bool>,
}

impl PartialEq for ExportRule {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint_parts() == other.fingerprint_parts()
    }
}

impl Eq for ExportRule {}

impl ExportRule {
    /// Creates a rule from a regular expression that has to match a whole path.
    ///
    /// # Errors
    /// A message, if the expression or the folder is invalid.
    pub fn new(source: &str, prefix: &str, folder: &str) -> Result<Self, String> {
        let pattern = format!("^(?:{source})$");
        let source = Regex::new(&pattern)
            .map_err(|error| format!("`{source}` is not a valid regular expression: {error}"))?;
        let folder = folder.trim_matches('/').to_owned();
        if !folder.is_empty() {
            crate::address_resolver::validate_file_name(folder.clone())
                .map_err(|reason| reason.to_string())?;
        }
        let prefix = prefix.trim_end_matches('/').to_owned();
        Ok(Self { source_pattern: source, prefix, folder, has_relative_links: None })
    }

    /// Returns true if the rule applies to a resource.
    pub(crate) fn matches(&self, path: &str) -> bool {
        self.source_pattern.is_match(path)
    }

    /// Returns the name in the tree of a file with this name in the rule's folder.
    pub(crate) fn file_in_folder(&self, name: &str) -> String {
        let name = name.trim_start_matches('/');
        if self.folder.is_empty() { name.to_owned() } else { format!("{}/{name}", self.folder) }
    }

    /// Returns the name of a file of the tree relative to the rule's folder.
    pub(crate) fn name_in_folder<'a>(&self, file: &'a str) -> &'a str {
        let inner = file.strip_prefix(&*self.folder).and_then(|rest| rest.strip_prefix('/'));
        inner.filter(|_| !self.folder.is_empty()).unwrap_or(file)
    }

    /// Returns the part of a URL after the prefix: the whole prefix, or its path if the URL has no server.
    pub(crate) fn strip_url_prefix<'a>(&self, url: &'a str) -> Option<&'a str> {
        let rest = |prefix: &str| url.strip_prefix(prefix).filter(|rest| rest.starts_with('/'));
        let path = match self.prefix.split_once("://") {
            Some((_, rest)) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default(),
            None => &self.prefix,
        };
        rest(&self.prefix).or_else(|| rest(path))
    }

    /// Returns everything that affects file contents and names.
    pub(crate) fn fingerprint_parts(&self) -> (&str, &str, &str, Option<bool>) {
        (self.source_pattern.as_str(), &self.prefix, &self.folder, self.has_relative_links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_for_whole_paths_and_knows_its_files() {
        let rule = ExportRule::new("/content/a(/.*)?", "http://a.example/x/", "/sites/a/").unwrap();
        assert!(rule.matches("/content/a") && rule.matches("/content/a/b"));
        assert!(!rule.matches("/content/ab") && !rule.matches("/x/content/a"));
        assert_eq!(rule.file_in_folder("/b.html"), "sites/a/b.html");
        assert_eq!(rule.name_in_folder("sites/a/b.html"), "b.html");
        assert_eq!(rule.name_in_folder("sites/ab.html"), "sites/ab.html");
        for (url, expected) in [
            ("http://a.example/x/b.html", Some("/b.html")),
            ("/x/b.html", Some("/b.html")),
            ("/b.html", None),
            ("/xb.html", None),
            ("http://a.example.evil/x/b.html", None),
        ] {
            assert_eq!(rule.strip_url_prefix(url), expected, "{url}");
        }
        let server = ExportRule::new(".*", "http://a.example", "").unwrap();
        assert_eq!(server.strip_url_prefix("/b.html"), Some("/b.html"));
        assert_eq!(
            (server.file_in_folder("/b.html").as_str(), server.name_in_folder("b.html")),
            ("b.html", "b.html")
        );
        for (source, folder) in [("(", ""), ("a", "a/../b"), ("a", "a//b"), ("a", ".htaccess")] {
            assert!(ExportRule::new(source, "", folder).is_err(), "{source} {folder}");
        }
    }
}
