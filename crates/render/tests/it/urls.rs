//! URL decomposition over random input.

use proptest::collection::vec;
use proptest::prelude::*;
use tympan_render::url::SlingUrl;

/// Puts the parts together again.
fn join(url: &SlingUrl) -> String {
    let mut text = url.path.clone();
    if !url.selectors.is_empty() || url.extension.is_some() || url.suffix.is_some() {
        text.push('.');
    }
    for selector in &url.selectors {
        text += &format!("{selector}.");
    }
    text.push_str(url.extension.as_deref().unwrap_or_default());
    text + url.suffix.as_deref().unwrap_or_default()
}

proptest! {
    #[test]
    fn any_text_splits_or_is_refused(raw in "\\PC{0,40}", cut in 0_usize..40) {
        let exists = |path: &str| path.len() <= cut;
        if let Ok(url) = SlingUrl::split(&raw, exists) {
            prop_assert!(url.path.starts_with('/'));
            prop_assert!(!url.path.split('/').any(|segment| segment == ".." || segment == "."));
            prop_assert!(url.selectors.iter().all(|selector| !selector.is_empty()));
        }
    }

    #[test]
    fn parts_join_to_the_path_again(
        segments in vec("[a-z]{1,3}", 1..4),
        selectors in vec("[a-z0-9]{1,3}", 0..3),
        extension in proptest::option::of("[a-z]{1,4}"),
        suffix in proptest::option::of("(/[a-z.]{1,4}x){1,2}"),
        exists in any::<bool>(),
    ) {
        let path = format!("/{}", segments.join("/"));
        let selectors = if extension.is_some() { selectors } else { Vec::new() };
        let whole = SlingUrl {
            path: path.clone(),
            exists,
            selectors,
            extension: extension.clone(),
            suffix: suffix.filter(|_| extension.is_some()),
            has_empty_parts: false,
            parameters: Vec::new(),
        };
        let raw = join(&whole);
        let url = SlingUrl::split(&raw, |prefix| exists && prefix == path).unwrap();
        prop_assert_eq!(&url, &whole);
        prop_assert_eq!(join(&url), raw);
    }
}
