//! A site as a package for a running instance, in which people may have changed its content.

use std::path::Path;

use tympan_notation::escape_xml;

use crate::archive::{CONTENT_ROOTS, build_site_package};
use crate::description::site_name;
use crate::error::{Error, Result};

/// The folders that developers own: components, and style sheets and scripts.
const COMPONENT_FOLDERS: [&str; 2] = ["apps", "etc.clientlibs"];

/// The parts of a site that a push replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SitePushScope {
    /// Components and client libraries.
    Components,
    /// The content as well, with all that was edited in it.
    ComponentsAndContent,
}

/// Packs a site folder into a package with the id `sites:NAME:1.0`, which replaces what an earlier push installed.
///
/// # Errors
/// [`Error::Refused`] if there is nothing to push, with `file:line:column` if `site.toml` is malformed;
/// [`Error::File`] if a file cannot be read.
pub fn build_push_package(site: &Path, scope: SitePushScope) -> Result<Vec<u8>> {
    let folders: &[&str] = match scope {
        SitePushScope::Components => &COMPONENT_FOLDERS,
        SitePushScope::ComponentsAndContent => &CONTENT_ROOTS,
    };
    let name = site_name(site)?;
    if !folders.iter().any(|folder| site.join(folder).is_dir()) {
        return Err(Error::Refused(format!(
            "`{}` has none of the folders {}",
            site.display(),
            folders.join(", ")
        )));
    }
    let name = escape_xml(&name);
    let properties = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE properties SYSTEM \
         \"http://java.sun.com/dtd/properties.dtd\">\n<properties>\n<entry key=\"group\">sites</entry>\n\
         <entry key=\"name\">{name}</entry>\n<entry key=\"version\">1.0</entry>\n</properties>\n"
    );
    build_site_package(site, folders, Some(&properties)).map_err(|source| {
        let action = format!("cannot read the site `{}`", site.display());
        Error::File { action, source }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tympan_content_package::{ContentPackage, PackageLimits};

    use super::*;
    use crate::create_site;

    #[test]
    fn a_push_names_the_site_and_leaves_content_alone_unless_asked() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("shop");
        create_site(&site).unwrap();
        for (scope, has_content) in
            [(SitePushScope::Components, false), (SitePushScope::ComponentsAndContent, true)]
        {
            let bytes = build_push_package(&site, scope).unwrap();
            let package =
                ContentPackage::read(Cursor::new(bytes), "shop", &PackageLimits::default())
                    .unwrap();
            assert_eq!(package.id().to_string(), "sites:shop:1.0");
            let covers = |path: &str| package.filter().to_xml().contains(path);
            assert!(covers("\"/apps/"), "{}", package.filter().to_xml());
            assert_eq!(covers("\"/content/"), has_content);
        }
    }

    #[test]
    fn a_folder_without_components_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("site.toml"), "name = \"a\"\ntitle = \"A\"\n").unwrap();
        let refused = build_push_package(dir.path(), SitePushScope::Components).unwrap_err();
        assert!(refused.to_string().contains("apps, etc.clientlibs"), "{refused}");
    }
}
