//! New sites.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// The files of a new site: path and text, in which `SITE` stands for its name and `TITLE` for its title.
const NEW_SITE_FILES: [(&str, &str); 15] = [
    ("site.toml", include_str!("../new_site/site.toml")),
    ("goals.toml", include_str!("../../../site/goals.toml")),
    ("apps/SITE/.content.xml", FOLDER_XML),
    ("apps/SITE/components/.content.xml", FOLDER_XML),
    ("apps/SITE/components/page/.content.xml", include_str!("../new_site/page.xml")),
    ("apps/SITE/components/page/page.html.j2", include_str!("../new_site/page.html.j2")),
    (
        "apps/SITE/components/page/_cq_dialog/.content.xml",
        include_str!("../new_site/page_dialog.xml"),
    ),
    ("apps/SITE/components/container/.content.xml", include_str!("../new_site/container.xml")),
    (
        "apps/SITE/components/container/container.html.j2",
        include_str!("../new_site/container.html.j2"),
    ),
    ("apps/SITE/components/text/.content.xml", include_str!("../new_site/text.xml")),
    ("apps/SITE/components/text/text.html.j2", include_str!("../new_site/text.html.j2")),
    (
        "apps/SITE/components/text/_cq_dialog/.content.xml",
        include_str!("../new_site/text_dialog.xml"),
    ),
    ("content/SITE/.content.xml", include_str!("../new_site/home.xml")),
    ("content/SITE/about/.content.xml", include_str!("../new_site/about.xml")),
    ("etc.clientlibs/SITE/site.css", include_str!("../new_site/site.css")),
];

const FOLDER_XML: &str = include_str!("../new_site/folder.xml");

/// Creates a site of two pages, whose name is that of its folder.
///
/// # Errors
/// [`Error::Refused`] if the folder is not empty, or its name is not that of a site.
pub fn create_site(dir: &Path) -> Result<()> {
    let is_taken = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if is_taken || dir.is_file() {
        return Err(Error::Refused(format!("`{}` already exists and is not empty", dir.display())));
    }
    let folder = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    let is_name = !folder.is_empty()
        && folder
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !is_name {
        return Err(Error::Refused(format!(
            "the last component of `{}` becomes the name of the site; use letters, digits and `-` only",
            dir.display()
        )));
    }
    let mut letters = folder.chars();
    let title: String =
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    for (path, text) in NEW_SITE_FILES {
        let file = dir.join(path.replace("SITE", &folder));
        let text = text.replace("SITE", &folder).replace("TITLE", &title);
        let written =
            file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, text));
        written.map_err(|source| {
            let action = format!("cannot write `{}`", file.display());
            Error::File { action, source }
        })?;
    }
    Ok(())
}
