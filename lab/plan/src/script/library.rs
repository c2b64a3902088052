//! The library for scripts: a fixed list of methods and classes, and their implementation.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::regex_pattern::compile_full_match;
use super::super::regex_translation::{TextEndAnchor, translate_pattern};
use super::super::variable_scope::VariableScope;
use super::ast::ScriptExpression;
use super::codec::{self, JavaDigest};
use super::date_time::{self, ScriptDateTime};
use super::json;
use super::value::{JavaUtility, ScriptValue};

type ScriptCallResult = Result<ScriptValue, String>;

/// Names that are defined in every script.
const GLOBAL_NAMES: [&str; 24] = [
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
    "sampler",
    "sampleResult",
];

/// Methods of the objects that JMeter provides to scripts.
const ROOT_METHODS: [(&str, &[&str]); 12] = [
    ("vars", &["get", "put", "remove", "containsKey"]),
    ("props", &["get", "put", "getProperty", "setProperty", "containsKey", "remove"]),
    ("prev", SAMPLE_METHODS),
    ("SampleResult", SAMPLE_METHODS),
    ("sampleResult", SAMPLE_METHODS),
    ("log", &["info", "warn", "error", "debug", "trace"]),
    ("OUT", &["println", "print"]),
    ("ctx", CONTEXT_METHODS),
    ("sampler", &["getName", "getThreadName"]),
    ("thread", &["getThreadName", "getThreadNum"]),
    ("threadGroup", &["getName"]),
    ("AssertionResult", &["setFailure", "setFailureMessage", "isFailure", "getFailureMessage"]),
];

/// Methods of the context that return numbers and names, and those that return other predefined objects.
const CONTEXT_METHODS: &[&str] = &[
    "getThreadNum",
    "getThreadName",
    "getPreviousResult",
    "getVariables",
    "getProperties",
    "getCurrentSampler",
    "getThread",
    "getThreadGroup",
];

