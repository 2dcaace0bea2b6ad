//! The results as tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::results::{Contestant, Results};
use crate::peak::Arithmetic;
use crate::spread::Spread;

/// The width of a column of numbers.
const WIDE: usize = 24;

/// All measurements, by subject.
pub(super) fn table(results: &Results) -> String {
    let mut text = head(results);
    let position = results.position;
    let mut speeds = Columns::new(results);
    speeds.add("of bus", |c| share(c.bus_shares(position)));
    for (at, title) in points(results, |c| &c.decode, |at| format!("decode at {at}")) {
        speeds.insert_before_last(&title, move |c| rate(&c.decode, at));
    }
    section(&mut text, "Decoding one sequence, tokens a second, by the tokens that it has", &speeds);

    let mut batches = Columns::new(results);
    for (at, title) in points(results, |c| &c.batch, |at| format!("{at} sequences")) {
        batches.add(&title, move |c| rate(&c.batch, at));
    }
    section(&mut text, "Decoding several sequences together, tokens a second of all", &batches);

    let mut prefills = Columns::new(results);
    for (at, title) in points(results, |c| &c.prefill, |at| format!("prefill of {at}")) {
        prefills.add(&title, move |c| rate(&c.prefill, at));
    }
    if let Some((at, _)) = points(results, |c| &c.prefill, |_| String::new()).last() {
        prefills.add(&format!("of peak at {at}"), |c| share(results.peak_shares(c, *at)));
    }
    section(
        &mut text,
        "Reading a prompt, tokens a second, and the part of the arithmetic peak that products with weights reach",
        &prefills,
    );

    let mut loading = Columns::new(results);
    loading.add("load, s", |c| Spread::of(&c.load).to_string());
    loading.add("plain copy, s", |c| Spread::of(&c.copy).to_string());
    loading.add("cold compile, s", |c| c.cold_compile.map_or("-".to_owned(), |s| format!("{s:.1}")));
    loading.add("private, GB", |c| gigabytes(Spread::of(&c.private).median));
    loading.add("mapped, GB", |c| gigabytes(Spread::of(&c.mapped).median));
    loading.add("weights, GB", |c| gigabytes(c.weight_bytes + c.unread_bytes));
    loading.add("KV, GB", |c| gigabytes(c.kv_bytes.unwrap_or(f64::NAN)));
    section(&mut text, "Loading, with files and programs cached, and memory after decoding", &loading);

    let mut errors = Columns::new(results);
    errors.add("to exact", |c| error(c.error));
    errors.add("to exact bf16", |c| error(c.error_to_bf16));
    errors.add("most likely token", |c| match c.same_token {
        Some(true) => "the same".to_owned(),
        Some(false) => "another".to_owned(),
        None => "-".to_owned(),
    });
    section(
        &mut text,
        "Error of logits (root mean square, of theirs): to mlxcel's exact precision with the same weights, and with bf16 weights",
        &errors,
    );
    for contestant in results.contestants.iter().filter(|c| !c.ours() && !c.notes.is_empty()) {
        line(&mut text, &format!("{}: {}", contestant.name, contestant.notes));
    }
    for contestant in results.contestants.iter().filter(|c| c.warm_compile > 0.0) {
        line(
            &mut text,
            &format!("{} compiled for {:.1} s in the rounds", contestant.name, contestant.warm_compile),
        );
    }
    for (name, reason) in &results.absent {
        line(&mut text, &format!("not measured: {name}: {reason}"));
    }
    text
}

fn head(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = String::new();
    line(
        &mut text,
        &format!(
            "{} shapes, random weights, on {} ({} cores, {}; {}), {} threads",
            results.model,
            machine.processor,
            machine.cores,
            machine.instructions.join(" "),
            machine.system,
            results.threads
        ),
    );
    if let Some(remark) = &results.remark {
        line(&mut text, &format!("({remark})"));
    }
    let versions: Vec<String> =
        results.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let memory = Spread::of(&results.memory).scaled(1e-9);
    line(&mut text, &format!("{}; memory reads {memory} GB/s", versions.join(", ")));
    let peaks: Vec<String> =
        [("float32", Arithmetic::Floats), ("bfloat16", Arithmetic::Halves), ("8-bit", Arithmetic::Bytes)]
            .into_iter()
            .filter_map(|(name, arithmetic)| {
                let of = results.contestants.iter().filter(|c| c.arithmetic == Some(arithmetic));
                let samples: Vec<f64> = of.flat_map(|c| c.peak.iter().copied()).collect();
                (!samples.is_empty()).then(|| format!("{name} {}", Spread::of(&samples).scaled(1e-9)))
            })
            .collect();
    if !peaks.is_empty() {
        line(&mut text, &format!("arithmetic peak, 10⁹ multiply-adds a second: {}", peaks.join(", ")));
    }
    line(&mut text, &format!("median (least to most) of {} rounds", results.rounds));
    text
}

/// Every point with samples of any contestant, and its title.
fn points(
    results: &Results,
    of: fn(&Contestant) -> &BTreeMap<usize, Vec<f64>>,
    title: impl Fn(usize) -> String,
) -> Vec<(usize, String)> {
    let mut points: Vec<usize> =
        results.contestants.iter().flat_map(|contestant| of(contestant).keys().copied()).collect();
    points.sort_unstable();
    points.dedup();
    points.into_iter().map(|at| (at, title(at))).collect()
}

fn rate(of: &BTreeMap<usize, Vec<f64>>, at: usize) -> String {
    of.get(&at).map_or("-".to_owned(), |samples| Spread::of(samples).to_string())
}

fn share(spread: Spread) -> String {
    if spread.median.is_nan() { "-".to_owned() } else { format!("{:.0} %", 100.0 * spread.median) }
}

fn gigabytes(bytes: f64) -> String {
    if bytes.is_nan() { "-".to_owned() } else { format!("{:.2}", 1e-9 * bytes) }
}

fn error(error: Option<f64>) -> String {
    error.map_or("-".to_owned(), |error| format!("{error:.1e}"))
}

fn line(text: &mut String, words: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{words}");
}

/// A table with a line per contestant.
struct Columns<'a> {
    results: &'a Results,
    titles: Vec<String>,
    columns: Vec<Vec<String>>,
}

impl<'a> Columns<'a> {
    fn new(results: &'a Results) -> Self {
        Self { results, titles: Vec::new(), columns: Vec::new() }
    }

    fn add(&mut self, title: &str, cell: impl Fn(&Contestant) -> String) {
        self.titles.push(title.to_owned());
        self.columns.push(self.results.contestants.iter().map(cell).collect());
    }

    fn insert_before_last(&mut self, title: &str, cell: impl Fn(&Contestant) -> String) {
        self.add(title, cell);
        let last = self.titles.len() - 1;
        self.titles.swap(last - 1, last);
        self.columns.swap(last - 1, last);
    }
}

fn section(text: &mut String, title: &str, columns: &Columns<'_>) {
    if columns.titles.is_empty() {
        return;
    }
    let widths: Vec<usize> = columns
        .titles
        .iter()
        .zip(&columns.columns)
        .map(|(title, cells)| {
            let widest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            title.chars().count().max(widest) + 2
        })
        .collect();
    line(text, &format!("\n{title}"));
    let row = |name: &str, cells: &mut dyn Iterator<Item = &String>| {
        let cells: String = cells.zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        format!("{name:<WIDE$}{cells}")
    };
    line(text, &row("", &mut columns.titles.iter()));
    for (index, contestant) in columns.results.contestants.iter().enumerate() {
        line(text, &row(&contestant.name, &mut columns.columns.iter().map(|cells| &cells[index])));
    }
}
