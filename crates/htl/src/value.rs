//! Values of expressions, and the objects of hosts.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use crate::error::HostError;
use crate::java_double::write_java_double;
use crate::program::{HtlScript, ScriptProgram};

/// A value of an expression. Clones are cheap.
#[derive(Debug, Clone, Default)]
pub enum HtlValue {
    /// No value: false, and empty text.
    #[default]
    Null,
    /// A boolean.
    Boolean(bool),
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(Arc<str>),
    /// A list.
    List(HtlList),
    /// A map with the order of its entries.
    Map(Rc<HtlMap>),
    /// An instant with an offset from UTC.
    Date(HtlDate),
    /// An object of the host.
    Object(Rc<dyn HtlObject>),
    /// A template of a script, for `data-sly-call`.
    Template(HtlTemplate),
}

/// The iteration over the items of an object.
pub type HtlItems = Box<dyn Iterator<Item = Result<HtlValue, HostError>>>;

/// An object of the host: a resource, a page, a model, a map that is read when needed.
///
/// Objects live in one thread, so that they can hold handles of engines that do, such as JavaScript's.
pub trait HtlObject: Any + fmt::Debug {
    /// Returns a property, or `None` if there is none. Calls of methods have no syntax of their own: an object calls the
    /// method without arguments that `name` stands for, such as `getTitle` or `isEmpty` of a model for `title` and
    /// `empty`. A number in brackets comes as [`HtlObject::item`].
    ///
    /// # Errors
    /// If reading fails.
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError>;

    /// Returns true if a name stands for a method, for languages that have calls of methods. By default the names of
    /// getters do: `getTitle`, `isEmpty`, `hasChildren`, `listChildren`.
    fn has_method(&self, name: &str) -> bool {
        ["get", "is", "has", "list"].iter().any(|prefix| {
            let rest = name.strip_prefix(prefix).unwrap_or_default();
            rest.starts_with(|first: char| first.is_ascii_uppercase())
        })
    }

    /// Calls a method, for languages that have calls of methods; `None` if there is none. By default a method without
    /// arguments is the property of its name.
    ///
    /// # Errors
    /// If reading fails.
    fn call(&self, name: &str, arguments: &[HtlValue]) -> Result<Option<HtlValue>, HostError> {
        if arguments.is_empty() { self.property(name) } else { Ok(None) }
    }

    /// Returns the item at an index, for objects that are sequences.
    ///
    /// # Errors
    /// If reading fails.
    fn item(&self, index: usize) -> Result<Option<HtlValue>, HostError> {
        match self.items()? {
            Some(mut items) => items.nth(index).transpose(),
            None => Ok(None),
        }
    }

    /// Returns the iteration for `data-sly-list` and `data-sly-repeat`: the items of a sequence, the keys of a map;
    /// `None` for an object that is a single thing.
    ///
    /// # Errors
    /// If reading fails.
    fn items(&self) -> Result<Option<HtlItems>, HostError> {
        Ok(None)
    }

    /// Returns the simple value that the object stands for in texts, comparisons, formats and conditions: the name of a
    /// constant of an enumeration, a number, a date.
    fn primitive(&self) -> Option<HtlValue> {
        None
    }

    /// Returns true if the object counts as true. By default that is so unless it is an empty sequence or map, or stands
    /// for a false value.
    fn is_true(&self) -> bool {
        if let Some(primitive) = self.primitive() {
            return primitive.is_true();
        }
        match self.items() {
            Ok(Some(mut items)) => items.next().is_some(),
            Ok(None) | Err(_) => true,
        }
    }

    /// Returns true if the text on the left side of `in` is in the object: an item of a sequence, a key of a map, a
    /// property of anything else.
    ///
    /// # Errors
    /// If reading fails.
    fn contains(&self, name: &str) -> Result<bool, HostError> {
        if let Some(items) = self.items()? {
            for item in items {
                if item?.as_text() == Some(name) {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        Ok(self.property(name)?.is_some())
    }

    /// Returns the text that an output of the object writes.
    fn to_text(&self) -> String {
        self.primitive().map_or_else(String::new, |primitive| primitive.to_text())
    }
}

/// An instant with an offset from UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HtlDate {
    /// Milliseconds since 1970-01-01T00:00Z.
    pub millis: i64,
    /// Minutes east of UTC.
    pub offset_minutes: i32,
}

/// A template of a script, as `data-sly-call` takes it.
#[derive(Debug, Clone)]
pub struct HtlTemplate {
    pub(crate) program: Arc<ScriptProgram>,
    /// The index of its function.
    pub(crate) function: usize,
}

impl HtlTemplate {
    /// Returns the script that declares the template.
    #[must_use]
    pub fn script(&self) -> HtlScript {
        HtlScript(Arc::clone(&self.program))
    }
}

/// A list of values.
#[derive(Debug, Clone)]
pub struct HtlList(Rc<ListContents>);

#[derive(Debug)]
struct ListContents {
    items: Vec<HtlValue>,
    /// Lists within each other; scripts may not nest them without end.
    depth: u32,
}

impl HtlList {
    /// Returns how many lists are within each other, this one included.
    pub(crate) fn depth(&self) -> u32 {
        self.0.depth
    }
}

impl FromIterator<HtlValue> for HtlList {
    fn from_iter<I: IntoIterator<Item = HtlValue>>(items: I) -> Self {
        let items: Vec<HtlValue> = items.into_iter().collect();
        let depth =
            items.iter().map(|item| if let HtlValue::List(list) = item { list.0.depth } else { 0 });
        let depth = depth.max().unwrap_or(0).saturating_add(1);
        Self(Rc::new(ListContents { items, depth }))
    }
}

impl Deref for HtlList {
    type Target = [HtlValue];

    fn deref(&self) -> &[HtlValue] {
        &self.0.items
    }
}

/// From this number of entries on, a map is searched by hash.
const HASHED_MAP_ENTRIES: usize = 12;

/// A map with the order of its entries.
#[derive(Debug, Clone, Default)]
pub struct HtlMap {
    entries: Vec<(Arc<str>, HtlValue)>,
    /// Positions by key, for maps of [`HASHED_MAP_ENTRIES`] and more.
    positions: HashMap<Arc<str>, usize>,
}

impl HtlMap {
    /// Returns the value of a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&HtlValue> {
        if self.entries.len() < HASHED_MAP_ENTRIES {
            return self.entries.iter().find(|(name, _)| &**name == key).map(|(_, value)| value);
        }
        self.positions.get(key).and_then(|at| self.entries.get(*at)).map(|(_, value)| value)
    }

    /// Iterates over keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &HtlValue)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true without entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<K: Into<Arc<str>>> FromIterator<(K, HtlValue)> for HtlMap {
    /// Collects entries; of equal keys the last value stays, at the place of the first.
    fn from_iter<I: IntoIterator<Item = (K, HtlValue)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            let key = key.into();
            match map.positions.get(&key).and_then(|at| map.entries.get_mut(*at)) {
                Some(entry) => entry.1 = value,
                None => {
                    map.positions.insert(Arc::clone(&key), map.entries.len());
                    map.entries.push((key, value));
                }
            }
        }
        if map.entries.len() < HASHED_MAP_ENTRIES {
            map.positions = HashMap::new();
        }
        map
    }
}

