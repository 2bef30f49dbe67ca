//! Which subcharts are enabled, under which name, and which of their values are imported.
//!
//! Helm changes its charts in place here; the tree of [`Node`]s is what it would change. Nodes are shared where Helm
//! shares charts: two aliases of one chart have the same grandchildren.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use serde_json::Value as Json;

use super::HelmVersion;
use super::error::{LEFT_OUT, RenderError, Told};
use super::go_template::functions::dict::deep_copy;
use super::go_template::json::from_json;
use super::go_template::value::{Map, Value};
use super::load::Chart;
use super::metadata::Dependency;
use super::misfit::{Misfit, Misfits, Place};
use super::values::{Merging, at_path, coalesce_globals, coalesce_tables, coalesce_values, new_map, path_value, table};
use super::version::is_compatible;

/// A chart at its place in the tree.
pub(crate) struct Node<'a> {
    pub(crate) chart: &'a Chart,
    /// The alias, if it has one.
    pub(crate) name: String,
    /// Shared by all aliases of the chart.
    pub(crate) wanted: RefCell<Vec<Rc<Wanted>>>,
    /// Defaults that imports changed, or that are not the chart's first document.
    values: RefCell<Option<Rc<Map>>>,
    pub(crate) children: RefCell<Vec<Rc<Node<'a>>>>,
    pub(crate) parent: RefCell<Weak<Node<'a>>>,
    /// What it was copied from, which stays the parent of the subcharts that both share.
    _original: Option<Rc<Node<'a>>>,
}

/// A line of `dependencies`.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) dependency: Dependency,
    /// Becomes the alias.
    pub(crate) name: RefCell<String>,
    enabled: RefCell<bool>,
    /// Whether its values were imported: Helm writes out what is to be imported, and does not read again what it wrote, so that of
    /// those that share a line the first one imports.
    imported: RefCell<bool>,
}

impl<'a> Node<'a> {
    /// The tree as it is on disk.
    pub(crate) fn new(chart: &'a Chart, helm: HelmVersion) -> Result<Rc<Self>, RenderError> {
        let values = match chart.all_values.as_deref().filter(|_| helm == HelmVersion::V4) {
            Some(Ok(values)) => Some(as_map(values)),
            Some(Err(error)) => return Err(RenderError::Values(Told::bare(error.to_string()))),
            None => None,
        };
        let wanted = chart.metadata.dependencies.iter().map(|dependency| {
            Rc::new(Wanted {
                dependency: dependency.clone(),
                name: RefCell::new(dependency.name.clone()),
                enabled: RefCell::new(true),
                imported: RefCell::new(false),
            })
        });
        let node = Rc::new(Self {
            chart,
            name: chart.name().to_owned(),
            wanted: RefCell::new(wanted.collect()),
            values: RefCell::new(values),
            children: RefCell::new(Vec::new()),
            parent: RefCell::new(Weak::new()),
            _original: None,
        });
        node.adopt(chart.dependencies().map(|child| Self::new(child, helm)).collect::<Result<_, _>>()?);
        Ok(node)
    }

    fn adopt(self: &Rc<Self>, children: Vec<Rc<Self>>) {
        for child in &children {
            *child.parent.borrow_mut() = Rc::downgrade(self);
        }
        *self.children.borrow_mut() = children;
    }

    pub(crate) fn children(&self) -> Vec<Rc<Self>> {
        self.children.borrow().clone()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent.borrow().upgrade().is_none()
    }

    /// `parent/charts/child`
    pub(crate) fn path(&self) -> String {
        match self.parent.borrow().upgrade() {
            Some(parent) => format!("{}/charts/{}", parent.path(), self.name),
            None => self.name.clone(),
        }
    }

    /// A copy of the defaults that may be changed.
    fn defaults(&self) -> Rc<Map> {
        let changed = self.values.borrow().as_ref().and_then(|map| deep_copy(&Value::Map(map.clone())));
        if let Some(Value::Map(map)) = changed { map } else { Rc::new(Map::shared(self.chart.defaults.clone())) }
    }

