//! Content to measure with: pages, images and tags in given proportions, the same for the same seed.
//!
//! In: a [`ContentSpec`]. Out: [`ContentItem`]s, which a [`ContentSink`] stores, and a [`ContentTotals`] of counts and bytes.
//!
//! Invariants
//! * Item `n` is a function of the seed and of `n`: an increment continues the numbers of the ones before it, so content
//!   that is made at once or in increments is the same.
//! * No node gets more than [`MAX_CHILDREN`] children; a page's `jcr:content` is one of them.
//! * Images are of [`UNIQUE_IMAGES`] files, from 37 to 594 KB, whatever their number.
//!
//! Not here: load, and the wait for renditions (`tough`, `upload`).

mod author_sink;
mod image;
mod text_generator;

use crate::{Error, Result};

pub use author_sink::{AuthorContentSink, AuthorLogin};
pub use image::{MAX_IMAGE_BYTES, MIN_IMAGE_BYTES, UNIQUE_IMAGES};

/// Most children of a node, as in the benchmark that the proportions come from.
pub const MAX_CHILDREN: u64 = 800;

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentSpec {
    /// The name under which everything stands: `/content/NAME`, `/content/dam/NAME`, `/content/cq:tags/NAME`.
    pub name: String,
    /// Pages per increment.
    pub pages_per_increment: u64,
    /// Images per increment.
    pub images_per_increment: u64,
    /// Tags per increment.
    pub tags_per_increment: u64,
    /// The first increment that is made, counted from 0.
    pub first_increment: u64,
    /// Increments.
    pub increment_count: u64,
    /// Children per node.
    pub children_per_node: u64,
    /// What everything derives from.
    pub seed: u64,
}

/// Something to be stored.
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
        /// The folder.
        folder: String,
        /// The name of the file.
        name: String,
        /// Which of the unique files.
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

/// Counts and bytes of one increment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContentTotals {
    /// Pages.
    pub pages: u64,
    /// Images.
    pub images: u64,
    /// Tags.
    pub tags: u64,
    /// Folders.
    pub folders: u64,
    /// Bytes of images.
    pub image_bytes: u64,
    /// Bytes of texts.
    pub text_bytes: u64,
}

impl ContentTotals {
    fn add_item(&mut self, item: &ContentItem, seed: u64) {
        match item {
            ContentItem::Folder { .. } => self.folders += 1,
            ContentItem::Tag { title, .. } => {
                self.tags += 1;
                self.text_bytes += title.len() as u64;
            }
            ContentItem::Image { unique_file: file, .. } => {
                self.images += 1;
                self.image_bytes += image::image_size(seed, *file);
            }
            ContentItem::Page { title, properties, .. } => {
                self.pages += 1;
                let texts: usize = properties.iter().map(|(_, value)| value.len()).sum();
                self.text_bytes += (title.len() + texts) as u64;
            }
        }
    }
}

/// Returns one of the pictures.
pub(crate) fn sample_picture(seed: u64) -> Vec<u8> {
    image::generate_png(seed, 0)
}

/// Takes items.
pub trait ContentSink {
    /// Stores an item; storing one again must give the same.
    ///
    /// # Errors
    /// Why it is not stored; the rest is then not tried.
    fn store(&mut self, item: &ContentItem, seed: u64) -> Result<()>;
}

/// Counts without storing.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingContentSink;

impl ContentSink for CountingContentSink {
    fn store(&mut self, _: &ContentItem, _: u64) -> Result<()> {
        Ok(())
    }
}

impl ContentSpec {
    /// Reports what is wrong with the wish.
    ///
    /// # Errors
    /// [`Error::UnusableInput`].
    pub fn validate(&self) -> Result<()> {
        let is_name = !self.name.is_empty()
            && self.name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
        if !is_name {
            return Err(Error::UnusableInput(format!(
                "`{}` is no name: letters, digits and `-` only",
                self.name
            )));
        }
        if !(3..=MAX_CHILDREN).contains(&self.children_per_node) {
            return Err(Error::UnusableInput(format!(
                "`{}` children per node: expected 3 to {MAX_CHILDREN}",
                self.children_per_node
            )));
        }
        let folders =
            self.images_per_increment.saturating_mul(self.first_increment + self.increment_count)
                / self.children_per_node;
        if folders >= self.children_per_node {
            return Err(Error::UnusableInput(format!(
                "{folders} folders of images are more than {} children per node allow",
                self.children_per_node
            )));
        }
        Ok(())
    }

