//! The target folder of a source: decides the action for each file, and edits the assets.
//!
//! Invariants
//! * Content that did not come from the mount is unchanged, and so is an asset whose original a person replaced.
//! * Metadata that people wrote is preserved, even if the file changes or moves.

use std::time::SystemTime;

use tympan_assets::{ASSET_NODE_TYPE, MOUNT_PROPERTY, ORIGINAL_CONTENT_PATH, original_blob};
use tympan_content::{
    BlobId, JCR_CONTENT, JcrDate, Node, NodePath, Property, Session, Snapshot, Subtree, Value,
};

use crate::asset_mount::{AssetMount, MountPurpose, SYNCHRONIZATION_USER};
use crate::file_fetch::MountFileFetch;
use crate::mount_ledger::MountFileRow;
use crate::mount_source::SourceFile;
use crate::name_escaping::node_name_of_escaped;

/// Property of `jcr:content` of an asset: the fingerprint of the file. This property and the others are not AEM's.
pub(crate) const FINGERPRINT_PROPERTY: &str = "dam:mountMark";
/// The path of the file, with characters that names cannot contain escaped.
pub(crate) const FILE_PATH_PROPERTY: &str = "dam:mountFile";
/// The original that came from the file. If a person replaces the original, the mount no longer owns the asset.
const MOUNT_ORIGINAL_PROPERTY: &str = "dam:mountOriginal";
const NAME_TAKEN_REASON: &str = "its name is taken by something that did not come from the mount";
const ORIGINAL_REPLACED_REASON: &str = "its original was replaced here and is kept; remove the asset to get the original of the file again";

/// The action for a file.
pub(crate) enum MountFileAction {
    /// Nothing exists at the path.
    Add(NodePath),
    /// The asset matches the file.
    KeepUnchanged,
    /// An asset exists that may have the same bytes; otherwise it is unchanged.
    CompareBytes(Option<BlobId>),
    /// The asset receives the file's bytes.
    Replace(NodePath, Option<BlobId>),
    /// The existing node is unchanged, for this reason.
    Blocked(String),
}

/// The owner of an asset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountedAssetOwner {
    /// This mount, with the original unchanged.
    ThisMount,
    /// This mount, but a person replaced the original.
    Person,
    /// Another owner.
    Foreign,
}

/// The outcome for a file.
pub(crate) enum MountFileOutcome {
    Added,
    Changed,
    Unchanged,
    Skipped(String),
}

/// The target folder of a mount during a pass.
pub(crate) struct MountTarget<'a> {
    pub(crate) mount: &'a AssetMount,
    pub(crate) now: SystemTime,
}

