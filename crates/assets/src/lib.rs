//! Processes assets: generates renditions and metadata from an uploaded file.
//!
//! In: a `dam:Asset` with an original. Out: its metadata and renditions under AEM's names, in one commit.
//!
//! Invariants
//! * The original is always retained: a file that cannot be processed has a state and a reason.
//! * All renditions of an original are written in one commit: a crash leaves the old ones or the new ones.
//! * Processing the same original again changes nothing.
//! * Decoders run in operating system processes of their own ([`DecoderProcessPool`]).
//! * Due work is a stored job ([`ASSET_UPDATE_TOPIC`]): [`AssetFollower`] adds it, [`AssetHandler`] carries it out.
//!
//! Not here: the source of the bytes, and the delivery of renditions.

mod asset_file_error;
mod asset_follower;
mod asset_handler;
mod asset_processor;
mod await_asset_workflow_step;
mod child_process;
mod color_conversion;
mod config;
mod decoded_image;
mod decoder_channel;
mod decoder_process;
mod decoder_process_pool;
mod external_tool;
mod file_format;
mod header_size;
mod image_decoder;
mod image_size;
mod jpeg;
mod metadata;
mod metadata_change;
mod pdf_xmp_packet;
mod processing_request;
mod raster_image;
mod rendition_error;
mod rendition_generator;
mod rendition_profile;
mod svg;
mod write_back;
mod write_back_workflow_step;
mod xmp_packet;

pub use asset_follower::{AssetFollower, AssetFollowerError};
pub use asset_handler::{ASSET_UPDATE_TOPIC, AssetCounters, AssetHandler};
pub use asset_processor::{
    ASSET_NODE_TYPE, ASSET_UPDATE_USER, AssetError, AssetProcessor, AssetUpdateOutcome,
    ORIGINAL_CONTENT_PATH, needs_processing, original_blob,
};
pub use await_asset_workflow_step::await_asset_workflow_steps;
pub use child_process::ProgramCommand;
pub use config::AssetsSection;
pub use decoder_process::{ToolLimits, run_decoder_process, run_tool};
pub use decoder_process_pool::{DecoderPoolOptions, DecoderProcessPool};
pub use image_size::ImageSize;
pub use processing_request::{
    AssetProcessingRequest, AssetProcessingResult, EncodedRendition, FocalPoint, MetadataValue,
    ProcessingLimits, RenditionEncoding, RenditionSpec, ResizeMode,
};
pub use rendition_error::RenditionError;
pub use rendition_profile::RenditionProfile;
pub use write_back::{MOUNT_PROPERTY, WriteBackOptions, WriteBackOutcome};
pub use write_back_workflow_step::{WriteBackWorkflowStep, set_write_back_enabled};
