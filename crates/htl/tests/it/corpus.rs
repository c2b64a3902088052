//! The scripts of AEM's Core Components and of their examples all compile.

use std::io::Read;
use std::path::Path;

use tympan_htl::HtlScript;
use tympan_testkit::fixture_folder::fixture_folder;

/// Returns names and sources of the scripts in a package.
fn scripts(package: &Path) -> Vec<(String, String)> {
    let file = std::fs::File::open(package).unwrap();
    let mut archive = zip::ZipArchive::new(file).unwrap();
    let mut scripts = Vec::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).unwrap();
        let name = entry.name().unwrap().to_string();
        if name.ends_with(".html") {
            let mut source = String::new();
            entry.read_to_string(&mut source).unwrap();
            scripts.push((name, source));
        }
    }
    scripts
}

#[test]
fn core_components_compile() {
    let Some(folder) = fixture_folder("packages") else { return };
    for (package, count) in [
        ("core.wcm.components.content-2.29.0.zip", 100),
        ("core.wcm.components.examples.ui.apps-2.26.0.zip", 10),
    ] {
        let scripts = scripts(&folder.join(package));
        assert!(scripts.len() > count, "{} scripts in {package}", scripts.len());
        for (name, source) in scripts {
            let script =
                HtlScript::compile(&name, &source).unwrap_or_else(|error| panic!("{error}"));
            // Options that Sling passes on are known; open elements and lost end tags would change pages.
            let warnings: Vec<String> = script.warnings().iter().map(ToString::to_string).collect();
            let structural: Vec<&String> =
                warnings.iter().filter(|text| text.contains("end tag")).collect();
            assert_eq!(structural, Vec::<&String>::new());
        }
    }
}
