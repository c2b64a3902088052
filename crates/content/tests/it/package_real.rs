//! The four real packages.
use crate::package_target::{FilePackage, Memory, fixtures, install};
use tympan_content::package::{Limits, Package};

#[test]
fn counts() {
    let Some(folder) = fixtures("packages") else { return };
    for (name, expected) in [
        ("core.wcm.components.examples.ui.content-2.26.0.zip", [2730, 9109, 68, 40]),
        ("core.wcm.components.content-2.29.0.zip", [3591, 11400, 0, 0]),
        ("wknd.ui.content.sample.zip", [4980, 31703, 208, 5]),
        ("wknd.ui.content.zip", [907, 3166, 44, 5]),
    ] {
        let mut package: FilePackage = Package::open(&folder.join(name), &Limits::default()).unwrap();
        let mut target = Memory::new();
        let report = install(&mut package, &mut target).unwrap();
        println!("{report}");
        for s in report.skipped.iter().take(5) { println!("{s:?}"); }
        assert_eq!([report.elements, report.attributes, report.pages, report.assets], expected, "{name}");
    }
}
