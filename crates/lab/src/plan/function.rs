//! JMeter's functions, those that plans use.

use super::expression;
use super::scope::Scope;
use super::template::{Call, Template};

/// A function by its JMeter name without the two underscores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Property,
    SetProperty,
    ShortProperty,
    Random,
    RandomString,
    Uuid,
    Time,
    TimeShift,
    ThreadNumber,
    ThreadGroupName,
    ThreadName,
    SamplerName,
    TestPlanName,
    IterationNumber,
    Counter,
    Variable,
    Evaluate,
    EvaluateVariable,
    Expression,
    Base64Encode,
    Base64Decode,
    UrlEncode,
    UrlDecode,
    EscapeHtml,
    Lowercase,
    Uppercase,
    ChangeCase,
    IsVariable,
    IsProperty,
    Split,
    Sum,
    MachineName,
    MachineAddress,
    Character,
    Log,
}

impl Function {
    /// Finds a function by its name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "__property" => Self::Property,
            "__P" => Self::ShortProperty,
            "__setProperty" => Self::SetProperty,
            "__Random" => Self::Random,
            "__RandomString" => Self::RandomString,
            "__UUID" => Self::Uuid,
            "__time" => Self::Time,
            "__timeShift" => Self::TimeShift,
            "__threadNum" => Self::ThreadNumber,
            "__threadGroupName" => Self::ThreadGroupName,
            "__threadName" => Self::ThreadName,
            "__samplerName" => Self::SamplerName,
            "__TestPlanName" => Self::TestPlanName,
            "__iterationNum" => Self::IterationNumber,
            "__counter" => Self::Counter,
            "__V" => Self::Variable,
            "__eval" => Self::Evaluate,
            "__evalVar" => Self::EvaluateVariable,
            "__jexl3" | "__jexl2" | "__groovy" | "__javaScript" => Self::Expression,
            "__base64Encode" => Self::Base64Encode,
            "__base64Decode" => Self::Base64Decode,
            "__urlencode" => Self::UrlEncode,
            "__urldecode" => Self::UrlDecode,
            "__escapeHtml" => Self::EscapeHtml,
            "__lowercase" => Self::Lowercase,
            "__uppercase" => Self::Uppercase,
            "__changeCase" => Self::ChangeCase,
            "__isVarDefined" => Self::IsVariable,
            "__isPropDefined" => Self::IsProperty,
            "__split" => Self::Split,
            "__intSum" | "__longSum" => Self::Sum,
            "__machineName" => Self::MachineName,
            "__machineIP" => Self::MachineAddress,
            "__char" => Self::Character,
            "__log" | "__logn" => Self::Log,
            _ => return None,
        })
    }

    /// Says what is wrong with a call, as far as it can be told before it runs.
    pub(crate) fn check(self, call: &Call) -> Result<(), String> {
        let needed = match self {
            Self::Random | Self::SetProperty | Self::Sum | Self::Split => 2,
            Self::Property
            | Self::ShortProperty
            | Self::RandomString
            | Self::Variable
            | Self::Evaluate
            | Self::EvaluateVariable
            | Self::Expression
            | Self::Base64Encode
            | Self::Base64Decode
            | Self::UrlEncode
            | Self::UrlDecode
            | Self::EscapeHtml
            | Self::Lowercase
            | Self::Uppercase
            | Self::ChangeCase
            | Self::IsVariable
            | Self::IsProperty
            | Self::Character => 1,
            _ => 0,
        };
        if call.arguments.len() < needed {
            return Err(format!("`${{{}`: {needed} arguments are needed", call.source));
        }
        match (self, call.arguments.first()) {
            (Self::Expression, Some(script)) => expression::check(script),
            (Self::Time, Some(format)) => check_format(format),
            (Self::TimeShift, Some(format)) => check_format(format),
            _ => Ok(()),
        }
    }

    pub(crate) fn call(self, call: &Call, scope: &mut Scope) -> String {
        let mut given = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            given.push(argument.draw(scope).into_owned());
        }
        let text = |place: usize| given.get(place).map_or("", String::as_str);
        let number = |place: usize| text(place).trim().parse::<i64>().unwrap_or(0);
        let (value, place) = match self {
            Self::Property => {
                let default = given.get(2).cloned().unwrap_or_else(|| text(0).to_owned());
                (scope.world.property(text(0)).unwrap_or(default), 1)
            }
            Self::ShortProperty => {
                let default = given.get(1).cloned().unwrap_or_else(|| "1".to_owned());
                (scope.world.property(text(0)).unwrap_or(default), usize::MAX)
            }
            Self::SetProperty => {
                let old = scope.world.set_property(text(0), text(1));
                let wants = text(2).eq_ignore_ascii_case("true");
                (if wants { old.unwrap_or_default() } else { String::new() }, usize::MAX)
            }
            Self::Random => (scope.random_between(number(0), number(1)).to_string(), 2),
            Self::RandomString => (random_string(number(0), text(1), scope), 2),
            Self::Uuid => (uuid(scope), usize::MAX),
            Self::Time => (time(text(0), Scope::now_ms()), 1),
            Self::TimeShift => (shift(text(0), text(1), text(2)), 4),
            Self::ThreadNumber => (scope.thread.to_string(), usize::MAX),
            Self::ThreadGroupName => (scope.group.to_string(), usize::MAX),
            Self::ThreadName => (scope.thread_name.to_string(), usize::MAX),
            Self::SamplerName => (scope.sampler.to_string(), 0),
            Self::TestPlanName => {
                (scope.world.property("tympan.plan").unwrap_or_default(), usize::MAX)
            }
            Self::IterationNumber => (scope.iteration.to_string(), usize::MAX),
            Self::Counter => {
                let count = if text(0).eq_ignore_ascii_case("true") {
                    scope.count(&call.source)
                } else {
                    scope.world.count(&call.source)
                };
                (count.to_string(), 1)
            }
            Self::Variable => {
                let default = given.get(1).cloned().unwrap_or_else(|| text(0).to_owned());
                (scope.variable(text(0)).map_or(default, str::to_owned), usize::MAX)
            }
            Self::Evaluate => (evaluate(text(0), scope), usize::MAX),
            Self::EvaluateVariable => {
                let inner = scope.variable(text(0)).unwrap_or_default().to_owned();
                (evaluate(&inner, scope), usize::MAX)
            }
            Self::Expression => {
                (expression::evaluate(text(0), scope).unwrap_or_default().to_string(), 1)
            }
            Self::Sum => {
                let numbers: Vec<i64> =
                    given.iter().map_while(|word| word.trim().parse().ok()).collect();
                (numbers.iter().sum::<i64>().to_string(), numbers.len())
            }
            Self::Split => {
                (split(text(0), text(1), given.get(2).map(String::as_str), scope), usize::MAX)
            }
            Self::ChangeCase => (change_case(text(0), text(1)), 2),
            Self::IsVariable => (scope.variable(text(0)).is_some().to_string(), usize::MAX),
            Self::IsProperty => (scope.world.property(text(0)).is_some().to_string(), usize::MAX),
            Self::MachineName => (machine_name(), 0),
            Self::MachineAddress => ("127.0.0.1".to_owned(), 0),
            Self::Log => (text(0).to_owned(), usize::MAX),
            _ => (convert(self, &given), 1),
        };
        // Many functions can also put their result into a variable that their last argument names.
        if let Some(name) = given.get(place).map(|name| name.trim())
            && !name.is_empty()
        {
            scope.set(name, &value);
        }
        value
    }
}

