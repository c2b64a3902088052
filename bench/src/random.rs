//! Pseudo-random numbers and words from a seed: the same data in every run.

/// A generator (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

const WORDS: [&str; 32] = [
    "harbor", "market", "morning", "travel", "paper", "window", "river", "mountain", "slowly",
    "between", "garden", "letter", "station", "village", "bright", "winter", "summer", "bridge",
    "editor", "picture", "story", "island", "people", "evening", "water", "through", "north",
    "along", "street", "kitchen", "quiet", "train",
];

impl Random {
    /// Starts from a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).unwrap_or(u64::MAX);
        usize::try_from((self.next() >> 16) % end).unwrap_or_default()
    }

    /// Returns words of at least `bytes` bytes together.
    pub(crate) fn words(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(WORDS.get(self.below(WORDS.len())).copied().unwrap_or_default());
        }
        text
    }

    /// Returns bytes that do not compress.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()).flatten().take(count).collect()
    }
}
