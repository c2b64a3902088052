//! Everything that a script may call: the fixed list, and what each call does.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::pattern::compile_whole;
use super::super::perl::{End, translate};
use super::super::scope::Scope;
use super::ast::Expression;
use super::value::Value;

type Outcome = Result<Value, String>;

/// Names that every script finds.
const GLOBALS: [&str; 22] = [
    "vars",
    "props",
    "prev",
    "log",
    "ctx",
    "SampleResult",
    "AssertionResult",
    "Parameters",
    "args",
    "Label",
    "OUT",
    "Failure",
    "FailureMessage",
    "ResponseCode",
    "ResponseMessage",
    "IsSuccess",
    "ResponseData",
    "SampleLabel",
    "sampleEvent",
    "threadName",
    "bsh",
    "data",
];

/// Methods of what JMeter gives to scripts.
const OF_ROOTS: [(&str, &[&str]); 8] = [
    ("vars", &["get", "put", "remove", "containsKey"]),
    ("props", &["get", "put", "getProperty", "setProperty", "containsKey", "remove"]),
    ("prev", SAMPLE),
    ("SampleResult", SAMPLE),
    ("log", &["info", "warn", "error", "debug", "trace"]),
    ("OUT", &["println", "print"]),
    ("ctx", &["getThreadNum", "getThreadName"]),
    ("AssertionResult", &["setFailure", "setFailureMessage", "isFailure"]),
];

const SAMPLE: &[&str] = &[
    "getResponseCode",
    "getResponseMessage",
    "getResponseDataAsString",
    "getResponseHeaders",
    "getRequestHeaders",
    "getUrlAsString",
    "getSampleLabel",
    "getTime",
    "getThreadName",
    "isSuccessful",
    "setSuccessful",
    "setResponseCode",
    "setResponseCodeOK",
    "setResponseMessage",
    "setResponseMessageOK",
    "setResponseOK",
    "setResponseData",
    "setSampleLabel",
    "getSamplerData",
    "getURL",
    "getBytesAsLong",
    "getBodySizeAsLong",
    "setIgnore",
    "isIgnore",
    "setStopThread",
    "isStopThread",
    "setStopTest",
    "isStopTest",
    "setStopTestNow",
    "isStopTestNow",
    "setStartNextThreadLoop",
    "isStartNextThreadLoop",
];

/// Methods of texts, lists, numbers and the rest.
const OF_VALUES: [&str; 42] = [
    "equals",
    "equalsIgnoreCase",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "replace",
    "replaceAll",
    "replaceFirst",
    "split",
    "substring",
    "indexOf",
    "lastIndexOf",
    "length",
    "size",
    "trim",
    "toUpperCase",
    "toLowerCase",
    "toString",
    "charAt",
    "isEmpty",
    "concat",
    "toInteger",
    "toLong",
    "toDouble",
    "intValue",
    "longValue",
    "doubleValue",
    "padLeft",
    "isNumber",
    "isInteger",
    "compareTo",
    "add",
    "get",
    "set",
    "append",
    "nextInt",
    "nextDouble",
    "nextBoolean",
    "getTime",
    "join",
    "getMessage",
];

const STATICS: [(&str, &[&str]); 12] = [
    ("Integer", &["parseInt", "valueOf", "toString", "MAX_VALUE"]),
    ("Long", &["parseLong", "valueOf", "toString", "MAX_VALUE"]),
    ("Double", &["parseDouble", "valueOf", "toString"]),
    ("Float", &["parseFloat", "valueOf", "toString"]),
    ("Boolean", &["parseBoolean", "valueOf", "toString"]),
    ("String", &["valueOf", "join", "format"]),
    ("Math", &["abs", "min", "max", "random", "floor", "ceil", "round", "pow", "sqrt"]),
    ("System", &["currentTimeMillis", "nanoTime", "print"]),
    ("UUID", &["randomUUID"]),
    ("ThreadLocalRandom", &["current"]),
    ("URLEncoder", &["encode"]),
    ("Objects", &["equals"]),
];

const CLASSES: [&str; 8] = [
    "Random",
    "Date",
    "String",
    "StringBuilder",
    "StringBuffer",
    "ArrayList",
    "LinkedList",
    "Exception",
];

pub(super) fn is_global(name: &str) -> bool {
    GLOBALS.contains(&name)
}

