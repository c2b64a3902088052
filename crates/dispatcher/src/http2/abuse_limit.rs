//! How much a client may send that asks for nothing.
//!
//! Pings, settings, empty frames and frames for streams that have ended cost little each, and a client can send millions.
//! Honest clients send some, and some of them open both windows again for every 4 KiB that they take: so each frame costs
//! one unit, and requests, data and time bring units back.

use super::frame::Http2ErrorCode;

/// What a client may save up.
const MAX_CREDITS: u32 = 2000;
/// What a request, and a piece of data in either direction, bring back.
const CREDITS_PER_REQUEST: u32 = 4;
/// So many bytes of an answer bring back one more.
const BYTES_PER_CREDIT: usize = 1024;
/// What a second brings back.
const CREDITS_PER_SECOND: u64 = 100;
/// So many requests that were taken back before their answer are nobody's impatience, if they are most of all.
const MAX_CANCELED_REQUESTS: u64 = 100;

/// The patience with one client.
#[derive(Debug)]
pub(super) struct Http2AbuseLimit {
    credits: u32,
    /// Until when time has brought units back, in milliseconds.
    last_credit_ms: u64,
    request_count: u64,
    canceled_count: u64,
}

impl Http2AbuseLimit {
    pub(super) fn new(now_ms: u64) -> Self {
        Self { credits: MAX_CREDITS, last_credit_ms: now_ms, request_count: 0, canceled_count: 0 }
    }

    /// Notes the time.
    pub(super) fn advance_time(&mut self, now_ms: u64) {
        let units = now_ms.saturating_sub(self.last_credit_ms) * CREDITS_PER_SECOND / 1000;
        if units > 0 {
            self.last_credit_ms = now_ms;
            self.add_credits(u32::try_from(units).unwrap_or(MAX_CREDITS));
        }
    }

    /// Notes a frame that asks for nothing.
    pub(super) fn charge_frame(&mut self) -> Result<(), Http2ErrorCode> {
        self.credits = self.credits.checked_sub(1).ok_or(Http2ErrorCode::ENHANCE_YOUR_CALM)?;
        Ok(())
    }

    /// Notes a request.
    pub(super) fn record_request(&mut self) {
        self.request_count += 1;
        self.record_data(0);
    }

    /// Notes a piece of data, and how many bytes of an answer it has.
    pub(super) fn record_data(&mut self, bytes: usize) {
        self.add_credits(
            CREDITS_PER_REQUEST
                .saturating_add(u32::try_from(bytes / BYTES_PER_CREDIT).unwrap_or(MAX_CREDITS)),
        );
    }

    /// Notes a request that was taken back before its answer.
    pub(super) fn record_cancel(&mut self) -> Result<(), Http2ErrorCode> {
        self.canceled_count += 1;
        if self.canceled_count >= MAX_CANCELED_REQUESTS
            && self.canceled_count * 2 > self.request_count
        {
            return Err(Http2ErrorCode::ENHANCE_YOUR_CALM);
        }
        Ok(())
    }

    fn add_credits(&mut self, units: u32) {
        self.credits = self.credits.saturating_add(units).min(MAX_CREDITS);
    }
}

#[cfg(test)]
mod tests {
    use super::{Http2AbuseLimit, MAX_CANCELED_REQUESTS, MAX_CREDITS};

    #[test]
    fn what_asks_for_nothing_ends_in_time() {
        let mut calm = Http2AbuseLimit::new(0);
        for _ in 0..MAX_CREDITS {
            calm.charge_frame().unwrap();
        }
        calm.charge_frame().unwrap_err();
        calm.advance_time(9);
        calm.charge_frame().unwrap_err();
        calm.advance_time(19);
        calm.charge_frame().unwrap();
        calm.charge_frame().unwrap_err();
        calm.record_request();
        for _ in 0..4 {
            calm.charge_frame().unwrap();
        }
        calm.charge_frame().unwrap_err();
    }

    #[test]
    fn who_opens_its_windows_in_small_steps_may_take_a_large_answer() {
        let mut calm = Http2AbuseLimit::new(0);
        for _ in 0..10_000 {
            calm.record_data(16 * 1024);
            // Two windows for each 4 KiB.
            for _ in 0..8 {
                calm.charge_frame().unwrap();
            }
        }
    }

    #[test]
    fn impatience_is_no_flood() {
        let mut calm = Http2AbuseLimit::new(0);
        for _ in 1..MAX_CANCELED_REQUESTS {
            calm.record_request();
            calm.record_cancel().unwrap();
        }
        calm.record_request();
        calm.record_cancel().unwrap_err();
        for _ in 0..2 * MAX_CANCELED_REQUESTS {
            calm.record_request();
        }
        calm.record_cancel().unwrap();
    }
}
