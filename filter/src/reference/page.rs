//! The reference as a page of Markdown: each object of the configuration with its fields in a table, the parts by stage, the
//! protocols, and the built-in profiles.

use super::node::{Field, Kind, Node};
use super::schema::schema;
use crate::pipeline::part::Stage;
use crate::pipeline::{BUILT_IN, SlotId, registry};
use std::fmt::Write;

const INTRO: &str = "\
# Configuration

Everything that the filter's configuration may say. It is one JSON object; unknown fields are refused, and every mistake is named with its
path and its cure (`warmpath check FILE`). `null` is as if the field weren't there, except where its meaning says otherwise.

This page and [`warmpath.schema.json`](warmpath.schema.json), by which editors check and complete a configuration, are made from the types that
read it; change those, and then `WARMPATH_BLESS=1 cargo test -p warmpath --test reference`. `cargo run -p warmpath -- reference` prints this
page, `schema` the other. [How to configure it](../README.md#configure-it), and [examples](../examples).

## The whole
";

const PARTS: &str = "
## Parts

What a profile is made of. To add a scorer, write one file in `filter/src/pipeline/scorers/` with a type that implements `Part` (its name, the
slots it reads) and `Score`, and add its line to `filter/src/pipeline/registry.rs`. [`in_flight.rs`](src/pipeline/scorers/in_flight.rs) is a
good one to start from. Its fields, their docs and their ranges are those of the type; checks, this page and the schema follow from it.
";

/// Lists of parts: where they stand, what they are called, what they do.
const LISTS: [(&str, &str, &str, Option<Stage>); 5] = [
    (
        "profiles.*.prepare[]",
        "Preparations",
        "Read the request and the index into slots.",
        Some(Stage::Prepare),
    ),
    ("profiles.*.filters[]", "Filters", "Take pods out.", Some(Stage::Filter)),
    ("profiles.*.scorers[]", "Scorers", "Rate each pod between 0 and 1.", Some(Stage::Score)),
    ("profiles.*.picker", "Pickers", "Choose one pod and the order of fallbacks.", Some(Stage::Pick)),
    ("workflows.*.protocol", "Protocols", "Hand KV over between the pods of a workflow.", None),
];

/// The whole reference in Markdown.
pub fn page() -> String {
    let schema = schema();
    let mut page = Page { out: INTRO.to_owned(), lists: Vec::new() };
    if let Some(root) = Node::new(&schema, String::new()) {
        page.object(&root);
    }
    page.out.push_str(PARTS);
    for list in std::mem::take(&mut page.lists) {
        page.list(&list);
    }
    page.out.push_str("\n## Built-in profiles\n");
    for profile in BUILT_IN {
        let _ = writeln!(
            page.out,
            "\n### `{}`\n\n{}\n\n```json\n{}\n```",
            profile.name, profile.doc, profile.json
        );
    }
    page.out
}

struct Page<'a> {
    out: String,
    /// Lists of parts that were met, for later.
    lists: Vec<Node<'a>>,
}

impl<'a> Page<'a> {
    /// An object's table, and then those of the objects in it.
    fn object(&mut self, node: &Node<'a>) {
        let Kind::Object(fields) = node.kind() else { return };
        if !node.path.is_empty() {
            let _ = writeln!(self.out, "\n### {}", title(node));
        }
        let _ = writeln!(
            self.out,
            "\n{}\n\n| field | type | default | meaning |\n|---|---|---|---|",
            node.description()
        );
        for field in &fields {
            let (name, kind, default, meaning) = cells(field);
            let _ = writeln!(self.out, "| `{name}` | {kind} | {default} | {meaning} |");
        }
        for field in fields {
            self.inside(field.node);
        }
    }

    fn inside(&mut self, node: Node<'a>) {
        match node.kind() {
            Kind::Object(_) => self.object(&node),
            Kind::Typed(_) => self.lists.push(node),
            Kind::List(inner) | Kind::Values(inner) => self.inside(inner),
            Kind::Choice(_) | Kind::Constant(_) | Kind::Scalar(_) => {}
        }
    }