pub(super) fn is_class(name: &str) -> bool {
    STATICS.iter().any(|(class, _)| *class == name)
}

pub(super) fn is_cast(name: &str) -> bool {
    matches!(name, "int" | "long" | "double" | "float" | "short" | "char" | "boolean")
}

/// Returns the thing of JMeter's that an expression names.
pub(super) fn root_of(expression: &Expression) -> Option<&str> {
    match expression {
        Expression::Name(name) if is_global(name) => Some(name),
        _ => None,
    }
}

/// Says what of a call is not in the list.
pub(super) fn check_call(on: &Expression, method: &str, _count: usize) -> Result<(), String> {
    if let Some(root) = root_of(on)
        && let Some((_, methods)) = OF_ROOTS.iter().find(|(name, _)| *name == root)
    {
        return if methods.contains(&method) {
            Ok(())
        } else {
            Err(format!("script calls `{root}.{method}()` (not supported)"))
        };
    }
    if OF_VALUES.contains(&method) {
        Ok(())
    } else {
        Err(format!("script calls `{method}()` (not supported)"))
    }
}

pub(super) fn check_property(on: &Expression, name: &str) -> Result<(), String> {
    match root_of(on) {
        Some("vars") => Ok(()),
        Some("bsh") if name == "args" => Ok(()),
        _ if name == "length" => Ok(()),
        root => {
            let root = root.map(|root| format!("{root}.")).unwrap_or_default();
            Err(format!("script uses `{root}{name}` (not supported)"))
        }
    }
}

pub(super) fn check_static(class: &str, name: &str, _count: Option<usize>) -> Result<(), String> {
    let known = STATICS.iter().any(|(known, names)| *known == class && names.contains(&name));
    if known { Ok(()) } else { Err(format!("script calls `{class}.{name}` (not supported)")) }
}

pub(super) fn check_new(class: &str, _count: usize) -> Result<(), String> {
    if CLASSES.contains(&class) || class.ends_with("Exception") {
        Ok(())
    } else {
        Err(format!("script calls `new {class}` (not supported)"))
    }
}

pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Makes an object.
pub(super) fn make(class: &str, arguments: &[Value]) -> Outcome {
    let first = arguments.first();
    Ok(match class {
        "Random" => Value::Random,
        "Date" => Value::Moment(match first {
            Some(Value::Int(ms)) => *ms,
            _ => now_ms(),
        }),
        "StringBuilder" | "StringBuffer" => {
            let start = match first {
                Some(Value::Text(text)) => text.to_string(),
                _ => String::new(),
            };
            Value::Builder(Rc::new(std::cell::RefCell::new(start)))
        }
        "ArrayList" | "LinkedList" => Value::list(match first {
            Some(Value::List(values)) => values.borrow().clone(),
            _ => Vec::new(),
        }),
        "String" => Value::text(first.map(Value::to_string).unwrap_or_default()),
        _ => Value::text(format!("{class}: {}", first.unwrap_or(&Value::Null))),
    })
}

fn parse_int(text: &Value) -> Outcome {
    match text {
        Value::Int(value) => Ok(Value::Int(*value)),
        Value::Double(value) => Ok(Value::Int(*value as i64)),
        _ => {
            text.to_string().parse().map(Value::Int).map_err(|_| {
                format!("java.lang.NumberFormatException: For input string: \"{text}\"")
            })
        }
    }
}

fn parse_double(text: &Value) -> Outcome {
    match text.double() {
        Some(value) => Ok(Value::Double(value)),
        None => {
            text.to_string().trim().parse().map(Value::Double).map_err(|_| {
                format!("java.lang.NumberFormatException: For input string: \"{text}\"")
            })
        }
    }
}

