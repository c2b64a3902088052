//! The file names of packs, and the two series of their numbers.

/// The flag in the number of a pack that a collection created; these packs are numbered separately.
pub(super) const COLLECTION_PACK_FLAG: u32 = 1 << 31;

/// Returns true if a collection created the pack, rather than commits.
pub(super) fn is_collection_pack(pack: u32) -> bool {
    pack & COLLECTION_PACK_FLAG != 0
}

/// Returns the file name of a pack.
pub(super) fn pack_file_name(pack: u32) -> String {
    let number = pack & !COLLECTION_PACK_FLAG;
    let prefix = if is_collection_pack(pack) { "live" } else { "pack" };
    format!("{prefix}-{number:06}")
}

/// Returns the pack number in a file name, or `None` if the name is not that of a pack.
pub(super) fn parse_pack_number(name: &str) -> Option<u32> {
    let (prefix, number) = name.split_once('-')?;
    let number: u32 = number.parse().ok()?;
    let pack = if prefix == "live" { number | COLLECTION_PACK_FLAG } else { number };
    (pack_file_name(pack) == name).then_some(pack)
}