/// The functions from one text to another.
fn convert(function: Function, given: &[String]) -> String {
    use base64::Engine as _;
    let text = given.first().map_or("", String::as_str);
    let base64 = base64::engine::general_purpose::STANDARD;
    match function {
        Function::Base64Encode => base64.encode(text),
        Function::Base64Decode => {
            String::from_utf8_lossy(&base64.decode(text.trim()).unwrap_or_default()).into_owned()
        }
        Function::UrlEncode => super::http::encode_form(text),
        Function::UrlDecode => {
            let spaced = text.replace('+', " ");
            percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        }
        Function::EscapeHtml => text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;"),
        Function::Lowercase => text.to_lowercase(),
        Function::Uppercase => text.to_uppercase(),
        Function::Character => given
            .iter()
            .filter_map(|word| {
                let word = word.trim();
                let code = match word.strip_prefix("0x") {
                    Some(hex) => u32::from_str_radix(hex, 16).ok(),
                    None => word.parse().ok(),
                };
                code.and_then(char::from_u32)
            })
            .collect(),
        _ => String::new(),
    }
}

/// Deepest evaluation of texts by texts.
const DEEPEST: u32 = 20;

fn evaluate(text: &str, scope: &mut Scope) -> String {
    // A variable may hold a text that evaluates itself.
    if scope.depth > DEEPEST {
        return text.to_owned();
    }
    scope.depth += 1;
    let drawn = Template::parse(text).map(|template| template.draw(scope).into_owned());
    scope.depth -= 1;
    match drawn {
        Ok(drawn) => drawn,
        Err(_) => text.to_owned(),
    }
}

fn random_string(length: i64, alphabet: &str, scope: &mut Scope) -> String {
    let alphabet: Vec<char> = if alphabet.is_empty() {
        ('0'..='9').chain('A'..='Z').chain('a'..='z').collect()
    } else {
        alphabet.chars().collect()
    };
    let last = i64::try_from(alphabet.len()).unwrap_or(1) - 1;
    (0..length.clamp(0, 1 << 20))
        .filter_map(|_| {
            let place = usize::try_from(scope.random_between(0, last)).unwrap_or(0);
            alphabet.get(place).copied()
        })
        .collect()
}

