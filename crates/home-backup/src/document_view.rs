//! The human-readable view of a repository in a snapshot: each document's docview and its files, named as in FileVault.

use std::sync::Arc;
use tympan_notation::error_chain_text;

use tympan_backup::{
    DocumentChange, DocumentView, Error, RenderedContent, RenderedFile, RootDocuments,
};
use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    ChangeKind, ChunkId, JCR_CONTENT, Node, NodePath, Property, Repository, Snapshot, Subtree,
    Value,
};
use tympan_content_package::docview::{self, DocviewNamespaces};
use tympan_store::ChunkStore;

/// The name of the file with a document's nodes and values.
pub(crate) const DOCVIEW_FILE: &str = ".content.xml";
const JCR_DATA: &str = "jcr:data";
/// The path of an asset's original below the asset.
const ORIGINAL_PATH: &str = "jcr:content/renditions/original";
/// A limit that file systems accept.
const MAX_FILE_NAME_BYTES: usize = 200;

/// The documents of a repository.
#[derive(Debug)]
pub(crate) struct ContentDocumentView(Repository);

impl ContentDocumentView {
    /// Creates the view of a repository that this process has open.
    pub(crate) const fn from_repository(repository: Repository) -> Self {
        Self(repository)
    }

    /// Creates the view of a store.
    ///
    /// # Errors
    /// If the store contains no content.
    pub(crate) fn new(chunks: Arc<dyn ChunkStore>) -> tympan_content::Result<Self> {
        // The view names blobs, and does not read them.
        Ok(Self(Repository::open(chunks, Arc::new(MemoryBlobStore::default()))?))
    }
}

impl DocumentView for ContentDocumentView {
    fn open(&self, root: &ChunkId) -> Result<Box<dyn RootDocuments + '_>, Error> {
        let snapshot = self.0.snapshot_at(*root).map_err(|error| document_error("/", error))?;
        Ok(Box::new(ContentDocuments { repository: &self.0, snapshot }))
    }
}

struct ContentDocuments<'a> {
    repository: &'a Repository,
    snapshot: Snapshot,
}

impl RootDocuments for ContentDocuments<'_> {
    fn changes_since(&self, since: &ChunkId) -> Result<Option<Vec<DocumentChange>>, Error> {
        // A state that was collected in the meantime can no longer be compared with.
        let Ok(before) = self.repository.snapshot_at(*since) else { return Ok(None) };
        let changes = before.changed_documents(&self.snapshot).map(|change| {
            let change = change?;
            let is_there = change.kind != ChangeKind::Removed;
            Ok(DocumentChange { path: change.path.to_string(), exists: is_there })
        });
        Ok(changes.collect::<tympan_content::Result<Vec<_>>>().ok())
    }

    fn children(&self, path: &str) -> Result<Vec<String>, Error> {
        let names = || {
            let Some(node) = self.snapshot.node(&NodePath::new(path)?)? else {
                return Ok(Vec::new());
            };
            let children = node.listed_children()?;
            Ok(children.iter().map(|child| child.name().to_owned()).collect())
        };
        names().map_err(|error| document_error(path, error))
    }

    fn render_document(&self, path: &str) -> Result<Vec<RenderedFile>, Error> {
        let read = || {
            let node = self.snapshot.node(&NodePath::new(path)?)?;
            node.as_ref().map(read_document).transpose()
        };
        let Some(document) = read().map_err(|error| document_error(path, error))? else {
            return Ok(Vec::new());
        };
        let text = docview::write_docview(&document, &DocviewNamespaces::default()).into_bytes();
        let file_path = vec![DOCVIEW_FILE.as_bytes().to_vec()];
        let mut files =
            vec![RenderedFile { path: file_path, content: RenderedContent::Text(text) }];
        add_binaries(&document, &document, "", &mut files);
        Ok(files)
    }

    fn folder_name(&self, name: &str) -> Vec<u8> {
        file_name_of_node(name)
    }
}

/// Decodes a document, without the documents below it.
fn read_document(node: &Node) -> tympan_content::Result<Subtree> {
    if node.listed_children()?.is_empty() {
        return node.read_subtree();
    }
    let mut document = Subtree::new(node.name(), node.primary_type());
    document.properties.extend(node.properties());
    if node.as_borrowed().is_none() {
        // Reading the body reports its damage.
        return node.read_subtree();
    }
    if node.is_page()
        && let Some(content) = node.content_node()?
    {
        document.children.push(content.read_subtree()?);
    }
    Ok(document)
}

fn document_error(path: &str, error: tympan_content::Error) -> Error {
    if error.is_transient() {
        // The document is not damaged: it only cannot be read at the moment.
        return Error::Source { path: path.into(), source: std::io::Error::other(error) };
    }
    Error::Document { path: path.to_owned(), reason: error_chain_text(&error) }
}

