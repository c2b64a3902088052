//! Decomposition of URLs and queries. Input: paths that exist, an empty line, the path of the request, a `?`, the query.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use tympan_render::RequestParameters;
use tympan_render::url::{SlingUrl, mangle_namespaces, split_selectors};

fuzz_target!(|input: &str| {
    let (known, request) = input.split_once("\n\n").unwrap_or(("", input));
    let known: BTreeSet<&str> = known.lines().collect();
    let (path, query) = request.split_once('?').unwrap_or((request, ""));
    if let Ok(url) = SlingUrl::split(path, |candidate| known.contains(candidate)) {
        assert!(url.path.starts_with('/'));
        assert!(!url.exists || known.contains(url.path.as_str()));
        assert!(url.selectors.iter().all(|selector| !selector.is_empty()));
        assert!(url.suffix.as_ref().is_none_or(|suffix| suffix.starts_with('/')));
        assert_eq!(split_selectors(&url.selector_string()), url.selectors);
        std::hint::black_box(mangle_namespaces(&url.path));
    }
    let parameters = RequestParameters::parse(query);
    for name in parameters.names() {
        assert!(parameters.values(name).is_some_and(|values| !values.is_empty()));
    }
});