fn uuid(scope: &mut Scope) -> String {
    let (high, low) = (scope.random(), scope.random());
    let high = (high & !0xF000) | 0x4000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

fn change_case(text: &str, mode: &str) -> String {
    match mode.trim() {
        "LOWER" => text.to_lowercase(),
        "CAPITALIZE" => {
            let mut chars = text.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            first + chars.as_str()
        }
        _ => text.to_uppercase(),
    }
}

fn split(text: &str, name: &str, delimiter: Option<&str>, scope: &mut Scope) -> String {
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty()).unwrap_or(",");
    let mut count = 0;
    for part in text.split(delimiter) {
        count += 1;
        scope.set(&format!("{name}_{count}"), if part.is_empty() { "?" } else { part });
    }
    scope.set(name, text);
    scope.set(&format!("{name}_n"), &count.to_string());
    scope.remove(&format!("{name}_{}", count + 1));
    text.to_owned()
}

fn machine_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// The letters of Java's date patterns that are understood, with what they are to `strftime`.
const LETTERS: [(&str, &str); 22] = [
    ("yyyy", "%Y"),
    ("yy", "%y"),
    ("y", "%Y"),
    ("MMMM", "%B"),
    ("MMM", "%b"),
    ("MM", "%m"),
    ("M", "%-m"),
    ("dd", "%d"),
    ("d", "%-d"),
    ("HH", "%H"),
    ("H", "%-H"),
    ("hh", "%I"),
    ("mm", "%M"),
    ("m", "%-M"),
    ("ss", "%S"),
    ("s", "%-S"),
    ("SSS", "%3f"),
    ("EEEE", "%A"),
    ("EEE", "%a"),
    ("a", "%p"),
    ("XXX", "%:z"),
    ("Z", "%z"),
];

/// Turns a Java date pattern into one of `strftime`.
fn pattern(java: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = java;
    while let Some(c) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix('\'') {
            let (text, after) = quoted.split_once('\'')?;
            out.push_str(if text.is_empty() { "'" } else { text });
            rest = after;
        } else if c.is_ascii_alphabetic() {
            let run = rest.len() - rest.trim_start_matches(c).len();
            let letters = rest.get(..run)?;
            out.push_str(LETTERS.iter().find(|(java, _)| *java == letters)?.1);
            rest = rest.get(run..)?;
        } else {
            out.push(c);
            if c == '%' {
                out.push('%');
            }
            rest = rest.get(c.len_utf8()..)?;
        }
    }
    Some(out)
}

fn check_format(format: &Template) -> Result<(), String> {
    match format.as_literal() {
        Some(text) if !is_plain_time(text) && pattern(text).is_none() => {
            Err(format!("date pattern `{text}`: not supported"))
        }
        _ => Ok(()),
    }
}

fn is_plain_time(format: &str) -> bool {
    format.is_empty()
        || format.starts_with('/')
        || matches!(format, "YMD" | "HMS" | "YMDHMS" | "USER1" | "USER2")
}

fn time(format: &str, now_ms: u64) -> String {
    match format {
        "" => return now_ms.to_string(),
        "YMD" => return strftime("yyyyMMdd", now_ms),
        "HMS" => return strftime("HHmmss", now_ms),
        "YMDHMS" => return strftime("yyyyMMdd-HHmmss", now_ms),
        _ => {}
    }
    if let Some(divisor) = format.strip_prefix('/').and_then(|number| number.parse::<u64>().ok()) {
        return now_ms.checked_div(divisor).unwrap_or(now_ms).to_string();
    }
    strftime(format, now_ms)
}

fn strftime(java: &str, ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    match (pattern(java), at) {
        (Some(pattern), Some(at)) => {
            at.to_zoned(jiff::tz::TimeZone::system()).strftime(&pattern).to_string()
        }
        _ => String::new(),
    }
}

/// Shifts now by a duration such as `P2D` or `-PT1H`; a given date is not read.
fn shift(format: &str, date: &str, amount: &str) -> String {
    let mut ms = i64::try_from(Scope::now_ms()).unwrap_or(i64::MAX);
    if let Ok(given) = date.trim().parse::<i64>() {
        ms = given;
    }
    if let Ok(span) = amount.trim().parse::<jiff::Span>() {
        let day = jiff::SpanRelativeTo::days_are_24_hours();
        ms += span.total((jiff::Unit::Millisecond, day)).unwrap_or(0.0) as i64;
    }
    let ms = u64::try_from(ms).unwrap_or(0);
    if format.is_empty() { ms.to_string() } else { strftime(format, ms) }
}