    /// Stores everything; `tell` hears the sum of each increment when it is stored.
    ///
    /// # Errors
    /// As [`ContentSpec::validate`] and [`ContentSink::store`].
    pub fn store_all(
        &self,
        sink: &mut dyn ContentSink,
        tell: &mut dyn FnMut(u64, ContentTotals),
    ) -> Result<ContentTotals> {
        self.validate()?;
        let mut whole = ContentTotals::default();
        for increment in self.first_increment..self.first_increment + self.increment_count {
            let mut sum = ContentTotals::default();
            self.generate_increment(increment, &mut |item| {
                sink.store(item, self.seed)?;
                sum.add_item(item, self.seed);
                whole.add_item(item, self.seed);
                Ok(())
            })?;
            tell(increment, sum);
        }
        Ok(whole)
    }

    /// Gives all items of an increment: what holds others comes before what it holds.
    fn generate_increment(
        &self,
        increment: u64,
        give: &mut dyn FnMut(&ContentItem) -> Result<()>,
    ) -> Result<()> {
        let numbers = |count: u64| increment * count..(increment + 1) * count;
        if increment == 0 && self.images_per_increment > 0 {
            give(&ContentItem::Folder { path: self.image_root_path() })?;
        }
        for number in numbers(self.tags_per_increment) {
            let path = self.tag_path(number);
            give(&ContentItem::Tag {
                path,
                title: text_generator::generate_title(self.seed, number, 1),
            })?;
        }
        for number in numbers(self.images_per_increment) {
            let folder = format!("{}/f{}", self.image_root_path(), number / self.children_per_node);
            if number % self.children_per_node == 0 {
                give(&ContentItem::Folder { path: folder.clone() })?;
            }
            let name = format!("i{number}.png");
            give(&ContentItem::Image { folder, name, unique_file: number % UNIQUE_IMAGES })?;
        }
        for number in numbers(self.pages_per_increment) {
            give(&self.generate_page(number))?;
        }
        Ok(())
    }

    fn image_root_path(&self) -> String {
        format!("/content/dam/{}", self.name)
    }

    /// Returns the path of a tag.
    fn tag_path(&self, number: u64) -> String {
        self.tree_node_path("/content/cq:tags", ('t', self.children_per_node), number)
    }

    /// Returns the path of node `number` of a tree that is filled level by level: the parent of a node comes before it.
    fn tree_node_path(&self, root: &str, (letter, children): (char, u64), number: u64) -> String {
        let mut names = Vec::new();
        let mut at = number;
        while at > 0 {
            names.push(format!("{letter}{at}"));
            at = (at - 1) / children;
        }
        names.push(self.name.clone());
        names.push(root.to_owned());
        names.reverse();
        names.join("/")
    }

    fn generate_page(&self, number: u64) -> ContentItem {
        let seed = self.seed;
        let mut properties = Vec::new();
        let mut component = |name: &str, fields: &[(&str, String)]| {
            let own = [("sling:resourceType", format!("site/components/{name}"))];
            for (field, value) in own.iter().chain(fields) {
                properties.push((format!("root/{name}/{field}"), value.clone()));
            }
        };
        let text = |place: u64, sentences: u64| {
            text_generator::generate_text(seed, number * 16 + place, sentences)
        };
        component("title", &[("jcr:title", text_generator::generate_title(seed, number, 4))]);
        component("text", &[("text", text(1, 12)), ("textIsRich", "true".to_owned())]);
        // Pages show the images that are there for sure: those of the first increment.
        if self.images_per_increment > 0 {
            let picture = |place: u64| {
                let which = crate::load::random_number(seed ^ 0x1111, number * 8 + place)
                    % self.images_per_increment;
                format!(
                    "{}/f{}/i{which}.png",
                    self.image_root_path(),
                    which / self.children_per_node
                )
            };
            component(
                "image",
                &[
                    ("fileReference", picture(0)),
                    ("alt", text_generator::generate_title(seed, number * 3, 3)),
                ],
            );
            component("carousel", &[("first", picture(1)), ("second", picture(2))]);
        }
        component("table", &[("tableData", text(2, 6))]);
        component(
            "teaser",
            &[
                ("jcr:title", text_generator::generate_title(seed, number * 5, 3)),
                ("jcr:description", text(3, 2)),
            ],
        );
        // Number 0 is the namespace, which is no tag by itself.
        let others = self.tags_per_increment.saturating_sub(1);
        let mut tags: Vec<String> = (0..others.min(3))
            .map(|place| {
                let tag =
                    1 + crate::load::random_number(seed ^ 0x2222, number * 4 + place) % others;
                self.tag_path(tag).replacen("/content/cq:tags/", "", 1).replacen('/', ":", 1)
            })
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        tags.retain(|tag| seen.insert(tag.clone()));
        ContentItem::Page {
            // The page's own content is a child too.
            path: self.tree_node_path("/content", ('p', self.children_per_node - 1), number),
            title: text_generator::generate_title(seed, number, 3),
            properties,
            tags,
        }
    }
}
