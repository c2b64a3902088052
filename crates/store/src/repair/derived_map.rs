//! The maps of a state that are derived from the others; the owner of the maps rebuilds them.

use crate::error::Error;
use crate::store_root::StoreRoot;

/// Identifies the derived maps of a state, and builds them.
pub trait DeriveMaps {
    /// The error type.
    type Error: From<Error>;

    /// Returns true if a map is derived from the others, so that it is rebuilt rather than salvaged.
    fn is_derived(&self, map: &str) -> bool;

    /// Adds the derived maps to `root`, and adds required entries to its other maps. `base` is a state whose maps are
    /// all intact, or an empty one.
    ///
    /// # Errors
    /// A failed read or write.
    fn derive_maps(&self, base: &StoreRoot, root: &mut StoreRoot) -> Result<(), Self::Error>;
}