    /// This chart under another name, as Helm copies it. With Helm 3 wishes and subcharts stay shared; Helm 4 copies
    /// them one level deep.
    fn alias(self: &Rc<Self>, name: &str, helm: HelmVersion) -> Rc<Self> {
        let (wanted, children) = (self.wanted.borrow().clone(), self.children());
        let copied = helm == HelmVersion::V4;
        let wanted = if copied { wanted.iter().map(|wanted| Rc::new(Wanted::clone(wanted))).collect() } else { wanted };
        let alias = Rc::new(Self {
            chart: self.chart,
            name: name.to_owned(),
            wanted: RefCell::new(wanted),
            values: RefCell::new(self.values.borrow().clone()),
            children: RefCell::new(children),
            parent: RefCell::new(self.parent.borrow().clone()),
            _original: Some(Rc::clone(self)),
        });
        if copied {
            alias.adopt(alias.children().iter().map(Node::copy).collect());
        }
        alias
    }

    /// A copy that shares wishes and subcharts.
    fn copy(self: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self {
            chart: self.chart,
            name: self.name.clone(),
            wanted: RefCell::new(self.wanted.borrow().clone()),
            values: RefCell::new(self.values.borrow().clone()),
            children: RefCell::new(self.children()),
            parent: RefCell::new(self.parent.borrow().clone()),
            _original: Some(Rc::clone(self)),
        })
    }

    fn fits(&self, wanted: &Wanted) -> bool {
        self.name == *wanted.name.borrow() && is_compatible(&wanted.dependency.version, self.chart.version())
    }
}

fn as_map(values: &serde_json::Map<String, Json>) -> Rc<Map> {
    let map = new_map();
    for (key, value) in values {
        map.insert(key.as_str().into(), from_json(value));
    }
    map
}

/// The charts that `Chart.yaml` names and `charts/` lacks.
pub(super) fn missing(chart: &Chart) -> Vec<String> {
    chart.missing_dependencies().map(|dependency| dependency.name.clone()).collect()
}

/// Merges the values for a chart and its subcharts. `values` is changed.
pub(super) fn coalesce(node: &Node<'_>, values: &Rc<Map>, merging: Merging) -> Result<(), RenderError> {
    coalesce_at(node, values, merging, Place::ROOT, &mut Misfits::new())
}

/// As [`coalesce`]; `values` are at `place`, and what does not fit is put down.
pub(super) fn coalesce_at(
    node: &Node<'_>,
    values: &Rc<Map>,
    merging: Merging,
    place: Place<'_>,
    misfits: &mut Misfits,
) -> Result<(), RenderError> {
    let children = node.children();
    let names: Vec<String> = children.iter().map(|child| child.name.clone()).collect();
    coalesce_values(&node.defaults(), values, &names, merging, place, misfits);
    for child in children {
        let own = match values.get(&child.name) {
            None => {
                let own = new_map();
                values.insert(child.name.as_str().into(), Value::Map(own.clone()));
                own
            }
            Some(Value::Map(own)) => own,
            Some(other) => {
                let found = super::go_template::print::text(&other);
                let place = format!("type mismatch on {}", child.name);
                let bare = format!("{place}: a map is wanted, and the value is {LEFT_OUT}");
                return Err(RenderError::Values(Told::new(format!("{place}: {found}"), bare)));
            }
        };
        coalesce_globals(&own, values, place, &child.name, misfits);
        coalesce_at(&child, &own, merging, place.at(&child.name), misfits)?;
    }
    Ok(())
}

fn copied(values: &Rc<Map>) -> Rc<Map> {
    match deep_copy(&Value::Map(values.clone())) {
        Some(Value::Map(copy)) => copy,
        _ => new_map(),
    }
}

