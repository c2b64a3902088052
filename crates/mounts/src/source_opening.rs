//! Opens the source at an address.

use std::sync::Arc;

use crate::cmis::CmisSource;
use crate::directory::DirectorySource;
use crate::mount_location::MountLocation;
use crate::mount_source::MountSource;
use crate::s3::BucketSource;
use crate::source_http::SourceNetwork;
use crate::webdav::WebDavSource;

/// Opens a source.
///
/// # Errors
/// A message that describes what is wrong.
pub(crate) fn open_mount_source(
    source: &str,
    locations: &[MountLocation],
    network: &SourceNetwork,
) -> Result<Arc<dyn MountSource>, String> {
    let lies_in = locations.iter().filter(|candidate| candidate.contains_source(source));
    let location = lies_in.max_by_key(|candidate| candidate.url.len()).cloned().unwrap_or_default();
    let address = source.split('#').next().unwrap_or_default();
    if address.split('/').any(|name| matches!(name, ".." | ".")) {
        return Err(format!("`{source}` contains `..` or `.`; write the path that it resolves to"));
    }
    let scheme = source.split_once("://").map(|(scheme, _)| scheme);
    if scheme.is_some() && address.split('/').nth(2).is_some_and(|host| host.contains('@')) {
        return Err(
            "user and password must not be in the address; write them in `tympan.toml`, section \
            `[[mounts.location]]`"
                .to_owned(),
        );
    }
    match scheme {
        None if source.starts_with('/') => Ok(Arc::new(DirectorySource::new(source))),
        Some("dav" | "davs") => Ok(Arc::new(WebDavSource::new(source, &location, network)?)),
        Some("s3") => Ok(Arc::new(BucketSource::new(source, &location, network)?)),
        Some("cmis+http" | "cmis+https") => {
            Ok(Arc::new(CmisSource::new(source, &location, network)?))
        }
        _ => Err(format!(
            "`{source}` is not a valid source; write `/folder`, `davs://host/folder`, `s3://bucket/folder` or \
             `cmis+https://host/service#repository/folder`"
        )),
    }
}
