//! The methods of dates in scripts.

use super::date_time::{ScriptDateTime, span_for_method};
use super::value::ScriptValue;

impl ScriptDateTime {
    /// Calls a method.
    ///
    /// # Errors
    /// Java's exception, or an unsupported method.
    pub(super) fn call_method(
        self,
        name: &str,
        arguments: &[ScriptValue],
    ) -> Result<ScriptValue, String> {
        let number = match arguments.first() {
            Some(ScriptValue::Int(number)) => *number,
            _ => 0,
        };
        let at = self.to_zoned().ok_or("java.time.DateTimeException")?;
        let millis = at.timestamp().as_millisecond();
        if let Some(span) = span_for_method(name, number) {
            let moved = span.and_then(|span| self.plus_span(span));
            return moved
                .map(ScriptValue::DateTime)
                .ok_or_else(|| "java.time.DateTimeException".to_owned());
        }
        Ok(match name {
            "format" => match arguments.first() {
                Some(ScriptValue::DateFormat(pattern)) => {
                    ScriptValue::from_text(self.format(pattern)?)
                }
                Some(ScriptValue::Text(pattern)) => ScriptValue::from_text(self.format(pattern)?),
                _ => ScriptValue::from_text(self.to_string()),
            },
            "getTime" | "toEpochMilli" => ScriptValue::Int(millis),
            "getEpochSecond" => ScriptValue::Int(millis.div_euclid(1000)),
            "getYear" => ScriptValue::Int(at.year().into()),
            "getMonthValue" => ScriptValue::Int(at.month().into()),
            "getDayOfMonth" => ScriptValue::Int(at.day().into()),
            "getHour" => ScriptValue::Int(at.hour().into()),
            "getMinute" => ScriptValue::Int(at.minute().into()),
            "getSecond" => ScriptValue::Int(at.second().into()),
            "toString" => ScriptValue::from_text(self.to_string()),
            "equals" => ScriptValue::Bool(
                matches!(arguments.first(), Some(ScriptValue::DateTime(other)) if *other == self),
            ),
            "isBefore" | "before" | "isAfter" | "after" => {
                let Some(ScriptValue::DateTime(other)) = arguments.first() else {
                    return Err(format!("script calls `{name}()` without a date"));
                };
                let order = at.timestamp().cmp(&other.to_zoned().ok_or("no date")?.timestamp());
                ScriptValue::Bool(if name.to_ascii_lowercase().ends_with("before") {
                    order.is_lt()
                } else {
                    order.is_gt()
                })
            }
            _ => return Err(format!("script calls `{name}()` of a date (not supported)")),
        })
    }
}
