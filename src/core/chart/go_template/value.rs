//! Values as Go's templates see them: cheap to clone, maps shared and mutable.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::super::HelmVersion;
use super::object::Object;
use super::shared::SharedMap;

/// The text of bytes as Go's conversion to runes gives it: each byte that is no UTF-8 is replaced on its own.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let chunks = bytes.utf8_chunks();
    Cow::Owned(chunks.map(|chunk| chunk.valid().to_owned() + &"\u{fffd}".repeat(chunk.invalid().len())).collect())
}

/// A value of a template.
///
/// `Invalid` is Go's zero `reflect.Value`: what a pipeline makes of nil; fields of it are `Invalid` again. `Nil` is a
/// nil interface met inside a field chain or a list; fields of it are an error.
#[derive(Clone, Debug, Default)]
pub(crate) enum Value {
    #[default]
    Invalid,
    Nil,
    Bool(bool),
    Int(i64),
    Int64(i64),
    Uint(u64),
    Float(f64),
    Str(Arc<str>),
    /// A string that is no UTF-8, as it comes from a binary file or a cut in the middle of a character.
    Raw(Arc<[u8]>),
    /// `[]byte`
    Bytes(Arc<[u8]>),
    List(Rc<List>),
    Map(Rc<Map>),
    /// `chartutil.Values`: the same map under a type with methods.
    Values(Rc<Map>),
    Object(Rc<Object>),
}

/// The Go type of a list's elements, which `typeOf` and the checks of arguments tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListType {
    Any,
    Str,
    Int,
    Lists,
    Maintainers,
    Dependencies,
    /// `chartutil.VersionSet`, which has the method `Has`.
    Versions,
}

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// How many bytes the lists and maps of this thread take, about: texts are shared, and not among them.
pub(crate) fn held() -> usize {
    HELD.get()
}

/// What a list or a map takes, counted until it goes.
#[derive(Debug, Default)]
struct Held(Cell<usize>);

impl Held {
    /// What one is, empty.
    const BASE: usize = 64;
    /// Entries for which a node of a map has room: `BTreeMap` takes it whole for the first one.
    const ROOM: usize = 11;
    /// Entries that one has at least, but for the only one.
    const LEAST: usize = 5;
    /// A node of a map.
    const NODE: usize = 16 + Self::ROOM * (size_of::<Arc<str>>() + size_of::<Value>());

    fn of_list(items: usize) -> Self {
        let held = Self::default();
        held.set(Self::BASE + items * size_of::<Value>());
        held
    }

    fn of_map(entries: usize) -> Self {
        let held = Self::default();
        held.set_map(entries);
        held
    }

    fn set_map(&self, entries: usize) {
        self.set(Self::BASE + entries.div_ceil(Self::LEAST) * Self::NODE);
    }

    fn set(&self, bytes: usize) {
        HELD.set(HELD.get().wrapping_sub(self.0.replace(bytes)).wrapping_add(bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// An immutable list.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) ty: ListType,
    /// Go's nil slice: it is empty, and JSON's null.
    pub(crate) nil: bool,
    pub(crate) items: Vec<Value>,
    _held: Held,
}

impl List {
    pub(crate) fn new(ty: ListType, nil: bool, items: Vec<Value>) -> Self {
        Self { ty, nil, _held: Held::of_list(items.len()), items }
    }
}

/// The Go type of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapType {
    /// `map[string]interface {}`
    Any,
    /// `map[string]string`: a missing key is the empty string.
    Str,
}

/// A map that all its holders share; keys are sorted.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) ty: MapType,
    /// Go's nil map: it is empty, JSON's null, and nothing can be put into it.
    pub(crate) nil: bool,
    entries: RefCell<Entries>,
    held: Held,
}

#[derive(Debug, Default)]
struct Entries {
    /// Until the map is first looked into.
    shared: Option<SharedMap>,
    own: BTreeMap<Arc<str>, Value>,
}

impl Entries {
    fn own(&mut self) -> &mut BTreeMap<Arc<str>, Value> {
        if let Some(shared) = self.shared.take() {
            self.own = shared.iter().map(|(key, value)| (key.clone(), value.value())).collect();
        }
        &mut self.own
    }
}

impl Map {
    pub(crate) fn new(ty: MapType, entries: BTreeMap<Arc<str>, Value>) -> Self {
        let held = Held::of_map(entries.len());
        Self { ty, nil: false, entries: RefCell::new(Entries { shared: None, own: entries }), held }
    }

    pub(crate) fn nil(ty: MapType) -> Self {
        Self { ty, nil: true, entries: RefCell::default(), held: Held::of_map(0) }
    }

