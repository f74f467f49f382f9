//! Plots as inline SVG, all over the same time axis.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::coverage::fault_windows;
use crate::history::{History, Mark};

use super::escape;
use super::series::{End, Point, Series};

const WIDTH: f64 = 1080.0;
/// Room for the names of faults, which are wider than numbers.
const LEFT: f64 = 118.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;
const HEIGHT: f64 = 180.0;
const LANE: f64 = 20.0;

/// One fault's time, with the class of its colour.
pub struct Shade {
    pub name: String,
    pub begin: f64,
    pub end: f64,
    pub colour: usize,
    pub title: String,
}

/// Colours that the page defines, `f0` and on.
pub const COLOURS: usize = 10;

/// All faults of a run, in order.
pub fn shades(history: &History) -> Vec<Shade> {
    let spans = fault_windows(history);
    let names: BTreeMap<&str, usize> = spans
        .iter()
        .map(|(fault, _)| fault.fault.as_str())
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .zip((0..COLOURS).cycle())
        .collect();
    spans
        .iter()
        .map(|(fault, span)| {
            let (begin, end) = (span.begin.seconds(), span.end.seconds());
            let nodes: Vec<String> = fault.targets.iter().map(u32::to_string).collect();
            let nodes = match nodes.is_empty() {
                true => String::new(),
                false => format!(" on {}", nodes.join(", ")),
            };
            Shade {
                name: fault.fault.clone(),
                begin,
                end,
                colour: names.get(fault.fault.as_str()).copied().unwrap_or(0),
                title: format!(
                    "{}{nodes}, {begin:.1}..{end:.1} s {}",
                    fault.fault, fault.detail
                ),
            }
        })
        .collect()
}

/// How values become heights.
#[derive(Clone, Copy)]
enum Scale {
    Linear { top: f64 },
    Log { bottom: f64, top: f64 },
}

struct Plot<'s> {
    svg: String,
    seconds: f64,
    scale: Scale,
    height: f64,
    series: &'s Series,
}

impl<'s> Plot<'s> {
    fn new(series: &'s Series, shades: &[Shade], scale: Scale, unit: &str, name: &str) -> Plot<'s> {
        let mut plot = Plot {
            svg: String::new(),
            seconds: series.seconds,
            scale,
            height: HEIGHT,
            series,
        };
        plot.open(name);
        let area = HEIGHT - TOP - BOTTOM;
        for shade in shades {
            let (x, end) = (plot.x(shade.begin), plot.x(shade.end));
            let width = (end - x).max(1.5);
            let _ = write!(
                plot.svg,
                r#"<rect class="shade f{}" x="{x:.1}" y="{TOP}" width="{width:.1}" height="{area}"><title>{}</title></rect>"#,
                shade.colour,
                escape(&shade.title)
            );
        }
        for value in plot.ticks() {
            let y = plot.y(value);
            let _ = write!(
                plot.svg,
                r#"<path class="grid" d="M{LEFT} {y:.1}H{:.1}"/><text class="axis" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 3.5,
                label(value, unit)
            );
        }
        plot.time_axis();
        plot
    }

    fn open(&mut self, name: &str) {
        let _ = write!(
            self.svg,
            r#"<svg viewBox="0 0 {WIDTH} {}" role="img" aria-label="{}">"#,
            self.height,
            escape(name)
        );
    }

    fn time_axis(&mut self) {
        let y = self.height - 8.0;
        let step = step(self.seconds / 10.0);
        let mut at = 0.0;
        while at <= self.seconds {
            let x = self.x(at);
            let _ = write!(
                self.svg,
                r#"<text class="axis" x="{x:.1}" y="{y:.1}" text-anchor="middle">{at} s</text>"#
            );
            at += step;
        }
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + (at / self.seconds).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear { top } => value / top,
            Scale::Log { bottom, top } => (value.max(bottom) / bottom).ln() / (top / bottom).ln(),
        };
        self.height - BOTTOM - share.clamp(0.0, 1.0) * (self.height - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear { top } => {
                let step = step(top / 4.0);
                (0..)
                    .map(|times| f64::from(times) * step)
                    .take_while(|value| *value <= top)
                    .collect()
            }
            Scale::Log { bottom, top } => {
                std::iter::successors(Some(bottom), |value| Some(value * 10.0))
                    .take_while(|value| *value <= top * 1.01)
                    .collect()
            }
        }
    }

