//! Entry points for the fuzz targets to private code; compiled only for them and for tests.
//!
//! Sealed data is fuzzed in its decrypted form: anyone who knows a vault's password may write anything.

use std::path::Path;

use jiff::Timestamp;
use tympan_blobs::MemoryBlobStore;
use tympan_store::LocalStore;

use crate::backend::rest::parse_list;
use crate::backend::sftp::known_hosts;
use crate::backend::{RestAddress, S3Address, SftpAddress, redact_address};
use crate::backup_progress::BackupProgress;
use crate::check::split_pack;
use crate::compression::{CompressionMode, compress, decompress, decompress_unsized};
use crate::object_id::VaultObjectId;
use crate::piece_splitter::{MAX_PIECE_BYTES, MIN_PIECE_BYTES};
use crate::retention::{RetentionPolicy, apply_retention};
use crate::run_log::BackupRunRecord;
use crate::source::base_store::BaseStoreReference;
use crate::source::exclude::ExcludeRules;
use crate::source::folder_table::FolderTable;
use crate::source::import::import_files;
use crate::source::repository_layout::METADATA_FILE_NAME;
use crate::vault::index::{StoredIndex, VaultIndex};
use crate::vault::key_file::{VaultKeyFile, derive_key};
use crate::vault::lock::StoredLock;
use crate::vault::node::SnapshotTree;
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::parse_pack_header;
use crate::vault::sealing::unpack_file;
use crate::vault::snapshot::VaultSnapshot;
use crate::vault::{VaultConfig, VaultUser};

/// Maximum decoded size of an input.
const MAX_DECODED_BYTES: usize = 16 << 20;
/// Maximum scrypt rounds for deriving a key, so that one input does not take minutes.
const MAX_SCRYPT_ROUNDS: u64 = 1 << 8;

/// Decodes a folder and checks that its names stay within it and that encoding it again gives the same value.
pub fn tree(json: &[u8]) {
    let Ok(tree) = SnapshotTree::parse(json) else { return };
    for node in &tree.nodes {
        let name = node.name.as_slice();
        assert!(!name.is_empty() && name != b"." && name != b"..");
        assert!(!name.contains(&b'/') && !name.contains(&0));
        let (same_node, mode) = (tree.find(name), crate::restore::to_system_mode(node));
        assert!(same_node.is_some() && mode.bits() <= 0o7777);
    }
    assert_eq!(SnapshotTree::parse(&tree.to_bytes()).ok(), Some(tree));
}

/// Decodes an index file and looks up what it lists.
pub fn index(json: &[u8]) {
    let Ok(file) = serde_json::from_slice::<StoredIndex>(json) else { return };
    let mut index = VaultIndex::default();
    file.packs.iter().for_each(|pack| index.add(pack));
    for blob in file.packs.iter().flat_map(|pack| &pack.blobs) {
        let location = index.find(blob.kind, &blob.id);
        assert!(location.is_some() && index.plain_length(blob.kind, &blob.id).is_some());
        location.map(|location| index.pack_id(location));
    }
    for kind in [PackBlobKind::Data, PackBlobKind::Tree] {
        index.totals(kind);
    }
    for pack in &file.packs {
        crate::check::pack_length(pack);
    }
    let again = serde_json::to_vec(&file).unwrap_or_default();
    assert!(serde_json::from_slice::<StoredIndex>(&again).is_ok());
}

/// Decodes one of the small file formats, which the first byte selects.
pub fn file(input: &[u8]) {
    let Some((kind, json)) = input.split_first() else { return };
    match kind {
        b'c' => decode_config(json),
        b'k' => decode_key(json),
        b's' => decode_snapshot(json),
        b'l' => {
            let Ok(lock) = serde_json::from_slice::<StoredLock>(json) else { return };
            lock.is_stale(&VaultUser::this_process(), Timestamp::UNIX_EPOCH);
        }
        b'r' => drop(parse_list(json)),
        b'b' => {
            let Ok(reference) = BaseStoreReference::parse(json) else { return };
            assert_eq!(BaseStoreReference::parse(&reference.to_json()).ok(), Some(reference));
        }
        b'j' => drop(serde_json::from_slice::<BackupRunRecord>(json)),
        _ => {}
    }
}

