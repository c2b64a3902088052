//! How much a client may send that asks for nothing.
//!
//! Pings, settings, empty frames and frames for streams that have ended cost little each, and a client can send millions.
//! Honest clients send some, and some of them open both windows again for every 4 KiB that they take: so each frame costs
//! one unit, and requests, data and time bring units back.

use super::frame::Reason;

/// What a client may save up.
const MOST: u32 = 2000;
/// What a request, and a piece of data in either direction, bring back.
const FOR_WORK: u32 = 4;
/// So many bytes of an answer bring back one more.
const BYTES_PER_UNIT: usize = 1024;
/// What a second brings back.
const PER_SECOND: u64 = 100;
/// So many requests that were taken back before their answer are nobody's impatience, if they are most of all.
const MOST_CANCELED: u64 = 100;

/// The patience with one client.
#[derive(Debug)]
pub(super) struct Calm {
    left: u32,
    /// Until when time has brought units back, in milliseconds.
    counted_ms: u64,
    requests: u64,
    canceled: u64,
}

impl Calm {
    pub(super) fn new(now_ms: u64) -> Self {
        Self { left: MOST, counted_ms: now_ms, requests: 0, canceled: 0 }
    }

    /// Notes the time.
    pub(super) fn tick(&mut self, now_ms: u64) {
        let units = now_ms.saturating_sub(self.counted_ms) * PER_SECOND / 1000;
        if units > 0 {
            self.counted_ms = now_ms;
            self.add(u32::try_from(units).unwrap_or(MOST));
        }
    }

    /// Notes a frame that asks for nothing.
    pub(super) fn spend(&mut self) -> Result<(), Reason> {
        self.left = self.left.checked_sub(1).ok_or(Reason::ENHANCE_YOUR_CALM)?;
        Ok(())
    }

    /// Notes a request.
    pub(super) fn note_request(&mut self) {
        self.requests += 1;
        self.note_data(0);
    }

    /// Notes a piece of data, and how many bytes of an answer it has.
    pub(super) fn note_data(&mut self, bytes: usize) {
        self.add(FOR_WORK.saturating_add(u32::try_from(bytes / BYTES_PER_UNIT).unwrap_or(MOST)));
    }

    /// Notes a request that was taken back before its answer.
    pub(super) fn note_cancel(&mut self) -> Result<(), Reason> {
        self.canceled += 1;
        if self.canceled >= MOST_CANCELED && self.canceled * 2 > self.requests {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        Ok(())
    }

    fn add(&mut self, units: u32) {
        self.left = self.left.saturating_add(units).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::{Calm, MOST, MOST_CANCELED};

    #[test]
    fn what_asks_for_nothing_ends_in_time() {
        let mut calm = Calm::new(0);
        for _ in 0..MOST {
            calm.spend().unwrap();
        }
        calm.spend().unwrap_err();
        calm.tick(9);
        calm.spend().unwrap_err();
        calm.tick(19);
        calm.spend().unwrap();
        calm.spend().unwrap_err();
        calm.note_request();
        for _ in 0..4 {
            calm.spend().unwrap();
        }
        calm.spend().unwrap_err();
    }

    #[test]
    fn who_opens_its_windows_in_small_steps_may_take_a_large_answer() {
        let mut calm = Calm::new(0);
        for _ in 0..10_000 {
            calm.note_data(16 * 1024);
            // Two windows for each 4 KiB.
            for _ in 0..8 {
                calm.spend().unwrap();
            }
        }
    }

    #[test]
    fn impatience_is_no_flood() {
        let mut calm = Calm::new(0);
        for _ in 1..MOST_CANCELED {
            calm.note_request();
            calm.note_cancel().unwrap();
        }
        calm.note_request();
        calm.note_cancel().unwrap_err();
        for _ in 0..2 * MOST_CANCELED {
            calm.note_request();
        }
        calm.note_cancel().unwrap();
    }
}