    /// A line through the middles of the buckets; it breaks where there is nothing.
    fn line(&mut self, class: &str, values: impl Iterator<Item = Option<f64>>) {
        let width = self.series.width;
        let mut path = String::new();
        let mut drawing = false;
        for (bucket, value) in values.enumerate() {
            let Some(value) = value else {
                drawing = false;
                continue;
            };
            let (x, y) = (self.x((bucket as f64 + 0.5) * width), self.y(value));
            let _ = write!(path, "{}{x:.1} {y:.1}", if drawing { 'L' } else { 'M' });
            drawing = true;
        }
        let _ = write!(self.svg, r#"<path class="line {class}" d="{path}"/>"#);
    }

    fn area(&mut self, class: &str, values: &[f64]) {
        let width = self.series.width;
        let base = self.y(0.0);
        let mut path = format!("M{:.1} {base:.1}", self.x(0.0));
        for (bucket, value) in values.iter().enumerate() {
            let (x, y) = (self.x((bucket as f64 + 0.5) * width), self.y(*value));
            let _ = write!(path, "L{x:.1} {y:.1}");
        }
        let _ = write!(path, "L{:.1} {base:.1}Z", self.x(self.seconds));
        let _ = write!(self.svg, r#"<path class="area {class}" d="{path}"/>"#);
    }

    fn points(&mut self, points: &[Point]) {
        // Those that failed lie on top.
        for (end, class) in [
            (End::Ok, "ok"),
            (End::Failed, "failed"),
            (End::Unknown, "unknown"),
        ] {
            let mut path = String::new();
            for point in points.iter().filter(|point| point.end == end) {
                let (x, y) = (self.x(point.at), self.y(point.seconds));
                let _ = write!(path, "M{x:.1} {y:.1}h0");
            }
            let _ = write!(self.svg, r#"<path class="dots {class}" d="{path}"/>"#);
        }
    }

    fn close(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }
}

/// The fault timeline: a lane for each fault.
pub fn faults(history: &History, series: &Series, shades: &[Shade]) -> String {
    let mut lanes: BTreeMap<&str, Vec<&Shade>> = BTreeMap::new();
    for shade in shades {
        lanes.entry(&shade.name).or_default().push(shade);
    }
    let mut plot = Plot {
        svg: String::new(),
        seconds: series.seconds,
        scale: Scale::Linear { top: 1.0 },
        height: lanes.len() as f64 * LANE + BOTTOM + TOP,
        series,
    };
    plot.open("Faults over time");
    for mark in &history.marks {
        let (at, name) = match mark {
            Mark::Healed { at } => (*at, "healed"),
            Mark::LoadEnd { at } => (*at, "load ends"),
            _ => continue,
        };
        let x = plot.x(at.seconds());
        let bottom = plot.height - BOTTOM + 4.0;
        let _ = write!(
            plot.svg,
            r#"<path class="mark" d="M{x:.1} 2V{bottom:.1}"><title>{name} at {:.1} s</title></path>"#,
            at.seconds()
        );
    }
    for (lane, (name, shades)) in lanes.iter().enumerate() {
        let y = TOP + lane as f64 * LANE;
        let _ = write!(
            plot.svg,
            r#"<path class="grid" d="M{LEFT} {:.1}H{:.1}"/>"#,
            y + LANE,
            WIDTH - RIGHT
        );
        for shade in shades {
            let (x, end) = (plot.x(shade.begin), plot.x(shade.end));
            let _ = write!(
                plot.svg,
                r#"<rect class="bar f{}" x="{x:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="2"><title>{}</title></rect>"#,
                shade.colour,
                y + 4.0,
                (end - x).max(2.5),
                LANE - 7.0,
                escape(&shade.title)
            );
        }
        let _ = write!(
            plot.svg,
            r#"<text class="lane" x="{:.1}" y="{:.1}">{} <tspan class="times">{}</tspan></text>"#,
            4.0,
            y + 14.0,
            escape(name),
            shades.len()
        );
    }
    plot.time_axis();
    plot.close()
}

pub fn latency(series: &Series, shades: &[Shade]) -> String {
    let longest = series.points.iter().map(|point| point.seconds);
    let top = decade_above(longest.fold(0.01, f64::max));
    let shortest = series.points.iter().map(|point| point.seconds);
    let bottom = decade_above(shortest.fold(1.0, f64::min).max(1e-5)) / 10.0;
    let scale = Scale::Log { bottom, top };
    let mut plot = Plot::new(series, shades, scale, "s", "Write latency");
    plot.points(&series.points);
    plot.line("p50", series.p50.iter().copied());
    plot.line("p99", series.p99.iter().copied());
    plot.close()
}

pub fn throughput(series: &Series, shades: &[Shade]) -> String {
    // A consumer that begins anew reads everything at once and would flatten the rest: such bursts
    // are cut off at the top.
    let mut read: Vec<f64> = series.read.clone();
    read.sort_unstable_by(f64::total_cmp);
    let usual = read.get(read.len() * 9 / 10).copied().unwrap_or(0.0);
    let writes = series.acked.iter().chain(&series.refused).copied();
    let usual = writes.fold(usual, f64::max);
    let scale = linear(usual);
    let mut plot = Plot::new(series, shades, scale, "", "Records per second");
    plot.area("acked", &series.acked);
    plot.line("read", series.read.iter().copied().map(Some));
    plot.line("refused", series.refused.iter().copied().map(Some));
    plot.close()
}

pub fn unseen(series: &Series, shades: &[Shade]) -> String {
    let scale = linear(series.unseen.iter().copied().fold(0.0, f64::max));
    let mut plot = Plot::new(series, shades, scale, "", "Acknowledged and not yet read");
    plot.area("unseen", &series.unseen);
    plot.close()
}

pub fn lag(series: &Series, shades: &[Shade]) -> String {
    let scale = linear(series.lag.iter().flatten().copied().fold(0.0, f64::max));
    let mut plot = Plot::new(series, shades, scale, "", "Consumer lag in records");
    plot.line("lag", series.lag.iter().copied());
    plot.close()
}

fn linear(most: f64) -> Scale {
    Scale::Linear {
        top: (most * 1.1).max(1.0),
    }
}

fn decade_above(value: f64) -> f64 {
    10f64.powf(value.log10().ceil())
}

/// A round step not below `least`.
fn step(least: f64) -> f64 {
    let decade = 10f64.powf(least.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let round = steps.iter().map(|times| times * decade);
    let step = round.into_iter().find(|step| *step >= least * 0.999);
    step.unwrap_or(least)
        .max(if least >= 0.5 { 1.0 } else { 0.0 })
}

fn label(value: f64, unit: &str) -> String {
    match unit {
        "s" if value < 0.000_999 => format!("{:.0} µs", value * 1e6),
        "s" if value < 0.999 => format!("{:.0} ms", value * 1e3),
        "s" => format!("{value:.0} s"),
        _ if value >= 10_000.0 => format!("{:.0}k", value / 1e3),
        _ if value >= 1_000.0 => format!("{:.1}k", value / 1e3),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}