const SAMPLE_METHODS: &[&str] = &[
    "getResponseCode",
    "getResponseMessage",
    "getResponseDataAsString",
    "getResponseData",
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
    "setDataType",
    "setDataEncoding",
    "setContentType",
    "setSamplerData",
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

/// Methods of strings, lists, numbers and other values.
const VALUE_METHODS: [&str; 114] = [
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
    "getBytes",
    "reverse",
    "capitalize",
    "isBlank",
    "repeat",
    "strip",
    "tokenize",
    "readLines",
    "padRight",
    "take",
    "drop",
    "toList",
    "toBigDecimal",
    "toFloat",
    "isLong",
    "isDouble",
    "first",
    "last",
    "sort",
    "unique",
    "sum",
    "max",
    "min",
    "remove",
    "containsKey",
    "keySet",
    "values",
    "put",
    "getOrDefault",
    "parseText",
    "parse",
    "encodeToString",
    "decode",
    "digest",
    "encodeBase64",
    "encodeHex",
    "init",
    "doFinal",
    "format",
    "md5",
    "sha256",
    "plusYears",
    "plusMonths",
    "plusWeeks",
    "plusDays",
    "plusHours",
    "plusMinutes",
    "plusSeconds",
    "plusMillis",
    "minusYears",
    "minusMonths",
    "minusWeeks",
    "minusDays",
    "minusHours",
    "minusMinutes",
    "minusSeconds",
    "minusMillis",
    "toEpochMilli",
    "getEpochSecond",
    "getYear",
    "getMonthValue",
    "getDayOfMonth",
    "getHour",
    "getMinute",
    "getSecond",
    "isBefore",
    "isAfter",
    "before",
    "after",
    "nextLong",
    "booleanValue",
    "toBoolean",
];

const STATIC_METHODS: [(&str, &[&str]); 31] = [
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
    ("URLDecoder", &["decode"]),
    ("Objects", &["equals"]),
    (
        "Base64",
        &[
            "getEncoder",
            "getUrlEncoder",
            "getDecoder",
            "getUrlDecoder",
            "encodeBase64",
            "encodeBase64String",
            "decodeBase64",
        ],
    ),
    ("MessageDigest", &["getInstance"]),
    ("Mac", &["getInstance"]),
    ("Hex", &["encodeHexString"]),
    ("DigestUtils", &["md5Hex", "sha1Hex", "sha256Hex", "sha384Hex", "sha512Hex"]),
    ("RandomStringUtils", &["randomAlphanumeric", "randomAlphabetic", "randomNumeric", "random"]),
    ("RandomUtils", &["nextInt", "nextLong"]),
    (
        "StringUtils",
        &["isBlank", "isNotBlank", "isEmpty", "isNotEmpty", "substringBetween", "leftPad"],
    ),
    ("JsonOutput", &["toJson"]),
    ("LocalDate", &["now", "of"]),
    ("LocalDateTime", &["now"]),
    ("Instant", &["now"]),
    ("DateTimeFormatter", &["ofPattern"]),
    ("StandardCharsets", &["UTF_8"]),
    ("Charset", &["forName"]),
    ("Thread", &["sleep"]),
    ("Arrays", &["asList"]),
    ("Collections", &["emptyList"]),
];

const CLASS_NAMES: [&str; 13] = [
    "Random",
    "Date",
    "String",
    "StringBuilder",
    "StringBuffer",
    "ArrayList",
    "LinkedList",
    "HashMap",
    "LinkedHashMap",
    "JsonSlurper",
    "SimpleDateFormat",
    "SecretKeySpec",
    "Exception",
];

pub(super) fn is_global(name: &str) -> bool {
    GLOBAL_NAMES.contains(&name)
}

pub(super) fn is_class(name: &str) -> bool {
    STATIC_METHODS.iter().any(|(class, _)| *class == name)
}

pub(super) fn is_cast(name: &str) -> bool {
    matches!(name, "int" | "long" | "double" | "float" | "short" | "char" | "boolean")
}

/// Returns the JMeter object that an expression names, or that a context method returns.
pub(super) fn root_object_of(expression: &ScriptExpression) -> Option<&str> {
    match expression {
        ScriptExpression::Name(name) if is_global(name) => Some(name),
        ScriptExpression::Call(on, method, arguments)
            if arguments.is_empty() && root_object_of(on) == Some("ctx") =>
        {
            Some(match method.as_str() {
                "getPreviousResult" => "prev",
                "getVariables" => "vars",
                "getProperties" => "props",
                "getCurrentSampler" => "sampler",
                "getThread" => "thread",
                "getThreadGroup" => "threadGroup",
                _ => return None,
            })
        }
        _ => None,
    }
}

/// Returns the getter for a property of a JMeter object, if there is one.
pub(super) fn getter_of(root: &str, property: &str) -> Option<String> {
    ["get", "is"].iter().find_map(|verb| find_accessor(root, verb, property))
}

/// Returns the setter that corresponds to a getter of a JMeter object.
pub(super) fn setter_of(root: &str, reader: &str) -> Option<String> {
    let property = reader.strip_prefix("get").or_else(|| reader.strip_prefix("is"))?;
    find_accessor(root, "set", property)
}

fn find_accessor(root: &str, verb: &str, property: &str) -> Option<String> {
    let (_, methods) = ROOT_METHODS.iter().find(|(name, _)| *name == root)?;
    let mut letters = property.chars();
    let first = letters.next()?.to_ascii_uppercase();
    let method = format!("{verb}{first}{}", letters.as_str());
    methods.contains(&method.as_str()).then_some(method)
}

/// Checks that a call is in the list of supported methods.
pub(super) fn check_call(on: &ScriptExpression, method: &str, _count: usize) -> Result<(), String> {
    if let Some(root) = root_object_of(on)
        && let Some((_, methods)) = ROOT_METHODS.iter().find(|(name, _)| *name == root)
    {
        return if methods.contains(&method) {
            Ok(())
        } else {
            Err(format!("script calls `{root}.{method}()` (not supported)"))
        };
    }
    if VALUE_METHODS.contains(&method) {
        Ok(())
    } else {
        Err(format!("script calls `{method}()` (not supported)"))
    }
}

/// Checks that a property is in the list of supported ones; JSON values may have any property.
pub(super) fn check_property(
    on: &ScriptExpression,
    name: &str,
    is_json: bool,
) -> Result<(), String> {
    match root_object_of(on) {
        Some("vars" | "props") => Ok(()),
        Some("bsh") if name == "args" => Ok(()),
        None if is_json || matches!(name, "bytes" | "message" | "time") => Ok(()),
        _ if name == "length" => Ok(()),
        root => {
            let root = root.map(|root| format!("{root}.")).unwrap_or_default();
            Err(format!("script uses `{root}{name}` (not supported)"))
        }
    }
}

pub(super) fn check_static(class: &str, name: &str, _count: Option<usize>) -> Result<(), String> {
    let is_known = STATIC_METHODS
        .iter()
        .any(|(class_name, names)| *class_name == class && names.contains(&name));
    if is_known { Ok(()) } else { Err(format!("script calls `{class}.{name}` (not supported)")) }
}

pub(super) fn check_new(class: &str, _count: usize) -> Result<(), String> {
    if CLASS_NAMES.contains(&class) || class.ends_with("Exception") {
        Ok(())
    } else {
        Err(format!("script calls `new {class}` (not supported)"))
    }
}

pub(super) fn current_epoch_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Constructs an object.
pub(super) fn construct_object(class: &str, arguments: &[ScriptValue]) -> ScriptCallResult {
    let first = arguments.first();
    Ok(match class {
        "Random" => ScriptValue::RandomSource,
        "Date" => {
            let time = match first {
                Some(ScriptValue::Int(ms)) => ScriptDateTime::from_epoch_ms(*ms),
                _ => None,
            };
            ScriptValue::DateTime(time.unwrap_or_else(|| ScriptDateTime::now("Date")))
        }
        "HashMap" | "LinkedHashMap" => ScriptValue::from_map([]),
        "JsonSlurper" => ScriptValue::Utility(JavaUtility::JsonReader),
        "SimpleDateFormat" => {
            ScriptValue::DateFormat(first.map(ScriptValue::to_string).unwrap_or_default().into())
        }
        "SecretKeySpec" => ScriptValue::Key(first.unwrap_or(&ScriptValue::Null).to_bytes()),
        "StringBuilder" | "StringBuffer" => {
            let start = match first {
                Some(ScriptValue::Text(text)) => text.to_string(),
                _ => String::new(),
            };
            ScriptValue::StringBuilder(Rc::new(std::cell::RefCell::new(start)))
        }
        "ArrayList" | "LinkedList" => ScriptValue::from_list(match first {
            Some(ScriptValue::List(values)) => values.borrow().clone(),
            _ => Vec::new(),
        }),
        "String" => ScriptValue::from_text(match first {
            Some(ScriptValue::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            value => value.map(ScriptValue::to_string).unwrap_or_default(),
        }),
        _ => ScriptValue::from_text(format!("{class}: {}", first.unwrap_or(&ScriptValue::Null))),
    })
}

fn parse_int(text: &ScriptValue) -> ScriptCallResult {
    match text {
        ScriptValue::Int(value) => Ok(ScriptValue::Int(*value)),
        ScriptValue::Double(value) => Ok(ScriptValue::Int(*value as i64)),
        _ => {
            text.to_string().parse().map(ScriptValue::Int).map_err(|_| {
                format!("java.lang.NumberFormatException: For input string: \"{text}\"")
            })
        }
    }
}

fn parse_double(text: &ScriptValue) -> ScriptCallResult {
    match text.to_double() {
        Some(value) => Ok(ScriptValue::Double(value)),
        None => {
            text.to_string().trim().parse().map(ScriptValue::Double).map_err(|_| {
                format!("java.lang.NumberFormatException: For input string: \"{text}\"")
            })
        }
    }
}

/// Calls a static method.
pub(super) fn call_static(
    class: &str,
    name: &str,
    arguments: &[ScriptValue],
    scope: &mut VariableScope,
) -> ScriptCallResult {
    let nothing = ScriptValue::Null;
    let first = arguments.first().unwrap_or(&nothing);
    let second = arguments.get(1).unwrap_or(&nothing);
    let number = |value: &ScriptValue| value.to_double().unwrap_or(f64::NAN);
    Ok(match (class, name) {
        ("Integer" | "Long", "MAX_VALUE") => {
            ScriptValue::Int(if class == "Long" { i64::MAX } else { i32::MAX.into() })
        }
        ("Integer" | "Long", "toString")
        | ("Double" | "Float" | "Boolean", "toString")
        | ("String", "valueOf") => ScriptValue::from_text(first.to_string()),
        ("Integer" | "Long", _) => parse_int(first)?,
        ("Double" | "Float", _) => parse_double(first)?,
        ("Boolean", _) => ScriptValue::Bool(first.to_string().eq_ignore_ascii_case("true")),
        ("String", "join") => {
            let all: Vec<String> = match second {
                ScriptValue::List(values) => {
                    values.borrow().iter().map(ScriptValue::to_string).collect()
                }
                _ => arguments.iter().skip(1).map(ScriptValue::to_string).collect(),
            };
            ScriptValue::from_text(all.join(&first.to_string()))
        }
        ("String", _) => ScriptValue::from_text(format_text(
            &first.to_string(),
            arguments.get(1..).unwrap_or_default(),
        )?),
        ("Math", "random") => ScriptValue::Double(1.0 - scope.random_unit()),
        ("Math", "abs" | "min" | "max") => match (name, first, second) {
            ("abs", ScriptValue::Int(value), _) => ScriptValue::Int(value.saturating_abs()),
            ("abs", value, _) => ScriptValue::Double(number(value).abs()),
            ("min", ScriptValue::Int(left), ScriptValue::Int(right)) => {
                ScriptValue::Int(*left.min(right))
            }
            ("max", ScriptValue::Int(left), ScriptValue::Int(right)) => {
                ScriptValue::Int(*left.max(right))
            }
            ("min", left, right) => ScriptValue::Double(number(left).min(number(right))),
            (_, left, right) => ScriptValue::Double(number(left).max(number(right))),
        },
        ("Math", "round") => ScriptValue::Int((number(first) + 0.5).floor() as i64),
        ("Math", "floor") => ScriptValue::Double(number(first).floor()),
        ("Math", "ceil") => ScriptValue::Double(number(first).ceil()),
        ("Math", "pow") => ScriptValue::Double(number(first).powf(number(second))),
        ("Math", _) => ScriptValue::Double(number(first).sqrt()),
        ("System", "currentTimeMillis") => ScriptValue::Int(current_epoch_ms()),
        ("System", "nanoTime") => ScriptValue::Int(current_epoch_ms().saturating_mul(1_000_000)),
        ("System", _) => ScriptValue::Null,
        ("UUID", _) => {
            let (high, low) = (scope.next_random(), scope.next_random());
            let high = (high & !0xF000) | 0x4000;
            let low = (low & !(3 << 62)) | (2 << 62);
            ScriptValue::from_text(format!(
                "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                high >> 32,
                (high >> 16) & 0xFFFF,
                high & 0xFFFF,
                low >> 48,
                low & 0xFFFF_FFFF_FFFF
            ))
        }
        ("ThreadLocalRandom", _) => ScriptValue::RandomSource,
        ("URLEncoder", _) => ScriptValue::from_text(url_encode(&first.to_string())),
        ("URLDecoder", _) => match super::super::form_encoding::decode_form(&first.to_string()) {
            Ok(text) => ScriptValue::from_text(text),
            Err((class, message)) => return Err(format!("{class}: {message}")),
        },
        ("Thread", _) => {
            // Other users of the worker must not be blocked: the thread sleeps after the script has ended.
            let time = parse_int(first)?.to_double().unwrap_or(0.0).max(0.0) as u64;
            scope.sleep_ms = scope.sleep_ms.saturating_add(time).min(MAX_SLEEP_MS);
            ScriptValue::Null
        }
        ("StandardCharsets", _) => ScriptValue::from_text("UTF-8"),
        ("Charset", _) => ScriptValue::from_text(first.to_string()),
        ("JsonOutput", _) => ScriptValue::from_text(json::write_json(first)?),
        ("Arrays", _) => match first {
            ScriptValue::List(_) => first.clone(),
            _ => ScriptValue::from_list(arguments.to_vec()),
        },
        ("Collections", _) => ScriptValue::from_list(Vec::new()),
        ("DateTimeFormatter", _) => ScriptValue::DateFormat(first.to_string().into()),
        ("LocalDate", "of") => {
            let number = |index: usize| match arguments.get(index) {
                Some(ScriptValue::Int(number)) => *number,
                _ => 0,
            };
            let day = date_time::local_date(number(0), number(1), number(2));
            ScriptValue::DateTime(day.ok_or("java.time.DateTimeException: Invalid date")?)
        }
        ("LocalDate" | "LocalDateTime" | "Instant", _) => {
            ScriptValue::DateTime(ScriptDateTime::now(class))
        }
        ("Base64" | "MessageDigest" | "Mac" | "Hex" | "DigestUtils", _) => {
            call_codec(class, name, first)?
        }
        ("RandomStringUtils" | "RandomUtils", _) => call_random_text(name, arguments, scope),
        ("StringUtils", _) => call_string_utils(name, arguments),
        ("Objects", _) => ScriptValue::Bool(first.equals(second)),
        _ => return Err(format!("script calls `{class}.{name}` (not supported)")),
    })
}

/// Encodes as `URLEncoder` does: a space becomes `+`.
fn url_encode(text: &str) -> String {
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

/// Formats `%d`, `%s` and `%f` with zero padding, width and precision.
fn format_text(pattern: &str, arguments: &[ScriptValue]) -> Result<String, String> {
    let mut out = String::new();
    let mut next = arguments.iter();
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
        let value = next.next().unwrap_or(&ScriptValue::Null);
        let (width, digits) = flags.split_once('.').unwrap_or((&flags, "6"));
        let digits: usize = digits.parse().unwrap_or(6).min(30);
        let text = match kind {
            'd' | 's' => value.to_string(),
            'f' => format!("{:.digits$}", value.to_double().unwrap_or_default()),
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
pub(super) fn call_method(
    on: &ScriptValue,
    name: &str,
    arguments: &[ScriptValue],
    scope: &mut VariableScope,
) -> ScriptCallResult {
    match on {
        ScriptValue::Null => Err(format!(
            "java.lang.NullPointerException: Cannot invoke method {name}() on null object"
        )),
        ScriptValue::List(_) => call_list(on, name, arguments),
        ScriptValue::StringBuilder(text) => match name {
            "append" => {
                text.borrow_mut()
                    .push_str(&arguments.first().unwrap_or(&ScriptValue::Null).to_string());
                Ok(on.clone())
            }
            _ => call_text(&text.borrow(), name, arguments),
        },
        ScriptValue::RandomSource => call_random(name, arguments, scope),
        ScriptValue::DateTime(time) => time.call_method(name, arguments),
        ScriptValue::Map(_) => call_map(on, name, arguments),
        ScriptValue::Bytes(bytes) => call_bytes(bytes, name),
        ScriptValue::DateFormat(pattern) => match (name, arguments.first()) {
            ("format", Some(ScriptValue::DateTime(time))) => {
                time.format(pattern).map(ScriptValue::from_text)
            }
            ("parse", Some(text)) => {
                date_time::parse_date_time(pattern, &text.to_string()).map(ScriptValue::DateTime)
            }
            _ => Err(format!("script calls `{name}()` of a date pattern (not supported)")),
        },
        ScriptValue::Utility(tool) => call_utility(*tool, name, arguments),
        ScriptValue::Authenticator(digest, key) => {
            let first = arguments.first().unwrap_or(&ScriptValue::Null).to_bytes();
            match name {
                "init" => {
                    *key.borrow_mut() = first;
                    Ok(ScriptValue::Null)
                }
                "doFinal" => {
                    Ok(ScriptValue::Bytes(digest.authenticate(&key.borrow(), &first).into()))
                }
                _ => Err(format!("script calls `Mac.{name}()` (not supported)")),
            }
        }
        ScriptValue::Int(_) | ScriptValue::Double(_) => match name {
            "intValue" | "longValue" | "toInteger" | "toLong" => parse_int(on),
            "doubleValue" | "toDouble" => parse_double(on),
            "equals" => {
                Ok(ScriptValue::Bool(arguments.first().is_some_and(|other| on.equals(other))))
            }
            "compareTo" => {
                let other = arguments.first().and_then(ScriptValue::to_double).unwrap_or(f64::NAN);
                let order = on.to_double().and_then(|own| own.partial_cmp(&other));
                Ok(ScriptValue::Int(order.map_or(0, |order| order as i64)))
            }
            _ => call_text(&on.to_string(), name, arguments),
        },
        _ => call_text(&on.to_string(), name, arguments),
    }
}

/// Calls a method that converts between bytes and text.
fn call_codec(class: &str, name: &str, argument: &ScriptValue) -> ScriptCallResult {
    let digest = |name: &str| {
        JavaDigest::find(name).ok_or_else(|| {
            format!("java.security.NoSuchAlgorithmException: {name} MessageDigest not available")
        })
    };
    Ok(match (class, name) {
        ("Base64", "getEncoder") => ScriptValue::Utility(JavaUtility::Base64Encoder(false)),
        ("Base64", "getUrlEncoder") => ScriptValue::Utility(JavaUtility::Base64Encoder(true)),
        ("Base64", "getDecoder") => ScriptValue::Utility(JavaUtility::Base64Decoder(false)),
        ("Base64", "getUrlDecoder") => ScriptValue::Utility(JavaUtility::Base64Decoder(true)),
        ("Base64", "encodeBase64") => ScriptValue::Bytes(
            codec::encode_base64(&argument.to_bytes(), false).into_bytes().into(),
        ),
        ("Base64", "encodeBase64String") => {
            ScriptValue::from_text(codec::encode_base64(&argument.to_bytes(), false))
        }
        ("Base64", _) => decode_base64(argument, false)?,
        ("MessageDigest", _) => {
            ScriptValue::Utility(JavaUtility::Digest(digest(&argument.to_string())?))
        }
        ("Mac", _) => {
            let empty: Rc<[u8]> = Rc::from([]);
            ScriptValue::Authenticator(digest(&argument.to_string())?, Rc::new(empty.into()))
        }
        ("Hex", _) => ScriptValue::from_text(hex::encode(argument.to_bytes())),
        (_, name) => {
            let digest = digest(name.strip_suffix("Hex").unwrap_or(name))?;
            ScriptValue::from_text(hex::encode(digest.digest(&argument.to_bytes())))
        }
    })
}

fn decode_base64(text: &ScriptValue, is_for_urls: bool) -> ScriptCallResult {
    let text = String::from_utf8_lossy(&text.to_bytes()).into_owned();
    let bytes = codec::parse_base64(&text, is_for_urls);
    let illegal = || "java.lang.IllegalArgumentException: Illegal base64 character".to_owned();
    bytes.map(|bytes| ScriptValue::Bytes(bytes.into())).ok_or_else(illegal)
}

fn call_utility(tool: JavaUtility, name: &str, arguments: &[ScriptValue]) -> ScriptCallResult {
    let first = arguments.first().unwrap_or(&ScriptValue::Null);
    match (tool, name) {
        (JavaUtility::JsonReader, "parseText" | "parse") => match first {
            ScriptValue::Null => {
                Err("java.lang.IllegalArgumentException: Text must not be null or empty".to_owned())
            }
            _ => json::parse_json(&String::from_utf8_lossy(&first.to_bytes())),
        },
        (JavaUtility::Base64Encoder(is_for_urls), "encodeToString") => {
            Ok(ScriptValue::from_text(codec::encode_base64(&first.to_bytes(), is_for_urls)))
        }
        (JavaUtility::Base64Decoder(is_for_urls), "decode") => decode_base64(first, is_for_urls),
        (JavaUtility::Digest(digest), "digest") => {
            Ok(ScriptValue::Bytes(digest.digest(&first.to_bytes()).into()))
        }
        _ => Err(format!("script calls `{name}()` (not supported)")),
    }
}

fn call_bytes(bytes: &Rc<[u8]>, name: &str) -> ScriptCallResult {
    Ok(match name {
        "encodeBase64" => ScriptValue::from_text(codec::encode_base64(bytes, false)),
        "encodeHex" => ScriptValue::from_text(hex::encode(bytes)),
        "length" | "size" => ScriptValue::Int(i64::try_from(bytes.len()).unwrap_or(i64::MAX)),
        "toString" => ScriptValue::from_text(ScriptValue::Bytes(Rc::clone(bytes)).to_string()),
        _ => return Err(format!("script calls `{name}()` of bytes (not supported)")),
    })
}

fn call_map(on: &ScriptValue, name: &str, arguments: &[ScriptValue]) -> ScriptCallResult {
    let ScriptValue::Map(entries) = on else { return Ok(ScriptValue::Null) };
    let key = arguments.first().map(ScriptValue::to_string).unwrap_or_default();
    let find = || {
        let entries = entries.borrow();
        entries.iter().find(|(entry_key, _)| **entry_key == *key).map(|(_, value)| value.clone())
    };
    Ok(match name {
        "size" => ScriptValue::Int(i64::try_from(entries.borrow().len()).unwrap_or(i64::MAX)),
        "isEmpty" => ScriptValue::Bool(entries.borrow().is_empty()),
        "containsKey" => ScriptValue::Bool(find().is_some()),
        "get" => find().unwrap_or_default(),
        "getOrDefault" => find().unwrap_or_else(|| arguments.get(1).cloned().unwrap_or_default()),
        "put" | "set" => {
            let value = arguments.get(1).cloned().unwrap_or_default();
            let mut entries = entries.borrow_mut();
            let count = entries.len();
            match entries.iter_mut().find(|(entry_key, _)| **entry_key == *key) {
                Some((_, entry_value)) => std::mem::replace(entry_value, value),
                None if count >= MAX_LIST_LEN => {
                    return Err("java.lang.OutOfMemoryError: the map is too large".to_owned());
                }
                None => {
                    entries.push((key.into(), value));
                    ScriptValue::Null
                }
            }
        }
        "remove" => {
            let value = find().unwrap_or_default();
            entries.borrow_mut().retain(|(entry_key, _)| **entry_key != *key);
            value
        }
        "keySet" => {
            let entries = entries.borrow();
            ScriptValue::from_list(
                entries.iter().map(|(key, _)| ScriptValue::Text(Rc::clone(key))).collect(),
            )
        }
        "values" => ScriptValue::from_list(
            entries.borrow().iter().map(|(_, value)| value.clone()).collect(),
        ),
        "toString" => ScriptValue::from_text(on.to_string()),
        _ => return Err(format!("script calls `{name}()` of a map (not supported)")),
    })
}

/// Returns a property of a value; for a list, the property of each of its elements.
pub(super) fn property_of(on: &ScriptValue, name: &str) -> ScriptCallResult {
    match (on, name) {
        (ScriptValue::Null, _) => Err(format!(
            "java.lang.NullPointerException: Cannot get property '{name}' on null object"
        )),
        (ScriptValue::Map(_), _) => call_map(on, "get", &[ScriptValue::from_text(name)]),
        (ScriptValue::List(values), "length") => {
            Ok(ScriptValue::Int(i64::try_from(values.borrow().len()).unwrap_or(i64::MAX)))
        }
        (ScriptValue::List(values), _) => {
            let all: Result<Vec<ScriptValue>, String> =
                values.borrow().iter().map(|value| property_of(value, name)).collect();
            all.map(ScriptValue::from_list)
        }
        (ScriptValue::DateTime(time), "time") => time.call_method("getTime", &[]),
        (_, "bytes") => Ok(ScriptValue::Bytes(on.to_bytes())),
        (ScriptValue::Text(text), "message") => Ok(ScriptValue::from_text(exception_message(text))),
        (ScriptValue::Text(text), "length") => {
            Ok(ScriptValue::Int(i64::try_from(text.chars().count()).unwrap_or(i64::MAX)))
        }
        (ScriptValue::Bytes(bytes), "length") => {
            Ok(ScriptValue::Int(i64::try_from(bytes.len()).unwrap_or(i64::MAX)))
        }
        _ => Err(format!("groovy.lang.MissingPropertyException: No such property: {name}")),
    }
}

/// Returns the message of an exception, which follows its class name.
fn exception_message(fault: &str) -> &str {
    match fault.split_once(": ") {
        Some((class, message))
            if (class.ends_with("Exception") || class.ends_with("Error"))
                && !class.contains(char::is_whitespace) =>
        {
            message
        }
        _ => fault,
    }
}

/// Maximum sleep time of a thread.
const MAX_SLEEP_MS: u64 = 24 * 3_600_000;
/// Maximum length of a random string.
const MAX_RANDOM_TEXT_LEN: i64 = 1 << 20;

/// Calls a random string method of Apache's classes.
fn call_random_text(
    name: &str,
    arguments: &[ScriptValue],
    scope: &mut VariableScope,
) -> ScriptValue {
    let number = |index: usize| match arguments.get(index) {
        Some(ScriptValue::Int(number)) => Some(*number),
        _ => None,
    };
    if matches!(name, "nextInt" | "nextLong") {
        let (low, high) = (number(0).unwrap_or(0), number(1).unwrap_or(i32::MAX.into()));
        return ScriptValue::Int(scope.random_between(low, high.saturating_sub(1)));
    }
    let digits: Vec<char> = ('0'..='9').collect();
    let letters: Vec<char> = ('A'..='Z').chain('a'..='z').collect();
    let flag = |index: usize| arguments.get(index).is_some_and(ScriptValue::is_true);
    let alphabet = match (name, arguments.get(1)) {
        ("randomNumeric", _) => digits,
        ("randomAlphabetic", _) => letters,
        ("random", Some(ScriptValue::Text(alphabet))) => alphabet.chars().collect(),
        ("random", Some(ScriptValue::Bool(_))) => match (flag(1), flag(2)) {
            (true, false) => letters,
            (false, true) => digits,
            _ => [letters, digits].concat(),
        },
        _ => [letters, digits].concat(),
    };
    let last = i64::try_from(alphabet.len()).unwrap_or(1) - 1;
    let length = number(0).unwrap_or(0).clamp(0, MAX_RANDOM_TEXT_LEN);
    let letters = (0..length).filter_map(|_| {
        let position = usize::try_from(scope.random_between(0, last)).ok()?;
        alphabet.get(position).copied()
    });
    ScriptValue::from_text(letters.collect::<String>())
}

fn call_string_utils(name: &str, arguments: &[ScriptValue]) -> ScriptValue {
    let text = |index: usize| match arguments.get(index) {
        None | Some(ScriptValue::Null) => String::new(),
        Some(value) => value.to_string(),
    };
    let subject = text(0);
    match name {
        "isBlank" => ScriptValue::Bool(subject.trim().is_empty()),
        "isNotBlank" => ScriptValue::Bool(!subject.trim().is_empty()),
        "isEmpty" => ScriptValue::Bool(subject.is_empty()),
        "isNotEmpty" => ScriptValue::Bool(!subject.is_empty()),
        "substringBetween" => {
            let end = if arguments.len() > 2 { text(2) } else { text(1) };
            let inside = subject.split_once(&text(1)).and_then(|(_, rest)| rest.split_once(&end));
            inside.map_or(ScriptValue::Null, |(inside, _)| ScriptValue::from_text(inside))
        }
        _ => {
            let fill = if arguments.len() > 2 { text(2) } else { " ".to_owned() };
            ScriptValue::from_text(padding_for(&subject, arguments.get(1), &fill) + &subject)
        }
    }
}

/// Returns the padding that extends a text to the width.
fn padding_for(text: &str, width: Option<&ScriptValue>, fill: &str) -> String {
    let width = match width {
        Some(ScriptValue::Int(width)) => usize::try_from(*width).unwrap_or(0).min(10_000),
        _ => 0,
    };
    let missing = width.saturating_sub(text.chars().count());
    fill.repeat(missing).chars().take(missing).collect()
}

fn call_random(
    name: &str,
    arguments: &[ScriptValue],
    scope: &mut VariableScope,
) -> ScriptCallResult {
    let number = |index: usize| match arguments.get(index) {
        Some(ScriptValue::Int(value)) => Some(*value),
        _ => None,
    };
    match (name, number(0), number(1)) {
        ("nextInt", Some(low), Some(high)) if low < high => {
            Ok(ScriptValue::Int(scope.random_between(low, high - 1)))
        }
        ("nextInt", Some(bound), None) if bound > 0 => {
            Ok(ScriptValue::Int(scope.random_between(0, bound - 1)))
        }
        ("nextInt", None, None) => {
            Ok(ScriptValue::Int(scope.random_between(i32::MIN.into(), i32::MAX.into())))
        }
        ("nextDouble", ..) => Ok(ScriptValue::Double(1.0 - scope.random_unit())),
        ("nextLong", ..) => Ok(ScriptValue::Int(scope.next_random().cast_signed())),
        ("nextBoolean", ..) => Ok(ScriptValue::Bool(scope.next_random() & 1 == 1)),
        ("nextInt", ..) => {
            Err("java.lang.IllegalArgumentException: bound must be positive".to_owned())
        }
        _ => Err(format!("script calls `Random.{name}()` (not supported)")),
    }
}

/// Maximum length of a repeated string.
const MAX_REPEATED_TEXT_LEN: usize = 16 << 20;
/// Maximum length of a list that a script creates.
const MAX_LIST_LEN: usize = 1_000_000;

fn call_list(on: &ScriptValue, name: &str, arguments: &[ScriptValue]) -> ScriptCallResult {
    let ScriptValue::List(values) = on else { return Ok(ScriptValue::Null) };
    let index_argument = || match arguments.first() {
        Some(ScriptValue::Int(index)) => usize::try_from(*index).ok(),
        _ => None,
    };
    let outside = || "java.lang.IndexOutOfBoundsException".to_owned();
    Ok(match name {
        "size" | "length" => {
            ScriptValue::Int(i64::try_from(values.borrow().len()).unwrap_or(i64::MAX))
        }
        "isEmpty" => ScriptValue::Bool(values.borrow().is_empty()),
        "get" => index_argument()
            .and_then(|index| values.borrow().get(index).cloned())
            .ok_or_else(outside)?,
        "add" => {
            let mut values = values.borrow_mut();
            if values.len() >= MAX_LIST_LEN {
                return Err("java.lang.OutOfMemoryError: the list is too long".to_owned());
            }
            values.push(arguments.first().cloned().unwrap_or_default());
            ScriptValue::Bool(true)
        }
        "set" => {
            let mut values = values.borrow_mut();
            let slot =
                index_argument().and_then(|index| values.get_mut(index)).ok_or_else(outside)?;
            std::mem::replace(slot, arguments.get(1).cloned().unwrap_or_default())
        }
        "contains" => {
            let target_value = arguments.first().unwrap_or(&ScriptValue::Null);
            ScriptValue::Bool(values.borrow().iter().any(|value| value.equals(target_value)))
        }
        "join" => {
            let all: Vec<String> = values.borrow().iter().map(ScriptValue::to_string).collect();
            ScriptValue::from_text(
                all.join(&arguments.first().unwrap_or(&ScriptValue::Null).to_string()),
            )
        }
        "toString" => ScriptValue::from_text(on.to_string()),
        "first" | "last" => {
            let values = values.borrow();
            let element = if name == "first" { values.first() } else { values.last() };
            element.cloned().ok_or("java.util.NoSuchElementException: Cannot access an element")?
        }
        "reverse" => ScriptValue::from_list(values.borrow().iter().rev().cloned().collect()),
        "indexOf" => {
            let target_value = arguments.first().unwrap_or(&ScriptValue::Null);
            let at = values.borrow().iter().position(|value| value.equals(target_value));
            ScriptValue::Int(at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
        }
        "remove" => {
            let mut values = values.borrow_mut();
            let index =
                index_argument().filter(|index| *index < values.len()).ok_or_else(outside)?;
            values.remove(index)
        }
        "sort" => {
            let mut sorted = values.borrow().clone();
            sorted.sort_by(compare_values);
            values.borrow_mut().clone_from(&sorted);
            ScriptValue::from_list(sorted)
        }
        "unique" => {
            let mut unique_values: Vec<ScriptValue> = Vec::new();
            for value in values.borrow().iter() {
                if !unique_values.iter().any(|unique_value| unique_value.equals(value)) {
                    unique_values.push(value.clone());
                }
            }
            values.borrow_mut().clone_from(&unique_values);
            ScriptValue::from_list(unique_values)
        }
        "max" | "min" => {
            let values = values.borrow();
            let extreme = match name {
                "max" => values.iter().max_by(|left, right| compare_values(left, right)),
                _ => values.iter().min_by(|left, right| compare_values(left, right)),
            };
            extreme.cloned().unwrap_or_default()
        }
        "sum" => {
            let values = values.borrow();
            let whole: Option<i64> = values.iter().try_fold(0i64, |sum, value| match value {
                ScriptValue::Int(value) => sum.checked_add(*value),
                _ => None,
            });
            match whole {
                Some(sum) if !values.is_empty() => ScriptValue::Int(sum),
                Some(_) => ScriptValue::Null,
                None => {
                    let sum: Option<f64> = values.iter().map(ScriptValue::to_double).sum();
                    ScriptValue::Double(
                        sum.ok_or("script sums values that are not numbers (not supported)")?,
                    )
                }
            }
        }
        _ => return Err(format!("script calls `{name}()` of a list (not supported)")),
    })
}

/// Compares two values: numbers by value, anything else by text.
fn compare_values(left: &ScriptValue, right: &ScriptValue) -> std::cmp::Ordering {
    match (left.to_double(), right.to_double()) {
        (Some(left_number), Some(right_number)) => left_number.total_cmp(&right_number),
        _ => left.to_string().cmp(&right.to_string()),
    }
}

fn compile_pattern(text: &str) -> Result<regex::Regex, String> {
    regex::Regex::new(&translate_pattern(text, TextEndAnchor::BeforeLineFeed))
        .map_err(|_| format!("java.util.regex.PatternSyntaxException: {text}"))
}

/// Converts Java's `$1` and `\\$` to the syntax of the regex library.
fn convert_replacement(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('$') => out.push_str("$$"),
                Some(letter) => out.push(letter),
                None => {}
            },
            '$' => match chars.next() {
                Some(digit) if digit.is_ascii_digit() => out.push_str(&format!("${{{digit}}}")),
                Some(letter) => {
                    out.push_str("$$");
                    out.push(letter);
                }
                None => out.push_str("$$"),
            },
            letter => out.push(letter),
        }
    }
    out
}

fn call_text(text: &str, name: &str, arguments: &[ScriptValue]) -> ScriptCallResult {
    let argument =
        |index: usize| arguments.get(index).map(ScriptValue::to_string).unwrap_or_default();
    let first = argument(0);
    let count = |text: &str| i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let index_argument = |index: usize| match arguments.get(index) {
        Some(ScriptValue::Int(value)) => usize::try_from(*value).ok(),
        _ => None,
    };
    let outside = || "java.lang.StringIndexOutOfBoundsException".to_owned();
    Ok(match name {
        "equals" => ScriptValue::Bool(
            matches!(arguments.first(), Some(ScriptValue::Text(other)) if **other == *text),
        ),
        "equalsIgnoreCase" => ScriptValue::Bool(text.to_lowercase() == first.to_lowercase()),
        "contains" => ScriptValue::Bool(text.contains(&first)),
        "startsWith" => ScriptValue::Bool(text.starts_with(&first)),
        "endsWith" => ScriptValue::Bool(text.ends_with(&first)),
        "matches" => {
            let pattern = compile_full_match(&first)
                .map_err(|_| format!("java.util.regex.PatternSyntaxException: {first}"))?;
            ScriptValue::Bool(pattern.is_match(text))
        }
        "replace" => ScriptValue::from_text(text.replace(&first, &argument(1))),
        "replaceAll" => ScriptValue::from_text(
            &*compile_pattern(&first)?
                .replace_all(text, convert_replacement(&argument(1)).as_str()),
        ),
        "replaceFirst" => ScriptValue::from_text(
            &*compile_pattern(&first)?.replace(text, convert_replacement(&argument(1)).as_str()),
        ),
        "split" => {
            let mut parts: Vec<ScriptValue> =
                compile_pattern(&first)?.split(text).map(ScriptValue::from_text).collect();
            // Java drops empty strings at the end.
            while matches!(parts.last(), Some(ScriptValue::Text(last)) if last.is_empty()) {
                parts.pop();
            }
            ScriptValue::from_list(parts)
        }
        "substring" => {
            let from = index_argument(0).ok_or_else(outside)?;
            let all: Vec<char> = text.chars().collect();
            let to = if arguments.len() > 1 {
                index_argument(1).ok_or_else(outside)?
            } else {
                all.len()
            };
            ScriptValue::from_text(
                all.get(from..to).ok_or_else(outside)?.iter().collect::<String>(),
            )
        }
        "charAt" => {
            let letter =
                index_argument(0).and_then(|index| text.chars().nth(index)).ok_or_else(outside)?;
            ScriptValue::from_text(letter.to_string())
        }
        "indexOf" | "lastIndexOf" => {
            let at = if name == "indexOf" { text.find(&first) } else { text.rfind(&first) };
            ScriptValue::Int(at.and_then(|at| text.get(..at)).map_or(-1, count))
        }
        "length" | "size" => ScriptValue::Int(count(text)),
        "trim" => ScriptValue::from_text(text.trim()),
        "toUpperCase" => ScriptValue::from_text(text.to_uppercase()),
        "toLowerCase" => ScriptValue::from_text(text.to_lowercase()),
        "toString" => ScriptValue::from_text(text),
        "getMessage" => ScriptValue::from_text(exception_message(text)),
        "isEmpty" => ScriptValue::Bool(text.is_empty()),
        "concat" => ScriptValue::from_text(format!("{text}{first}")),
        "toInteger" | "toLong" | "intValue" | "longValue" => {
            parse_int(&ScriptValue::from_text(text.trim()))?
        }
        "toDouble" | "doubleValue" => parse_double(&ScriptValue::from_text(text))?,
        "isNumber" => ScriptValue::Bool(text.trim().parse::<f64>().is_ok()),
        "isInteger" => ScriptValue::Bool(text.trim().parse::<i64>().is_ok()),
        "compareTo" => ScriptValue::Int(text.cmp(first.as_str()) as i64),
        "padLeft" | "padRight" => {
            let fill = if arguments.len() > 1 { argument(1) } else { " ".to_owned() };
            let padding = padding_for(text, arguments.first(), &fill);
            ScriptValue::from_text(if name == "padLeft" {
                padding + text
            } else {
                text.to_owned() + &padding
            })
        }
        "getBytes" => ScriptValue::Bytes(text.as_bytes().into()),
        "reverse" => ScriptValue::from_text(text.chars().rev().collect::<String>()),
        "capitalize" => {
            let mut letters = text.chars();
            let first = letters.next().map(|first| first.to_uppercase().to_string());
            ScriptValue::from_text(first.unwrap_or_default() + letters.as_str())
        }
        "isBlank" => ScriptValue::Bool(text.trim().is_empty()),
        "strip" => ScriptValue::from_text(text.trim()),
        "repeat" => {
            let count = index_argument(0).ok_or_else(outside)?;
            if text.len().saturating_mul(count) > MAX_REPEATED_TEXT_LEN {
                return Err("java.lang.OutOfMemoryError: the text is too long".to_owned());
            }
            ScriptValue::from_text(text.repeat(count))
        }
        "take" => ScriptValue::from_text(
            text.chars().take(index_argument(0).unwrap_or(0)).collect::<String>(),
        ),
        "drop" => ScriptValue::from_text(
            text.chars().skip(index_argument(0).unwrap_or(0)).collect::<String>(),
        ),
        "toList" => ScriptValue::from_list(
            text.chars().map(|c| ScriptValue::from_text(c.to_string())).collect(),
        ),
        "readLines" => ScriptValue::from_list(text.lines().map(ScriptValue::from_text).collect()),
        "tokenize" => {
            let marks = if arguments.is_empty() { " \t\n\r\u{c}".to_owned() } else { first };
            let parts = text.split(|c| marks.contains(c)).filter(|part| !part.is_empty());
            ScriptValue::from_list(parts.map(ScriptValue::from_text).collect())
        }
        "md5" => ScriptValue::from_text(hex::encode(JavaDigest::Md5.digest(text.as_bytes()))),
        "sha256" => ScriptValue::from_text(hex::encode(JavaDigest::Sha256.digest(text.as_bytes()))),
        "encodeBase64" => ScriptValue::from_text(codec::encode_base64(text.as_bytes(), false)),
        "toBigDecimal" | "toFloat" => parse_double(&ScriptValue::from_text(text))?,
        "toBoolean" | "booleanValue" => ScriptValue::Bool(matches!(
            text.trim().to_ascii_lowercase().as_str(),
            "true" | "y" | "1"
        )),
        "isLong" => ScriptValue::Bool(text.trim().parse::<i64>().is_ok()),
        "isDouble" => ScriptValue::Bool(text.trim().parse::<f64>().is_ok()),
        _ => return Err(format!("script calls `{name}()` of a string (not supported)")),
    })
}
