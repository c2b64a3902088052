//! Selects the packs that a collection rewrites.
//!
//! In: the length and the live bytes of each pack. Out: the packs whose live records are worth moving.
//!
//! * Packs with too small a share of live bytes.
//! * Packs that are small and too many: each collection ends a pack, so their number would grow without limit, and each
//!   is searched for records that the others do not hold.
//! * The worst of the others, while all together hold too much garbage: without this rule, the garbage that each pack
//!   may hold would add up.

use std::collections::BTreeMap;

/// The maximum garbage that a collection leaves, as a share of the live bytes, as far as rewriting packs helps.
const MAX_GARBAGE_SHARE: f64 = 0.12;
/// The maximum number of small packs that are left unmerged.
const MAX_SMALL_PACKS: usize = 8;
/// A pack is small if it is shorter than the pack limit divided by this number.
const SMALL_PACK_DIVISOR: u64 = 16;

/// A pack that can be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RewriteCandidate {
    pub(super) pack: u32,
    pub(super) length: u64,
    /// The number of its bytes that are live.
    pub(super) live_bytes: u64,
}

impl RewriteCandidate {
    fn live_share(&self) -> f64 {
        ratio(self.live_bytes, self.length)
    }

    fn garbage_bytes(&self) -> u64 {
        self.length.saturating_sub(self.live_bytes)
    }
}

/// Selects the packs to rewrite, given the live bytes of the whole store; returns the length and live bytes of each.
pub(super) fn choose_rewrites(
    candidates: Vec<RewriteCandidate>,
    live: u64,
    min_live: f64,
    pack_limit: u64,
) -> BTreeMap<u32, (u64, u64)> {
    let (mut chosen, mut others): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.live_share() < min_live);
    let small = choose_small_packs(&others, pack_limit / SMALL_PACK_DIVISOR);
    others.retain(|candidate| !small.contains(candidate));
    chosen.extend(small);
    others.sort_unstable_by(|left, right| left.live_share().total_cmp(&right.live_share()));
    let mut garbage: u64 = others.iter().map(RewriteCandidate::garbage_bytes).sum();
    for candidate in others {
        if ratio(garbage, live) <= MAX_GARBAGE_SHARE {
            break;
        }
        garbage -= candidate.garbage_bytes();
        chosen.push(candidate);
    }
    chosen
        .into_iter()
        .map(|candidate| (candidate.pack, (candidate.length, candidate.live_bytes)))
        .collect()
}

/// Returns the small packs if there are too many. Excludes packs larger than all the smaller ones together; otherwise
/// every few small packs would cause a large one to be moved again.
fn choose_small_packs(candidates: &[RewriteCandidate], limit: u64) -> Vec<RewriteCandidate> {
    let mut small: Vec<RewriteCandidate> =
        candidates.iter().copied().filter(|candidate| candidate.length < limit).collect();
    small.sort_unstable_by_key(|candidate| candidate.length);
    let mut total: u64 = small.iter().map(|candidate| candidate.length).sum();
    while let Some(largest) =
        small.last().filter(|candidate| candidate.length > total - candidate.length)
    {
        total -= largest.length;
        small.pop();
    }
    if small.len() > MAX_SMALL_PACKS { small } else { Vec::new() }
}

#[expect(clippy::cast_precision_loss, reason = "stores are far below 2^52 bytes")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 16_000;

    /// Takes packs by length and live bytes, numbered from 0; returns those selected with a minimum live share of 0.6.
    fn chosen(packs: &[(u64, u64)]) -> Vec<u32> {
        let candidate = |(pack, (length, live)): (u32, &(u64, u64))| RewriteCandidate {
            pack,
            length: *length,
            live_bytes: *live,
        };
        let candidates: Vec<RewriteCandidate> = (0..).zip(packs).map(candidate).collect();
        let live = packs.iter().map(|(_, live)| live).sum();
        choose_rewrites(candidates, live, 0.6, LIMIT).into_keys().collect()
    }

    #[test]
    fn packs_of_little_use_are_rewritten() {
        assert_eq!(chosen(&[(9_000, 9_000), (1_500, 800), (9_000, 8_900), (2_000, 0)]), [1, 3]);
        assert_eq!(chosen(&[]), [0_u32; 0]);
    }

    #[test]
    fn the_worst_go_while_all_hold_too_much() {
        // Garbage is 29 % of the live bytes; without the worst two packs, 7 %.
        let packs = [(9_000, 8_100), (9_000, 5_500), (9_000, 6_400), (9_000, 8_000)];
        assert_eq!(chosen(&packs), [1, 2]);
        assert_eq!(chosen(&[(9_000, 8_100), (9_000, 8_100)]), [0_u32; 0]);
    }

    #[test]
    fn small_packs_come_together_without_a_large_one() {
        let mut packs = vec![(100, 100); 8];
        assert_eq!(chosen(&packs), [0_u32; 0]);
        // A ninth pack that outweighs the others stays; one of their size makes them too many.
        packs.push((900, 900));
        assert_eq!(chosen(&packs), [0_u32; 0]);
        packs.push((100, 100));
        assert_eq!(chosen(&packs), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        packs[8] = (990, 990);
        assert_eq!(chosen(&packs), [0, 1, 2, 3, 4, 5, 6, 7, 9]);
        // Packs that are not small do not count here.
        packs[8] = (1_500, 1_500);
        assert_eq!(chosen(&packs), [0, 1, 2, 3, 4, 5, 6, 7, 9]);
    }
}
