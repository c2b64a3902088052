//! Pruning: removing what no snapshot refers to.
//!
//! In: a vault under an exclusive lock. Out: the same snapshots, fewer packs.
//!
//! Invariants, at any instant, also of a crash
//! * Whatever a snapshot refers to is in a pack that is there and that an index lists.
//! * The order is: packs with what is kept of partly used ones, the new index, then the old index goes, then packs.
//! * Nothing is removed if anything that a snapshot refers to cannot be found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::backend::FileKind;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::look::walk_trees;
use crate::save::Progress;
use crate::vault::Vault;
use crate::vault::index::{BlobKind, Index, StoredBlob, StoredIndex, StoredPack};
use crate::vault::lock::Lock;
use crate::vault::write::Writer;

/// A vault may hold one part of so many that nobody needs, before packs are rewritten.
const UNUSED_PART: u64 = 20;
const INDEX_BLOBS: usize = 50_000;

/// What a prune did, or would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Packs that were removed.
    pub removed_packs: usize,
    /// Packs of which a part was written anew.
    pub rewritten_packs: usize,
    /// Bytes by which the vault became smaller.
    pub freed_bytes: u64,
    /// Bytes that nobody needs and that stay, as rewriting their packs is not worth it yet.
    pub unused_bytes: u64,
}

/// A pack, and which of its blobs are needed from it.
struct Judged {
    pack: StoredPack,
    kept: Vec<StoredBlob>,
    unused: u64,
}

/// Removes what no snapshot refers to. `lock` is exclusive.
///
/// # Errors
/// [`Error::Refused`] if the vault is damaged, or a failed read or write; nothing that is needed is gone then.
pub fn prune(vault: &Arc<Vault>, lock: &Lock, progress: &Progress) -> Result<Pruned> {
    let index = Index::load(vault)?;
    let needed = needed(vault, &index)?;
    let there: HashMap<Id, u64> = vault.list(FileKind::Pack)?.into_iter().collect();
    let judged = judge(vault, &index, needed)?;
    if let Some(lost) =
        judged.iter().find(|one| !one.kept.is_empty() && !there.contains_key(&one.pack.id))
    {
        return Err(Error::Refused(format!(
            "the pack `{}` is needed and not there; nothing is removed from a damaged vault: run `tympan backup check`",
            lost.pack.id
        )));
    }
    let listed: HashSet<Id> = judged.iter().map(|one| one.pack.id).collect();
    let (whole, rest): (Vec<Judged>, Vec<Judged>) =
        judged.into_iter().partition(|one| one.unused == 0 && !one.kept.is_empty());
    let (gone, partly): (Vec<Judged>, Vec<Judged>) =
        rest.into_iter().partition(|one| one.kept.is_empty());
    let (rewritten, left) = worth_rewriting(&whole, partly);
    let mut pruned = Pruned {
        removed_packs: gone.len() + rewritten.len(),
        rewritten_packs: rewritten.len(),
        unused_bytes: left.iter().map(|one| one.unused).sum(),
        ..Pruned::default()
    };
    let unlisted: Vec<Id> = there.keys().filter(|id| !listed.contains(id)).copied().collect();
    pruned.removed_packs += unlisted.len();
    if gone.is_empty() && rewritten.is_empty() {
        lock.confirm()?;
        remove_packs(vault, &unlisted, (&there, progress), &mut pruned)?;
        return Ok(pruned);
    }
    let mut packs: Vec<StoredPack> = whole.into_iter().chain(left).map(|one| one.pack).collect();
    let (written, new) = rewrite(vault, lock, &rewritten, progress)?;
    packs.extend(new);
    replace_index(vault, lock, &index, packs)?;
    lock.confirm()?;
    let mut removed: Vec<Id> = gone.iter().chain(&rewritten).map(|one| one.pack.id).collect();
    removed.extend(unlisted);
    remove_packs(vault, &removed, (&there, progress), &mut pruned)?;
    pruned.freed_bytes = pruned.freed_bytes.saturating_sub(written);
    Ok(pruned)
}

/// Finds all that snapshots refer to.
fn needed(vault: &Vault, index: &Index) -> Result<HashSet<(BlobKind, Id)>> {
    let roots: Vec<Id> = vault.snapshots()?.iter().map(|snapshot| snapshot.tree).collect();
    let mut needed = HashSet::new();
    walk_trees((vault, index), &roots, &mut |id, tree| {
        needed.insert((BlobKind::Tree, *id));
        for node in tree?.nodes {
            needed.extend(node.content.into_iter().flatten().map(|id| (BlobKind::Data, id)));
        }
        Ok(())
    })?;
    if let Some((kind, id)) = needed.iter().find(|(kind, id)| !index.contains(*kind, id)) {
        return Err(Error::Refused(format!(
            "a snapshot refers to the {} `{id}`, which is not in the vault; nothing is removed from a damaged vault: \
             run `tympan backup check`",
            kind.name()
        )));
    }
    Ok(needed)
}

