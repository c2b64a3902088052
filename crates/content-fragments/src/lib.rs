//! Content fragments, their models, and GraphQL over them, as AEM stores and names them.
//!
//! In: a snapshot of content, and a request in GraphQL. Out: the answer.
//!
//! Invariants
//! * Content is read through [`FragmentContent`] only, so that a caller can record what an answer depends on.
//! * A query is measured before it runs, and counted while it does.
//! * A list shows what its viewer may read, whatever the index of all fragments has.
//!
//! Not here: HTTP, and when an answer is flushed from caches (`render`, `server`).

mod content_fragment;
mod error;
mod field_validation;
mod fragment_content;
mod fragment_filter;
mod fragment_index;
mod fragment_list;
mod fragment_model;
mod fragment_record;
mod graphql;
mod persisted_query;
mod rich_text;

pub use content_fragment::ContentFragment;
pub use error::{Error, Result};
pub use field_validation::{FieldViolation, validate_variation};
pub use fragment_content::{FragmentContent, SnapshotContent};
pub use fragment_index::{FragmentIndex, FragmentIndexCache};
pub use fragment_list::{FragmentListPage, FragmentListQuery, FragmentPage, FragmentRow};
pub use fragment_model::{
    FieldType, FragmentModel, GLOBAL_SITE, ModelField, SiteModels, model_folders,
    models_fingerprint,
};
pub use fragment_record::{FragmentRecord, MASTER, VariationRecord};
pub use graphql::{
    GraphqlAnswer, GraphqlLimits, GraphqlRequest, MAX_QUERY_BYTES, SiteSchema, SiteSchemaCache,
};
pub use persisted_query::{PersistedQuery, PersistedQueryAddress, persisted_queries_folder};
pub use rich_text::RichText;
