//! The reference of parts and profiles, made from the registry: what the documentation says is what the code does.

use super::builtin::BUILT_IN;
use super::part::{Field, Stage};
use super::registry::{Entry, REGISTRY};
use super::slots::SlotId;
use crate::workflow::protocol::PROTOCOLS;
use std::fmt::Write;

/// What the profile itself reads of a part's configuration.
const STRICT: Field = Field {
    name: "strict",
    kind: "true or false",
    default: "`false`",
    doc: "If the filter leaves nobody: refuse the request with 503 (`true`), or go on as if the filter weren't there, \
          and count it (`false`).",
};
const WEIGHT: Field = Field {
    name: "weight",
    kind: "number",
    default: "`1`",
    doc: "Factor of the score in the sum, 0 to 1000.",
};

/// Markdown: each stage with its parts in a table, then the built-in profiles.
pub fn reference() -> String {
    let mut out = String::new();
    for (stage, title, intro, common) in [
        (Stage::Prepare, "Preparations", "Read the request and the index into slots.", None),
        (Stage::Filter, "Filters", "Take pods out. Each also has:", Some(&STRICT)),
        (Stage::Score, "Scorers", "Rate each pod between 0 and 1. Each also has:", Some(&WEIGHT)),
        (Stage::Pick, "Pickers", "Choose one pod and the order of fallbacks.", None),
    ] {
        let _ = writeln!(out, "### {title} (`{}`)\n\n{intro}\n", stage.field());
        if let Some(field) = common {
            let _ = writeln!(out, "- {}\n", describe(field));
        }
        out.push_str("| type | what it does | configuration | reads | writes |\n|---|---|---|---|---|\n");
        for entry in REGISTRY.iter().filter(|entry| entry.stage == stage) {
            row(&mut out, entry);
        }
        out.push('\n');
    }
    out.push_str(
        "### Protocols (`workflows.*.protocol`)\n\nHand KV over between the pods of a workflow.\n\n",
    );
    out.push_str("| type | what it is | configuration |\n|---|---|---|\n");
    for entry in PROTOCOLS {
        let fields: Vec<_> = entry.fields.iter().map(describe).collect();
        let _ = writeln!(out, "| `{}` | {} | {} |", entry.name, entry.doc, fields.join("<br>"));
    }
    out.push_str("\n### Built-in profiles\n");
    for profile in BUILT_IN {
        let _ = writeln!(out, "\n**`{}`**: {}\n\n```json\n{}\n```", profile.name, profile.doc, profile.json);
    }
    out
}

fn row(out: &mut String, entry: &Entry) {
    let fields: Vec<_> = entry.fields.iter().map(describe).collect();
    let _ = writeln!(
        out,
        "| `{}` | {} | {} | {} | {} |",
        entry.name,
        entry.doc,
        fields.join("<br>"),
        slots(entry.reads),
        slots(entry.writes)
    );
}

fn describe(field: &Field) -> String {
    let default =
        if field.default.is_empty() { "required".to_owned() } else { format!("default {}", field.default) };
    format!("`{}` ({}; {default}): {}", field.name, field.kind, field.doc)
}

fn slots(slots: &[SlotId]) -> String {
    slots.iter().map(|slot| slot.name()).collect::<Vec<_>>().join(", ")
}
