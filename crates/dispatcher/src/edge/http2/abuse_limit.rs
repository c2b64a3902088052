//! A limit on client frames that request nothing.
//!
//! Pings, settings, empty frames and frames for closed streams cost little each, but a client can send millions.
//! Well-behaved clients send some, and some of them reopen both windows for every 4 KiB that they read. Therefore each
//! frame costs one credit, and requests, data and time restore credits.

use super::frame::Http2ErrorCode;

/// The maximum number of credits of a client.
const MAX_CREDITS: u32 = 2000;
/// The credits restored by a request and by a piece of data in either direction.
const CREDITS_PER_REQUEST: u32 = 4;
/// The number of response bytes that restore one more credit.
const BYTES_PER_CREDIT: usize = 1024;
/// The credits restored per second.
const CREDITS_PER_SECOND: u64 = 100;
/// The number of requests canceled before their response that is accepted; more are abuse if they are the majority.
const MAX_CANCELED_REQUESTS: u64 = 100;

/// The credits of one client.
#[derive(Debug)]
pub(super) struct Http2AbuseLimit {
    credits: u32,
    /// The time up to which time-based credits were added, in milliseconds.
    last_credit_ms: u64,
    request_count: u64,
    canceled_count: u64,
}

impl Http2AbuseLimit {
    pub(super) fn new(now_ms: u64) -> Self {
        Self { credits: MAX_CREDITS, last_credit_ms: now_ms, request_count: 0, canceled_count: 0 }
    }

    /// Sets the current time.
    pub(super) fn advance_time(&mut self, now_ms: u64) {
        let units = now_ms.saturating_sub(self.last_credit_ms) * CREDITS_PER_SECOND / 1000;
        if units > 0 {
            self.last_credit_ms = now_ms;
            self.add_credits(u32::try_from(units).unwrap_or(MAX_CREDITS));
        }
    }

    /// Charges a frame that requests nothing.
    pub(super) fn charge_frame(&mut self) -> Result<(), Http2ErrorCode> {
        self.credits = self.credits.checked_sub(1).ok_or(Http2ErrorCode::ENHANCE_YOUR_CALM)?;
        Ok(())
    }

    /// Records a request.
    pub(super) fn record_request(&mut self) {
        self.request_count += 1;
        self.record_data(0);
    }

    /// Records a piece of data with the number of response bytes in it.
    pub(super) fn record_data(&mut self, bytes: usize) {
        self.add_credits(
            CREDITS_PER_REQUEST
                .saturating_add(u32::try_from(bytes / BYTES_PER_CREDIT).unwrap_or(MAX_CREDITS)),
        );
    }

    /// Records a request that was canceled before its response.
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
            // Two window updates for each 4 KiB.
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
