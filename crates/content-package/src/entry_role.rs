//! Maps the entries of a package to the nodes that they describe, and back.
//!
//! Below `jcr_root` a folder is a node, `.content.xml` in it describes that node, `name.xml` may describe the node
//! `name`, `name.binary` is a property, a folder `name.dir` holds the content of the file `name`, and any other file is
//! a file. Names are escaped for all file systems: `jcr:content` becomes `_jcr_content`, a name that looks escaped gets
//! another `_`, and characters that file systems refuse become `%xx`.

use tympan_content::NodePath;

use crate::Result;
use crate::archive::PackageFileName;

/// The role of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PackageEntryRole {
    /// Not below `jcr_root`.
    Metadata,
    /// A folder, which is also a node.
    Folder(NodePath),
    /// The docview of a node, known from its name.
    Docview(NodePath),
    /// An XML file: the docview of `document` if its root element says so, or else the file `file`.
    Xml {
        /// The node that it describes as a docview.
        document_path: NodePath,
        /// The path of the file otherwise.
        file_path: NodePath,
    },
    /// A file.
    File(NodePath),
    /// One value of a binary property.
    Binary {
        /// The node that has the property.
        node: NodePath,
        /// The property's name.
        property: String,
        /// The position in a list; `None` for a single value.
        index: Option<usize>,
    },
    /// A leftover file of a tool.
    Junk,
}

const CONTENT_ROOT: &str = "jcr_root";

/// Determines the role of the entry `name`.
///
/// # Errors
/// [`crate::Error::InvalidPackage`] if it maps to a name or path that JCR refuses.
pub(crate) fn entry_role(
    file: &PackageFileName,
    name: &str,
    is_directory: bool,
) -> Result<PackageEntryRole> {
    let Some(rest) = name.strip_prefix(CONTENT_ROOT) else {
        return Ok(PackageEntryRole::Metadata);
    };
    let Some(inner) = rest.strip_prefix('/') else {
        // `jcr_root` itself, or a name with the same beginning.
        return Ok(if rest.is_empty() && is_directory {
            PackageEntryRole::Folder(NodePath::root())
        } else {
            PackageEntryRole::Metadata
        });
    };
    let (folder, last) = inner.rsplit_once('/').unwrap_or(("", inner));
    if inner.split('/').any(is_junk_file) {
        return Ok(PackageEntryRole::Junk);
    }
    let mut parent = NodePath::root();
    for segment in folder.split('/').filter(|segment| !segment.is_empty()) {
        parent = child_path(file, &parent, folder_node_name(segment))?;
    }
    if is_directory {
        return Ok(PackageEntryRole::Folder(child_path(file, &parent, folder_node_name(last))?));
    }
    if last == ".content.xml" {
        return Ok(PackageEntryRole::Docview(parent));
    }
    if let Some(base) = last.strip_suffix(".binary") {
        let (property, index) = split_list_index(base);
        return Ok(PackageEntryRole::Binary {
            node: parent,
            property: decode_file_name(property),
            index,
        });
    }
    match last.strip_suffix(".xml").filter(|base| !base.is_empty()) {
        Some(base) => Ok(PackageEntryRole::Xml {
            document_path: child_path(file, &parent, base)?,
            file_path: child_path(file, &parent, last)?,
        }),
        None => Ok(PackageEntryRole::File(child_path(file, &parent, last)?)),
    }
}

fn child_path(file: &PackageFileName, parent: &NodePath, segment: &str) -> Result<NodePath> {
    parent
        .child(&decode_file_name(segment))
        .and_then(|path| NodePath::new(path.as_str()))
        .map_err(|error| file.to_error(0, error.to_string()))
}

/// Returns the part of a folder name that encodes the node's name.
fn folder_node_name(segment: &str) -> &str {
    segment.strip_suffix(".dir").filter(|base| !base.is_empty()).unwrap_or(segment)
}

fn is_junk_file(segment: &str) -> bool {
    matches!(
        segment,
        ".DS_Store" | ".svn" | ".git" | ".vlt" | ".vltignore" | "Thumbs.db" | "__MACOSX"
    ) || segment.starts_with(".vlt-")
        || segment.starts_with("._")
}

/// Splits `name[3]` into the name and 3.
fn split_list_index(base: &str) -> (&str, Option<usize>) {
    let split = base.strip_suffix(']').and_then(|base| base.rsplit_once('['));
    match split.and_then(|(name, digits)| Some((name, digits.parse().ok()?))) {
        Some((name, index)) => (name, Some(index)),
        None => (base, None),
    }
}

