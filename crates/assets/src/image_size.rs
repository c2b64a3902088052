//! The size of a picture.

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageSize {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl ImageSize {
    /// Returns the number of pixels.
    #[must_use]
    pub fn pixel_count(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Returns the size with width and height swapped.
    pub(crate) fn transposed(self) -> Self {
        Self { width: self.height, height: self.width }
    }

    /// Returns the largest size of the same aspect ratio within a box, never larger than this one.
    pub(crate) fn fit_within(self, within: Self) -> Self {
        let scale = |most: u32, side: u32| f64::from(most) / f64::from(side.max(1));
        let scale = scale(within.width, self.width).min(scale(within.height, self.height)).min(1.0);
        // A side is never longer than before, so it fits.
        let scaled = |side: u32| ((f64::from(side) * scale).round() as u32).clamp(1, side.max(1));
        Self { width: scaled(self.width), height: scaled(self.height) }
    }

    /// Returns true if both sides are at least as long as the other's.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.width >= other.width && self.height >= other.height
    }
}
