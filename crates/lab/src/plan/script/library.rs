//! Everything that a script may call: the fixed list, and what each call does.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::pattern::compile_whole;
use super::super::perl::{End, translate};
use super::super::scope::Scope;
use super::ast::Expression;
use super::codec::{self, DigestName};
use super::date_time::{self, Time};
use super::json;
use super::value::{Tool, Value};

type Outcome = Result<Value, String>;

/// Names that every script finds.
const GLOBALS: [&str; 24] = [
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

/// Methods of what JMeter gives to scripts.
const OF_ROOTS: [(&str, &[&str]); 12] = [
    ("vars", &["get", "put", "remove", "containsKey"]),
    ("props", &["get", "put", "getProperty", "setProperty", "containsKey", "remove"]),
    ("prev", SAMPLE),
    ("SampleResult", SAMPLE),
    ("sampleResult", SAMPLE),
    ("log", &["info", "warn", "error", "debug", "trace"]),
    ("OUT", &["println", "print"]),
    ("ctx", CONTEXT),
    ("sampler", &["getName", "getThreadName"]),
    ("thread", &["getThreadName", "getThreadNum"]),
    ("threadGroup", &["getName"]),
    ("AssertionResult", &["setFailure", "setFailureMessage", "isFailure", "getFailureMessage"]),
];

/// Methods of the context that give numbers and names, and those that give what other names stand for, too.
const CONTEXT: &[&str] = &[
    "getThreadNum",
    "getThreadName",
    "getPreviousResult",
    "getVariables",
    "getProperties",
    "getCurrentSampler",
    "getThread",
    "getThreadGroup",
];

const SAMPLE: &[&str] = &[
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

/// Methods of texts, lists, numbers and the rest.
const OF_VALUES: [&str; 114] = [
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

const STATICS: [(&str, &[&str]); 31] = [
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

const CLASSES: [&str; 13] = [
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
    GLOBALS.contains(&name)
}

pub(super) fn is_class(name: &str) -> bool {
    STATICS.iter().any(|(class, _)| *class == name)
}

pub(super) fn is_cast(name: &str) -> bool {
    matches!(name, "int" | "long" | "double" | "float" | "short" | "char" | "boolean")
}

/// Returns the thing of JMeter's that an expression names, or that the context gives.
pub(super) fn root_of(expression: &Expression) -> Option<&str> {
    match expression {
        Expression::Name(name) if is_global(name) => Some(name),
        Expression::Call(on, method, arguments)
            if arguments.is_empty() && root_of(on) == Some("ctx") =>
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

/// Returns the method by which a property of a thing of JMeter's is read, if there is one.
pub(super) fn reader_of(root: &str, property: &str) -> Option<String> {
    ["get", "is"].iter().find_map(|verb| accessor(root, verb, property))
}

/// Returns the method by which such a property is set, by the one that reads it.
pub(super) fn writer_of(root: &str, reader: &str) -> Option<String> {
    let property = reader.strip_prefix("get").or_else(|| reader.strip_prefix("is"))?;
    accessor(root, "set", property)
}

fn accessor(root: &str, verb: &str, property: &str) -> Option<String> {
    let (_, methods) = OF_ROOTS.iter().find(|(name, _)| *name == root)?;
    let mut letters = property.chars();
    let first = letters.next()?.to_ascii_uppercase();
    let method = format!("{verb}{first}{}", letters.as_str());
    methods.contains(&method.as_str()).then_some(method)
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

/// Says that a property is not in the list; those of what JSON holds have any name.
pub(super) fn check_property(on: &Expression, name: &str, is_json: bool) -> Result<(), String> {
    match root_of(on) {
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
        "Date" => {
            let given = match first {
                Some(Value::Int(ms)) => Time::of_millis(*ms),
                _ => None,
            };
            Value::Time(given.unwrap_or_else(|| Time::now("Date")))
        }
        "HashMap" | "LinkedHashMap" => Value::map([]),
        "JsonSlurper" => Value::Tool(Tool::JsonReader),
        "SimpleDateFormat" => Value::Format(first.map(Value::to_string).unwrap_or_default().into()),
        "SecretKeySpec" => Value::Key(first.unwrap_or(&Value::Null).bytes()),
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
        "String" => Value::text(match first {
            Some(Value::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => other.map(Value::to_string).unwrap_or_default(),
        }),
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
        ("URLDecoder", _) => match super::super::http::decode_form(&first.to_string()) {
            Ok(text) => Value::text(text),
            Err((class, message)) => return Err(format!("{class}: {message}")),
        },
        ("Thread", _) => {
            // Others of the worker must not wait: the thread sleeps when the script is over.
            let time = parse_int(first)?.double().unwrap_or(0.0).max(0.0) as u64;
            scope.sleep_ms = scope.sleep_ms.saturating_add(time).min(LONGEST_SLEEP_MS);
            Value::Null
        }
        ("StandardCharsets", _) => Value::text("UTF-8"),
        ("Charset", _) => Value::text(first.to_string()),
        ("JsonOutput", _) => Value::text(json::write(first)?),
        ("Arrays", _) => match first {
            Value::List(_) => first.clone(),
            _ => Value::list(given.to_vec()),
        },
        ("Collections", _) => Value::list(Vec::new()),
        ("DateTimeFormatter", _) => Value::Format(first.to_string().into()),
        ("LocalDate", "of") => {
            let number = |place: usize| match given.get(place) {
                Some(Value::Int(number)) => *number,
                _ => 0,
            };
            let day = date_time::day(number(0), number(1), number(2));
            Value::Time(day.ok_or("java.time.DateTimeException: Invalid date")?)
        }
        ("LocalDate" | "LocalDateTime" | "Instant", _) => Value::Time(Time::now(class)),
        ("Base64" | "MessageDigest" | "Mac" | "Hex" | "DigestUtils", _) => {
            call_codec(class, name, first)?
        }
        ("RandomStringUtils" | "RandomUtils", _) => call_random_text(name, given, scope),
        ("StringUtils", _) => call_string_utils(name, given),
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
        Value::Time(time) => time.call(name, given),
        Value::Map(_) => call_map(on, name, given),
        Value::Bytes(bytes) => call_bytes(bytes, name),
        Value::Format(pattern) => match (name, given.first()) {
            ("format", Some(Value::Time(time))) => time.write(pattern).map(Value::text),
            ("parse", Some(text)) => date_time::parse(pattern, &text.to_string()).map(Value::Time),
            _ => Err(format!("script calls `{name}()` of a date's pattern (not supported)")),
        },
        Value::Tool(tool) => call_tool(*tool, name, given),
        Value::Authenticator(digest, key) => {
            let first = given.first().unwrap_or(&Value::Null).bytes();
            match name {
                "init" => {
                    *key.borrow_mut() = first;
                    Ok(Value::Null)
                }
                "doFinal" => Ok(Value::Bytes(digest.authenticate(&key.borrow(), &first).into())),
                _ => Err(format!("script calls `Mac.{name}()` (not supported)")),
            }
        }
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

/// Calls what turns bytes into texts and back.
fn call_codec(class: &str, name: &str, given: &Value) -> Outcome {
    let digest = |name: &str| {
        DigestName::find(name).ok_or_else(|| {
            format!("java.security.NoSuchAlgorithmException: {name} MessageDigest not available")
        })
    };
    Ok(match (class, name) {
        ("Base64", "getEncoder") => Value::Tool(Tool::Encoder(false)),
        ("Base64", "getUrlEncoder") => Value::Tool(Tool::Encoder(true)),
        ("Base64", "getDecoder") => Value::Tool(Tool::Decoder(false)),
        ("Base64", "getUrlDecoder") => Value::Tool(Tool::Decoder(true)),
        ("Base64", "encodeBase64") => {
            Value::Bytes(codec::to_base64(&given.bytes(), false).into_bytes().into())
        }
        ("Base64", "encodeBase64String") => Value::text(codec::to_base64(&given.bytes(), false)),
        ("Base64", _) => decode_base64(given, false)?,
        ("MessageDigest", _) => Value::Tool(Tool::Digest(digest(&given.to_string())?)),
        ("Mac", _) => {
            let empty: Rc<[u8]> = Rc::from([]);
            Value::Authenticator(digest(&given.to_string())?, Rc::new(empty.into()))
        }
        ("Hex", _) => Value::text(codec::to_hex(&given.bytes())),
        (_, name) => {
            let digest = digest(name.strip_suffix("Hex").unwrap_or(name))?;
            Value::text(codec::to_hex(&digest.digest(&given.bytes())))
        }
    })
}

fn decode_base64(text: &Value, is_for_urls: bool) -> Outcome {
    let text = String::from_utf8_lossy(&text.bytes()).into_owned();
    let bytes = codec::from_base64(&text, is_for_urls);
    let illegal = || "java.lang.IllegalArgumentException: Illegal base64 character".to_owned();
    bytes.map(|bytes| Value::Bytes(bytes.into())).ok_or_else(illegal)
}

fn call_tool(tool: Tool, name: &str, given: &[Value]) -> Outcome {
    let first = given.first().unwrap_or(&Value::Null);
    match (tool, name) {
        (Tool::JsonReader, "parseText" | "parse") => match first {
            Value::Null => {
                Err("java.lang.IllegalArgumentException: Text must not be null or empty".to_owned())
            }
            _ => json::parse(&String::from_utf8_lossy(&first.bytes())),
        },
        (Tool::Encoder(is_for_urls), "encodeToString") => {
            Ok(Value::text(codec::to_base64(&first.bytes(), is_for_urls)))
        }
        (Tool::Decoder(is_for_urls), "decode") => decode_base64(first, is_for_urls),
        (Tool::Digest(digest), "digest") => Ok(Value::Bytes(digest.digest(&first.bytes()).into())),
        _ => Err(format!("script calls `{name}()` (not supported)")),
    }
}

fn call_bytes(bytes: &Rc<[u8]>, name: &str) -> Outcome {
    Ok(match name {
        "encodeBase64" => Value::text(codec::to_base64(bytes, false)),
        "encodeHex" => Value::text(codec::to_hex(bytes)),
        "length" | "size" => Value::Int(i64::try_from(bytes.len()).unwrap_or(i64::MAX)),
        "toString" => Value::text(Value::Bytes(Rc::clone(bytes)).to_string()),
        _ => return Err(format!("script calls `{name}()` of bytes (not supported)")),
    })
}

fn call_map(on: &Value, name: &str, given: &[Value]) -> Outcome {
    let Value::Map(entries) = on else { return Ok(Value::Null) };
    let key = given.first().map(Value::to_string).unwrap_or_default();
    let find = || {
        let entries = entries.borrow();
        entries.iter().find(|(known, _)| **known == *key).map(|(_, value)| value.clone())
    };
    Ok(match name {
        "size" => Value::Int(i64::try_from(entries.borrow().len()).unwrap_or(i64::MAX)),
        "isEmpty" => Value::Bool(entries.borrow().is_empty()),
        "containsKey" => Value::Bool(find().is_some()),
        "get" => find().unwrap_or_default(),
        "getOrDefault" => find().unwrap_or_else(|| given.get(1).cloned().unwrap_or_default()),
        "put" | "set" => {
            let value = given.get(1).cloned().unwrap_or_default();
            let mut entries = entries.borrow_mut();
            let count = entries.len();
            match entries.iter_mut().find(|(known, _)| **known == *key) {
                Some((_, known)) => std::mem::replace(known, value),
                None if count >= MOST => {
                    return Err("java.lang.OutOfMemoryError: the map is too large".to_owned());
                }
                None => {
                    entries.push((key.into(), value));
                    Value::Null
                }
            }
        }
        "remove" => {
            let value = find().unwrap_or_default();
            entries.borrow_mut().retain(|(known, _)| **known != *key);
            value
        }
        "keySet" => {
            let entries = entries.borrow();
            Value::list(entries.iter().map(|(key, _)| Value::Text(Rc::clone(key))).collect())
        }
        "values" => Value::list(entries.borrow().iter().map(|(_, value)| value.clone()).collect()),
        "toString" => Value::text(on.to_string()),
        _ => return Err(format!("script calls `{name}()` of a map (not supported)")),
    })
}

/// Returns a property of a value; of a list, that of each of its elements.
pub(super) fn property_of(on: &Value, name: &str) -> Outcome {
    match (on, name) {
        (Value::Null, _) => Err(format!(
            "java.lang.NullPointerException: Cannot get property '{name}' on null object"
        )),
        (Value::Map(_), _) => call_map(on, "get", &[Value::text(name)]),
        (Value::List(values), "length") => {
            Ok(Value::Int(i64::try_from(values.borrow().len()).unwrap_or(i64::MAX)))
        }
        (Value::List(values), _) => {
            let all: Result<Vec<Value>, String> =
                values.borrow().iter().map(|value| property_of(value, name)).collect();
            all.map(Value::list)
        }
        (Value::Time(time), "time") => time.call("getTime", &[]),
        (_, "bytes") => Ok(Value::Bytes(on.bytes())),
        (Value::Text(text), "message") => Ok(Value::text(message_of(text))),
        (Value::Text(text), "length") => {
            Ok(Value::Int(i64::try_from(text.chars().count()).unwrap_or(i64::MAX)))
        }
        (Value::Bytes(bytes), "length") => {
            Ok(Value::Int(i64::try_from(bytes.len()).unwrap_or(i64::MAX)))
        }
        _ => Err(format!("groovy.lang.MissingPropertyException: No such property: {name}")),
    }
}

/// Returns the message of an exception, which is told behind its class.
fn message_of(fault: &str) -> &str {
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

/// Longest sleep of a thread.
const LONGEST_SLEEP_MS: u64 = 24 * 3_600_000;
/// Longest random text.
const LONGEST_RANDOM: i64 = 1 << 20;

/// Calls what Apache's classes draw at random.
fn call_random_text(name: &str, given: &[Value], scope: &mut Scope) -> Value {
    let number = |place: usize| match given.get(place) {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    };
    if matches!(name, "nextInt" | "nextLong") {
        let (low, high) = (number(0).unwrap_or(0), number(1).unwrap_or(i32::MAX.into()));
        return Value::Int(scope.random_between(low, high.saturating_sub(1)));
    }
    let digits: Vec<char> = ('0'..='9').collect();
    let letters: Vec<char> = ('A'..='Z').chain('a'..='z').collect();
    let flag = |place: usize| given.get(place).is_some_and(Value::is_true);
    let alphabet = match (name, given.get(1)) {
        ("randomNumeric", _) => digits,
        ("randomAlphabetic", _) => letters,
        ("random", Some(Value::Text(alphabet))) => alphabet.chars().collect(),
        ("random", Some(Value::Bool(_))) => match (flag(1), flag(2)) {
            (true, false) => letters,
            (false, true) => digits,
            _ => [letters, digits].concat(),
        },
        _ => [letters, digits].concat(),
    };
    let last = i64::try_from(alphabet.len()).unwrap_or(1) - 1;
    let length = number(0).unwrap_or(0).clamp(0, LONGEST_RANDOM);
    let letters = (0..length).filter_map(|_| {
        let place = usize::try_from(scope.random_between(0, last)).ok()?;
        alphabet.get(place).copied()
    });
    Value::text(letters.collect::<String>())
}

fn call_string_utils(name: &str, given: &[Value]) -> Value {
    let text = |place: usize| match given.get(place) {
        None | Some(Value::Null) => String::new(),
        Some(value) => value.to_string(),
    };
    let subject = text(0);
    match name {
        "isBlank" => Value::Bool(subject.trim().is_empty()),
        "isNotBlank" => Value::Bool(!subject.trim().is_empty()),
        "isEmpty" => Value::Bool(subject.is_empty()),
        "isNotEmpty" => Value::Bool(!subject.is_empty()),
        "substringBetween" => {
            let end = if given.len() > 2 { text(2) } else { text(1) };
            let inside = subject.split_once(&text(1)).and_then(|(_, rest)| rest.split_once(&end));
            inside.map_or(Value::Null, |(inside, _)| Value::text(inside))
        }
        _ => {
            let fill = if given.len() > 2 { text(2) } else { " ".to_owned() };
            Value::text(pad(&subject, given.get(1), &fill) + &subject)
        }
    }
}

/// Returns what a text lacks to be so wide.
fn pad(text: &str, width: Option<&Value>, fill: &str) -> String {
    let width = match width {
        Some(Value::Int(width)) => usize::try_from(*width).unwrap_or(0).min(10_000),
        _ => 0,
    };
    let missing = width.saturating_sub(text.chars().count());
    fill.repeat(missing).chars().take(missing).collect()
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
        ("nextLong", ..) => Ok(Value::Int(scope.random().cast_signed())),
        ("nextBoolean", ..) => Ok(Value::Bool(scope.random() & 1 == 1)),
        ("nextInt", ..) => {
            Err("java.lang.IllegalArgumentException: bound must be positive".to_owned())
        }
        _ => Err(format!("script calls `Random.{name}()` (not supported)")),
    }
}

/// Longest text that is made of repetitions.
const LONGEST_REPEATED: usize = 16 << 20;
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
        "first" | "last" => {
            let values = values.borrow();
            let found = if name == "first" { values.first() } else { values.last() };
            found.cloned().ok_or("java.util.NoSuchElementException: Cannot access an element")?
        }
        "reverse" => Value::list(values.borrow().iter().rev().cloned().collect()),
        "indexOf" => {
            let wanted = given.first().unwrap_or(&Value::Null);
            let at = values.borrow().iter().position(|value| value.equals(wanted));
            Value::Int(at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
        }
        "remove" => {
            let mut values = values.borrow_mut();
            let place = place().filter(|place| *place < values.len()).ok_or_else(outside)?;
            values.remove(place)
        }
        "sort" => {
            let mut sorted = values.borrow().clone();
            sorted.sort_by(compare);
            values.borrow_mut().clone_from(&sorted);
            Value::list(sorted)
        }
        "unique" => {
            let mut kept: Vec<Value> = Vec::new();
            for value in values.borrow().iter() {
                if !kept.iter().any(|known| known.equals(value)) {
                    kept.push(value.clone());
                }
            }
            values.borrow_mut().clone_from(&kept);
            Value::list(kept)
        }
        "max" | "min" => {
            let values = values.borrow();
            let found = match name {
                "max" => values.iter().max_by(|one, two| compare(one, two)),
                _ => values.iter().min_by(|one, two| compare(one, two)),
            };
            found.cloned().unwrap_or_default()
        }
        "sum" => {
            let values = values.borrow();
            let whole: Option<i64> = values.iter().try_fold(0i64, |sum, value| match value {
                Value::Int(value) => sum.checked_add(*value),
                _ => None,
            });
            match whole {
                Some(sum) if !values.is_empty() => Value::Int(sum),
                Some(_) => Value::Null,
                None => {
                    let sum: Option<f64> = values.iter().map(Value::double).sum();
                    Value::Double(sum.ok_or("script sums what is no number (not supported)")?)
                }
            }
        }
        _ => return Err(format!("script calls `{name}()` of a list (not supported)")),
    })
}

/// Returns the order of two values: of numbers by their worth, of anything else by their texts.
fn compare(one: &Value, two: &Value) -> std::cmp::Ordering {
    match (one.double(), two.double()) {
        (Some(one), Some(two)) => one.total_cmp(&two),
        _ => one.to_string().cmp(&two.to_string()),
    }
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
        "toString" => Value::text(text),
        "getMessage" => Value::text(message_of(text)),
        "isEmpty" => Value::Bool(text.is_empty()),
        "concat" => Value::text(format!("{text}{first}")),
        "toInteger" | "toLong" | "intValue" | "longValue" => parse_int(&Value::text(text.trim()))?,
        "toDouble" | "doubleValue" => parse_double(&Value::text(text))?,
        "isNumber" => Value::Bool(text.trim().parse::<f64>().is_ok()),
        "isInteger" => Value::Bool(text.trim().parse::<i64>().is_ok()),
        "compareTo" => Value::Int(text.cmp(first.as_str()) as i64),
        "padLeft" | "padRight" => {
            let fill = if given.len() > 1 { argument(1) } else { " ".to_owned() };
            let padding = pad(text, given.first(), &fill);
            Value::text(if name == "padLeft" { padding + text } else { text.to_owned() + &padding })
        }
        "getBytes" => Value::Bytes(text.as_bytes().into()),
        "reverse" => Value::text(text.chars().rev().collect::<String>()),
        "capitalize" => {
            let mut letters = text.chars();
            let first = letters.next().map(|first| first.to_uppercase().to_string());
            Value::text(first.unwrap_or_default() + letters.as_str())
        }
        "isBlank" => Value::Bool(text.trim().is_empty()),
        "strip" => Value::text(text.trim()),
        "repeat" => {
            let count = place(0).ok_or_else(outside)?;
            if text.len().saturating_mul(count) > LONGEST_REPEATED {
                return Err("java.lang.OutOfMemoryError: the text is too long".to_owned());
            }
            Value::text(text.repeat(count))
        }
        "take" => Value::text(text.chars().take(place(0).unwrap_or(0)).collect::<String>()),
        "drop" => Value::text(text.chars().skip(place(0).unwrap_or(0)).collect::<String>()),
        "toList" => Value::list(text.chars().map(|c| Value::text(c.to_string())).collect()),
        "readLines" => Value::list(text.lines().map(Value::text).collect()),
        "tokenize" => {
            let marks = if given.is_empty() { " \t\n\r\u{c}".to_owned() } else { first };
            let parts = text.split(|c| marks.contains(c)).filter(|part| !part.is_empty());
            Value::list(parts.map(Value::text).collect())
        }
        "md5" => Value::text(codec::to_hex(&DigestName::Md5.digest(text.as_bytes()))),
        "sha256" => Value::text(codec::to_hex(&DigestName::Sha256.digest(text.as_bytes()))),
        "encodeBase64" => Value::text(codec::to_base64(text.as_bytes(), false)),
        "toBigDecimal" | "toFloat" => parse_double(&Value::text(text))?,
        "toBoolean" | "booleanValue" => {
            Value::Bool(matches!(text.trim().to_ascii_lowercase().as_str(), "true" | "y" | "1"))
        }
        "isLong" => Value::Bool(text.trim().parse::<i64>().is_ok()),
        "isDouble" => Value::Bool(text.trim().parse::<f64>().is_ok()),
        _ => return Err(format!("script calls `{name}()` of a text (not supported)")),
    })
}