/// Calls a static method.
pub(super) fn call_static(class: &str, name: &str, given: &[Value], scope: &mut Scope) -> Outcome {
    let nothing = Value::Null;
    let first = given.first().unwrap_or(&nothing);
    let second = given.get(1).unwrap_or(&nothing);
    let number = |value: &Value| value.double().unwrap_or(f64::NAN);
    Ok(match (class, name) {
        ("Integer" | "Long", "MAX_VALUE") => {
            Value::Int(if class == "Long" { i64::MAX } else { i32::MAX.into() })
        }
        ("Integer" | "Long", "toString")
        | ("Double" | "Float" | "Boolean", "toString")
        | ("String", "valueOf") => Value::text(first.to_string()),
        ("Integer" | "Long", _) => parse_int(first)?,
        ("Double" | "Float", _) => parse_double(first)?,
        ("Boolean", _) => Value::Bool(first.to_string().eq_ignore_ascii_case("true")),
        ("String", "join") => {
            let all: Vec<String> = match second {
                Value::List(values) => values.borrow().iter().map(Value::to_string).collect(),
                _ => given.iter().skip(1).map(Value::to_string).collect(),
            };
            Value::text(all.join(&first.to_string()))
        }
        ("String", _) => {
            Value::text(format_text(&first.to_string(), given.get(1..).unwrap_or_default())?)
        }
        ("Math", "random") => Value::Double(1.0 - scope.random_unit()),
        ("Math", "abs" | "min" | "max") => match (name, first, second) {
            ("abs", Value::Int(value), _) => Value::Int(value.saturating_abs()),
            ("abs", value, _) => Value::Double(number(value).abs()),
            ("min", Value::Int(one), Value::Int(two)) => Value::Int(*one.min(two)),
            ("max", Value::Int(one), Value::Int(two)) => Value::Int(*one.max(two)),
            ("min", one, two) => Value::Double(number(one).min(number(two))),
            (_, one, two) => Value::Double(number(one).max(number(two))),
        },
        ("Math", "round") => Value::Int((number(first) + 0.5).floor() as i64),
        ("Math", "floor") => Value::Double(number(first).floor()),
        ("Math", "ceil") => Value::Double(number(first).ceil()),
        ("Math", "pow") => Value::Double(number(first).powf(number(second))),
        ("Math", _) => Value::Double(number(first).sqrt()),
        ("System", "currentTimeMillis") => Value::Int(now_ms()),
        ("System", "nanoTime") => Value::Int(now_ms().saturating_mul(1_000_000)),
        ("System", _) => Value::Null,
        ("UUID", _) => {
            let (high, low) = (scope.random(), scope.random());
            let high = (high & !0xF000) | 0x4000;
            let low = (low & !(3 << 62)) | (2 << 62);
            Value::text(format!(
                "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                high >> 32,
                (high >> 16) & 0xFFFF,
                high & 0xFFFF,
                low >> 48,
                low & 0xFFFF_FFFF_FFFF
            ))
        }
        ("ThreadLocalRandom", _) => Value::Random,
        ("URLEncoder", _) => Value::text(encode(&first.to_string())),
        ("Objects", _) => Value::Bool(first.equals(second)),
        _ => return Err(format!("script calls `{class}.{name}` (not supported)")),
    })
}

/// Encodes as `URLEncoder` does: a space becomes `+`.
fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => {
                out.push(char::from(byte));
            }
            b' ' => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `%d`, `%s` and `%f` with zeros, width and digits.
fn format_text(pattern: &str, given: &[Value]) -> Result<String, String> {
    let mut out = String::new();
    let mut next = given.iter();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut flags = String::new();
        while let Some(&c) = chars.peek()
            && (c.is_ascii_digit() || matches!(c, '.' | '-'))
        {
            flags.push(c);
            chars.next();
        }
        let kind = chars.next().unwrap_or('%');
        if kind == '%' || kind == 'n' {
            out.push(if kind == '%' { '%' } else { '\n' });
            continue;
        }
        let value = next.next().unwrap_or(&Value::Null);
        let (width, digits) = flags.split_once('.').unwrap_or((&flags, "6"));
        let digits: usize = digits.parse().unwrap_or(6).min(30);
        let text = match kind {
            'd' | 's' => value.to_string(),
            'f' => format!("{:.digits$}", value.double().unwrap_or_default()),
            other => return Err(format!("format `%{other}` is not supported")),
        };
        let is_left = width.starts_with('-');
        let fills = width.starts_with('0');
        let width: usize = width.trim_start_matches(['-', '0']).parse().unwrap_or(0).min(1000);
        let missing = width.saturating_sub(text.chars().count());
        let padding = if fills { "0" } else { " " }.repeat(missing);
        out.push_str(&if is_left { text + &padding } else { padding + &text });
    }
    Ok(out)
}