/// Removes what conditions and tags disable, and gives the rest its alias. `path` leads to the chart, with a dot.
pub(super) fn process_enabled(
    node: &Rc<Node<'_>>,
    values: &Rc<Map>,
    path: &str,
    helm: HelmVersion,
    misfits: &mut Misfits,
) -> Result<(), RenderError> {
    let wanted = node.wanted.borrow().clone();
    if wanted.is_empty() {
        return Ok(());
    }
    let on_disk = node.children();
    let mut children: Vec<_> =
        on_disk.iter().filter(|child| !wanted.iter().any(|wanted| child.fits(wanted))).cloned().collect();
    for wanted in &wanted {
        let alias = &wanted.dependency.alias;
        if let Some(child) = on_disk.iter().find(|child| child.fits(wanted)) {
            let name = if alias.is_empty() { &child.name } else { alias };
            children.push(child.alias(name, helm));
        }
        if !alias.is_empty() {
            wanted.name.borrow_mut().clone_from(alias);
        }
        *wanted.enabled.borrow_mut() = true;
    }
    node.adopt(children);
    let merged = copied(values);
    coalesce(node, &merged, Merging { merge: false, helm })?;
    apply_tags(&wanted, &merged, misfits);
    apply_conditions(&wanted, &merged, path, misfits);
    let disabled: Vec<String> =
        wanted.iter().filter(|wanted| !*wanted.enabled.borrow()).map(|wanted| wanted.name.borrow().clone()).collect();
    let children: Vec<_> = node.children().into_iter().filter(|child| !disabled.contains(&child.name)).collect();
    for child in &children {
        process_enabled(child, &merged, &format!("{path}{}.", child.name), helm, misfits)?;
    }
    *node.wanted.borrow_mut() =
        wanted.into_iter().filter(|wanted| !disabled.contains(&*wanted.name.borrow())).collect();
    node.adopt(children);
    Ok(())
}

fn apply_tags(wanted: &[Rc<Wanted>], values: &Rc<Map>, misfits: &mut Misfits) {
    let Some(tags) = table(values, "tags") else { return };
    for wanted in wanted {
        let switches = wanted.dependency.tags.iter().filter_map(|tag| match tags.get(tag)? {
            Value::Bool(value) => Some(value),
            Value::Nil | Value::Invalid => None,
            _ => {
                misfits.insert(Misfit::Tag { tag: tag.clone(), chart: wanted.name.borrow().clone() });
                None
            }
        });
        let switches: Vec<bool> = switches.collect();
        *wanted.enabled.borrow_mut() = switches.is_empty() || switches.contains(&true);
    }
}

fn apply_conditions(wanted: &[Rc<Wanted>], values: &Rc<Map>, path: &str, misfits: &mut Misfits) {
    for wanted in wanted {
        for condition in wanted.dependency.condition.trim().split(',').filter(|condition| !condition.is_empty()) {
            let path = format!("{path}{condition}");
            match path_value(values, &path) {
                Some(Value::Bool(value)) => {
                    *wanted.enabled.borrow_mut() = value;
                    break;
                }
                None | Some(Value::Nil | Value::Invalid) => {}
                Some(_) => {
                    misfits.insert(Misfit::Condition { path, chart: wanted.name.borrow().clone() });
                }
            }
        }
    }
}

/// Takes values of subcharts over into their parents' defaults.
pub(super) fn process_imports(
    node: &Rc<Node<'_>>,
    place: Place<'_>,
    helm: HelmVersion,
    misfits: &mut Misfits,
) -> Result<(), RenderError> {
    for child in node.children() {
        process_imports(&child, place.at(&child.name), helm, misfits)?;
    }
    let wanted = node.wanted.borrow().clone();
    if wanted.is_empty() {
        return Ok(());
    }
    let merged = new_map();
    coalesce(node, &merged, Merging { merge: true, helm })?;
    let imported = new_map();
    for wanted in wanted.iter().filter(|wanted| !wanted.imported.replace(true)) {
        let name = wanted.name.borrow();
        for import in &wanted.dependency.import_values {
            let Some((child, parent)) = import_paths(import) else { continue };
            let from = format!("{name}.{child}");
            match table(&merged, &from) {
                Some(found) => coalesce_tables(&imported, &at_path(&parent, found), true),
                None => _ = misfits.insert(Misfit::Import { path: place.at(&from).path(), chart: name.clone() }),
            }
        }
    }
    let defaults = copied(&merged);
    coalesce_tables(&defaults, &imported, true);
    *node.values.borrow_mut() = Some(defaults);
    Ok(())
}

/// From where in a subchart's values to where in its parent's an entry of `import-values` leads.
pub(super) fn import_paths(import: &Json) -> Option<(String, String)> {
    match import {
        Json::String(name) => Some((format!("exports.{name}"), ".".to_owned())),
        Json::Object(map) => Some((printed(map.get("child")), printed(map.get("parent")))),
        _ => None,
    }
}

fn printed(json: Option<&Json>) -> String {
    super::go_template::print::text(&json.map_or(Value::Nil, from_json))
}
