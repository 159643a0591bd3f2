//! What is generated is what the code gives: the README's metrics, CONFIGURATION.md, and the schema of configurations.
//! `WARMPATH_BLESS=1 cargo test -p warmpath --test reference` writes them anew.

use std::fmt::Write as _;
use std::path::Path;
use warmpath::host::MetricKind;
use warmpath::metrics::METRICS;
use warmpath::reference;

/// Compares a file, which is named from this crate's folder, with what it should be made into.
fn is_current(file: &str, made: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let current = made(&text);
    if std::env::var_os("WARMPATH_BLESS").is_some() {
        std::fs::write(&path, &current).unwrap();
        return;
    }
    let cure = "WARMPATH_BLESS=1 cargo test -p warmpath --test reference";
    assert!(text == current, "{file} is not what the code gives: {cure}");
}

fn metrics() -> String {
    let mut table = "| name | kind | meaning |\n|---|---|---|\n".to_owned();
    for (kind, name, doc) in METRICS {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let name = name.trim_start_matches("warmpath.");
        writeln!(table, "| `{name}` | {kind} | {doc} |").unwrap();
    }
    table
}

/// The text with what stands between the markers of `section` replaced.
fn with(text: &str, section: &str, content: &str) -> String {
    let (open, close) = (format!("<!-- {section} -->\n"), format!("<!-- /{section} -->"));
    let (before, rest) = text.split_once(&open).unwrap_or_else(|| panic!("README.md has no {open}"));
    let (_, after) = rest.split_once(&close).unwrap_or_else(|| panic!("README.md has no {close}"));
    format!("{before}{open}\n{}\n\n{close}{after}", content.trim())
}

#[test]
fn the_readme_is_current() {
    is_current("../README.md", |text| with(text, "metrics", &metrics()));
}

#[test]
fn the_reference_is_current() {
    is_current("CONFIGURATION.md", |_| reference::page());
}

#[test]
fn the_schema_is_current() {
    is_current("warmpath.schema.json", |_| format!("{:#}\n", reference::schema()));
}