/// Calls a method of a value.
pub(super) fn call(on: &Value, name: &str, given: &[Value], scope: &mut Scope) -> Outcome {
    match on {
        Value::Null => Err(format!(
            "java.lang.NullPointerException: Cannot invoke method {name}() on null object"
        )),
        Value::List(_) => call_list(on, name, given),
        Value::Builder(text) => match name {
            "append" => {
                text.borrow_mut().push_str(&given.first().unwrap_or(&Value::Null).to_string());
                Ok(on.clone())
            }
            _ => call_text(&text.borrow(), name, given),
        },
        Value::Random => call_random(name, given, scope),
        Value::Moment(ms) if name == "getTime" => Ok(Value::Int(*ms)),
        Value::Int(_) | Value::Double(_) => match name {
            "intValue" | "longValue" | "toInteger" | "toLong" => parse_int(on),
            "doubleValue" | "toDouble" => parse_double(on),
            "equals" => Ok(Value::Bool(given.first().is_some_and(|other| on.equals(other)))),
            "compareTo" => {
                let other = given.first().and_then(Value::double).unwrap_or(f64::NAN);
                let order = on.double().and_then(|own| own.partial_cmp(&other));
                Ok(Value::Int(order.map_or(0, |order| order as i64)))
            }
            _ => call_text(&on.to_string(), name, given),
        },
        _ => call_text(&on.to_string(), name, given),
    }
}

fn call_random(name: &str, given: &[Value], scope: &mut Scope) -> Outcome {
    let number = |place: usize| match given.get(place) {
        Some(Value::Int(value)) => Some(*value),
        _ => None,
    };
    match (name, number(0), number(1)) {
        ("nextInt", Some(low), Some(high)) if low < high => {
            Ok(Value::Int(scope.random_between(low, high - 1)))
        }
        ("nextInt", Some(bound), None) if bound > 0 => {
            Ok(Value::Int(scope.random_between(0, bound - 1)))
        }
        ("nextInt", None, None) => {
            Ok(Value::Int(scope.random_between(i32::MIN.into(), i32::MAX.into())))
        }
        ("nextDouble", ..) => Ok(Value::Double(1.0 - scope.random_unit())),
        ("nextBoolean", ..) => Ok(Value::Bool(scope.random() & 1 == 1)),
        ("nextInt", ..) => {
            Err("java.lang.IllegalArgumentException: bound must be positive".to_owned())
        }
        _ => Err(format!("script calls `Random.{name}()` (not supported)")),
    }
}

/// Longest list that a script may make.
const MOST: usize = 1_000_000;

fn call_list(on: &Value, name: &str, given: &[Value]) -> Outcome {
    let Value::List(values) = on else { return Ok(Value::Null) };
    let place = || match given.first() {
        Some(Value::Int(place)) => usize::try_from(*place).ok(),
        _ => None,
    };
    let outside = || "java.lang.IndexOutOfBoundsException".to_owned();
    Ok(match name {
        "size" | "length" => Value::Int(i64::try_from(values.borrow().len()).unwrap_or(i64::MAX)),
        "isEmpty" => Value::Bool(values.borrow().is_empty()),
        "get" => {
            place().and_then(|place| values.borrow().get(place).cloned()).ok_or_else(outside)?
        }
        "add" => {
            let mut values = values.borrow_mut();
            if values.len() >= MOST {
                return Err("java.lang.OutOfMemoryError: the list is too long".to_owned());
            }
            values.push(given.first().cloned().unwrap_or_default());
            Value::Bool(true)
        }
        "set" => {
            let mut values = values.borrow_mut();
            let place = place().and_then(|place| values.get_mut(place)).ok_or_else(outside)?;
            std::mem::replace(place, given.get(1).cloned().unwrap_or_default())
        }
        "contains" => {
            let wanted = given.first().unwrap_or(&Value::Null);
            Value::Bool(values.borrow().iter().any(|value| value.equals(wanted)))
        }
        "join" => {
            let all: Vec<String> = values.borrow().iter().map(Value::to_string).collect();
            Value::text(all.join(&given.first().unwrap_or(&Value::Null).to_string()))
        }
        "toString" => Value::text(on.to_string()),
        _ => return Err(format!("script calls `{name}()` of a list (not supported)")),
    })
}

fn pattern(text: &str) -> Result<regex::Regex, String> {
    regex::Regex::new(&translate(text, End::BeforeLineFeed))
        .map_err(|_| format!("java.util.regex.PatternSyntaxException: {text}"))
}