impl MountTarget<'_> {
    /// Returns true if an asset records that it is a file with this fingerprint.
    pub(crate) fn has_recorded_fingerprint(
        &self,
        snapshot: &Snapshot,
        path: &NodePath,
        mark: &str,
    ) -> tympan_content::Result<bool> {
        let Some(node) = snapshot.node(path)? else { return Ok(false) };
        if self.mount.purpose == MountPurpose::Import {
            return Ok(true);
        }
        let content = node.child(JCR_CONTENT)?;
        Ok(content.is_some_and(|content| {
            content.text(MOUNT_PROPERTY).as_deref() == Some(&*self.mount.name)
                && content.text(FINGERPRINT_PROPERTY).as_deref() == Some(mark)
        }))
    }

    /// Writes a file into its asset.
    pub(crate) fn put_file(
        &self,
        session: &mut Session,
        entry: &SourceFile,
        fetched: &MountFileFetch,
    ) -> tympan_content::Result<MountFileOutcome> {
        let blob = match fetched {
            MountFileFetch::Present => return Ok(MountFileOutcome::Unchanged),
            MountFileFetch::Failed(reason, _) => {
                return Ok(MountFileOutcome::Skipped(reason.clone()));
            }
            MountFileFetch::Blob(blob) => *blob,
        };
        let path = match self.decide_action(&session.snapshot()?, entry)? {
            MountFileAction::KeepUnchanged => return Ok(MountFileOutcome::Unchanged),
            MountFileAction::Blocked(reason) => return Ok(MountFileOutcome::Skipped(reason)),
            MountFileAction::Add(path) => {
                self.create_parent_folders(session, &path)?;
                session.put_node(&path, self.build_asset(&path, entry, blob))?;
                return Ok(MountFileOutcome::Added);
            }
            MountFileAction::CompareBytes(present) if present == Some(blob) => {
                return Ok(MountFileOutcome::Unchanged);
            }
            MountFileAction::CompareBytes(_) => {
                return Ok(MountFileOutcome::Skipped(NAME_TAKEN_REASON.to_owned()));
            }
            MountFileAction::Replace(path, present) if present == Some(blob) => {
                session.set_property(
                    &path.child(JCR_CONTENT)?,
                    FINGERPRINT_PROPERTY,
                    Property::text(&*entry.fingerprint),
                )?;
                return Ok(MountFileOutcome::Unchanged);
            }
            MountFileAction::Replace(path, _) => path,
        };
        // Metadata and other content that people added is preserved.
        let (content, original) = (path.child(JCR_CONTENT)?, path.resolve(ORIGINAL_CONTENT_PATH)?);
        let at = Value::Date(JcrDate::from_system_time(self.now));
        session.set_property(&original, "jcr:data", Value::Binary(blob).into())?;
        session.set_property(&original, "jcr:lastModified", at.into())?;
        session.set_property(
            &content,
            MOUNT_ORIGINAL_PROPERTY,
            Property::text(blob.to_string()),
        )?;
        session.set_property(
            &content,
            FINGERPRINT_PROPERTY,
            Property::text(&*entry.fingerprint),
        )?;
        Ok(MountFileOutcome::Changed)
    }

    /// Decides the action for a file.
    pub(crate) fn decide_action(
        &self,
        snapshot: &Snapshot,
        entry: &SourceFile,
    ) -> tympan_content::Result<MountFileAction> {
        let path = match self.asset_path_of_file(entry) {
            Ok(path) => path,
            Err(error) => return Ok(MountFileAction::Blocked(error.to_string())),
        };
        if let Some(above) = self.find_blocking_asset(snapshot, &path)? {
            return Ok(MountFileAction::Blocked(format!("its ancestor `{above}` is an asset")));
        }
        let Some(node) = snapshot.node(&path)? else { return Ok(MountFileAction::Add(path)) };
        let original = original_blob(&node)?;
        if self.mount.purpose == MountPurpose::Import {
            let has_length =
                |blob: BlobId| entry.byte_count.is_none_or(|bytes| bytes == blob.length());
            let may_be_same =
                node.primary_type() == ASSET_NODE_TYPE && original.is_some_and(has_length);
            return Ok(match may_be_same {
                true => MountFileAction::CompareBytes(original),
                false => MountFileAction::Blocked(NAME_TAKEN_REASON.to_owned()),
            });
        }
        let content = node.child(JCR_CONTENT)?;
        let mark = content.and_then(|content| content.text(FINGERPRINT_PROPERTY));
        Ok(match self.asset_owner(&node)? {
            MountedAssetOwner::ThisMount if mark.as_deref() == Some(&*entry.fingerprint) => {
                MountFileAction::KeepUnchanged
            }
            MountedAssetOwner::ThisMount => MountFileAction::Replace(path, original),
            MountedAssetOwner::Person => {
                MountFileAction::Blocked(ORIGINAL_REPLACED_REASON.to_owned())
            }
            MountedAssetOwner::Foreign => MountFileAction::Blocked(NAME_TAKEN_REASON.to_owned()),
        })
    }

    fn build_asset(&self, path: &NodePath, entry: &SourceFile, blob: BlobId) -> Subtree {
        let resource = Subtree::new(JCR_CONTENT, "nt:resource")
            .with_property("jcr:data", Value::Binary(blob))
            .with_property("jcr:lastModified", Value::Date(JcrDate::from_system_time(self.now)))
            .with_property("jcr:lastModifiedBy", Property::text(SYNCHRONIZATION_USER));
        let original = Subtree::new("original", "nt:file").with_child(resource);
        let mut content = Subtree::new(JCR_CONTENT, "dam:AssetContent");
        if self.mount.purpose == MountPurpose::Synchronize {
            content = content
                .with_property(MOUNT_PROPERTY, Property::text(&*self.mount.name))
                .with_property(FILE_PATH_PROPERTY, Property::text(&*entry.path))
                .with_property(FINGERPRINT_PROPERTY, Property::text(&*entry.fingerprint))
                .with_property(MOUNT_ORIGINAL_PROPERTY, Property::text(blob.to_string()));
        }
        let content = content
            .with_child(Subtree::new("metadata", "nt:unstructured"))
            .with_child(Subtree::new("renditions", "nt:folder").with_child(original));
        Subtree::new(path.name(), ASSET_NODE_TYPE).with_child(content)
    }

    /// Removes an asset whose file was removed. Returns false if the asset has another owner.
    pub(crate) fn remove_asset(
        &self,
        session: &mut Session,
        row: &MountFileRow,
    ) -> tympan_content::Result<bool> {
        let path = NodePath::new(&row.asset_path)?;
        let Some(node) = session.node(&path)? else { return Ok(true) };
        if self.asset_owner(&node)? != MountedAssetOwner::ThisMount {
            return Ok(false);
        }
        session.remove_node(&path)?;
        self.remove_empty_folders(session, &path)?;
        Ok(true)
    }

    /// Returns the path of a file's asset.
    pub(crate) fn asset_path_of_file(
        &self,
        entry: &SourceFile,
    ) -> tympan_content::Result<NodePath> {
        self.asset_path_of(&entry.path)
    }

    /// Returns the path of the asset for a file's escaped path.
    pub(crate) fn asset_path_of(&self, file: &str) -> tympan_content::Result<NodePath> {
        let mut path = self.mount.target.clone();
        for name in file.split('/') {
            path = path.child(&node_name_of_escaped(name))?;
        }
        Ok(path)
    }

    fn asset_owner(&self, node: &Node) -> tympan_content::Result<MountedAssetOwner> {
        let Some(content) = node.child(JCR_CONTENT)? else { return Ok(MountedAssetOwner::Foreign) };
        if node.primary_type() != ASSET_NODE_TYPE
            || content.text(MOUNT_PROPERTY).as_deref() != Some(&*self.mount.name)
        {
            return Ok(MountedAssetOwner::Foreign);
        }
        let original = original_blob(node)?.map(|blob| blob.to_string());
        Ok(if original == content.text(MOUNT_ORIGINAL_PROPERTY) {
            MountedAssetOwner::ThisMount
        } else {
            MountedAssetOwner::Person
        })
    }

    /// Returns the asset above a path, if any: in a bucket, `a` and `a/b` may both be files.
    fn find_blocking_asset(
        &self,
        snapshot: &Snapshot,
        path: &NodePath,
    ) -> tympan_content::Result<Option<NodePath>> {
        let mut above = path.parent();
        while let Some(folder) = above.filter(|folder| folder.is_within(&self.mount.target)) {
            if let Some(node) = snapshot.node(&folder)? {
                return Ok((node.primary_type() == ASSET_NODE_TYPE).then_some(folder));
            }
            above = folder.parent();
        }
        Ok(None)
    }

    /// Creates the missing folders above an asset.
    fn create_parent_folders(
        &self,
        session: &mut Session,
        path: &NodePath,
    ) -> tympan_content::Result<()> {
        let mut missing = Vec::new();
        let mut above = path.parent();
        while let Some(folder) = above {
            if session.node(&folder)?.is_some() {
                break;
            }
            above = folder.parent();
            missing.push(folder);
        }
        for folder in missing.iter().rev() {
            session.add_node(folder, "sling:Folder")?;
            let is_below = folder.is_within(&self.mount.target) && *folder != self.mount.target;
            if self.mount.purpose == MountPurpose::Synchronize && is_below {
                session.set_property(folder, MOUNT_PROPERTY, Property::text(&*self.mount.name))?;
            }
        }
        Ok(())
    }

    /// Removes the empty folders above an asset that passes created.
    fn remove_empty_folders(
        &self,
        session: &mut Session,
        path: &NodePath,
    ) -> tympan_content::Result<()> {
        let mut above = path.parent();
        while let Some(folder) = above {
            let Some(node) = session.node(&folder)? else { return Ok(()) };
            let is_own = node.text(MOUNT_PROPERTY).as_deref() == Some(&*self.mount.name)
                && node.primary_type() != ASSET_NODE_TYPE;
            if !is_own || !node.children()?.is_empty() {
                return Ok(());
            }
            session.remove_node(&folder)?;
            above = folder.parent();
        }
        Ok(())
    }

    /// Moves the asset of a renamed file. Returns false if the asset is left unchanged.
    pub(crate) fn move_asset(
        &self,
        session: &mut Session,
        row: &MountFileRow,
        entry: &SourceFile,
    ) -> tympan_content::Result<bool> {
        let (from, to) = (NodePath::new(&row.asset_path)?, self.asset_path_of_file(entry)?);
        let Some(node) = session.node(&from)? else { return Ok(false) };
        let is_free = session.node(&to)?.is_none()
            && self.find_blocking_asset(&session.snapshot()?, &to)?.is_none();
        if !is_free || self.asset_owner(&node)? != MountedAssetOwner::ThisMount {
            return Ok(false);
        }
        self.create_parent_folders(session, &to)?;
        session.move_node(&from, &to)?;
        session.set_property(
            &to.child(JCR_CONTENT)?,
            FILE_PATH_PROPERTY,
            Property::text(&*entry.path),
        )?;
        self.remove_empty_folders(session, &from)?;
        Ok(true)
    }
}
