//! filter.xml of packages: a filter that is read, written and read again covers the same paths.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_content::NodePath;
use tympan_content_package::PackageFilter;

const PATHS: [&str; 5] =
    ["/", "/content", "/content/site/en", "/apps/site", "/content/site/en/jcr:content"];

fuzz_target!(|text: &[u8]| {
    let Ok(filter) = PackageFilter::parse("filter.xml", text) else { return };
    let again = PackageFilter::parse("filter.xml", filter.to_xml().as_bytes())
        .expect("it was written by us");
    let roots = filter.roots().iter().map(|root| root.root.to_string());
    for path in PATHS.into_iter().map(str::to_owned).chain(roots) {
        let path = NodePath::new(&path).expect("a path");
        assert_eq!(filter.coverage(&path), again.coverage(&path), "{path}");
        assert_eq!(
            filter.includes_property(&path, "jcr:title"),
            again.includes_property(&path, "jcr:title")
        );
    }
});