impl HtlValue {
    /// Wraps an object.
    pub fn object(object: impl HtlObject) -> Self {
        Self::Object(Rc::new(object))
    }

    /// Collects a list.
    pub fn list(items: impl IntoIterator<Item = HtlValue>) -> Self {
        Self::List(items.into_iter().collect())
    }

    /// Collects a map.
    pub fn map<K: Into<Arc<str>>>(entries: impl IntoIterator<Item = (K, HtlValue)>) -> Self {
        Self::Map(Rc::new(entries.into_iter().collect()))
    }

    /// Returns the host's object if it has the type `T`.
    #[must_use]
    pub fn downcast_ref<T: HtlObject>(&self) -> Option<&T> {
        match self {
            Self::Object(object) => (&**object as &dyn Any).downcast_ref(),
            _ => None,
        }
    }

    /// Returns true for [`HtlValue::Null`].
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns a text value.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the items of a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[HtlValue]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns true if a condition with the value holds: not for null, `false`, zero, blank texts, empty lists and maps.
    #[must_use]
    pub fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Boolean(value) => *value,
            Self::Integer(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.trim().is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(map) => !map.is_empty(),
            Self::Date(_) | Self::Template(_) => true,
            Self::Object(object) => object.is_true(),
        }
    }

    /// Returns the text that an output of the value writes: items of lists with commas between, decimal fractions as
    /// Java writes them, dates by ISO 8601, nothing for null and maps.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write_text(&mut text, usize::MAX);
        text
    }

    /// Appends [`HtlValue::to_text`]; returns false if it stopped because `out` has more than `limit` bytes.
    pub(crate) fn write_text(&self, out: &mut String, limit: usize) -> bool {
        match self {
            Self::Null | Self::Template(_) | Self::Map(_) => {}
            Self::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Integer(number) => write!(out, "{number}").unwrap_or_default(),
            Self::Float(number) => write_java_double(*number, out),
            Self::Text(text) => out.push_str(text),
            Self::List(items) => {
                for (number, item) in items.iter().enumerate() {
                    if number > 0 {
                        out.push(',');
                    }
                    if !item.write_text(out, limit) {
                        return false;
                    }
                }
            }
            Self::Date(date) => write!(out, "{date}").unwrap_or_default(),
            Self::Object(object) => out.push_str(&object.to_text()),
        }
        out.len() <= limit
    }
}

impl fmt::Display for HtlDate {
    /// Writes the date by ISO 8601, with milliseconds and offset.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = jiff::tz::Offset::from_seconds(self.offset_minutes.saturating_mul(60));
        let timestamp = jiff::Timestamp::from_millisecond(self.millis);
        let (Ok(offset), Ok(timestamp)) = (offset, timestamp) else {
            return write!(out, "{}", self.millis);
        };
        let time = offset.to_datetime(timestamp);
        let sign = if self.offset_minutes < 0 { '-' } else { '+' };
        let (hours, minutes) = (self.offset_minutes.abs() / 60, self.offset_minutes.abs() % 60);
        write!(out, "{time:.3}{sign}{hours:02}:{minutes:02}")
    }
}

impl From<bool> for HtlValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i64> for HtlValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<f64> for HtlValue {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<&str> for HtlValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for HtlValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Arc<str>> for HtlValue {
    fn from(text: Arc<str>) -> Self {
        Self::Text(text)
    }
}

impl From<HtlDate> for HtlValue {
    fn from(date: HtlDate) -> Self {
        Self::Date(date)
    }
}

impl<T: Into<HtlValue>> From<Option<T>> for HtlValue {
    /// `None` is null.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
