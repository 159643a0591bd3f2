//! The figures of a run, and of several beside each other.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One request.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Row {
    /// Which conversation, or which line of a trace, from 1.
    pub conversation: usize,
    /// Which turn of it, from 1.
    pub turn: usize,
    /// Real milliseconds from the run's start to when it was sent.
    pub sent_ms: f64,
    /// Who served it, as far as headers tell.
    pub pod: Option<String>,
    /// What the router said it matched.
    pub matched: Option<String>,
    /// Prompt tokens by the server's count.
    pub prompt_tokens: usize,
    /// Prompt tokens that the server found in its cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Prompt tokens by this tool's own count, which is pod-sim's.
    pub own_tokens: usize,
    /// How many of those one infinite cache holds, that knows all requests answered before this one was sent.
    pub ideal_tokens: usize,
    /// The same for a cache that knows prompts from when they are sent: no router can get more hits.
    pub bound_tokens: usize,
    /// Milliseconds from before connecting to the first text.
    pub ttft_ms: f64,
    /// Milliseconds from before connecting to the end.
    pub total_ms: f64,
    /// What went wrong.
    pub error: Option<String>,
}

impl Row {
    /// Titles for the lines that rows print.
    pub const HEADING: &str = " conv turn  pod             matched       cached /  prompt          ttft";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [pod, matched] = [&self.pod, &self.matched].map(|text| text.as_deref().unwrap_or("-"));
        write!(f, "{:5} {:4}  {pod:15} {matched:12}", self.conversation, self.turn)?;
        match &self.error {
            Some(error) => write!(f, "  error: {error}"),
            None => {
                let share = percent(self.cached_tokens, self.prompt_tokens);
                write!(
                    f,
                    " {:7} / {:7} {share:3.0}% {:6.0} ms",
                    self.cached_tokens, self.prompt_tokens, self.ttft_ms
                )
            }
        }
    }
}

/// A run in figures. Requests that failed count as errors and nowhere else.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Totals {
    /// Requests answered.
    pub requests: usize,
    /// Requests that weren't.
    pub errors: usize,
    /// The run's length.
    pub seconds: f64,
    /// Sum of prompt tokens by the server's count.
    pub prompt_tokens: usize,
    /// Sum of those found in the cache.
    pub cached_tokens: usize,
    /// Sum of tokens generated.
    pub completion_tokens: usize,
    /// Cached tokens per prompt token.
    pub hit_share: f64,
    /// The same for one infinite cache that knows all requests answered before. It can be exceeded: a prompt that is
    /// under way may be hit already.
    pub ideal_share: f64,
    /// The same for one that knows all prompts sent before. It can't be exceeded.
    pub bound_share: f64,
    /// Time to first token in milliseconds: its mean,
    pub ttft_mean_ms: f64,
    /// its median,
    pub ttft_p50_ms: f64,
    /// and what 99 of 100 requests stay within.
    pub ttft_p99_ms: f64,
    /// Requests answered by each pod.
    pub pods: BTreeMap<String, usize>,
}

impl Totals {
    /// Adds up rows of a run that took so long.
    pub fn of(rows: &[Row], seconds: f64) -> Self {
        let good: Vec<&Row> = rows.iter().filter(|row| row.error.is_none()).collect();
        let sum = |of: fn(&Row) -> usize| good.iter().map(|row| of(row)).sum::<usize>();
        let share = |of: fn(&Row) -> usize, per: fn(&Row) -> usize| percent(sum(of), sum(per)) / 100.0;
        let mut ttft: Vec<f64> = good.iter().map(|row| row.ttft_ms).collect();
        ttft.sort_unstable_by(f64::total_cmp);
        let mut pods = BTreeMap::new();
        for row in &good {
            *pods.entry(row.pod.clone().unwrap_or_else(|| "-".into())).or_insert(0) += 1;
        }
        Self {
            requests: good.len(),
            errors: rows.len() - good.len(),
            seconds,
            prompt_tokens: sum(|row| row.prompt_tokens),
            cached_tokens: sum(|row| row.cached_tokens),
            completion_tokens: sum(|row| row.completion_tokens),
            hit_share: share(|row| row.cached_tokens, |row| row.prompt_tokens),
            ideal_share: share(|row| row.ideal_tokens, |row| row.own_tokens),
            bound_share: share(|row| row.bound_tokens, |row| row.own_tokens),
            ttft_mean_ms: ttft.iter().sum::<f64>() / ttft.len().max(1) as f64,
            ttft_p50_ms: percentile(&ttft, 50),
            ttft_p99_ms: percentile(&ttft, 99),
            pods,
        }
    }
}

/// A run: what was sent, how each request went, and the figures.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Summary {
    /// What the run is called in tables.
    pub label: String,
    /// The settings of the load.
    pub load: BTreeMap<String, Value>,
    /// The figures.
    pub totals: Totals,
    /// The requests in the order in which they ended.
    pub rows: Vec<Row>,
}