    /// A table of parts or protocols.
    fn list(&mut self, node: &Node<'a>) {
        let Kind::Typed(parts) = node.kind() else { return };
        let parts: Vec<_> = parts.into_iter().map(|(name, part)| (name, own_fields(&part), part)).collect();
        let common = common(parts.iter().map(|(_, fields, _)| fields.as_slice()));
        let is_common = |field: &&Field<'_>| common.iter().any(|one| one.name == field.name);
        let about = about(node);
        let (intro, stage) = about.map_or(("", None), |(_, _, intro, stage)| (*intro, *stage));
        let _ = writeln!(self.out, "\n### {}\n\n{intro}\n", title(node));
        if !common.is_empty() {
            let common: Vec<_> = common.iter().map(|field| format!("- {}\n", line(field))).collect();
            let _ = writeln!(self.out, "Each also has:\n\n{}", common.concat());
        }
        let slots = if stage.is_some() { [" reads | writes |", "---|---|"] } else { ["", ""] };
        let _ = writeln!(self.out, "| type | what it is | fields |{}\n|---|---|---|{}", slots[0], slots[1]);
        for (name, fields, part) in &parts {
            let fields: Vec<_> = fields.iter().filter(|field| !is_common(field)).map(line).collect();
            let _ = write!(self.out, "| `{name}` | {} | {} |", part.description(), fields.join("<br>"));
            if let Some(entry) = stage.and_then(|stage| registry::find(stage, name)) {
                let _ = write!(self.out, " {} | {} |", names(entry.reads), names(entry.writes));
            }
            self.out.push('\n');
        }
    }
}

/// A part's fields but for its `type`.
fn own_fields<'a>(part: &Node<'a>) -> Vec<Field<'a>> {
    let Kind::Object(mut fields) = part.kind() else { return Vec::new() };
    fields.retain(|field| field.name != "type");
    fields
}

/// Fields that all parts of a list have.
fn common<'a, 'n>(mut parts: impl Iterator<Item = &'n [Field<'a>]>) -> Vec<Field<'a>>
where
    'a: 'n,
{
    let mut common = parts.next().unwrap_or_default().to_vec();
    for fields in parts {
        let is_like =
            |one: &Field<'_>, other: &Field<'_>| one.name == other.name && one.node.is_like(&other.node);
        common.retain(|one| fields.iter().any(|other| is_like(one, other)));
    }
    common
}

/// A field's name, type, default and meaning.
fn cells<'a>(field: &Field<'a>) -> (&'a str, String, String, String) {
    let default = if field.required { "required".to_owned() } else { field.node.default() };
    let meaning = format!("{}{}", field.node.description(), field.node.choices());
    (field.name, field.node.words(&link), default, meaning)
}

/// A field of a part, on one line.
fn line(field: &Field<'_>) -> String {
    let (name, kind, default, meaning) = cells(field);
    let default = if field.required { default } else { format!("default {default}") };
    format!("`{name}` ({kind}; {default}): {meaning}")
}

fn about(node: &Node<'_>) -> Option<&'static (&'static str, &'static str, &'static str, Option<Stage>)> {
    LISTS.iter().find(|(path, ..)| *path == node.path)
}

fn title(node: &Node<'_>) -> String {
    match about(node) {
        Some((path, title, ..)) => format!("{title}: `{path}`"),
        None => format!("`{}`", node.path),
    }
}

fn link(node: &Node<'_>) -> String {
    // As GitHub makes anchors of titles.
    let anchor = title(node).to_lowercase().replace(' ', "-");
    let anchor: String = anchor.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
    let text = about(node).map_or(format!("`{}`", node.path), |(_, title, ..)| title.to_lowercase());
    let one_of = if about(node).is_some() && !node.path.ends_with("[]") { "one of the " } else { "" };
    format!("{one_of}[{text}](#{anchor})")
}

fn names(slots: &[SlotId]) -> String {
    slots.iter().map(|slot| slot.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_link_has_its_title() {
        let page = page();
        let titles: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        let anchor =
            |title: &str| title.to_lowercase().replace(' ', "-").replace(['`', '[', ']', '.', '*', ':'], "");
        let anchors: BTreeSet<_> = titles.iter().map(|title| anchor(title)).collect();
        assert_eq!(anchors.len(), titles.len(), "two titles have one anchor");
        let links: Vec<_> = page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        assert!(links.len() > 20, "{links:?}");
        for link in links {
            assert!(anchors.contains(link), "{link} leads nowhere");
        }
    }

    #[test]
    fn every_list_of_parts_has_a_name() {
        for (path, title, ..) in LISTS {
            assert!(page().contains(&format!("\n### {title}: `{path}`\n")), "{path}");
        }
    }
}
