//! The folder that gets the files of a place: what each file means for what is there, and the edits that follow.
//!
//! Invariants
//! * What did not come from the mount is left alone, and so is an asset whose original a person replaced.
//! * What people wrote about an asset stays, also when its file changes or moves.

use std::time::SystemTime;

use tympan_content::{
    BlobId, Date, JCR_CONTENT, Node, NodePath, Property, Session, Snapshot, Subtree, Value,
};

use super::fetch::Fetched;
use super::ledger::Row;
use super::name::node_name;
use super::pass::{Mount, Purpose, USER};
use super::source::Entry;
use crate::asset::{ASSET, ORIGINAL, blob_of};

/// On `jcr:content` of an asset, and on folders that a pass made: the mount that they came from. This and the others are
/// not AEM's.
pub(crate) const MOUNT: &str = "dam:mount";
/// The mark that the file had.
pub(super) const MARK: &str = "dam:mountMark";
/// The path of the file, with what is no name here escaped.
pub(super) const FILE: &str = "dam:mountFile";
/// The original that the file gave: whoever replaces it takes the asset over.
const GIVEN: &str = "dam:mountOriginal";
const TAKEN: &str = "something that did not come from it has its name";
const REPLACED: &str =
    "its original was replaced here, and stays; remove the asset to have the file's again";

/// What a file means for what is there.
pub(super) enum Verdict {
    /// Nothing is there.
    New(NodePath),
    /// What is there is the file as it is now.
    Present,
    /// An asset is there that may be of the same bytes; otherwise it stays.
    Same(Option<BlobId>),
    /// The asset gets the file's bytes.
    Replace(NodePath, Option<BlobId>),
    /// What is there stays, for this reason.
    Blocked(String),
}

/// Whose an asset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// This mount's, as it left it.
    Mount,
    /// This mount's, but a person replaced the original.
    Person,
    /// Somebody else's.
    Other,
}

/// What became of a file.
pub(super) enum Put {
    Added,
    Changed,
    Same,
    Skipped(String),
}

/// The folder of a mount, at the time of a pass.
pub(super) struct Target<'a> {
    pub(super) mount: &'a Mount,
    pub(super) now: SystemTime,
}