/// Tells for each pack what is needed from it; what several packs hold is needed from one of them.
fn judge(vault: &Vault, index: &Index, mut needed: HashSet<(BlobKind, Id)>) -> Result<Vec<Judged>> {
    let mut judged = Vec::new();
    let mut seen = HashSet::new();
    for file in index.files() {
        for pack in vault.read_json::<StoredIndex>(FileKind::Index, file)?.packs {
            if !seen.insert(pack.id) {
                continue;
            }
            let (kept, unused): (Vec<StoredBlob>, Vec<StoredBlob>) =
                pack.blobs.iter().cloned().partition(|blob| needed.remove(&(blob.kind, blob.id)));
            let unused = unused.iter().map(|blob| u64::from(blob.length)).sum();
            judged.push(Judged { pack, kept, unused });
        }
    }
    Ok(judged)
}

/// Chooses the packs to rewrite: those with the most unused bytes, until little enough is left.
fn worth_rewriting(whole: &[Judged], mut partly: Vec<Judged>) -> (Vec<Judged>, Vec<Judged>) {
    let used = |one: &Judged| one.kept.iter().map(|blob| u64::from(blob.length)).sum::<u64>();
    let needed: u64 = whole.iter().chain(&partly).map(used).sum();
    partly.sort_by_key(|one| std::cmp::Reverse(one.unused));
    let mut unused: u64 = partly.iter().map(|one| one.unused).sum();
    let mut left = Vec::new();
    let mut rewritten = Vec::new();
    for one in partly {
        if unused > needed / UNUSED_PART {
            unused -= one.unused;
            rewritten.push(one);
        } else {
            left.push(one);
        }
    }
    (rewritten, left)
}

/// Writes what is kept of some packs into new ones; returns their bytes, and what they hold.
fn rewrite(
    vault: &Arc<Vault>,
    lock: &Lock,
    packs: &[Judged],
    progress: &Progress,
) -> Result<(u64, Vec<StoredPack>)> {
    let writer = Writer::new(vault, &Arc::default(), lock);
    for one in packs {
        progress.go_on()?;
        let id = &one.pack.id;
        let bytes = vault.backend().read(FileKind::Pack, id).map_err(Error::backend(
            "read",
            FileKind::Pack,
            id,
        ))?;
        for blob in &one.kept {
            let (begin, end) = (blob.offset as usize, blob.offset as usize + blob.length as usize);
            let sealed = bytes.get(begin..end).unwrap_or_default();
            // Damage must not be carried into a pack whose hash is right.
            vault.open_stored(blob, sealed.to_vec())?;
            writer.append((blob.kind, blob.id), sealed, blob.uncompressed_length)?;
        }
        progress.add(1, bytes.len() as u64);
    }
    let (written, packs) = writer.finish(lock)?;
    Ok((written.stored_bytes, packs))
}

/// Writes an index of these packs, then removes the one before.
fn replace_index(vault: &Vault, lock: &Lock, old: &Index, packs: Vec<StoredPack>) -> Result<()> {
    let mut kept = HashSet::new();
    let mut file = StoredIndex::default();
    let mut blobs = 0;
    for pack in packs {
        blobs += pack.blobs.len();
        file.packs.push(pack);
        if blobs >= INDEX_BLOBS {
            kept.insert(vault.write_json(FileKind::Index, &std::mem::take(&mut file))?);
            blobs = 0;
        }
    }
    if !file.packs.is_empty() {
        kept.insert(vault.write_json(FileKind::Index, &file)?);
    }
    lock.confirm()?;
    let mut obsolete: Vec<Id> =
        vault.list(FileKind::Index)?.into_iter().map(|(id, _)| id).collect();
    obsolete.retain(|id| !kept.contains(id));
    for id in old.files().iter().chain(obsolete.iter().filter(|id| !old.files().contains(id))) {
        vault.remove(FileKind::Index, id)?;
    }
    Ok(())
}

fn remove_packs(
    vault: &Vault,
    packs: &[Id],
    (there, progress): (&HashMap<Id, u64>, &Progress),
    pruned: &mut Pruned,
) -> Result<()> {
    for id in packs {
        progress.go_on()?;
        vault.remove(FileKind::Pack, id)?;
        pruned.freed_bytes += there.get(id).copied().unwrap_or(0);
    }
    Ok(())
}