/// Decodes the name of a file or folder to a node name.
fn decode_file_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut characters = name.chars();
    let mut awaits_colon = false;
    if let Some(rest) = name.strip_prefix('_') {
        characters = rest.chars();
        match characters.clone().next() {
            // A doubled `_` stands for one, and no prefix follows.
            Some('_') => {}
            Some(first) if rest.chars().skip(1).any(|character| character == '_') => {
                // The first character of a prefix is not decoded, as in FileVault.
                if first != '%' {
                    out.push(first);
                    characters.next();
                }
                awaits_colon = true;
            }
            _ => out.push('_'),
        }
    }
    while let Some(character) = characters.next() {
        match character {
            '_' if awaits_colon => {
                out.push(':');
                awaits_colon = false;
            }
            '%' => match decode_hex_escape(characters.as_str()) {
                Some(decoded) => {
                    out.push(decoded);
                    characters.next();
                    characters.next();
                }
                None => out.push('%'),
            },
            code_point => out.push(code_point),
        }
    }
    out
}

/// Decodes two hexadecimal digits at the start of `text` to a character.
fn decode_hex_escape(text: &str) -> Option<char> {
    let digits = text.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).map(char::from)
}

/// Encodes a node name as the name of a file or folder.
pub(crate) fn encode_file_name(name: &str) -> String {
    let prefix =
        name.split_once(':').filter(|(prefix, _)| !prefix.is_empty() && !prefix.contains('_'));
    if let Some((prefix, local)) = prefix {
        return format!("_{}_{}", escape_segment(prefix), escape_segment(local));
    }
    let looks_mangled = name.starts_with('_') && name.matches('_').count() > 1;
    if looks_mangled { format!("_{}", escape_segment(name)) } else { escape_segment(name) }
}

fn escape_segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            ':' => out.push_str("%3a"),
            '\\' => out.push_str("%5c"),
            '<' => out.push_str("%3c"),
            '>' => out.push_str("%3e"),
            '|' => out.push_str("%7c"),
            '"' => out.push_str("%22"),
            '/' => out.push_str("%2f"),
            '?' => out.push_str("%3f"),
            '%' => out.push_str("%25"),
            code_point => out.push(code_point),
        }
    }
    out
}

/// Returns true if a folder or file can represent a node of this name.
pub(crate) fn is_packable_name(name: &str) -> bool {
    let encoded = encode_file_name(name);
    !is_junk_file(&encoded)
        && folder_node_name(&encoded) == encoded
        && decode_file_name(&encoded) == name
}

/// Returns true if a plain file can represent a node of this name: the name has no other role.
pub(crate) fn is_plain_file_name(name: &str) -> bool {
    is_packable_name(name) && !name.ends_with(".xml") && !name.ends_with(".binary")
}

/// Returns the name of the folder entry for a node, below `jcr_root`.
pub(crate) fn folder_entry_name(path: &NodePath) -> String {
    let mut out = CONTENT_ROOT.to_owned();
    for name in path.names() {
        out.push('/');
        out.push_str(&encode_file_name(name));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_published_table() {
        for (node, file) in [
            ("test.jpg", "test.jpg"),
            ("cq:content", "_cq_content"),
            ("cq:test_image.jpg", "_cq_test_image.jpg"),
            ("test_image.jpg", "test_image.jpg"),
            ("_testimage.jpg", "_testimage.jpg"),
            ("_test_image.jpg", "__test_image.jpg"),
            ("cq:test:image.jpg", "_cq_test%3aimage.jpg"),
            ("_cq_:test.jpg", "__cq_%3atest.jpg"),
            ("_cq:test.jpg", "_cq%3atest.jpg"),
            ("cq_:test.jpg", "cq_%3atest.jpg"),
            ("a|b?", "a%7cb%3f"),
        ] {
            assert_eq!(encode_file_name(node), file);
            assert_eq!(decode_file_name(file), node);
        }
        for (file, node) in
            [("__cq%3atest.jpg", "_cq:test.jpg"), ("_", "_"), ("%zz", "%zz"), ("%4", "%4")]
        {
            assert_eq!(decode_file_name(file), node);
        }
    }

    #[test]
    fn entries_have_roles() {
        let role = |name: &str| {
            entry_role(&PackageFileName::new("x"), name, false).map(|role| format!("{role:?}"))
        };
        for (name, expected) in [
            ("META-INF/vault/filter.xml", "Metadata"),
            ("jcr_rootish/a", "Metadata"),
            ("jcr_root/.content.xml", r#"Docview("/")"#),
            ("jcr_root/a/_jcr_content/.content.xml", r#"Docview("/a/jcr:content")"#),
            ("jcr_root/a/b.xml", r#"Xml { document_path: "/a/b", file_path: "/a/b.xml" }"#),
            ("jcr_root/a/x.jpg.dir/.content.xml", r#"Docview("/a/x.jpg")"#),
            ("jcr_root/a/x.jpg", r#"File("/a/x.jpg")"#),
            (
                "jcr_root/a/_jcr_data.binary",
                r#"Binary { node: "/a", property: "jcr:data", index: None }"#,
            ),
            ("jcr_root/a/d[2].binary", r#"Binary { node: "/a", property: "d", index: Some(2) }"#),
            ("jcr_root/a/.DS_Store", "Junk"),
        ] {
            assert_eq!(role(name).unwrap(), expected, "{name}");
        }
        assert!(role("jcr_root/a/b%2fc").is_err());
        assert!(role("jcr_root/a/%2e%2e/c").is_err());
    }
}