/// Turns Java's `$1` and `\\$` into what the library of expressions takes.
fn groups(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('$') => out.push_str("$$"),
                Some(other) => out.push(other),
                None => {}
            },
            '$' => match chars.next() {
                Some(digit) if digit.is_ascii_digit() => out.push_str(&format!("${{{digit}}}")),
                Some(other) => {
                    out.push_str("$$");
                    out.push(other);
                }
                None => out.push_str("$$"),
            },
            other => out.push(other),
        }
    }
    out
}

fn call_text(text: &str, name: &str, given: &[Value]) -> Outcome {
    let argument = |place: usize| given.get(place).map(Value::to_string).unwrap_or_default();
    let first = argument(0);
    let count = |text: &str| i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |place: usize| match given.get(place) {
        Some(Value::Int(value)) => usize::try_from(*value).ok(),
        _ => None,
    };
    let outside = || "java.lang.StringIndexOutOfBoundsException".to_owned();
    Ok(match name {
        "equals" => {
            Value::Bool(matches!(given.first(), Some(Value::Text(other)) if **other == *text))
        }
        "equalsIgnoreCase" => Value::Bool(text.to_lowercase() == first.to_lowercase()),
        "contains" => Value::Bool(text.contains(&first)),
        "startsWith" => Value::Bool(text.starts_with(&first)),
        "endsWith" => Value::Bool(text.ends_with(&first)),
        "matches" => {
            let pattern = compile_whole(&first)
                .map_err(|_| format!("java.util.regex.PatternSyntaxException: {first}"))?;
            Value::Bool(pattern.is_match(text))
        }
        "replace" => Value::text(text.replace(&first, &argument(1))),
        "replaceAll" => {
            Value::text(&*pattern(&first)?.replace_all(text, groups(&argument(1)).as_str()))
        }
        "replaceFirst" => {
            Value::text(&*pattern(&first)?.replace(text, groups(&argument(1)).as_str()))
        }
        "split" => {
            let mut parts: Vec<Value> = pattern(&first)?.split(text).map(Value::text).collect();
            // Java drops empty texts at the end.
            while matches!(parts.last(), Some(Value::Text(last)) if last.is_empty()) {
                parts.pop();
            }
            Value::list(parts)
        }
        "substring" => {
            let from = place(0).ok_or_else(outside)?;
            let all: Vec<char> = text.chars().collect();
            let to = if given.len() > 1 { place(1).ok_or_else(outside)? } else { all.len() };
            Value::text(all.get(from..to).ok_or_else(outside)?.iter().collect::<String>())
        }
        "charAt" => {
            let found = place(0).and_then(|place| text.chars().nth(place)).ok_or_else(outside)?;
            Value::text(found.to_string())
        }
        "indexOf" | "lastIndexOf" => {
            let at = if name == "indexOf" { text.find(&first) } else { text.rfind(&first) };
            Value::Int(at.and_then(|at| text.get(..at)).map_or(-1, count))
        }
        "length" | "size" => Value::Int(count(text)),
        "trim" => Value::text(text.trim()),
        "toUpperCase" => Value::text(text.to_uppercase()),
        "toLowerCase" => Value::text(text.to_lowercase()),
        "toString" | "getMessage" => Value::text(text),
        "isEmpty" => Value::Bool(text.is_empty()),
        "concat" => Value::text(format!("{text}{first}")),
        "toInteger" | "toLong" | "intValue" | "longValue" => parse_int(&Value::text(text.trim()))?,
        "toDouble" | "doubleValue" => parse_double(&Value::text(text))?,
        "isNumber" => Value::Bool(text.trim().parse::<f64>().is_ok()),
        "isInteger" => Value::Bool(text.trim().parse::<i64>().is_ok()),
        "compareTo" => Value::Int(text.cmp(first.as_str()) as i64),
        "padLeft" => {
            let width = place(0).unwrap_or(0).min(10_000);
            let fill = if given.len() > 1 { argument(1) } else { " ".to_owned() };
            let missing = width.saturating_sub(text.chars().count());
            Value::text(fill.repeat(missing).chars().take(missing).collect::<String>() + text)
        }
        _ => return Err(format!("script calls `{name}()` of a text (not supported)")),
    })
}
