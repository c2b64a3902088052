//! The scripts and super types that components of AEM expect below `/libs`, written for this program.
//!
//! They apply where the repository has no scripts of its own for a type, and lie at the end of the search paths.

use super::source::ScriptSet;
use crate::resource_merge::PLATFORM_SUPER_TYPES;

/// The scripts, by their paths.
const PLATFORM_SCRIPTS: [(&str, &str); 7] = [
    (
        "/libs/wcm/foundation/components/responsivegrid/responsivegrid.html",
        include_str!("../htl/platform/responsivegrid.html"),
    ),
    (
        "/libs/wcm/foundation/components/parsys/parsys.html",
        include_str!("../htl/platform/parsys.html"),
    ),
    ("/libs/foundation/components/parsys/parsys.html", include_str!("../htl/platform/parsys.html")),
    (
        "/libs/granite/sightly/templates/clientlib.html",
        include_str!("../htl/platform/clientlib.html"),
    ),
    (
        "/libs/cq/experience-fragments/components/xfpage/content.html",
        include_str!("../htl/platform/xfpage_content.html"),
    ),
    (
        "/libs/cq/experience-fragments/components/xfpage/xfpage.html",
        include_str!("../htl/platform/xfpage.html"),
    ),
    (
        "/libs/cq/experience-fragments/editor/components/experiencefragment/experiencefragment.html",
        include_str!("../htl/platform/experiencefragment.html"),
    ),
];

/// Types that draw nothing: services of AEM that this program does not have, and placeholders of its editor.
const EMPTY_TYPES: [&str; 6] = [
    "cq/cloudserviceconfigs/components/servicecomponents",
    "cq/cloudserviceconfigs/components/servicelibs",
    "cq/cloudconfig/components/scripttags/header",
    "cq/cloudconfig/components/scripttags/footer",
    "wcm/foundation/components/parsys/newpar",
    "wcm/foundation/components/iparsys",
];

/// Returns true if resources of a type are drawn without any package: `wcm/foundation/components/parsys`.
#[must_use]
pub fn is_platform_type(resource_type: &str) -> bool {
    let folder = format!("/libs/{resource_type}");
    EMPTY_TYPES.contains(&resource_type)
        || PLATFORM_SUPER_TYPES.iter().any(|(path, _)| *path == folder)
        || PLATFORM_SCRIPTS
            .iter()
            .any(|(path, _)| path.rsplit_once('/').is_some_and(|(parent, _)| parent == folder))
}

/// Adds the scripts and super types of the platform to those of the repository.
pub(super) fn add_platform_scripts(set: &mut ScriptSet) {
    let has_own_scripts = |set: &ScriptSet, folder: &str| {
        let prefix = format!("{folder}/");
        set.scripts
            .range(prefix.clone()..)
            .next()
            .is_some_and(|(path, _)| path.starts_with(&prefix))
    };
    let mut added = Vec::new();
    for (path, text) in PLATFORM_SCRIPTS {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if !has_own_scripts(set, folder) {
            added.push((path.to_owned(), text.to_owned()));
        }
    }
    for empty_type in EMPTY_TYPES {
        let folder = format!("/libs/{empty_type}");
        let name = empty_type.rsplit('/').next().unwrap_or_default();
        if !has_own_scripts(set, &folder) {
            added.push((format!("{folder}/{name}.html"), String::new()));
        }
    }
    set.scripts.extend(added);
    for (folder, super_type) in PLATFORM_SUPER_TYPES {
        if !has_own_scripts(set, folder) {
            set.super_types.entry(folder.to_owned()).or_insert_with(|| super_type.to_owned());
        }
    }
}
