//! Limits on the content packages that a viewer builds and on the content that a viewer imports.

use tympan_content::Viewer;
use tympan_content_package::PackageLimits;

use crate::Instance;
use crate::failure::Result;

/// Maximum number of nodes in a package of a user who is not an administrator.
const MAX_USER_PACKAGE_NODES: usize = 100_000;
/// Maximum number of their properties.
const MAX_USER_PACKAGE_PROPERTIES: usize = 1_000_000;
/// Maximum number of bytes of their properties.
const MAX_USER_PACKAGE_PROPERTY_BYTES: u64 = 64 << 20;
/// Maximum number of bytes of the files in such a package.
const MAX_USER_PACKAGE_FILE_BYTES: u64 = 1 << 30;

/// Returns the limits for a viewer: those of a package that can be installed, and lower ones for users. Building needs no
/// right to write, and a filter of one line can name a whole site; an archive can unpack to a thousand times its size.
pub(crate) fn viewer_package_limits(instance: &Instance, viewer: &Viewer) -> Result<PackageLimits> {
    let most = PackageLimits::default();
    if instance.is_administrator(viewer)? {
        return Ok(most);
    }
    let max_nodes = instance.query_engine_for(viewer)?.limits().max_rows_in_memory;
    let max_nodes = max_nodes.min(MAX_USER_PACKAGE_NODES);
    Ok(PackageLimits {
        max_nodes,
        max_properties: most.max_properties.min(MAX_USER_PACKAGE_PROPERTIES),
        max_all_documents_bytes: MAX_USER_PACKAGE_PROPERTY_BYTES,
        max_total_bytes: MAX_USER_PACKAGE_FILE_BYTES,
        ..most
    })
}