fn decode_config(json: &[u8]) {
    let Ok(cutter) = VaultConfig::parse(json).and_then(|config| config.piece_splitter()) else {
        return;
    };
    let bytes: Vec<u8> = json.iter().copied().cycle().take(MIN_PIECE_BYTES + 4096).collect();
    let length = cutter.first_piece_length(&bytes);
    assert!((MIN_PIECE_BYTES..=MAX_PIECE_BYTES).contains(&length) || length == bytes.len());
}

fn decode_key(json: &[u8]) {
    let Ok(file) = serde_json::from_slice::<VaultKeyFile>(json) else { return };
    let Ok((parameters, salt, sealed)) = file.decode_parts() else { return };
    let (rounds, r, p) = parameters;
    let work = rounds.saturating_mul(r.into()).saturating_mul(p.into());
    let key =
        if work <= MAX_SCRYPT_ROUNDS { derive_key(b"password", &salt, parameters) } else { None };
    if let Some(plain) = key.and_then(|key| key.open(sealed)) {
        let _parsed = crate::vault_encryption::VaultKey::parse(&plain);
    }
    // The decrypted form of the sealed bytes.
    let _parsed = crate::vault_encryption::VaultKey::parse(json);
}

fn decode_snapshot(json: &[u8]) {
    let Ok(snapshot) = serde_json::from_slice::<VaultSnapshot>(json) else { return };
    let keep = RetentionPolicy::parse("1h,1d,1w,1m,1y").unwrap_or_default();
    let chosen = apply_retention(std::slice::from_ref(&snapshot), &keep);
    assert_eq!(chosen.len(), 1);
    let _asked = (snapshot.is_incomplete(), snapshot.repository_root());
    let again = serde_json::to_vec(&snapshot).unwrap_or_default();
    assert!(serde_json::from_slice::<VaultSnapshot>(&again).is_ok());
}

/// Splits a pack and decodes its header: the listed blobs are contiguous.
pub fn pack(bytes: &[u8]) {
    let Some((blobs, header)) = split_pack(bytes) else { return };
    assert_eq!(blobs.len() + header.len() + 4, bytes.len());
    let Some(listed) = parse_pack_header(header) else { return };
    let mut end = 0;
    for blob in listed {
        assert_eq!(blob.offset, end);
        end += blob.length;
    }
}

/// Decompresses a blob to the length in the first four bytes, and a file to any length; the output is no longer than
/// allowed.
pub fn packed(input: &[u8]) {
    let Some((raw, packed)) = input.split_first_chunk::<4>() else { return };
    let limit = (u32::from_le_bytes(*raw) as usize).min(MAX_DECODED_BYTES);
    if let Some(plain) = decompress(packed, limit) {
        assert!(plain.len() <= limit);
        let again = compress(&plain, CompressionMode::Fastest).unwrap_or_default();
        assert_eq!(decompress(&again, plain.len()), Some(plain));
    }
    if let Some(plain) = decompress_unsized(packed, limit) {
        assert!(plain.len() <= limit);
    }
    if let Ok(plain) = unpack_file(packed.to_vec(), limit) {
        assert!(plain.len() <= limit.max(packed.len()));
    }
}

/// Decodes the table of a source's folders, with the names, the tree and the index file that the seeds have, and the
/// table of an index, in which everything that it lists is found.
pub fn table(plain: &[u8]) {
    let (names, id) = ([1; 32], VaultObjectId::from_bytes([2; 32]));
    crate::vault::decode_index_table(plain);
    let Some(table) = FolderTable::parse(plain, &names, &id, &[VaultObjectId::from_bytes([3; 32])])
    else {
        return;
    };
    table.find_tree(Path::new("/srv"));
    table.find_unchanged_tree(Path::new("/srv"), &[0; 32]);
}

