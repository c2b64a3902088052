//! Permissive types: types of the source products that a package names without defining them.
//!
//! A package contains the types that its author registered, but not those of Adobe Experience Manager and Sling, which
//! every repository of these products has. Those that are not compiled in are registered when they occur, as types that
//! allow any content. Unknown types of other prefixes remain a fault of the package.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tympan_content::{MIXIN_TYPES, PRIMARY_TYPE};

use crate::Result;
use crate::import_node::{ImportNode, ImportProperty};
use crate::install_target::InstallTarget;

/// The prefixes of the namespaces of these products.
const PRODUCT_NAMESPACE_PREFIXES: [&str; 3] =
    ["http://www.day.com/", "http://www.adobe.com/", "http://sling.apache.org/"];

/// A type that is registered to allow any content.
#[derive(Debug)]
pub(crate) struct PermissiveNodeType {
    pub(crate) name: String,
    /// The file and line of its first use.
    pub(crate) first_mention: String,
    /// The CND text that registers it.
    pub(crate) cnd: String,
}

/// The information about a type that is used.
#[derive(Debug, Default)]
struct NamedNodeType {
    first_mention: String,
    is_primary: bool,
}

/// Returns the permissive types of a package, sorted by name.
pub(crate) fn find_permissive_types(
    root: &ImportNode,
    namespaces: &BTreeMap<String, String>,
    target: &mut dyn InstallTarget,
) -> Result<Vec<PermissiveNodeType>> {
    let mut named = BTreeMap::new();
    collect_named_types(root, &mut named);
    let mut open = Vec::new();
    for (name, NamedNodeType { first_mention, is_primary }) in named {
        let prefix = name.split_once(':').map(|(prefix, _)| prefix);
        let uri = prefix.and_then(|prefix| namespaces.get(prefix));
        let is_product = uri.is_some_and(|uri| {
            PRODUCT_NAMESPACE_PREFIXES.iter().any(|product| uri.starts_with(product))
        });
        if !is_product || target.has_node_type(&name)? {
            continue;
        }
        let mut cnd = String::new();
        if let (Some(prefix), Some(uri)) = (prefix, uri) {
            // Writing to a string cannot fail.
            let _ = writeln!(cnd, "<'{prefix}'='{uri}'>");
        }
        let form = if is_primary { "> nt:unstructured\n  orderable" } else { "\n  mixin" };
        let _ = writeln!(
            cnd,
            "[{name}] {form}\n  - * (undefined)\n  - * (undefined) multiple\n  + * (nt:base) = nt:unstructured version"
        );
        open.push(PermissiveNodeType { name, first_mention, cnd });
    }
    Ok(open)
}

fn collect_named_types(node: &ImportNode, named: &mut BTreeMap<String, NamedNodeType>) {
    for property in [PRIMARY_TYPE, MIXIN_TYPES] {
        let Some(ImportProperty::Value(types)) = node.properties().get(property) else { continue };
        for name in types.values() {
            let name = name.to_text();
            let source = node.location();
            let node_type = named.entry(name.into_owned()).or_insert_with(|| NamedNodeType {
                first_mention: format!("{}:{}", source.file_name(), source.line()),
                is_primary: false,
            });
            node_type.is_primary |= property == PRIMARY_TYPE;
        }
    }
    node.children().iter().for_each(|child| collect_named_types(child, named));
}