    /// A map that is copied when it is first looked into.
    pub(crate) fn shared(entries: SharedMap) -> Self {
        Self {
            ty: MapType::Any,
            nil: false,
            entries: RefCell::new(Entries { shared: Some(entries), own: BTreeMap::new() }),
            held: Held::of_map(0),
        }
    }

    /// Looks into the map, or changes it.
    fn with_own<T>(&self, see: impl FnOnce(&mut BTreeMap<Arc<str>, Value>) -> T) -> T {
        let mut entries = self.entries.borrow_mut();
        let before = entries.own.len();
        let own = entries.own();
        let seen = see(own);
        if own.len() != before {
            self.held.set_map(own.len());
        }
        seen
    }

    /// A copy that shares nothing which can change, if the map was never looked into.
    pub(crate) fn untouched(&self) -> Option<Self> {
        self.entries.borrow().shared.clone().map(Self::shared)
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        self.with_own(|own| own.get(key).cloned())
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        self.with_own(|own| own.contains_key(key))
    }

    pub(crate) fn insert(&self, key: Arc<str>, value: Value) {
        let old = self.with_own(|own| own.insert(key, value));
        drop(old);
    }

    pub(crate) fn remove(&self, key: &str) {
        let old = self.with_own(|own| own.remove(key));
        drop(old);
    }

    pub(crate) fn len(&self) -> usize {
        let entries = self.entries.borrow();
        entries.shared.as_ref().map_or(entries.own.len(), |shared| shared.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn keys(&self) -> Vec<Arc<str>> {
        self.with_own(|own| own.keys().cloned().collect())
    }

    /// The entries as they are now, sorted by key: what Go ranges over.
    pub(crate) fn entries(&self) -> Vec<(Arc<str>, Value)> {
        self.with_own(|own| own.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// Shows the entries as they are now, sorted by key, until one gives nothing. `see` must not change the map.
    pub(crate) fn try_each(&self, mut see: impl FnMut(&Arc<str>, &Value) -> Option<()>) -> Option<()> {
        let entries = self.entries.borrow();
        match &entries.shared {
            Some(shared) => shared.iter().try_for_each(|(key, value)| see(key, &value.value())),
            None => entries.own.iter().try_for_each(|(key, value)| see(key, value)),
        }
    }

    /// What `map[missing]` gives in Go.
    pub(crate) fn zero(&self) -> Value {
        match self.ty {
            MapType::Any => Value::Nil,
            MapType::Str => Value::from(""),
        }
    }

    /// Breaks cycles at the end of a rendering.
    pub(crate) fn clear(&self) {
        let old = self.entries.take();
        self.held.set_map(0);
        drop(old);
    }
}

/// Deeply nested values are freed in a loop: a recursive drop could exhaust the stack.
fn free(pending: &mut Vec<Value>) {
    while let Some(value) = pending.pop() {
        match value {
            Value::List(list) => {
                if let Ok(mut list) = Rc::try_unwrap(list) {
                    pending.append(&mut list.items);
                }
            }
            Value::Map(map) | Value::Values(map) => {
                if let Ok(mut map) = Rc::try_unwrap(map) {
                    pending.extend(std::mem::take(&mut map.entries.get_mut().own).into_values());
                }
            }
            _ => {}
        }
    }
}

fn is_container(value: &Value) -> bool {
    matches!(value, Value::List(_) | Value::Map(_) | Value::Values(_))
}

impl Drop for List {
    fn drop(&mut self) {
        if self.items.iter().any(is_container) {
            free(&mut std::mem::take(&mut self.items));
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let entries = &mut self.entries.get_mut().own;
        if entries.values().any(is_container) {
            free(&mut std::mem::take(entries).into_values().collect());
        }
    }
}

/// What Go's `reflect.Kind` is for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Invalid,
    Bool,
    Int,
    Int64,
    Uint64,
    Float64,
    String,
    Slice,
    Map,
    Struct,
    Pointer,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float64 => "float64",
            Self::String => "string",
            Self::Slice => "slice",
            Self::Map => "map",
            Self::Struct => "struct",
            Self::Pointer => "ptr",
        }
    }
}

impl Value {
    pub(crate) fn map(entries: BTreeMap<Arc<str>, Value>) -> Self {
        Self::Map(Rc::new(Map::new(MapType::Any, entries)))
    }

    pub(crate) fn typed_map(ty: MapType, entries: BTreeMap<Arc<str>, Value>) -> Self {
        Self::Map(Rc::new(Map::new(ty, entries)))
    }

    pub(crate) fn list(items: Vec<Value>) -> Self {
        Self::typed_list(ListType::Any, items)
    }

    pub(crate) fn strings<S: Into<Value>>(items: impl IntoIterator<Item = S>) -> Self {
        Self::typed_list(ListType::Str, items.into_iter().map(Into::into).collect())
    }

    pub(crate) fn typed_list(ty: ListType, items: Vec<Value>) -> Self {
        Self::List(Rc::new(List::new(ty, false, items)))
    }

    /// A nil slice of that type.
    pub(crate) fn nil_list(ty: ListType) -> Self {
        Self::List(Rc::new(List::new(ty, true, Vec::new())))
    }

    /// A nil map of that type.
    pub(crate) fn nil_map(ty: MapType) -> Self {
        Self::Map(Rc::new(Map::nil(ty)))
    }

    pub(crate) fn object(object: Object) -> Self {
        Self::Object(Rc::new(object))
    }

    /// A string of bytes that may be no UTF-8.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::from(text),
            Err(error) => Self::Raw(error.into_bytes().into()),
        }
    }