impl Target<'_> {
    /// Tells whether an asset says of itself that it is a file with this mark.
    pub(super) fn is_as_noted(
        &self,
        snapshot: &Snapshot,
        path: &NodePath,
        mark: &str,
    ) -> tympan_content::Result<bool> {
        let Some(node) = snapshot.node(path)? else { return Ok(false) };
        if self.mount.purpose == Purpose::Import {
            return Ok(true);
        }
        let content = node.child(JCR_CONTENT)?;
        Ok(content.is_some_and(|content| {
            content.text(MOUNT).as_deref() == Some(&*self.mount.name)
                && content.text(MARK).as_deref() == Some(mark)
        }))
    }

    /// Puts a file into its asset.
    pub(super) fn put(
        &self,
        session: &mut Session,
        entry: &Entry,
        fetched: &Fetched,
    ) -> tympan_content::Result<Put> {
        let blob = match fetched {
            Fetched::Present => return Ok(Put::Same),
            Fetched::Failed(reason, _) => return Ok(Put::Skipped(reason.clone())),
            Fetched::Blob(blob) => *blob,
        };
        let path = match self.verdict(&session.snapshot()?, entry)? {
            Verdict::Present => return Ok(Put::Same),
            Verdict::Blocked(reason) => return Ok(Put::Skipped(reason)),
            Verdict::New(path) => {
                self.make_folders(session, &path)?;
                session.put(&path, self.new_asset(&path, entry, blob))?;
                return Ok(Put::Added);
            }
            Verdict::Same(present) if present == Some(blob) => return Ok(Put::Same),
            Verdict::Same(_) => return Ok(Put::Skipped(TAKEN.to_owned())),
            Verdict::Replace(path, present) if present == Some(blob) => {
                session.set_property(
                    &path.child(JCR_CONTENT)?,
                    MARK,
                    Property::text(&*entry.mark),
                )?;
                return Ok(Put::Same);
            }
            Verdict::Replace(path, _) => path,
        };
        // Metadata and everything else that people gave it stays.
        let (content, original) = (path.child(JCR_CONTENT)?, path.resolve(ORIGINAL)?);
        let at = Value::Date(Date::from_system_time(self.now));
        session.set_property(&original, "jcr:data", Value::Binary(blob).into())?;
        session.set_property(&original, "jcr:lastModified", at.into())?;
        session.set_property(&content, GIVEN, Property::text(blob.to_string()))?;
        session.set_property(&content, MARK, Property::text(&*entry.mark))?;
        Ok(Put::Changed)
    }

    /// Tells what a file means for what is there.
    pub(super) fn verdict(
        &self,
        snapshot: &Snapshot,
        entry: &Entry,
    ) -> tympan_content::Result<Verdict> {
        let path = match self.asset_of(entry) {
            Ok(path) => path,
            Err(error) => return Ok(Verdict::Blocked(error.to_string())),
        };
        if let Some(above) = self.blocked_by(snapshot, &path)? {
            return Ok(Verdict::Blocked(format!("`{above}` above it is an asset")));
        }
        let Some(node) = snapshot.node(&path)? else { return Ok(Verdict::New(path)) };
        let original = original_of(&node)?;
        if self.mount.purpose == Purpose::Import {
            let has_length = |blob: BlobId| entry.bytes.is_none_or(|bytes| bytes == blob.length());
            let may_be_same = node.primary_type() == ASSET && original.is_some_and(has_length);
            return Ok(match may_be_same {
                true => Verdict::Same(original),
                false => Verdict::Blocked(TAKEN.to_owned()),
            });
        }
        let content = node.child(JCR_CONTENT)?;
        let mark = content.and_then(|content| content.text(MARK));
        Ok(match self.owner(&node)? {
            Owner::Mount if mark.as_deref() == Some(&*entry.mark) => Verdict::Present,
            Owner::Mount => Verdict::Replace(path, original),
            Owner::Person => Verdict::Blocked(REPLACED.to_owned()),
            Owner::Other => Verdict::Blocked(TAKEN.to_owned()),
        })
    }

    fn new_asset(&self, path: &NodePath, entry: &Entry, blob: BlobId) -> Subtree {
        let resource = Subtree::new(JCR_CONTENT, "nt:resource")
            .with("jcr:data", Value::Binary(blob))
            .with("jcr:lastModified", Value::Date(Date::from_system_time(self.now)))
            .with("jcr:lastModifiedBy", Property::text(USER));
        let original = Subtree::new("original", "nt:file").with_child(resource);
        let mut content = Subtree::new(JCR_CONTENT, "dam:AssetContent");
        if self.mount.purpose == Purpose::Follow {
            content = content
                .with(MOUNT, Property::text(&*self.mount.name))
                .with(FILE, Property::text(&*entry.path))
                .with(MARK, Property::text(&*entry.mark))
                .with(GIVEN, Property::text(blob.to_string()));
        }
        let content = content
            .with_child(Subtree::new("metadata", "nt:unstructured"))
            .with_child(Subtree::new("renditions", "nt:folder").with_child(original));
        Subtree::new(path.name(), ASSET).with_child(content)
    }

    /// Removes an asset whose file is gone; false if it is somebody's by now.
    pub(super) fn remove_one(
        &self,
        session: &mut Session,
        row: &Row,
    ) -> tympan_content::Result<bool> {
        let path = NodePath::new(&row.asset)?;
        let Some(node) = session.node(&path)? else { return Ok(true) };
        if self.owner(&node)? != Owner::Mount {
            return Ok(false);
        }
        session.remove(&path)?;
        self.remove_empty_folders(session, &path)?;
        Ok(true)
    }

    /// Returns the path of a file's asset.
    pub(super) fn asset_of(&self, entry: &Entry) -> tympan_content::Result<NodePath> {
        self.path_of(&entry.path)
    }

    /// Returns the path of the asset of a file by its escaped path.
    pub(super) fn path_of(&self, file: &str) -> tympan_content::Result<NodePath> {
        let mut path = self.mount.target.clone();
        for name in file.split('/') {
            path = path.child(&node_name(name))?;
        }
        Ok(path)
    }

    fn owner(&self, node: &Node) -> tympan_content::Result<Owner> {
        let Some(content) = node.child(JCR_CONTENT)? else { return Ok(Owner::Other) };
        if node.primary_type() != ASSET || content.text(MOUNT).as_deref() != Some(&*self.mount.name)
        {
            return Ok(Owner::Other);
        }
        let original = original_of(node)?.map(|blob| blob.to_string());
        Ok(if original == content.text(GIVEN) { Owner::Mount } else { Owner::Person })
    }

    /// Returns what above a path is an asset: in a bucket, `a` and `a/b` may both be files.
    fn blocked_by(
        &self,
        snapshot: &Snapshot,
        path: &NodePath,
    ) -> tympan_content::Result<Option<NodePath>> {
        let mut above = path.parent();
        while let Some(folder) = above.filter(|folder| folder.is_within(&self.mount.target)) {
            if let Some(node) = snapshot.node(&folder)? {
                return Ok((node.primary_type() == ASSET).then_some(folder));
            }
            above = folder.parent();
        }
        Ok(None)
    }

    /// Adds the folders above an asset that are not there.
    fn make_folders(&self, session: &mut Session, path: &NodePath) -> tympan_content::Result<()> {
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
            if self.mount.purpose == Purpose::Follow && is_below {
                session.set_property(folder, MOUNT, Property::text(&*self.mount.name))?;
            }
        }
        Ok(())
    }

    /// Removes the folders above an asset that passes made and that hold nothing any more.
    fn remove_empty_folders(
        &self,
        session: &mut Session,
        path: &NodePath,
    ) -> tympan_content::Result<()> {
        let mut above = path.parent();
        while let Some(folder) = above {
            let Some(node) = session.node(&folder)? else { return Ok(()) };
            let is_own = node.text(MOUNT).as_deref() == Some(&*self.mount.name)
                && node.primary_type() != ASSET;
            if !is_own || !node.children()?.is_empty() {
                return Ok(());
            }
            session.remove(&folder)?;
            above = folder.parent();
        }
        Ok(())
    }

    /// Moves the asset of a file that has another name now; false if it is left alone.
    pub(super) fn move_one(
        &self,
        session: &mut Session,
        row: &Row,
        entry: &Entry,
    ) -> tympan_content::Result<bool> {
        let (from, to) = (NodePath::new(&row.asset)?, self.asset_of(entry)?);
        let Some(node) = session.node(&from)? else { return Ok(false) };
        let is_free =
            session.node(&to)?.is_none() && self.blocked_by(&session.snapshot()?, &to)?.is_none();
        if !is_free || self.owner(&node)? != Owner::Mount {
            return Ok(false);
        }
        self.make_folders(session, &to)?;
        session.move_node(&from, &to)?;
        session.set_property(&to.child(JCR_CONTENT)?, FILE, Property::text(&*entry.path))?;
        self.remove_empty_folders(session, &from)?;
        Ok(true)
    }
}

fn original_of(node: &Node) -> tympan_content::Result<Option<BlobId>> {
    let resource = node.find(ORIGINAL)?;
    Ok(resource.and_then(|resource| resource.property("jcr:data")).and_then(|data| blob_of(&data)))
}
