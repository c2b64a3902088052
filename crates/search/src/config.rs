//! The section `[search]` of `tympan.toml`.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::indexing::index_state::SearchIndexOptions;
use crate::text_extraction::PdfReader;

/// The full-text index.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSection {
    /// Threads that read documents while the index is built or many documents change; default 2, at least 2. Raise it
    /// if building takes long and processors are idle.
    pub threads: Option<usize>,
    /// True if text is extracted from PDF files, in a separate process for each; default true. Disable it if the
    /// contents of PDF files need not be searched.
    pub pdf: Option<bool>,
}

impl SearchSection {
    /// Returns the options of an index whose PDF files are read by `pdf_reader`, unless that is disabled.
    pub fn search_options(&self, pdf_reader: PdfReader) -> SearchIndexOptions {
        let default = SearchIndexOptions::default();
        SearchIndexOptions {
            threads: self.threads.unwrap_or(default.threads).clamp(2, 8),
            pdf_reader: self.pdf.unwrap_or(true).then_some(pdf_reader),
        }
    }
}
