//! The resources that components of AEM expect below `/libs`, written for this program: the page properties of the
//! foundation's page, which dialogs of other pages include, and the super types of components.
//!
//! They apply where the repository has none at their path.

use std::sync::LazyLock;

use tympan_content::Subtree;
use tympan_content_package::PackageLimits;
use tympan_content_package::docview::read_docview;

/// The super types of types without scripts of their own.
///
/// Components of the AMP extension without AMP are those that they extend.
pub(crate) const PLATFORM_SUPER_TYPES: [(&str, &str); 13] = [
    ("/libs/core/wcm/extensions/amp/components/page/v1/page", "core/wcm/components/page/v3/page"),
    (
        "/libs/core/wcm/extensions/amp/components/image/v2/image",
        "core/wcm/components/image/v3/image",
    ),
    ("/libs/core/wcm/extensions/amp/components/tabs/v1/tabs", "core/wcm/components/tabs/v1/tabs"),
    (
        "/libs/core/wcm/extensions/amp/components/carousel/v1/carousel",
        "core/wcm/components/carousel/v1/carousel",
    ),
    (
        "/libs/core/wcm/extensions/amp/components/accordion/v1/accordion",
        "core/wcm/components/accordion/v1/accordion",
    ),
    (
        "/libs/core/wcm/extensions/amp/components/search/v2/search",
        "core/wcm/components/search/v2/search",
    ),
    (
        "/libs/core/wcm/extensions/amp/components/sharing/v1/sharing",
        "core/wcm/components/sharing/v1/sharing",
    ),
    (
        "/libs/core/wcm/extensions/amp/components/pdfviewer/v1/pdfviewer",
        "core/wcm/components/pdfviewer/v1/pdfviewer",
    ),
    (
        "/libs/core/wcm/extensions/amp/components/form/text/v1/text",
        "core/wcm/components/form/text/v2/text",
    ),
    (
        "/libs/core/wcm/extensions/amp/components/form/container/v1/container",
        "core/wcm/components/form/container/v2/container",
    ),
    (
        "/libs/cq/experience-fragments/components/experiencefragment",
        "cq/experience-fragments/components/xfpage",
    ),
    (
        "/libs/cq/experience-fragments/editor/components/buildingblock",
        "wcm/foundation/components/responsivegrid",
    ),
    // The components between the paragraphs of a content fragment.
    ("/libs/dam/cfm/components/grid", "wcm/foundation/components/responsivegrid"),
];

/// The resources below `/libs`, as docviews by their paths.
const DOCVIEWS: [(&str, &str); 1] =
    [("/libs/wcm/foundation/components/basicpage/v1/basicpage", include_str!("basicpage.xml"))];

static TREES: LazyLock<Vec<(&str, Subtree)>> = LazyLock::new(|| {
    let limits = PackageLimits::default();
    let read = |(path, text): (&'static str, &str)| {
        Some((path, read_docview(path, text.as_bytes(), &limits).ok()?))
    };
    DOCVIEWS.into_iter().filter_map(read).collect()
});

/// Finds the tree at a path.
pub(super) fn find_tree(path: &str) -> Option<Subtree> {
    let (tree, relative) = TREES.iter().find_map(|(root, tree)| {
        let relative = path.strip_prefix(root)?;
        (relative.is_empty() || relative.starts_with('/')).then_some((tree, relative))
    })?;
    tree.find_descendant(relative).cloned()
}

/// Returns the super type of a component that this program has in place of AEM's.
pub(super) fn super_type(path: &str) -> Option<String> {
    let entry = PLATFORM_SUPER_TYPES.iter().find(|(folder, _)| *folder == path);
    entry.map(|(_, super_type)| (*super_type).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tree_is_read() {
        assert_eq!(TREES.len(), DOCVIEWS.len());
        let title = "/libs/wcm/foundation/components/basicpage/v1/basicpage/tabs/basic/items/column/items/title";
        assert!(find_tree(title).is_some());
        assert_eq!(find_tree("/libs/wcm/foundation/components/basicpage/v1/basicpager"), None);
    }
}
