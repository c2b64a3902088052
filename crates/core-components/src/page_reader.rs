//! Pages as models see them: titles, redirects, vanity paths, languages, and the page that contains a resource.

use std::sync::Arc;

use crate::component_context::ComponentContext;
use crate::content_value::{ContentDate, ContentValue};

/// The largest number of redirects that are followed.
const REDIRECT_LIMIT: usize = 64;

/// The final destination of a page's redirects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RedirectDestination {
    /// A page of the site.
    Page(String),
    /// An address that is not a page.
    Address(String),
}

/// Reads the properties of pages.
#[derive(Clone, Copy)]
pub(crate) struct PageReader<'a> {
    context: &'a dyn ComponentContext,
}

impl<'a> PageReader<'a> {
    /// Creates a reader.
    pub(crate) fn new(context: &'a dyn ComponentContext) -> PageReader<'a> {
        PageReader { context }
    }

    /// Returns whether a node is a page.
    pub(crate) fn is_page(self, path: &str) -> bool {
        self.context
            .property(path, "jcr:primaryType")
            .and_then(|value| value.to_text())
            .is_some_and(|name| &*name == "cq:Page")
    }

    /// Returns the nearest page at or above a path.
    pub(crate) fn containing_page(self, path: &str) -> Option<String> {
        let mut path = path;
        while !path.is_empty() {
            if self.is_page(path) {
                return Some(path.to_owned());
            }
            path = parent_path(path);
        }
        None
    }

    /// Returns a property of the content of a page.
    pub(crate) fn value(self, page: &str, name: &str) -> Option<ContentValue> {
        self.context.property(&format!("{page}/jcr:content"), name)
    }

    /// Returns a text of the content of a page that is not empty.
    pub(crate) fn text(self, page: &str, name: &str) -> Option<Arc<str>> {
        self.value(page, name)?.to_text().filter(|text| !text.is_empty())
    }

    /// Returns a date of the content of a page.
    pub(crate) fn date(self, page: &str, name: &str) -> Option<ContentDate> {
        self.value(page, name)?.to_date()
    }

    /// Returns whether a property of the content of a page is true.
    pub(crate) fn is_set(self, page: &str, name: &str) -> bool {
        self.value(page, name).and_then(|value| value.to_boolean()).unwrap_or(false)
    }

    /// Returns the title for menus and lists: navigation title, page title, title, or the name.
    pub(crate) fn list_title(self, page: &str) -> Arc<str> {
        ["navTitle", "pageTitle", "jcr:title"]
            .into_iter()
            .find_map(|name| self.text(page, name))
            .unwrap_or_else(|| node_name(page).into())
    }

    /// Returns the type of the page's content, or its primary type.
    pub(crate) fn content_type(self, page: &str) -> Option<Arc<str>> {
        self.text(page, "sling:resourceType").or_else(|| self.text(page, "jcr:primaryType"))
    }

    /// Returns the pages directly below a page.
    pub(crate) fn child_pages(self, page: &str) -> Vec<String> {
        self.context
            .child_names(page)
            .into_iter()
            .map(|name| format!("{page}/{name}"))
            .filter(|path| self.is_page(path))
            .collect()
    }

    /// Returns the path that the vanity path of a page gives, if links use it.
    pub(crate) fn vanity_path(self, page: &str) -> Option<String> {
        if !self.context.uses_vanity_paths() {
            return None;
        }
        let vanity = self.text(page, "sling:vanityPath")?;
        Some(if vanity.starts_with('/') { vanity.to_string() } else { format!("/{vanity}") })
    }

    /// Returns where a page redirects to.
    pub(crate) fn redirect_target(self, page: &str) -> Option<Arc<str>> {
        self.text(page, "cq:redirectTarget")
    }

    /// Follows the redirects of a page. A circle ends at the first page that occurs again.
    pub(crate) fn redirect_destination(self, page: &str) -> RedirectDestination {
        let mut visited = vec![page.to_owned()];
        let mut current = page.to_owned();
        for _ in 0..REDIRECT_LIMIT {
            let Some(target) = self.redirect_target(&current) else { break };
            let path = page_path_of_link(&target);
            if !self.is_page(path) {
                return RedirectDestination::Address(target.to_string());
            }
            current = path.to_owned();
            if visited.contains(&current) {
                break;
            }
            visited.push(current.clone());
        }
        RedirectDestination::Page(current)
    }

    /// Returns the language of a page (`en-GB`): its own, an inherited one, or that of a folder named for a language.
    pub(crate) fn language(self, page: &str) -> Option<String> {
        let mut path = page;
        while !path.is_empty() {
            if let Some(language) = self.text(path, "jcr:language") {
                return Some(language.replace('_', "-"));
            }
            path = parent_path(path);
        }
        let mut path = page;
        while !path.is_empty() {
            if let Some(language) = language_of_name(node_name(path)) {
                return Some(language);
            }
            path = parent_path(path);
        }
        None
    }
}

/// Returns the path of the page that a link names, without a query, a fragment and the extension `html`.
pub(crate) fn page_path_of_link(link: &str) -> &str {
    let path = link.split(['?', '#']).next().unwrap_or(link);
    path.strip_suffix(".html").unwrap_or(path)
}

/// Returns the parent of a path; of a top-level path, an empty text.
pub(crate) fn parent_path(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Returns the last segment of a path.
pub(crate) fn node_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the part of a path above and at a level, where level 0 is the first segment.
pub(crate) fn path_at_level(path: &str, level: usize) -> Option<&str> {
    let mut end = 0;
    for _ in 0..=level {
        let rest = path.get(end..)?;
        if !rest.starts_with('/') || rest.len() < 2 {
            return None;
        }
        end += rest.get(1..)?.find('/').map_or(rest.len(), |slash| slash + 1);
    }
    path.get(..end)
}

/// Returns the number of segments of a path, minus one.
pub(crate) fn path_level(path: &str) -> usize {
    path.matches('/').count().saturating_sub(1)
}

/// Returns whether a path is another one or below it.
pub(crate) fn is_at_or_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads a folder name as a language: two letters, or two letters, `-` or `_`, and a country.
fn language_of_name(name: &str) -> Option<String> {
    let is_letters = |text: &str| text.chars().all(|letter| letter.is_ascii_alphabetic());
    let (language, country) = match name.split_once(['_', '-']) {
        Some((language, country)) => (language, Some(country)),
        None => (name, None),
    };
    if language.len() != 2
        || !is_letters(language)
        || !KNOWN_LANGUAGES.contains(&&*language.to_ascii_lowercase())
    {
        return None;
    }
    match country {
        None => Some(language.to_ascii_lowercase()),
        Some(country) if country.len() == 2 && is_letters(country) => {
            Some(format!("{}-{}", language.to_ascii_lowercase(), country.to_ascii_uppercase()))
        }
        Some(_) => None,
    }
}

/// Languages that name folders of sites; other names of two letters are countries.
const KNOWN_LANGUAGES: [&str; 44] = [
    "ar", "az", "bg", "bs", "ca", "cs", "da", "de", "el", "en", "es", "et", "eu", "fa", "fi", "fr",
    "ga", "gl", "he", "hi", "hr", "hu", "id", "is", "it", "ja", "ko", "lt", "lv", "mk", "nb", "nl",
    "no", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "th", "tr", "uk", "zh",
];
