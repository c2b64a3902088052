//! Generates content for measurements: pages, images and tags in given proportions, identical for identical seeds.
//!
//! In: a [`ContentSpec`]. Out: [`ContentItem`]s, which a [`ContentSink`] stores, and a [`ContentTotals`] of counts and
//! bytes.
//!
//! Invariants
//! * Item `n` is a function of the seed and of `n`. An increment continues the numbering of the ones before it, so
//!   content that is generated at once is the same as content that is generated in increments.
//! * No node gets more than [`MAX_CHILDREN`] children; a page's `jcr:content` counts as one of them.
//! * Images use [`UNIQUE_IMAGES`] files, from 37 to 594 KB, regardless of the number of images.
//!
//! Not here: load, and the wait for renditions (`tough`, `upload`).

mod author_sink;
mod content_item;
mod image;
mod text_generator;

use crate::{Error, Result};

pub use author_sink::AuthorContentSink;
pub use content_item::{ContentItem, ContentSink};
pub use image::{MAX_IMAGE_BYTES, MIN_IMAGE_BYTES, UNIQUE_IMAGES};

/// Maximum number of children of a node, as in the benchmark that the proportions come from.
pub const MAX_CHILDREN: u64 = 800;

/// The parameters of the generated content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentSpec {
    /// The name of the root nodes: `/content/NAME`, `/content/dam/NAME`, `/content/cq:tags/NAME`.
    pub name: String,
    /// Pages per increment.
    pub pages_per_increment: u64,
    /// Images per increment.
    pub images_per_increment: u64,
    /// Tags per increment.
    pub tags_per_increment: u64,
    /// The index of the first increment to generate, counted from 0.
    pub first_increment: u64,
    /// Number of increments.
    pub increment_count: u64,
    /// Children per node.
    pub children_per_node: u64,
    /// The seed of all generated values.
    pub seed: u64,
}

/// Item counts and bytes of one increment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContentTotals {
    /// Number of pages.
    pub pages: u64,
    /// Number of images.
    pub images: u64,
    /// Number of tags.
    pub tags: u64,
    /// Number of folders.
    pub folders: u64,
    /// Total size of images in bytes.
    pub image_bytes: u64,
    /// Total size of texts in bytes.
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
            ContentItem::Image { unique_file, .. } => {
                self.images += 1;
                self.image_bytes += image::image_size(seed, *unique_file);
            }
            ContentItem::Page { title, properties, .. } => {
                self.pages += 1;
                let texts: usize = properties.iter().map(|(_, value)| value.len()).sum();
                self.text_bytes += (title.len() + texts) as u64;
            }
        }
    }
}

/// Returns one of the unique images.
pub(crate) fn sample_picture(seed: u64) -> Vec<u8> {
    image::generate_png(seed, 0)
}

/// Counts items without storing them.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingContentSink;

impl ContentSink for CountingContentSink {
    fn store(&mut self, _: &ContentItem, _: u64) -> Result<()> {
        Ok(())
    }
}

impl ContentSpec {
    /// Validates the specification.
    ///
    /// # Errors
    /// [`Error::UnusableInput`].
    pub fn validate(&self) -> Result<()> {
        let is_name = !self.name.is_empty()
            && self.name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
        if !is_name {
            return Err(Error::UnusableInput(format!(
                "`{}` is not a name: use letters, digits and `-` only",
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
                "{folders} image folders are more than {} children per node allow",
                self.children_per_node
            )));
        }
        Ok(())
    }

    /// Stores all increments; `tell` receives the totals of each increment after it is stored.
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

    /// Generates all items of an increment; parents come before their children.
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

    /// Returns the path of node `number` in a tree that is filled level by level, so that the parent of a node comes
    /// before it.
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
        let text = |slot: u64, sentences: u64| {
            text_generator::generate_text(seed, number * 16 + slot, sentences)
        };
        component("title", &[("jcr:title", text_generator::generate_title(seed, number, 4))]);
        component("text", &[("text", text(1, 12)), ("textIsRich", "true".to_owned())]);
        // Pages refer to images that certainly exist: those of the first increment.
        if self.images_per_increment > 0 {
            let picture = |slot: u64| {
                let which = tympan_lab_plan::random_number(seed ^ 0x1111, number * 8 + slot)
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
        // Number 0 is the namespace, which is not a tag itself.
        let others = self.tags_per_increment.saturating_sub(1);
        let mut tags: Vec<String> = (0..others.min(3))
            .map(|slot| {
                let tag =
                    1 + tympan_lab_plan::random_number(seed ^ 0x2222, number * 4 + slot) % others;
                self.tag_path(tag).replacen("/content/cq:tags/", "", 1).replacen('/', ":", 1)
            })
            .collect();
        let mut unique_tags = std::collections::BTreeSet::new();
        tags.retain(|tag| unique_tags.insert(tag.clone()));
        ContentItem::Page {
            // The `jcr:content` of a page counts as a child too.
            path: self.tree_node_path("/content", ('p', self.children_per_node - 1), number),
            title: text_generator::generate_title(seed, number, 3),
            properties,
            tags,
        }
    }
}