/// Adds the files of a node, whose path in its document is `relative`, and of its descendants.
fn add_binaries(document: &Subtree, node: &Subtree, relative: &str, files: &mut Vec<RenderedFile>) {
    for (name, property) in &node.properties {
        for (number, value) in property.values().iter().enumerate() {
            let Value::Binary(blob) = value else { continue };
            let file_path = value_file_path(document, relative, name, number, property);
            files.push(RenderedFile { path: file_path, content: RenderedContent::Blob(*blob) });
        }
    }
    for child in &node.children {
        let joint = if relative.is_empty() { "" } else { "/" };
        add_binaries(document, child, &format!("{relative}{joint}{}", child.name), files);
    }
}

/// Returns the path of a value's bytes: those of a file have the file's own name, and the original of an asset has the
/// asset's.
fn value_file_path(
    document: &Subtree,
    relative: &str,
    name: &str,
    number: usize,
    property: &Property,
) -> Vec<Vec<u8>> {
    let file = relative.strip_suffix(JCR_CONTENT).filter(|_| name == JCR_DATA);
    if let Some(file) = file.map(|file| file.trim_end_matches('/')) {
        let is_original = document.primary_type() == "dam:Asset" && file == ORIGINAL_PATH;
        if file.is_empty() || is_original {
            return vec![file_name_of_node(&document.name)];
        }
        return file.split('/').map(file_name_of_node).collect();
    }
    let names = relative.split('/').filter(|name| !name.is_empty()).map(file_name_of_node);
    let number = if property.is_list() { format!("[{number}]") } else { String::new() };
    let mut last = file_name_of_node(name);
    last.extend_from_slice(format!("{number}.binary").as_bytes());
    names.chain([last]).collect()
}

/// Returns the file name for a node name, as in FileVault: `_jcr_content` for `jcr:content`.
pub(crate) fn file_name_of_node(name: &str) -> Vec<u8> {
    let mut text = match name.split_once(':') {
        Some((prefix, local)) if !prefix.is_empty() => format!("_{prefix}_{local}"),
        _ if name.starts_with('_') && name.matches('_').count() > 1 => format!("_{name}"),
        _ => name.to_owned(),
    };
    let is_plain = |letter: char| !letter.is_control() && !matches!(letter, '/' | '%' | ':');
    if !text.chars().all(is_plain) || text.starts_with('.') {
        let escape = |(index, letter): (usize, char)| match letter {
            '.' if index > 0 => letter.to_string(),
            letter if is_plain(letter) && letter != '.' => letter.to_string(),
            letter => letter.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect(),
        };
        text = text.char_indices().map(escape).collect();
    }
    if text.len() > MAX_FILE_NAME_BYTES {
        let hash = tympan_backup::VaultObjectId::of(name.as_bytes()).short();
        let end = (0..=MAX_FILE_NAME_BYTES - 10)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        text.truncate(end);
        text.push('~');
        text.push_str(&hash);
    }
    text.into_bytes()
}

/// Returns the node name for a file name; `None` if the file name was shortened, or is that of no node.
pub(crate) fn node_of_file_name(file: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(file).ok()?;
    // A shortened name ends with a tilde and eight digits, and is nearly as long as a name may be.
    let mark = file.len().checked_sub(9).and_then(|at| file.get(at));
    if file.len() + 10 > MAX_FILE_NAME_BYTES && mark == Some(&b'~') {
        return None;
    }
    let decoded = unescape_percent(text)?;
    let name = match decoded.strip_prefix('_') {
        Some(rest) if rest.starts_with('_') => rest.to_owned(),
        Some(rest) => match rest.split_once('_') {
            Some((prefix, local)) => format!("{prefix}:{local}"),
            None => decoded,
        },
        None => decoded,
    };
    (file_name_of_node(&name) == file).then_some(name)
}

fn unescape_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = behind;
            continue;
        }
        let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind.get(2..)?;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_become_names_again() {
        for name in ["en", "jcr:content", "_jcr_content", "_a", "50%", "a\nb", "..", "ü b", "a_b"]
        {
            assert_eq!(node_of_file_name(&file_name_of_node(name)).as_deref(), Some(name));
        }
        let long = file_name_of_node(&"ü".repeat(300));
        assert_eq!(node_of_file_name(&long), None);
    }

    #[test]
    fn names_become_names_of_files() {
        let check = |name: &str, expected: &str| {
            assert_eq!(String::from_utf8(file_name_of_node(name)).unwrap(), expected);
        };
        check("en", "en");
        check("jcr:content", "_jcr_content");
        check("_jcr_content", "__jcr_content");
        check("photo.jpg", "photo.jpg");
        check(".content.xml", "%2econtent.xml");
        check("..", "%2e.");
        check("50%", "50%25");
        check("a\nb", "a%0ab");
        let long = file_name_of_node(&"ü".repeat(300));
        assert!(long.len() <= MAX_FILE_NAME_BYTES && long != file_name_of_node(&"ü".repeat(301)));
    }
}