    pub(crate) fn is_nil(&self) -> bool {
        matches!(self, Self::Invalid | Self::Nil)
    }

    /// Nil, or a slice or map that is nil under its type.
    pub(crate) fn is_null(&self) -> bool {
        match self {
            Self::Invalid | Self::Nil => true,
            Self::List(list) => list.nil,
            Self::Map(map) | Self::Values(map) => map.nil,
            _ => false,
        }
    }

    /// Go's truth: false, 0, "", nil, and empty maps and lists are false.
    pub(crate) fn truth(&self) -> bool {
        match self {
            Self::Invalid | Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Int(value) | Self::Int64(value) => *value != 0,
            Self::Uint(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(value) => !value.is_empty(),
            Self::Raw(value) | Self::Bytes(value) => !value.is_empty(),
            Self::List(value) => !value.items.is_empty(),
            Self::Map(value) | Self::Values(value) => !value.is_empty(),
            Self::Object(value) => value.truth(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Invalid | Self::Nil => Kind::Invalid,
            Self::Bool(_) => Kind::Bool,
            Self::Int(_) => Kind::Int,
            Self::Int64(_) => Kind::Int64,
            Self::Uint(_) => Kind::Uint64,
            Self::Float(_) => Kind::Float64,
            Self::Str(_) | Self::Raw(_) => Kind::String,
            Self::Bytes(_) | Self::List(_) => Kind::Slice,
            Self::Map(_) | Self::Values(_) => Kind::Map,
            Self::Object(object) => object.kind(),
        }
    }

    /// The Go type's name in that Helm: 4 has some of Helm's own types in another package.
    pub(crate) fn type_name_in(&self, helm: HelmVersion) -> &'static str {
        match (helm, self.type_name()) {
            (HelmVersion::V4, "chartutil.Values") => "common.Values",
            (HelmVersion::V4, "chartutil.VersionSet") => "common.VersionSet",
            (HelmVersion::V4, "chartutil.KubeVersion") => "common.KubeVersion",
            (HelmVersion::V4, "*chartutil.Capabilities") => "*common.Capabilities",
            (_, name) => name,
        }
    }

    /// The Go type's name in Helm 3, as error messages give it.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Invalid => "<nil>",
            Self::Nil => "interface {}",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Int64(_) => "int64",
            Self::Uint(_) => "uint64",
            Self::Float(_) => "float64",
            Self::Str(_) | Self::Raw(_) => "string",
            Self::Bytes(_) => "[]uint8",
            Self::List(list) => match list.ty {
                ListType::Any => "[]interface {}",
                ListType::Str => "[]string",
                ListType::Int => "[]int",
                ListType::Lists => "[][]interface {}",
                ListType::Maintainers => "[]*chart.Maintainer",
                ListType::Dependencies => "[]*chart.Dependency",
                ListType::Versions => "chartutil.VersionSet",
            },
            Self::Map(map) => match map.ty {
                MapType::Any => "map[string]interface {}",
                MapType::Str => "map[string]string",
            },
            Self::Values(_) => "chartutil.Values",
            Self::Object(object) => object.type_name(),
        }
    }

    /// The map, whatever its type.
    pub(crate) fn as_map(&self) -> Option<&Rc<Map>> {
        match self {
            Self::Map(map) | Self::Values(map) => Some(map),
            _ => None,
        }
    }

    /// The bytes of a string or of a byte slice.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Str(text) => Some(text.as_bytes()),
            Self::Raw(bytes) | Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A nil interface that leaves a pipeline is no value at all.
    pub(crate) fn unwrap_interface(self) -> Self {
        if let Self::Nil = self { Self::Invalid } else { self }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(text.into())
    }
}

impl From<Arc<str>> for Value {
    fn from(text: Arc<str>) -> Self {
        Self::Str(text)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Self {
        Self::list(items)
    }
}