/// A table with a column for each run.
pub fn compare(runs: &[Summary]) -> String {
    type Cell = fn(&Totals) -> String;
    let lines: [(&str, Cell); 13] = [
        ("requests answered", |t| t.requests.to_string()),
        ("errors", |t| t.errors.to_string()),
        ("prompt tokens", |t| t.prompt_tokens.to_string()),
        ("found in cache", |t| t.cached_tokens.to_string()),
        ("hit share", |t| format!("{:.1} %", t.hit_share * 100.0)),
        ("ideal hit share", |t| format!("{:.1} %", t.ideal_share * 100.0)),
        ("  hits, of the ideal", |t| of(t.hit_share, t.ideal_share)),
        ("most possible", |t| format!("{:.1} %", t.bound_share * 100.0)),
        ("  hits, of the possible", |t| of(t.hit_share, t.bound_share)),
        ("TTFT mean", |t| format!("{:.1} ms", t.ttft_mean_ms)),
        ("TTFT p50", |t| format!("{:.1} ms", t.ttft_p50_ms)),
        ("TTFT p99", |t| format!("{:.1} ms", t.ttft_p99_ms)),
        ("duration", |t| format!("{:.1} s", t.seconds)),
    ];
    let pods: std::collections::BTreeSet<&String> =
        runs.iter().flat_map(|run| run.totals.pods.keys()).collect();
    let mut table = vec![("".to_owned(), runs.iter().map(|run| run.label.clone()).collect::<Vec<_>>())];
    for (name, cell) in lines {
        table.push((name.to_owned(), runs.iter().map(|run| cell(&run.totals)).collect()));
    }
    for pod in pods {
        let count = |run: &Summary| run.totals.pods.get(pod).copied().unwrap_or(0).to_string();
        table.push((format!("requests on {pod}"), runs.iter().map(count).collect()));
    }
    let title_width = table.iter().map(|(title, _)| title.chars().count()).max().unwrap_or(0);
    let width = table.iter().flat_map(|(_, cells)| cells).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (title, cells) in table {
        let _ = write!(out, "{title:title_width$}");
        for cell in cells {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
    }
    out
}

fn of(share: f64, whole: f64) -> String {
    if whole == 0.0 { "-".into() } else { format!("{:.1} %", share / whole * 100.0) }
}

/// The value that `percent` of 100 values don't exceed (nearest rank); 0 where there are none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(pod: &str, prompt: usize, cached: usize, ttft: f64) -> Row {
        Row {
            pod: Some(pod.into()),
            prompt_tokens: prompt,
            cached_tokens: cached,
            own_tokens: prompt,
            ideal_tokens: prompt / 2,
            ttft_ms: ttft,
            ..Row::default()
        }
    }

    #[test]
    fn failed_requests_count_as_errors_only() {
        let failed = Row { error: Some("x".into()), ..row("a", 1000, 1000, 1e9) };
        let totals = Totals::of(&[row("a", 100, 25, 10.0), failed, row("b", 300, 75, 30.0)], 2.0);
        assert_eq!((totals.requests, totals.errors), (2, 1));
        assert_eq!((totals.hit_share, totals.ideal_share), (0.25, 0.5));
        assert_eq!((totals.ttft_mean_ms, totals.ttft_p50_ms, totals.ttft_p99_ms), (20.0, 10.0, 30.0));
        assert_eq!(totals.pods, BTreeMap::from([("a".into(), 1), ("b".into(), 1)]));
    }

    #[test]
    fn a_table_has_a_column_for_each_run() {
        let run = |label: &str, rows: &[Row]| Summary {
            label: label.into(),
            load: BTreeMap::new(),
            totals: Totals::of(rows, 1.0),
            rows: rows.to_vec(),
        };
        let table =
            compare(&[run("round robin", &[row("a", 100, 10, 5.0)]), run("b", &[row("b", 100, 45, 5.0)])]);
        let line = |title: &str| {
            table.lines().find(|line| line.starts_with(title)).unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(line("  hits, of the ideal")[4..], ["20.0", "%", "90.0", "%"]);
        assert_eq!(line("requests on a")[3..], ["1", "0"]);
        assert_eq!(line("requests on b")[3..], ["0", "1"]);
        let widths: std::collections::BTreeSet<usize> =
            table.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths.len(), 1, "the columns are aligned:\n{table}");
    }

    proptest! {
        #[test]
        fn a_percentile_is_the_least_value_that_so_many_stay_within(
            mut values in proptest::collection::vec(0u32..50, 1..300), share in 1usize..=100,
        ) {
            values.sort_unstable();
            let sorted: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
            let enough = |limit: f64| sorted.iter().filter(|value| **value <= limit).count() * 100 >= share * sorted.len();
            let expected = sorted.iter().copied().find(|value| enough(*value)).unwrap();
            prop_assert_eq!(percentile(&sorted, share), expected);
        }
    }
}
