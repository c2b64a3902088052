//! Reading adjacent pieces of packs with few calls: if each call costs a round trip, a folder of small files would cost
//! one for each.
//!
//! On failure: pieces that cannot be read this way are skipped; the caller reads them individually and gets the error.

use std::collections::HashMap;

use rayon::prelude::*;

use super::Vault;
use super::index::VaultIndex;
use super::pack_blob::{PackBlobKind, PackBlobLocation};
use crate::object_id::VaultObjectId;

/// Maximum number of bytes of one read.
const MAX_RANGE_READ_BYTES: u64 = 4 << 20;
/// Maximum gap between two pieces that is read along with them.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// A range of a pack that contains some of the pieces.
struct PackRangeRead {
    pack: VaultObjectId,
    start: u64,
    end: u64,
    pieces: Vec<(VaultObjectId, PackBlobLocation)>,
}

impl Vault {
    /// Reads pieces with as many concurrent calls as this pool has threads.
    pub(crate) fn read_pieces(
        &self,
        index: &VaultIndex,
        ids: &[VaultObjectId],
    ) -> HashMap<VaultObjectId, Vec<u8>> {
        let place_of = |id: &VaultObjectId| {
            let location = index.find(PackBlobKind::Data, id)?;
            Some((index.pack_id(location), location, *id))
        };
        let mut locations: Vec<(VaultObjectId, PackBlobLocation, VaultObjectId)> =
            ids.iter().filter_map(place_of).collect();
        locations.sort_by_key(|(pack, location, _)| (*pack, location.offset));
        locations.dedup_by_key(|(_, _, id)| *id);
        let mut calls: Vec<PackRangeRead> = Vec::new();
        for (pack, location, id) in locations {
            let start = u64::from(location.offset);
            let end = start + u64::from(location.length);
            match calls.last_mut() {
                Some(call)
                    if call.pack == pack
                        && start <= call.end + MAX_GAP_BYTES
                        && end - call.start <= MAX_RANGE_READ_BYTES =>
                {
                    call.end = call.end.max(end);
                    call.pieces.push((id, location));
                }
                _ => calls.push(PackRangeRead { pack, start, end, pieces: vec![(id, location)] }),
            }
        }
        calls.par_iter().flat_map_iter(|call| self.read_pack_ranges(call)).collect()
    }

    fn read_pack_ranges(&self, call: &PackRangeRead) -> Vec<(VaultObjectId, Vec<u8>)> {
        let PackRangeRead { pack, start, end, pieces } = call;
        let Ok(length) = usize::try_from(end - start) else { return Vec::new() };
        let Ok(bytes) = self.files().read_pack_range(pack, *start, length) else {
            return Vec::new();
        };
        let open = |(id, location): &(VaultObjectId, PackBlobLocation)| {
            let from = usize::try_from(u64::from(location.offset) - start).ok()?;
            let sealed = bytes.get(from..from.checked_add(location.length as usize)?)?;
            let plain = self
                .sealing()
                .open_blob(PackBlobKind::Data, id, *location, sealed.to_vec())
                .ok()?;
            Some((*id, plain))
        };
        pieces.iter().filter_map(open).collect()
    }
}
