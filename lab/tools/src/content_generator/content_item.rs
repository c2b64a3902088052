//! An item of generated content, and its destination.

use crate::Result;

/// An item to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentItem {
    /// A folder of images.
    Folder {
        /// Its node path.
        path: String,
    },
    /// A tag.
    Tag {
        /// Its node path.
        path: String,
        /// Its title.
        title: String,
    },
    /// An image.
    Image {
        /// The path of its folder.
        folder: String,
        /// The file name.
        name: String,
        /// The number of the unique file.
        unique_file: u64,
    },
    /// A page.
    Page {
        /// Its node path.
        path: String,
        /// Its title.
        title: String,
        /// Its properties below `jcr:content`, by relative path.
        properties: Vec<(String, String)>,
        /// The tags that it carries.
        tags: Vec<String>,
    },
}

/// Stores generated items.
pub trait ContentSink {
    /// Stores an item; storing the same item again must give the same result.
    ///
    /// # Errors
    /// The reason why the item is not stored; the remaining items are then not stored either.
    fn store(&mut self, item: &ContentItem, seed: u64) -> Result<()>;
}
