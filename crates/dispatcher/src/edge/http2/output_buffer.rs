//! The output buffer: frames, interleaved with bodies that are stored elsewhere and not copied.

use std::io::IoSlice;

use bytes::Bytes;

/// The maximum size of a body that is copied, which costs less than a separate slice.
const MAX_COPIED_BODY_BYTES: usize = 4 * 1024;

/// Output bytes in sending order.
#[derive(Debug, Default)]
pub(crate) struct OutputBuffer {
    /// All bytes except the bodies.
    pub(super) frames: Vec<u8>,
    /// The bodies, each with the number of bytes of `frames` before it.
    bodies: Vec<(usize, Bytes)>,
    body_bytes: usize,
}

impl OutputBuffer {
    pub(crate) fn len(&self) -> usize {
        self.frames.len() + self.body_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the allocated capacity.
    pub(crate) fn capacity(&self) -> usize {
        self.frames.capacity()
    }

    /// Appends a body.
    pub(super) fn push_body(&mut self, body: Bytes) {
        if body.len() < MAX_COPIED_BODY_BYTES {
            self.frames.extend_from_slice(&body);
        } else {
            self.body_bytes += body.len();
            self.bodies.push((self.frames.len(), body));
        }
    }

    /// Returns all bytes as slices.
    pub(crate) fn io_slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(2 * self.bodies.len() + 1);
        let mut frames_end = 0;
        for (end, body) in &self.bodies {
            slices.push(IoSlice::new(self.frames.get(frames_end..*end).unwrap_or_default()));
            slices.push(IoSlice::new(body));
            frames_end = *end;
        }
        slices.push(IoSlice::new(self.frames.get(frames_end..).unwrap_or_default()));
        slices
    }

    /// Drops bytes that were sent.
    pub(crate) fn advance(&mut self, count: usize) {
        if count >= self.len() {
            return self.clear();
        }
        if count > 0 {
            // Rare, because a client that reads fast enough is sent everything.
            let mut rest = Vec::with_capacity(self.len() - count);
            let mut left = count;
            for slice in self.io_slices() {
                let skipped = left.min(slice.len());
                left -= skipped;
                rest.extend_from_slice(slice.get(skipped..).unwrap_or_default());
            }
            *self = Self { frames: rest, ..Self::default() };
        }
    }

    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.bodies.clear();
        self.body_bytes = 0;
    }

    /// Returns all bytes as one vector.
    #[cfg(test)]
    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.io_slices().iter().flat_map(|slice| slice.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_COPIED_BODY_BYTES, OutputBuffer};
    use bytes::Bytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_sent_in_whichever_pieces_keeps_its_order(
            lengths in proptest::collection::vec((any::<bool>(), 0_usize..2 * MAX_COPIED_BODY_BYTES), 0..12),
            steps in proptest::collection::vec(0_usize..3 * MAX_COPIED_BODY_BYTES, 0..12),
        ) {
            let (mut out, mut expected) = (OutputBuffer::default(), Vec::new());
            for (number, (is_body, length)) in lengths.into_iter().enumerate() {
                let bytes = vec![u8::try_from(number).unwrap(); length];
                expected.extend_from_slice(&bytes);
                if is_body {
                    out.push_body(Bytes::from(bytes));
                } else {
                    out.frames.extend_from_slice(&bytes);
                }
            }
            prop_assert_eq!(out.len(), expected.len());
            for step in steps {
                prop_assert_eq!(&out.to_vec(), &expected);
                let sent = step.min(expected.len());
                out.advance(sent);
                expected.drain(..sent);
                prop_assert_eq!(out.is_empty(), expected.is_empty());
            }
        }
    }
}
