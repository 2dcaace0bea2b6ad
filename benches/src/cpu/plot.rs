//! The plot: tokens per second by context length, batch size and type of weights.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use plotters::chart::SeriesLabelPosition;
use plotters::coord::ranged1d::{KeyPointHint, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::results::{Contestant, Program, Results};

const SIZE: (u32, u32) = (1200, 900);
const TITLE: (&str, u32) = ("sans-serif", 18);
const WORDS: (&str, u32) = ("sans-serif", 13);
/// The height of an axis relative to the highest value, which leaves room for the legend.
const ROOM: f64 = 1.3;

/// Draws the text of an SVG file.
pub(super) fn svg(results: &Results) -> Result<String> {
    let mut text = String::new();
    draw(results, &mut text).map_err(|error| anyhow!("drawing the plot: {error}"))?;
    Ok(text)
}

type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;
type Samples = BTreeMap<usize, Vec<f64>>;

fn draw(results: &Results, text: &mut String) -> Drawn {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title =
        format!("{} shapes on {}, {} threads", results.model, results.machine.processor, results.threads);
    let root = root.titled(&title, TITLE)?;
    let panels = root.split_evenly((2, 2));
    let position = results.position;
    lines(&panels[0], results, "decoding, by tokens in the context", &|c| c.decode.clone())?;
    lines(&panels[1], results, "decoding, by sequences together", &|c| together(c, position))?;
    bars(&panels[2], results, &format!("decoding at {position}"), &|c| {
        Contestant::median(&c.decode, position)
    })?;
    let longest = results.contestants.iter().filter_map(|c| c.prefill.keys().last()).max();
    if let Some(&tokens) = longest {
        bars(&panels[3], results, &format!("prefill of {tokens}"), &|c| {
            Contestant::median(&c.prefill, tokens)
        })?;
    }
    root.present()?;
    Ok(())
}

/// One sequence, and several.
fn together(contestant: &Contestant, position: usize) -> Samples {
    let mut all = contestant.batch.clone();
    if let (false, Some(one)) = (all.is_empty(), contestant.decode.get(&position)) {
        all.insert(1, one.clone());
    }
    all
}

fn color(program: Program) -> RGBColor {
    match program {
        Program::Iree => RGBColor(31, 99, 180),
        Program::Mlx => RGBColor(30, 140, 130),
        Program::LlamaCpp => RGBColor(214, 108, 30),
        Program::IkLlamaCpp => RGBColor(148, 62, 20),
        Program::OpenVino => RGBColor(0, 114, 170),
        Program::OnnxRuntime => RGBColor(120, 120, 40),
        Program::Candle => RGBColor(150, 90, 160),
        Program::MistralRs => RGBColor(60, 140, 110),
        Program::MlxLm => RGBColor(110, 110, 110),
    }
}

/// A line for each contestant with more than one point.
fn lines(
    panel: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    results: &Results,
    title: &str,
    of: &dyn Fn(&Contestant) -> Samples,
) -> Drawn {
    let drawn: Vec<(&Contestant, Vec<(f64, f64)>)> = results
        .contestants
        .iter()
        .map(|c| {
            let samples = of(c);
            (c, samples.keys().map(|&at| (at as f64, Contestant::median(&samples, at))).collect::<Vec<_>>())
        })
        .filter(|(_, points)| points.len() > 1)
        .collect();
    let mut ticks: Vec<f64> =
        drawn.iter().flat_map(|(_, points)| points.iter().map(|point| point.0)).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let (Some(&first), Some(&last)) = (ticks.first(), ticks.last()) else {
        return Ok(());
    };
    let most = drawn.iter().flat_map(|(_, points)| points.iter().map(|point| point.1)).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("tokens a second, {title}"), TITLE)
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(48)
        .build_cartesian_2d(Doublings { first, last, ticks }, 0.0..ROOM * most)?;
    chart.configure_mesh().disable_x_mesh().light_line_style(WHITE).label_style(WORDS).draw()?;
    for (index, (contestant, points)) in drawn.into_iter().enumerate() {
        let (color, mark) = (color(contestant.program), index % 4);
        let style = color.mix(1.0 - 0.18 * mark as f64).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.clone(), style).point_size(3 + mark as u32 / 2))?
            .label(contestant.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.7))
        .label_font(WORDS)
        .draw()?;
    Ok(())
}

/// A bar for each contestant with the measurement.
fn bars(
    panel: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    results: &Results,
    title: &str,
    of: &dyn Fn(&Contestant) -> f64,
) -> Drawn {
    let drawn: Vec<(&Contestant, f64)> =
        results.contestants.iter().map(|c| (c, of(c))).filter(|(_, value)| value.is_finite()).collect();
    let most = drawn.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    if most == 0.0 {
        return Ok(());
    }
    let count = drawn.len() as f64;
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("tokens a second, {title}"), TITLE)
        .margin(12)
        .x_label_area_size(28)
        .build_cartesian_2d(0.0..ROOM * most, 0.0..count)?;
    chart.configure_mesh().disable_mesh().disable_y_axis().label_style(WORDS).draw()?;
    for (index, (contestant, value)) in drawn.into_iter().enumerate() {
        let top = count - index as f64;
        let color = color(contestant.program);
        chart.draw_series([Rectangle::new(
            [(0.0, top - 0.12), (value, top - 0.88)],
            color.mix(0.5).filled(),
        )])?;
        let said = format!("{}: {value:.1}", contestant.name);
        chart.draw_series([Text::new(said, (0.01 * most, top - 0.35), WORDS)])?;
    }
    Ok(())
}

/// A log2 axis, with ticks at the points.
struct Doublings {
    first: f64,
    last: f64,
    ticks: Vec<f64>,
}

impl Ranged for Doublings {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        // A margin at both ends.
        let share = 0.03 + 0.94 * (value / self.first).log2() / (self.last / self.first).log2();
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.first..self.last
    }
}

impl ValueFormatter<f64> for Doublings {
    fn format_ext(&self, value: &f64) -> String {
        format!("{value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measured_contestant_is_in_the_plot() {
        let mut contestants = Vec::new();
        for (name, program) in [("mlxcel bf16 native", Program::Iree), ("llama.cpp q8_0", Program::LlamaCpp)]
        {
            let mut contestant = Contestant::new(name.to_owned(), program, "bf16", None);
            contestant.decode = BTreeMap::from([(128, vec![9.0]), (1024, vec![8.0])]);
            contestant.batch = BTreeMap::from([(8, vec![40.0])]);
            contestants.push(contestant);
        }
        let results = Results::example(contestants);
        let text = svg(&results).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        // In both line plots, and in the bars of decoding.
        assert_eq!(text.matches("mlxcel bf16 native").count(), 3, "{text}");
        assert!(text.contains("1024"), "{text}");
    }
}
