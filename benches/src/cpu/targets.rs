//! The engine's performance targets relative to other programs, and whether it reaches them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::results::{Contestant, Program, Results};
use crate::spread::Spread;

/// One line: the measurement, its target, and its value.
#[derive(Debug)]
struct Target {
    what: String,
    measured: f64,
    wanted: Wanted,
    aim: String,
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    AtLeast(f64, Unit),
    AtMost(f64, Unit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Times,
    Percent,
    Seconds,
}

impl Unit {
    fn say(self, value: f64) -> String {
        match self {
            Self::Times => format!("{value:.2} x"),
            Self::Percent => format!("{:.0} %", 100.0 * value),
            Self::Seconds => format!("{value:.1} s"),
        }
    }
}

/// The table, and where other programs are faster.
pub(super) fn table(results: &Results) -> String {
    let mut text = String::from("Targets\n");
    // Writing to a string does not fail.
    let _ = writeln!(text, "{:<58}{:>10}{:>22}{:>9}  aim", "", "measured", "wanted", "");
    for target in targets(results).into_iter().filter(|target| !target.measured.is_nan()) {
        let (wanted, met, unit) = match target.wanted {
            Wanted::AtLeast(least, unit) => {
                (format!("at least {}", unit.say(least)), target.measured >= least, unit)
            }
            Wanted::AtMost(most, unit) => {
                (format!("at most {}", unit.say(most)), target.measured <= most, unit)
            }
        };
        let (measured, met) = (unit.say(target.measured), if met { "met" } else { "NOT MET" });
        let _ = writeln!(text, "{:<58}{measured:>10}{wanted:>22}{met:>9}  {}", target.what, target.aim);
    }
    let faster = faster(results);
    if !faster.is_empty() {
        let _ = writeln!(text, "\nWhere another program is faster than mlxcel at native precision:");
        for line in faster {
            let _ = writeln!(text, "- {line}");
        }
    }
    text
}

fn targets<'a>(results: &'a Results) -> Vec<Target> {
    use Unit::{Percent, Seconds, Times};
    use Wanted::{AtLeast, AtMost};

    let ours = |weights| results.find(Program::Iree, weights, Some("native"));
    let theirs = |weights| results.find(Program::LlamaCpp, weights, None);
    let position = results.position;
    let decode = |c: Option<&Contestant>, at| c.map_or(f64::NAN, |c| Contestant::median(&c.decode, at));
    let mut targets = Vec::new();
    let mut add = |what: String, measured: f64, wanted: Wanted, aim: &str| {
        targets.push(Target { what, measured, wanted, aim: aim.to_owned() });
    };

    let types = [("bf16", "bf16"), ("8bit", "q8_0"), ("4bit", "q4_0-pure"), ("4bit", "q4_0")];
    for (weights, peer) in types {
        let ratio = decode(ours(weights), position) / decode(theirs(peer), position);
        add(format!("decode {weights} beside llama.cpp {peer}"), ratio, AtLeast(1.0, Times), "1.25 x");
    }
    for weights in ["bf16", "8bit", "4bit"] {
        let share = ours(weights).map_or(f64::NAN, |c| c.bus_shares(position).median);
        add(format!("decode {weights}, part of the bus"), share, AtLeast(0.9, Percent), "95 %");
    }
    let exact = results.find(Program::Iree, "bf16", Some("exact"));
    let ratio = decode(exact, position) / decode(ours("bf16"), position);
    add("decode bf16 exact beside native".to_owned(), ratio, AtLeast(0.9, Times), "1.0 x");

    let lengths: BTreeSet<usize> =
        results.contestants.iter().flat_map(|c| c.prefill.keys().copied()).collect();
    let rate =
        |c: Option<&Contestant>, tokens| c.map_or(f64::NAN, |c| Contestant::median(&c.prefill, tokens));
    for (weights, peer) in types {
        for &tokens in &lengths {
            let ratio = rate(ours(weights), tokens) / rate(theirs(peer), tokens);
            let what = format!("prefill of {tokens} {weights} beside llama.cpp {peer}");
            add(what, ratio, AtLeast(1.0, Times), "1.5 x");
        }
    }
    if let Some(&tokens) = lengths.last() {
        let ratio = rate(ours("bf16"), tokens) / rate(exact, tokens);
        add(format!("prefill of {tokens} bf16 native beside exact"), ratio, AtLeast(1.0, Times), "1.0 x");
        for weights in ["8bit", "4bit"] {
            let fast = results.find(Program::Iree, weights, Some("fast"));
            let ratio = rate(fast, tokens) / rate(ours(weights), tokens);
            let what = format!("prefill of {tokens} {weights} fast beside native");
            add(what, ratio, AtLeast(1.5, Times), "1.5 x");
            let share = ours(weights).map_or(f64::NAN, |c| results.peak_shares(c, tokens).median);
            let what = format!("prefill of {tokens} {weights}, part of the arithmetic peak");
            add(what, share, AtLeast(0.7, Percent), "70 %");
        }
    }

    // Our engine on llama.cpp's own files.
    let of_both = |theirs: &'a Contestant| {
        let precisions = ["native", "fast"].into_iter();
        precisions.filter_map(move |precision| {
            Some((results.find(Program::Iree, &theirs.weights, Some(precision))?, theirs))
        })
    };
    let same: Vec<(&Contestant, &Contestant)> = (results.contestants.iter())
        .filter(|c| c.program == Program::LlamaCpp && c.weights != "bf16")
        .flat_map(of_both)
        .collect();
    for &(own, theirs) in &same {
        let weights = format!("{} ({})", own.weights, own.precision.as_deref().unwrap_or_default());
        let ratio = decode(Some(own), position) / decode(Some(theirs), position);
        add(format!("decode of llama.cpp's {weights} file"), ratio, AtLeast(1.0, Times), "1.3 x");
        for &tokens in theirs.prefill.keys() {
            let ratio =
                Contestant::median(&own.prefill, tokens) / Contestant::median(&theirs.prefill, tokens);
            let what = format!("prefill of {tokens}, llama.cpp's {weights} file");
            add(what, ratio, AtLeast(1.0, Times), "1.3 x");
        }
    }

    let bf16 = ours("bf16");
    let slower = decode(bf16, position) / decode(bf16, 4096);
    let alone = bf16.map_or(f64::NAN, |c| {
        let bytes = |tokens: usize| c.weight_bytes + 2.0 * (tokens * results.kv_values) as f64;
        bytes(4096) / bytes(position)
    });
    add(
        format!("time of a token at 4096 beside {position}, bf16"),
        slower,
        AtMost(1.35, Times),
        &format!("{alone:.2} x, by the bytes of the cache in 16 bits"),
    );
    for (weights, sequences, least, aim) in [
        ("bf16", 8, 4.0, "7 x"),
        ("4bit", 8, 3.0, "6 x"),
        ("bf16", 16, 6.0, "12 x"),
        ("4bit", 16, 5.0, "10 x"),
    ] {
        let together = ours(weights).map_or(f64::NAN, |c| Contestant::median(&c.batch, sequences));
        let ratio = together / decode(ours(weights), position);
        let what = format!("{sequences} sequences together beside one, {weights}");
        add(what, ratio, AtLeast(least, Times), aim);
    }
    let native = same.iter().filter(|(own, _)| own.precision.as_deref() == Some("native"));
    let files = native.map(|(own, _)| own.weights.as_str());
    for weights in ["bf16", "8bit", "4bit"].into_iter().chain(files) {
        let ratio = ours(weights).map_or(f64::NAN, |c| {
            Spread::of(&c.private).median / (c.weight_bytes + c.unread_bytes + c.kv_bytes.unwrap_or(0.0))
        });
        let what = format!("private memory beside weights and cache, {weights}");
        add(what, ratio, AtMost(1.1, Times), "1.05 x");
    }
    for weights in ["bf16", "8bit", "4bit"] {
        let seconds = ours(weights).and_then(|c| c.cold_compile).unwrap_or(f64::NAN);
        add(format!("cold compile of all programs, {weights}"), seconds, AtMost(20.0, Seconds), "8 s");
    }
    for weights in ["bf16", "8bit", "4bit"] {
        let ratio =
            ours(weights).map_or(f64::NAN, |c| Spread::of(&c.load).median / Spread::of(&c.copy).median);
        add(format!("warm load beside a plain copy, {weights}"), ratio, AtMost(1.5, Times), "1.2 x");
    }
    targets
}

/// Each measurement in which another program is ahead of ours with the most similar weights.
fn faster(results: &Results) -> Vec<String> {
    let mut lines = Vec::new();
    for peer in results.contestants.iter().filter(|c| !c.ours()) {
        let weights = match peer.weights.as_str() {
            "q8_0" => "8bit",
            kind if kind.starts_with("q4_0") || kind.starts_with("4bit") => "4bit",
            _ => "bf16",
        };
        let of = |weights| results.find(Program::Iree, weights, Some("native"));
        let Some(ours) = of(peer.weights.as_str()).or_else(|| of(weights)) else { continue };
        for (theirs, own, what) in [
            (&peer.decode, &ours.decode, "decoding at"),
            (&peer.batch, &ours.batch, "decoding of sequences together, of"),
            (&peer.prefill, &ours.prefill, "prefill of"),
        ] {
            for &at in theirs.keys() {
                let ratio = Contestant::median(theirs, at) / Contestant::median(own, at);
                if ratio > 1.0 {
                    lines.push(format!("{}: {what} {at}: {ratio:.2} x {}", peer.name, ours.name));
                }
            }
        }
    }
    lines
}
