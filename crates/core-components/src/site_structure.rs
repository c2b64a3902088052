//! The structure of a site in languages and live copies: which page stands for another one near the current page.

use crate::component_context::ComponentContext;
use crate::page_reader::{PageReader, is_at_or_below, node_name, parent_path, path_level};

/// Names of folders for languages: two letters, or two letters and a country.
pub(crate) fn is_language_name(name: &str) -> bool {
    let is_code = |text: &str| text.len() == 2 && text.chars().all(|c| c.is_ascii_alphabetic());
    match name.split_once(['_', '-']) {
        Some((language, country)) => is_code(language) && is_code(country),
        None => is_code(name),
    }
}

/// Returns the root of the language that a page is in: the nearest page at or above it with the mark of a language root,
/// or with the name of a language.
pub(crate) fn language_root(context: &dyn ComponentContext, page: &str) -> Option<String> {
    let pages = PageReader::new(context);
    let mut path = page;
    while path_level(path) >= 1 {
        if pages.is_page(path)
            && (pages.is_set(path, "cq:isLanguageRoot") || is_language_name(node_name(path)))
        {
            return Some(path.to_owned());
        }
        path = parent_path(path);
    }
    None
}

/// Returns the page that stands for `root` in the language, or the live copy, that the current page is in; `root` itself
/// if there is none.
pub(crate) fn local_root(context: &dyn ComponentContext, root: &str, current_page: &str) -> String {
    let pages = PageReader::new(context);
    if let (Some(from), Some(to)) =
        (language_root(context, root), language_root(context, current_page))
        && from != to
        && let Some(rest) = root.strip_prefix(from.as_str())
    {
        let local = format!("{to}{rest}");
        if pages.is_page(&local) {
            return local;
        }
    }
    context
        .live_copies(root)
        .into_iter()
        .find(|copy| is_at_or_below(current_page, copy) && pages.is_page(copy))
        .unwrap_or_else(|| root.to_owned())
}
