//! Decimal formatting of numbers for texts that consist mostly of numbers, such as log lines and response heads.
//!
//! The standard library's formatter handles signs, widths and alternate forms each time, which costs more than the
//! digits.

/// The digits of a number: `DecimalDigits::from_number(1234).as_str()` is `"1234"`.
#[derive(Debug, Clone, Copy)]
pub struct DecimalDigits {
    bytes: [u8; 20],
    start: usize,
}

impl DecimalDigits {
    /// Returns the digits of a number; 0 has one digit.
    #[must_use]
    pub fn from_number(mut number: u64) -> Self {
        let mut digits = Self { bytes: [0; 20], start: 20 };
        loop {
            digits.start -= 1;
            if let Some(digit) = digits.bytes.get_mut(digits.start) {
                *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
            }
            number /= 10;
            if number == 0 {
                return digits;
            }
        }
    }

    /// Returns the digits as ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Returns the digits as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // The digits are ASCII.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::DecimalDigits;

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 7, 10, 99, 12_345, u64::MAX] {
            let digits = DecimalDigits::from_number(number);
            assert_eq!(digits.as_str(), number.to_string());
            assert_eq!(digits.as_bytes(), number.to_string().as_bytes());
        }
    }
}
