//! Assets: what is made of an uploaded file, and kept beside it.
//!
//! In: a `dam:Asset` with an original. Out: its metadata and renditions under AEM's names, in one commit.
//!
//! Invariants
//! * The original stays, whatever it is: a file that cannot be drawn has a state and a reason.
//! * All renditions of an original come in one commit: a crash leaves the old ones or the new ones.
//! * Making them again of the same original changes nothing.
//! * Decoders run in processes of their own ([`Studio`]).
//! * What is due is a stored job ([`TOPIC`]): [`AssetFollower`] adds it, [`AssetHandler`] carries it out.

mod channel;
mod child;
mod color;
mod decode;
mod draw;
mod follow;
mod format;
mod frame;
mod handler;
mod header_size;
mod ingest;
mod jpeg;
mod metadata;
mod order;
mod packet;
mod packet_pdf;
mod profile;
mod studio;
mod svg;
mod tool;
mod write_back;
mod write_back_process;

pub use child::{ToolBounds, draw_pictures, run_tool};
pub use follow::AssetFollower;
pub use frame::Size;
pub use handler::{AssetCounters, AssetHandler, TOPIC};
pub use ingest::{ASSET, AssetError, Assets, Processed, needs_processing};
pub(crate) use ingest::{ORIGINAL, blob_of};
pub use order::{
    Drawn, Encoding, Fit, Focus, Limits, MetadataValue, Order, Rendition, RenditionOrder,
};
pub use profile::Profile;
pub use studio::{DrawError, Start, Studio, StudioOptions};
pub use write_back::{WriteBack, WrittenBack};
pub use write_back_process::{WriteBackProcess, switch_write_back};
