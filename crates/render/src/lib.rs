//! Rendering of URLs: decomposition, resolution, components, templates.
//!
//! Input: a pinned snapshot of content and a [`RenderRequest`]. Output: a [`RenderResponse`] with an outcome, a body,
//! the reads, and the time of each component.
//!
//! Invariants
//! * A request reads one snapshot, through one reader (`content_reader`).
//! * A component that fails or does not terminate loses only its own output; the rest of the page is unaffected.
//! * Author input is escaped in HTML, or sanitized as rich text without active content.
//!
//! Not here: HTTP statuses, authentication, replication.

mod address_reader;
mod backend;
mod backend_config;
mod client_library;
mod config;
pub use response::conditional_request;
mod dependency;
pub mod dialog;
mod dynamic_inclusion;
mod error;
mod fragment;
mod graphql_answer;
mod htl;
mod http_backend;
mod i18n;
mod image_address;
pub mod ledger;
mod page;
pub use timing::profile;
mod render_options;
mod renderer;
mod request;
mod request_renderer;
mod resource;
mod resource_merge;
mod response;
mod script;
mod script_language;
mod template;
mod text_picture;
pub mod timing;
mod url_route;

pub use address_reader::{AddressReader, SiteAddresses};
pub use backend::{BackendClient, BackendConfig, BackendCounts, BackendRegistry};
pub use backend_config::{BackendSection, create_backends};
pub use client_library::ClientLibrarySource;
pub use config::{FragmentInvalidation, FragmentsSection, LedgerSection};
pub use dependency::changed_aspects::ChangedAspects;
pub use dependency::content_reader::{ReadRecording, RequestFacts, RequestReads};
pub use dependency::{DependencySet, PathAspects};
pub use dynamic_inclusion::INCLUDE_ATTRIBUTE;
pub use error::{Error, Result};
pub use fragment::{
    ComponentCacheReport, FragmentCache, FragmentCacheOptions, FragmentCacheReport,
    FragmentInvalidationMode, FragmentLookupCounts, UncachedReason,
};
pub use htl::is_native_class;
pub use http_backend::{HttpBackendClient, HttpBackendEndpoint};
pub use image_address::{
    ImageAddress, ImageFormatExtension, ImageShape, ImageSigningKey, MAX_IMAGE_SIDE,
};
pub use page::container_policy::{ContainerPolicy, find_content_policy};
pub use page::link::encode_path;
pub use page::page_template_list::PageTemplate;
pub use render_options::{RenderLimits, RenderMode, RenderOptions};
pub use renderer::Renderer;
pub use request::{FragmentCacheOverride, RenderRequest, RequestParameters, RequestVisitor};
pub use resource_merge::{find_merged_node, is_merged_path};
pub use response::charset::{decode_by_media_type, encode_by_media_type};
pub use response::file_delivery::{FileContainment, FileDelivery};
pub use response::{
    BlobBody, RedirectKind, RenderOutcome, RenderResponse, RenderResponseBody, media_type,
};
pub use script::check::{ScriptFinding, check_scripts};
pub use script::{
    DeclaredUrlParts, DirScriptSource, RepositoryScriptSource, ScriptSet, ScriptSource,
    is_platform_type,
};
pub use tympan_web::sling_url as url;
pub use url_route::RouteTarget;