/// Parses user input: patterns and paths, rules, vault addresses, known hosts. Secrets of addresses must not be shown.
pub fn words(text: &str) {
    let mut lines = text.lines();
    let (first, path) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    if let Ok(excludes) = ExcludeRules::new(vec![first.to_owned(), path.to_owned()]) {
        std::hint::black_box(excludes.contains(Path::new(path)));
    }
    drop(RetentionPolicy::parse(first));
    let redacted = redact_address(first);
    assert_eq!(redact_address(&redacted), redacted, "what is shown has no secret");
    if let Some(Ok(address)) = SftpAddress::parse(first) {
        assert!(!address.host.is_empty() && !address.path.is_empty());
    }
    drop(S3Address::parse(first));
    if let Some(Ok(address)) = RestAddress::parse(first) {
        assert!(address.url.ends_with('/'));
    }
    let name = known_hosts::known_host_name("host", 22);
    known_hosts::look_up_host_key(text, &name, ("ssh-ed25519", "AAAA"));
    known_hosts::known_key_kinds(text, &name);
}

/// Imports files of a repository's snapshot: each is a two-byte length followed by frames.
pub fn frames(mut input: &[u8]) {
    let Ok(store) = LocalStore::open_in_memory() else { return };
    let blobs = MemoryBlobStore::default();
    let mut files = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (file, rest) = rest.split_at(length);
        files.push(file);
        input = rest;
    }
    let root = "00".repeat(32);
    let facts = format!("{{\"format\":1,\"ref\":\"main\",\"root\":\"{root}\"}}");
    // Nothing has this root, so no ref is made whatever the frames contain.
    let imported =
        import_files((&store, &blobs), facts.as_bytes(), &files, &BackupProgress::default());
    assert!(imported.is_err(), "{METADATA_FILE_NAME} names a root that nobody has");
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Runs an entry point on all its seeds, on each seed truncated and with one byte changed, and on randomly mutated
    /// seeds: `TYMPAN_MUTATIONS` sets their number.
    fn check(target: &str, entry_point: fn(&[u8])) {
        let count = std::env::var("TYMPAN_MUTATIONS").ok().and_then(|count| count.parse().ok());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let mut seeds = Vec::new();
        for entry in fs::read_dir(&folder).unwrap() {
            let seed = fs::read(entry.unwrap().path()).unwrap();
            entry_point(&seed);
            let step = (seed.len() / 200).max(1);
            for at in (0..seed.len()).step_by(step) {
                entry_point(&seed[..at]);
                let mut changed = seed.clone();
                changed[at] ^= 1 << (at % 8);
                entry_point(&changed);
            }
            seeds.push(seed);
        }
        assert!(!seeds.is_empty(), "{target} has no seeds");
        seeds.sort();
        let mut random = 0x5eed_f022_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below.max(1)
        };
        for _ in 0..count.unwrap_or(200) {
            let mut input = seeds[next(seeds.len())].clone();
            for _ in 0..=next(6) {
                let at = next(input.len() + 1).min(input.len().saturating_sub(1));
                match next(5) {
                    _ if input.is_empty() => input.push(next(256) as u8),
                    0 => input[at] = next(256) as u8,
                    1 => drop(input.remove(at)),
                    2 => input.insert(at, b"\0\xff{}[]\",:.-0189*?/@\n"[next(20)]),
                    3 => {
                        let second_seed = &seeds[next(seeds.len())];
                        let from = next(second_seed.len() + 1).min(second_seed.len());
                        let end = (from + next(64)).min(second_seed.len());
                        drop(input.splice(at..at, second_seed[from..end].iter().copied()));
                    }
                    _ => {
                        let end = (at + next(64)).min(input.len());
                        let again = input[at..end].to_vec();
                        drop(input.splice(at..at, again));
                    }
                }
            }
            entry_point(&input);
        }
    }

    #[test]
    fn seeds_and_their_neighbors_are_borne() {
        check("backup_tree", tree);
        check("backup_index", index);
        check("backup_file", file);
        check("backup_pack", pack);
        check("backup_packed", packed);
        check("backup_table", table);
        check("backup_words", |bytes| words(&String::from_utf8_lossy(bytes)));
        check("backup_frames", frames);
    }
}
