//! Uploads: files, parts of files that arrive one by one, and assets.

use std::io::Read;

use tympan_content::{BlobId, Date, JCR_CONTENT, NodePath, PRIMARY_TYPE, Property, Subtree, Value};

use super::Work;
use super::target::existing;
use crate::arrived::{Sha256, media_type, store, store_file};
use crate::failure::{Failure, Result};
use crate::form::Upload;
use crate::post::fields::{Chunk, Fields};

/// The node that holds the parts of a file that is still arriving.
const CHUNKS: &str = "sling:chunks";

impl Work<'_> {
    /// Stores an uploaded file below a node: a file in a folder, a resource elsewhere, or what the type hint says.
    pub(super) fn store_file(
        &mut self,
        base: &NodePath,
        field: &str,
        upload: &Upload,
        fields: &Fields,
    ) -> Result<()> {
        let (folder, name) = field.rsplit_once('/').unwrap_or(("", field));
        let name = if name == "*" { upload.name.as_str() } else { name };
        let folder = base.resolve(folder)?;
        let path = folder.child(name)?;
        if self.session.node(&folder)?.is_none() {
            self.create(&folder, None)?;
        }
        let digest = fields.digest(field)?;
        if let Some(chunk) = fields.chunk(field)? {
            let hint = fields.hint(field, "TypeHint");
            return self.store_chunk(&path, (upload, digest), &chunk, hint);
        }
        let resource = self.resource(upload, digest)?;
        self.put_file(&path, resource, fields.hint(field, "TypeHint"))
    }

    /// Puts a described file at its place.
    fn put_file(&mut self, path: &NodePath, resource: Subtree, hint: Option<&str>) -> Result<()> {
        let folder = path.parent().unwrap_or_else(NodePath::root);
        let folder = self.session.node(&folder)?;
        let is_folder = folder.is_some_and(|node| {
            matches!(
                node.primary_type(),
                "nt:folder" | "sling:Folder" | "sling:OrderedFolder" | "cq:Page" | "rep:root"
            )
        });
        let node = match hint {
            Some(hint @ ("nt:resource" | "oak:Resource")) => {
                Subtree { name: path.name().to_owned(), ..resource }
                    .with(PRIMARY_TYPE, Property::name(hint))
            }
            Some(hint) => Subtree::new(path.name(), hint).with_child(resource),
            None if is_folder => Subtree::new(path.name(), "nt:file").with_child(resource),
            None => resource,
        };
        let word = if self.session.node(path)?.is_none() { "created" } else { "modified" };
        self.session.put(path, node)?;
        self.done.changes.push((word, vec![path.to_string()]));
        Ok(())
    }

    /// Takes in a part of a file. Parts are kept below the file's node until the last one has come.
    fn store_chunk(
        &mut self,
        path: &NodePath,
        (upload, digest): (&Upload, Option<Sha256>),
        chunk: &Chunk,
        hint: Option<&str>,
    ) -> Result<()> {
        let parts = path.child(CHUNKS)?;
        if chunk.offset == 0 {
            // A new first part begins the file anew.
            if self.session.node(&parts)?.is_some() {
                self.session.remove(&parts)?;
            }
            if self.session.node(path)?.is_none() {
                self.create(path, Some(hint.unwrap_or("nt:unstructured")))?;
            }
            self.session.put(&parts, Subtree::new(CHUNKS, "nt:unstructured"))?;
        }
        let there = match self.session.node(&parts)? {
            Some(node) => node.children()?,
            None => {
                return Err(Failure::bad_request(
                    "there is no upload to go on with; begin with `@Offset` 0",
                ));
            }
        };
        let blob_of = |node: &tympan_content::Node| match node.property("jcr:data") {
            Some(Property::Single(Value::Binary(id))) => Some(id),
            _ => None,
        };
        let mut blobs: Vec<_> = there.iter().filter_map(blob_of).collect();
        drop(there);
        let begun: u64 = blobs.iter().map(|id| id.length()).sum();
        if begun != chunk.offset {
            let message =
                format!("the part begins at {}, but {begun} bytes are there", chunk.offset);
            return Err(Failure::bad_request(message));
        }
        let blob = store_file(&mut self.session, upload.file.reopen()?, None)?;
        blobs.push(blob);
        let end = begun + blob.length();
        let is_last = chunk.is_completed || chunk.length == Some(end);
        if chunk.length.is_some_and(|length| length < end) {
            return Err(Failure::bad_request("the parts are longer than `@Length` says"));
        }
        if !is_last {
            let part = Subtree::new(format!("{begun}"), "nt:unstructured")
                .with("jcr:data", Value::Binary(blob));
            self.session.put(&parts.child(&part.name)?, part)?;
            self.done.changes.push(("modified", vec![path.to_string()]));
            return Ok(());
        }
        let repository = self.session.repository().clone();
        let mut whole: Box<dyn Read> = Box::new(std::io::empty());
        for id in blobs {
            let content = repository.blobs().open(&id).map_err(tympan_content::Error::from)?;
            let content = content.ok_or(tympan_content::Error::BlobMissing(id))?;
            whole = Box::new(whole.chain(content.into_reader()));
        }
        // The parts stay as they are if they are not what they should be together.
        let named = digest.map(|digest| BlobId::new(digest, end));
        let blob = store(&mut self.session, &mut whole, named)?;
        self.session.remove(path)?;
        let resource = self.described(blob, upload)?;
        self.put_file(path, resource, hint)
    }

    /// Stores the bytes of an upload and describes them.
    fn resource(&mut self, upload: &Upload, digest: Option<Sha256>) -> Result<Subtree> {
        let blob = store_file(&mut self.session, upload.file.reopen()?, digest)?;
        self.described(blob, upload)
    }

    fn described(&self, blob: BlobId, upload: &Upload) -> Result<Subtree> {
        Ok(Subtree::new(JCR_CONTENT, "nt:resource")
            .with("jcr:data", Value::Binary(blob))
            .with("jcr:mimeType", Property::text(media_type_of(upload)?))
            .with("jcr:lastModified", Value::Date(Date::from_system_time(self.now)))
            .with("jcr:lastModifiedBy", Property::text(self.user)))
    }

    /// Stores uploads as assets, as AEM's `createasset` does.
    pub(super) fn create_assets(&mut self, path: &str, fields: &Fields) -> Result<()> {
        let snapshot = self.session.snapshot()?;
        let folder = existing(&snapshot, path)?;
        if fields.files.is_empty() {
            return Err(Failure::bad_request("no file was sent"));
        }
        for (_, upload) in &fields.files {
            let path = folder.child(&upload.name)?;
            let original = self.resource(upload, None)?;
            let length = upload.file.as_file().metadata()?.len();
            let rendition = Subtree::new("original", "nt:file").with_child(original);
            let metadata = Subtree::new("metadata", "nt:unstructured")
                .with("dc:format", Property::text(media_type_of(upload)?))
                .with("dam:size", Value::Long(i64::try_from(length).unwrap_or(i64::MAX)));
            let content = Subtree::new(JCR_CONTENT, "dam:AssetContent")
                .with("jcr:lastModified", Value::Date(Date::from_system_time(self.now)))
                .with("jcr:lastModifiedBy", Property::text(self.user))
                .with_child(metadata)
                .with_child(Subtree::new("renditions", "nt:folder").with_child(rendition));
            self.session
                .put(&path, Subtree::new(&*upload.name, "dam:Asset").with_child(content))?;
            path.as_str().clone_into(&mut self.done.path);
            self.done.changes.push(("created", vec![path.to_string()]));
        }
        self.done.is_create = true;
        Ok(())
    }
}

/// Returns what the sender calls the file's type, or what its name or its bytes say.
fn media_type_of(upload: &Upload) -> Result<String> {
    Ok(media_type(upload.media_type.as_deref(), &upload.name, upload.file.as_file())?)
}
