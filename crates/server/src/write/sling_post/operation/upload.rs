//! Uploads: files, files that arrive in chunks, and assets.

use std::io::Read;

use tympan_content::{
    BlobId, JCR_CONTENT, JcrDate, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Subtree, Value,
    ValueType,
};

use super::PostOperation;
use super::refuse_service_address;
use super::target::find_url_node;
use crate::failure::{RequestFailure, Result};
use crate::write::form::FormUpload;
use crate::write::incoming_blob::{
    Sha256Digest, detect_media_type, require_write_access, store_bytes, store_file,
};
use crate::write::sling_post::form_field::{PostFields, UploadChunk};

/// The mixin type of a resource with an incomplete upload, and the type of the chunks below it.
const CHUNKS_MIXIN: &str = "sling:chunks";
const CHUNK_NODE_TYPE: &str = "sling:chunk";

/// The storage form of an upload, with its node type.
enum UploadStorageForm {
    /// A node with the bytes in its `jcr:content`.
    File(String),
    /// A node with the bytes in itself.
    Resource(String),
}

impl PostOperation<'_> {
    /// Stores an uploaded file below a node: as a file in a folder, as a resource elsewhere, or as the type hint says.
    pub(super) fn store_upload(
        &mut self,
        base: &NodePath,
        field: &str,
        upload: &FormUpload,
        fields: &PostFields,
    ) -> Result<()> {
        let (folder, name) = field.rsplit_once('/').unwrap_or(("", field));
        let name = if name == "*" { upload.name.as_str() } else { name };
        let folder = base.resolve(folder)?;
        let path = folder.child(name)?;
        require_write_access(&self.session.snapshot()?, &path)?;
        if self.session.node(&path)?.is_none() {
            refuse_service_address(&path)?;
        }
        if self.session.node(&folder)?.is_none() {
            self.create_with_parents(&folder, None)?;
        }
        let digest = fields.upload_digest(field)?;
        if let Some(chunk) = fields.upload_chunk(field)? {
            let hint = fields.field_hint(field, "TypeHint");
            return self.store_upload_chunk(&path, (upload, digest), &chunk, hint);
        }
        let resource = self.upload_resource(upload, digest)?;
        self.put_file(&path, resource, fields.field_hint(field, "TypeHint"))
    }

    /// Stores a file at its path.
    fn put_file(&mut self, path: &NodePath, resource: Subtree, hint: Option<&str>) -> Result<()> {
        let node = match self.storage_form_of(path, hint)? {
            UploadStorageForm::File(file_type) => {
                Subtree::new(path.name(), &file_type).with_child(resource)
            }
            UploadStorageForm::Resource(resource_type) => {
                Subtree { name: path.name().to_owned(), ..resource }
                    .with_property(PRIMARY_TYPE, Property::name(&resource_type))
            }
        };
        let keyword = if self.session.node(path)?.is_none() { "created" } else { "modified" };
        self.session.replace_node(path, node)?;
        self.outcome.changes.push((keyword, vec![path.to_string()]));
        Ok(())
    }

    /// Returns the storage form of an upload: that of the type hint, otherwise a file in a folder and a resource
    /// elsewhere.
    fn storage_form_of(
        &mut self,
        path: &NodePath,
        hint: Option<&str>,
    ) -> Result<UploadStorageForm> {
        let folder = path.parent().unwrap_or_else(NodePath::root);
        let folder = self.session.node(&folder)?;
        let is_folder = folder.is_some_and(|node| {
            matches!(
                node.primary_type(),
                "nt:folder" | "sling:Folder" | "sling:OrderedFolder" | "cq:Page" | "rep:root"
            )
        });
        Ok(match hint {
            Some(hint @ ("nt:resource" | "oak:Resource")) => {
                UploadStorageForm::Resource(hint.to_owned())
            }
            Some(hint) => UploadStorageForm::File(hint.to_owned()),
            None if is_folder => UploadStorageForm::File("nt:file".to_owned()),
            None => UploadStorageForm::Resource("nt:resource".to_owned()),
        })
    }

    /// Stores a chunk of a file. Chunks are stored below the node with the file's bytes until the last one arrives;
    /// until then an existing file stays unchanged.
    fn store_upload_chunk(
        &mut self,
        path: &NodePath,
        (upload, digest): (&FormUpload, Option<Sha256Digest>),
        chunk: &UploadChunk,
        hint: Option<&str>,
    ) -> Result<()> {
        let holder = match self.storage_form_of(path, hint)? {
            UploadStorageForm::File(_) => path.child(JCR_CONTENT)?,
            UploadStorageForm::Resource(_) => path.clone(),
        };
        if chunk.offset == 0 {
            self.begin_chunked_upload(path, &holder, upload, hint)?;
        }
        let mut parts = self.stored_chunks(&holder)?.ok_or_else(|| {
            RequestFailure::bad_request("there is no upload to continue; begin with `@Offset` 0")
        })?;
        let received_length: u64 = parts.iter().map(|id| id.length()).sum();
        if received_length != chunk.offset {
            let message = format!(
                "the part begins at {}, but {received_length} bytes were received",
                chunk.offset
            );
            return Err(RequestFailure::bad_request(message));
        }
        let blob = store_file(&mut self.session, upload.file.reopen()?, None)?;
        parts.push(blob);
        let end = received_length + blob.length();
        let is_last = chunk.is_last || chunk.length == Some(end);
        if chunk.length.is_some_and(|length| length < end) {
            return Err(RequestFailure::bad_request("the parts are longer than `@Length`"));
        }
        if !is_last {
            let name = format!("chunk_{received_length}_{}", end.saturating_sub(1));
            let part = Subtree::new(&*name, CHUNK_NODE_TYPE)
                .with_property(
                    "sling:offset",
                    Value::Long(i64::try_from(received_length).unwrap_or(i64::MAX)),
                )
                .with_property("jcr:data", Value::Binary(blob));
            self.session.put_node(&holder.child(&name)?, part)?;
            self.outcome.changes.push(("modified", vec![path.to_string()]));
            return Ok(());
        }
        let repository = self.session.repository().clone();
        let mut whole: Box<dyn Read> = Box::new(std::io::empty());
        for id in parts {
            let content = repository.blobs().open(&id).map_err(tympan_content::Error::from)?;
            let content = content.ok_or(tympan_content::Error::BlobMissing(id))?;
            whole = Box::new(whole.chain(content.into_reader()));
        }
        // The chunks stay unchanged if their combined digest does not match.
        let named = digest.map(|digest| BlobId::new(digest, end));
        let blob = store_bytes(&mut self.session, &mut whole, named)?;
        let resource = self.blob_resource(blob, upload)?;
        self.put_file(path, resource, hint)
    }

    /// Prepares for the chunks of a file: a new first chunk restarts the upload, and a missing file is created empty,
    /// as in Sling.
    fn begin_chunked_upload(
        &mut self,
        path: &NodePath,
        holder: &NodePath,
        upload: &FormUpload,
        hint: Option<&str>,
    ) -> Result<()> {
        if self.session.node(holder)?.is_none() {
            let nothing = self.session.put_blob(&mut std::io::empty())?;
            let resource = self.blob_resource(nothing, upload)?;
            self.put_file(path, resource, hint)?;
        }
        let Some(node) = self.session.node(holder)? else { return Ok(()) };
        let old = node.children()?;
        let old = old.iter().filter(|child| child.primary_type() == CHUNK_NODE_TYPE);
        let old: Vec<NodePath> = old.map(|child| child.path().clone()).collect();
        let mixins = node.property(MIXIN_TYPES);
        drop(node);
        for path in old {
            self.session.remove_node(&path)?;
        }
        let mut names: Vec<Value> =
            mixins.map(|mixins| mixins.values().to_vec()).unwrap_or_default();
        if !names.iter().any(|name| name.to_text() == CHUNKS_MIXIN) {
            names.push(Value::parse(ValueType::Name, CHUNKS_MIXIN)?);
        }
        let mixins = Property::List(ValueType::Name, names);
        Ok(self.session.set_property(holder, MIXIN_TYPES, mixins)?)
    }

    /// Returns the received chunks in order; `None` if no chunked upload is in progress.
    fn stored_chunks(&mut self, holder: &NodePath) -> Result<Option<Vec<BlobId>>> {
        let Some(node) = self.session.node(holder)? else { return Ok(None) };
        let mixins = node.property(MIXIN_TYPES);
        let is_begun = mixins.is_some_and(|mixins| {
            mixins.values().iter().any(|mixin| mixin.to_text() == CHUNKS_MIXIN)
        });
        if !is_begun {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for child in node.children()? {
            let offset = child.property("sling:offset");
            let offset = match offset.as_ref().and_then(Property::first) {
                Some(Value::Long(offset)) if child.primary_type() == CHUNK_NODE_TYPE => *offset,
                _ => continue,
            };
            if let Some(Property::Single(Value::Binary(id))) = child.property("jcr:data") {
                parts.push((offset, id));
            }
        }
        parts.sort_by_key(|(offset, _)| *offset);
        Ok(Some(parts.into_iter().map(|(_, id)| id).collect()))
    }

    /// Stores the bytes of an upload and builds its resource node.
    fn upload_resource(
        &mut self,
        upload: &FormUpload,
        digest: Option<Sha256Digest>,
    ) -> Result<Subtree> {
        let blob = store_file(&mut self.session, upload.file.reopen()?, digest)?;
        self.blob_resource(blob, upload)
    }

    fn blob_resource(&self, blob: BlobId, upload: &FormUpload) -> Result<Subtree> {
        Ok(Subtree::new(JCR_CONTENT, "nt:resource")
            .with_property("jcr:data", Value::Binary(blob))
            .with_property("jcr:mimeType", Property::text(upload_media_type(upload)?))
            .with_property("jcr:lastModified", Value::Date(JcrDate::from_system_time(self.now)))
            .with_property("jcr:lastModifiedBy", Property::text(self.user)))
    }

    /// Stores uploads as assets, as AEM's `createasset` does.
    pub(super) fn create_assets(&mut self, path: &str, fields: &PostFields) -> Result<()> {
        let snapshot = self.session.snapshot()?;
        let folder = find_url_node(&snapshot, path)?;
        if fields.files.is_empty() {
            return Err(RequestFailure::bad_request("no file was sent"));
        }
        require_write_access(&snapshot, &folder)?;
        refuse_service_address(&folder)?;
        for (_, upload) in &fields.files {
            let path = folder.child(&upload.name)?;
            let original = self.upload_resource(upload, None)?;
            let length = upload.file.as_file().metadata()?.len();
            let rendition = Subtree::new("original", "nt:file").with_child(original);
            let metadata = Subtree::new("metadata", "nt:unstructured")
                .with_property("dc:format", Property::text(upload_media_type(upload)?))
                .with_property("dam:size", Value::Long(i64::try_from(length).unwrap_or(i64::MAX)));
            let content = Subtree::new(JCR_CONTENT, "dam:AssetContent")
                .with_property("jcr:lastModified", Value::Date(JcrDate::from_system_time(self.now)))
                .with_property("jcr:lastModifiedBy", Property::text(self.user))
                .with_child(metadata)
                .with_child(Subtree::new("renditions", "nt:folder").with_child(rendition));
            let asset = Subtree::new(&*upload.name, "dam:Asset").with_child(content);
            self.session.replace_node(&path, asset)?;
            path.as_str().clone_into(&mut self.outcome.path);
            self.outcome.changes.push(("created", vec![path.to_string()]));
        }
        self.outcome.is_created = true;
        Ok(())
    }
}

/// Returns the media type of the file as declared by the client, or detected from its name or bytes.
fn upload_media_type(upload: &FormUpload) -> Result<String> {
    Ok(detect_media_type(upload.media_type.as_deref(), &upload.name, upload.file.as_file())?)
}
