//! `site.toml`: the name, the home page and the headers of a site.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tympan_home::parse_toml;

use crate::error::{Error, Result};

const SAMPLE_DESCRIPTION: &str = include_str!("../../../site/site.toml");

/// The contents of `site.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteDescription {
    /// A short name.
    name: String,
    /// The title of the site.
    #[expect(dead_code, reason = "read to be checked")]
    title: String,
    /// The path of the home page.
    home: Option<String>,
    /// The languages of its content.
    #[serde(default)]
    #[expect(dead_code, reason = "read to be checked")]
    languages: Vec<String>,
    /// The headers of its pages, which are written into the `tympan.toml` of a new publisher for it.
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// Reads the path of a site's home page from its `site.toml`, or the sample's.
///
/// # Errors
/// With `file:line:column` if it is malformed.
pub fn home_page_path(site: Option<&Path>) -> Result<Option<String>> {
    Ok(read_description(site)?.home)
}

/// Reads the short name of a site from its `site.toml`.
///
/// # Errors
/// With `file:line:column` if it is malformed.
pub(crate) fn site_name(site: &Path) -> Result<String> {
    Ok(read_description(Some(site))?.name)
}

/// A check of the headers of pages: it fails with the reason why one cannot be sent.
pub type HeaderCheck<'a> = &'a dyn Fn(&BTreeMap<String, String>) -> Result<(), String>;

/// Returns the text of a new `tympan.toml` for a publisher of the site; `None` for a site that names no headers.
///
/// # Errors
/// With `file:line:column` if its `site.toml` is malformed, and for headers that cannot be sent.
pub fn publisher_config(
    site: Option<&Path>,
    check_headers: HeaderCheck<'_>,
) -> Result<Option<String>> {
    let headers = read_description(site)?.headers;
    if headers.is_empty() {
        return Ok(None);
    }
    check_headers(&headers).map_err(Error::Refused)?;
    // A JSON string is also a TOML string.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let lines = headers.iter();
    let table: String =
        lines.map(|(name, value)| format!("{} = {}\n", quoted(name), quoted(value))).collect();
    Ok(Some(format!(
        "# What browsers may do with the pages of this publisher. It is written once and then yours to edit.\n\
         [publish.headers]\n{table}"
    )))
}

/// Reads a `site.toml`, or the sample's.
fn read_description(site: Option<&Path>) -> Result<SiteDescription> {
    let (text, file) = match site {
        Some(dir) => {
            let file = dir.join("site.toml");
            let text = std::fs::read_to_string(&file).map_err(|error| {
                Error::Refused(format!("cannot read `{}`: {error}", file.display()))
            })?;
            (text, file.display().to_string())
        }
        None => (SAMPLE_DESCRIPTION.to_owned(), "site.toml".to_owned()),
    };
    parse_toml::<SiteDescription>(&file, &text).map_err(Error::Refused)
}
