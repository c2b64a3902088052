//! The peer of C3: the same text in an index of the library alone, as its manual shows one.
//!
//! Path, title and text of each page, the latter two kept and found by words in their order, by as many threads with as
//! much memory as the program's index is built with. What the program adds is the difference: reading content, words by
//! property, places in the tree, types, values to count, documents sorted by path.

use std::path::Path;

use tantivy::indexer::IndexWriterOptions;
use tantivy::schema::{STORED, STRING, Schema, TEXT};
use tantivy::{Index, IndexWriter, TantivyDocument};

use crate::{Outcome, cpu};

/// As `tympan_search` has them.
const THREADS: usize = 2;
const BYTES: usize = 96 << 20;

/// The text of one page.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) path: String,
    pub(super) title: String,
    pub(super) texts: String,
}

/// Builds an index in a folder; returns the seconds of CPU that it took.
///
/// # Errors
/// If the folder cannot be written to.
pub(super) fn build(folder: &Path, pages: &[Text]) -> Outcome<f64> {
    let (built, seconds) = cpu::spent(|| write(folder, pages));
    built.map(|()| seconds)
}

fn write(folder: &Path, pages: &[Text]) -> Outcome<()> {
    let mut schema = Schema::builder();
    let path = schema.add_text_field("path", STRING | STORED);
    let title = schema.add_text_field("title", TEXT | STORED);
    let text = schema.add_text_field("text", TEXT | STORED);
    let index = Index::create_in_dir(folder, schema.build())?;
    let options = IndexWriterOptions::builder()
        .num_worker_threads(THREADS)
        .memory_budget_per_thread(BYTES)
        .build();
    let mut writer: IndexWriter = index.writer_with_options(options)?;
    for page in pages {
        let mut document = TantivyDocument::new();
        document.add_text(path, &page.path);
        document.add_text(title, &page.title);
        document.add_text(text, &page.texts);
        writer.add_document(document)?;
    }
    writer.commit()?;
    writer.wait_merging_threads()?;
    Ok(())
}
