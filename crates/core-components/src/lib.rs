//! The models behind Adobe's AEM Core Components (release 2.29), for components whose HTL scripts ask for them by class
//! name.
//!
//! In: a [`ComponentContext`], through which a model reads content, policies, the request and services, and a
//! [`ModelRequest`] with the resource and the options of the script.
//! Out: a [`ModelValue`], whose properties a template reads by name, and its JSON form for `.model.json`.
//!
//! [`find_model`] gives the factory for a class name, [`find_model_class`] the class for a resource type or one of its
//! super types, and [`export_resource`] the JSON of a resource. A property of a model is computed when it is asked for.
//!
//! On failure: an export that exceeds its budget of components or bytes is an [`Error`].
//!
//! Not here: templates, HTTP, and the storage of content.

mod asset_reader;
mod child_components;
mod component_context;
mod component_core;
mod component_data;
mod configuration_lookup;
mod content_policy;
mod content_value;
mod error;
mod export_scope;
mod exporter;
mod link;
mod list_item;
mod model_registry;
mod model_value;
mod models;
mod page_reader;
mod site_structure;
mod tag_reader;
mod template_structure;

pub use component_context::{
    AuthoringMode, ClientLibraryInclusion, ComponentContext, ComponentRequest, ComponentResource,
    DynamicMediaAsset, FragmentSearch, FullTextPageSearch, OembedAnswer, RemoteMediaSettings,
};
pub use content_policy::find_content_policy;
pub use content_value::{ContentDate, ContentValue};
pub use error::{Error, Result};
pub use exporter::export_resource;
pub use model_registry::{
    ModelFactory, ModelRequest, find_model, find_model_class, model_class_names,
};
pub use model_value::{ComponentModel, ModelMap, ModelValue};
pub use models::image::{ComponentImage, find_component_image};
pub use models::search::search_results;
pub use tag_reader::TaggedPageSearch;
