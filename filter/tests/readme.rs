//! The README's generated parts are those that the code gives. `WARMPATH_BLESS=1 cargo test -p warmpath --test readme`
//! writes them anew.

use std::fmt::Write as _;
use std::path::Path;
use warmpath::host::MetricKind;
use warmpath::metrics::METRICS;
use warmpath::pipeline;

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
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let current = with(&with(&text, "metrics", &metrics()), "parts", &pipeline::reference());
    if std::env::var_os("WARMPATH_BLESS").is_some() {
        std::fs::write(&file, &current).unwrap();
    }
    let stale = "README.md is not what the code gives: WARMPATH_BLESS=1 cargo test -p warmpath --test readme";
    assert!(text == current || std::env::var_os("WARMPATH_BLESS").is_some(), "{stale}");
}
