//! The fields of the index, and the payload of its commits.
//!
//! | field | holds |
//! |---|---|
//! | `path` | the node path, whole; its column decides between equal scores |
//! | `within` | the path and every ancestor's |
//! | `type` | primary types and mixins of all nodes of the document |
//! | `nodes` | names of the nodes in the document, those with a prefix |
//! | `language` | the code of the language that stemmed it |
//! | `title` | the words of name, titles and tags |
//! | `words` | the words of all properties, with positions |
//! | `files` | the words of files, with positions |
//! | `stems_<language>` | the stems of words that are not the words themselves |
//! | `properties` | the words of each short property, by its path relative to the document |
//! | `long` | the properties that are not short, whose words are among the others |
//! | `facets` | short values of properties near the document's node, whole |
//! | `excerpt` | the first part of the text, for showing |
//! | `failed`, `failure` | whether a part of the document could not be read, and why |

use std::collections::BTreeMap;

use tantivy::schema::{
    Field, IndexRecordOption, JsonObjectOptions, STORED, Schema, SchemaBuilder, TextFieldIndexing,
    TextOptions,
};
use tympan_content::ChunkId;

use crate::analyzer::{RAW_ANALYZER, WORD_ANALYZER, changed_stems_name};
use crate::language::{LANGUAGES, UNKNOWN_LANGUAGE};

/// The format version of the index. An index of another version is rebuilt.
const INDEX_FORMAT_VERSION: u32 = 4;

/// The name of the field of node paths.
pub(crate) const PATH_FIELD: &str = "path";

/// The fields, by their purpose.
#[derive(Debug, Clone)]
pub(crate) struct SearchIndexFields {
    pub(crate) path: Field,
    pub(crate) ancestor_paths: Field,
    pub(crate) node_types: Field,
    pub(crate) node_names: Field,
    pub(crate) language: Field,
    pub(crate) title: Field,
    pub(crate) words: Field,
    pub(crate) file_words: Field,
    pub(crate) stems: BTreeMap<&'static str, Field>,
    pub(crate) properties: Field,
    pub(crate) long_properties: Field,
    pub(crate) facets: Field,
    pub(crate) excerpt: Field,
    pub(crate) has_failed: Field,
    pub(crate) failure: Field,
}

/// Returns the schema and its fields, which are always the same.
pub(crate) fn build_schema() -> (Schema, SearchIndexFields) {
    let mut builder = SchemaBuilder::new();
    let raw = indexed_text_options(RAW_ANALYZER, IndexRecordOption::Basic, false);
    let words = indexed_text_options(WORD_ANALYZER, IndexRecordOption::WithFreqsAndPositions, true);
    let stored = TextOptions::from(STORED);
    let path = builder.add_text_field(PATH_FIELD, raw.clone().set_fast(RAW_ANALYZER));
    let within = builder.add_text_field("within", raw.clone());
    let types = builder.add_text_field("type", raw.clone());
    let nodes = builder.add_text_field("nodes", raw.clone());
    let language = builder.add_text_field("language", raw.clone().set_stored());
    let title = builder.add_text_field("title", words.clone());
    let all_words = builder.add_text_field("words", words.clone());
    let files = builder.add_text_field("files", words);
    let mut stems = BTreeMap::new();
    for code in LANGUAGES.iter().map(|(code, _)| *code).chain([UNKNOWN_LANGUAGE]) {
        let name = changed_stems_name(code);
        let options = indexed_text_options(&name, IndexRecordOption::WithFreqs, true);
        stems.insert(code, builder.add_text_field(&name, options));
    }
    let by_property = TextFieldIndexing::default()
        .set_tokenizer(WORD_ANALYZER)
        .set_fieldnorms(false)
        .set_index_option(IndexRecordOption::WithFreqsAndPositions);
    let by_property = JsonObjectOptions::default().set_indexing_options(by_property);
    let properties = builder.add_json_field("properties", by_property);
    let long = builder.add_text_field("long", raw.clone());
    let facets =
        builder.add_json_field("facets", JsonObjectOptions::default().set_fast(RAW_ANALYZER));
    let excerpt = builder.add_text_field("excerpt", stored.clone());
    let failed = builder.add_text_field("failed", raw);
    let failure = builder.add_text_field("failure", stored);
    let fields = SearchIndexFields {
        path,
        ancestor_paths: within,
        node_types: types,
        node_names: nodes,
        language,
        title,
        words: all_words,
        file_words: files,
        stems,
        properties,
        long_properties: long,
        facets,
        excerpt,
        has_failed: failed,
        failure,
    };
    (builder.build(), fields)
}

fn indexed_text_options(analyzer: &str, option: IndexRecordOption, has_norms: bool) -> TextOptions {
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(analyzer)
        .set_fieldnorms(has_norms)
        .set_index_option(option);
    TextOptions::default().set_indexing_options(indexing)
}

/// Encodes the payload of an index commit: the format version and the indexed root.
pub(crate) fn encode_commit_payload(root: ChunkId) -> String {
    format!("{INDEX_FORMAT_VERSION} {root}")
}

/// Decodes the result of [`encode_commit_payload`]; `None` if it is of another format.
pub(crate) fn parse_commit_payload(payload: &str) -> Option<ChunkId> {
    let (format, root) = payload.split_once(' ')?;
    if format.parse() != Ok(INDEX_FORMAT_VERSION) {
        return None;
    }
    root.parse().ok()
}
