//! Content to measure with: pages, images and tags in given proportions, the same for the same seed.
//!
//! In: a [`Wish`]. Out: [`Item`]s, which a [`Sink`] stores, and a [`Sum`] of counts and bytes.
//!
//! Invariants
//! * Item `n` is a function of the seed and of `n`: an increment continues the numbers of the ones before it, so content
//!   that is made at once or in increments is the same.
//! * No node gets more than [`MOST_CHILDREN`] children; a page's `jcr:content` is one of them.
//! * Images are of [`UNIQUE_IMAGES`] files, from 37 to 594 KB, whatever their number.
//!
//! Not here: load, and the wait for renditions (`tough`, `upload`).

mod image;
mod send;
mod words;

use crate::{Error, Result};

pub use image::{LARGEST, SMALLEST, UNIQUE_IMAGES};
pub use send::{Author, Login};

/// Most children of a node, as in the benchmark that the proportions come from.
pub const MOST_CHILDREN: u64 = 800;

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The name under which everything stands: `/content/NAME`, `/content/dam/NAME`, `/content/cq:tags/NAME`.
    pub name: String,
    /// Pages per increment.
    pub pages: u64,
    /// Images per increment.
    pub images: u64,
    /// Tags per increment.
    pub tags: u64,
    /// The first increment that is made, counted from 0.
    pub from: u64,
    /// Increments.
    pub increments: u64,
    /// Children per node.
    pub children: u64,
    /// What everything derives from.
    pub seed: u64,
}

/// Something to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
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
        file: u64,
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
pub struct Sum {
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

impl Sum {
    fn add(&mut self, item: &Item, seed: u64) {
        match item {
            Item::Folder { .. } => self.folders += 1,
            Item::Tag { title, .. } => {
                self.tags += 1;
                self.text_bytes += title.len() as u64;
            }
            Item::Image { file, .. } => {
                self.images += 1;
                self.image_bytes += image::size(seed, *file);
            }
            Item::Page { title, properties, .. } => {
                self.pages += 1;
                let texts: usize = properties.iter().map(|(_, value)| value.len()).sum();
                self.text_bytes += (title.len() + texts) as u64;
            }
        }
    }
}

/// Returns one of the pictures.
pub(crate) fn picture(seed: u64) -> Vec<u8> {
    image::png(seed, 0)
}

/// Takes items.
pub trait Sink {
    /// Stores an item; storing one again must give the same.
    ///
    /// # Errors
    /// Why it is not stored; the rest is then not tried.
    fn store(&mut self, item: &Item, seed: u64) -> Result<()>;
}

/// Counts without storing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nowhere;

impl Sink for Nowhere {
    fn store(&mut self, _: &Item, _: u64) -> Result<()> {
        Ok(())
    }
}

impl Wish {
    /// Reports what is wrong with the wish.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub fn check(&self) -> Result<()> {
        let is_name = !self.name.is_empty()
            && self.name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
        if !is_name {
            return Err(Error::Input(format!(
                "`{}` is no name: letters, digits and `-` only",
                self.name
            )));
        }
        if !(3..=MOST_CHILDREN).contains(&self.children) {
            return Err(Error::Input(format!(
                "`{}` children per node: expected 3 to {MOST_CHILDREN}",
                self.children
            )));
        }
        let folders = self.images.saturating_mul(self.from + self.increments) / self.children;
        if folders >= self.children {
            return Err(Error::Input(format!(
                "{folders} folders of images are more than {} children per node allow",
                self.children
            )));
        }
        Ok(())
    }

    /// Stores everything; `tell` hears the sum of each increment when it is stored.
    ///
    /// # Errors
    /// As [`Wish::check`] and [`Sink::store`].
    pub fn fill(&self, sink: &mut dyn Sink, tell: &mut dyn FnMut(u64, Sum)) -> Result<Sum> {
        self.check()?;
        let mut whole = Sum::default();
        for increment in self.from..self.from + self.increments {
            let mut sum = Sum::default();
            self.increment(increment, &mut |item| {
                sink.store(item, self.seed)?;
                sum.add(item, self.seed);
                whole.add(item, self.seed);
                Ok(())
            })?;
            tell(increment, sum);
        }
        Ok(whole)
    }

    /// Gives all items of an increment: what holds others comes before what it holds.
    fn increment(&self, increment: u64, give: &mut dyn FnMut(&Item) -> Result<()>) -> Result<()> {
        let numbers = |count: u64| increment * count..(increment + 1) * count;
        if increment == 0 && self.images > 0 {
            give(&Item::Folder { path: self.images_root() })?;
        }
        for number in numbers(self.tags) {
            let path = self.tag(number);
            give(&Item::Tag { path, title: words::title(self.seed, number, 1) })?;
        }
        for number in numbers(self.images) {
            let folder = format!("{}/f{}", self.images_root(), number / self.children);
            if number % self.children == 0 {
                give(&Item::Folder { path: folder.clone() })?;
            }
            let name = format!("i{number}.png");
            give(&Item::Image { folder, name, file: number % UNIQUE_IMAGES })?;
        }
        for number in numbers(self.pages) {
            give(&self.page(number))?;
        }
        Ok(())
    }

    fn images_root(&self) -> String {
        format!("/content/dam/{}", self.name)
    }

    /// Returns the path of a tag.
    fn tag(&self, number: u64) -> String {
        self.tree("/content/cq:tags", ('t', self.children), number)
    }

    /// Returns the path of node `number` of a tree that is filled level by level: the parent of a node comes before it.
    fn tree(&self, root: &str, (letter, children): (char, u64), number: u64) -> String {
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

    fn page(&self, number: u64) -> Item {
        let seed = self.seed;
        let mut properties = Vec::new();
        let mut component = |name: &str, fields: &[(&str, String)]| {
            let own = [("sling:resourceType", format!("site/components/{name}"))];
            for (field, value) in own.iter().chain(fields) {
                properties.push((format!("root/{name}/{field}"), value.clone()));
            }
        };
        let text = |place: u64, sentences: u64| words::text(seed, number * 16 + place, sentences);
        component("title", &[("jcr:title", words::title(seed, number, 4))]);
        component("text", &[("text", text(1, 12)), ("textIsRich", "true".to_owned())]);
        // Pages show the images that are there for sure: those of the first increment.
        if self.images > 0 {
            let picture = |place: u64| {
                let which = crate::load::random(seed ^ 0x1111, number * 8 + place) % self.images;
                format!("{}/f{}/i{which}.png", self.images_root(), which / self.children)
            };
            component(
                "image",
                &[("fileReference", picture(0)), ("alt", words::title(seed, number * 3, 3))],
            );
            component("carousel", &[("first", picture(1)), ("second", picture(2))]);
        }
        component("table", &[("tableData", text(2, 6))]);
        component(
            "teaser",
            &[("jcr:title", words::title(seed, number * 5, 3)), ("jcr:description", text(3, 2))],
        );
        // Number 0 is the namespace, which is no tag by itself.
        let others = self.tags.saturating_sub(1);
        let mut tags: Vec<String> = (0..others.min(3))
            .map(|place| {
                let tag = 1 + crate::load::random(seed ^ 0x2222, number * 4 + place) % others;
                self.tag(tag).replacen("/content/cq:tags/", "", 1).replacen('/', ":", 1)
            })
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        tags.retain(|tag| seen.insert(tag.clone()));
        Item::Page {
            // The page's own content is a child too.
            path: self.tree("/content", ('p', self.children - 1), number),
            title: words::title(seed, number, 3),
            properties,
            tags,
        }
    }
}
