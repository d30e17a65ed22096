//! What was found.

use postlink_measure::ratio::{Ratio, differences, percent};
use postlink_measure::series::{Limits, Series};
use postlink_measure::{Luck, Measure, Verdict};

use super::lab::{Program, Workload};
use super::layouts::COMPARED;

/// Everything that tables and files are made of.
pub struct Results<'a> {
    /// A, B, layouts of A.
    pub programs: &'a [Program],
    /// What they did.
    pub workloads: Vec<Found<'a>>,
    /// What decides.
    pub by: Measure,
    /// When measuring was to end.
    pub limits: &'a Limits,
    /// All workloads together, if there are several.
    pub mean: Option<Ratio>,
    /// Why there are no hardware counters.
    pub no_counters: Option<String>,
}

/// What one workload found.
pub struct Found<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its runs.
    pub series: &'a Series,
    /// B compared with A by each measure that both have.
    pub ratios: Vec<(Measure, Ratio)>,
    /// How far layouts of A scatter.
    pub luck: Option<Luck>,
}

impl Found<'_> {
    /// B compared with A.
    pub fn ratio(&self, by: Measure) -> Option<&Ratio> {
        let found = self.ratios.iter().find(|(measure, _)| *measure == by);
        found.map(|(_, ratio)| ratio)
    }
}

impl<'a> Results<'a> {
    /// From what was measured; `series` may be empty.
    pub fn new(
        programs: &'a [Program],
        workloads: &'a [Workload],
        series: &'a [Series],
        limits: &'a Limits,
        no_counters: Option<String>,
    ) -> Results<'a> {
        let by = limits.by;
        let found = workloads.iter().zip(series).map(|(workload, series)| {
            let ratio = |measure| Some((measure, series.ratio(0, 1, measure)?));
            Found {
                name: &workload.name,
                series,
                ratios: Measure::all().filter_map(ratio).collect(),
                luck: luck(series, programs.len(), by),
            }
        });
        let mean = match series.len() {
            0 | 1 => None,
            _ => {
                let each = series
                    .iter()
                    .map(|series| differences(series.pairs(0, 1, by)));
                Ratio::geometric_mean(&each.collect::<Vec<_>>())
            }
        };
        Results {
            programs,
            workloads: found.collect(),
            by,
            limits,
            mean,
            no_counters,
        }
    }

    /// Whether anything can be compared.
    pub fn has_pairs(&self) -> bool {
        self.workloads.iter().any(|found| !found.ratios.is_empty())
    }

    /// What the verdict rests on: the only workload, or the mean of all.
    pub fn ratio(&self) -> Option<&Ratio> {
        match &self.workloads[..] {
            [one] => one.ratio(self.by),
            _ => self.mean.as_ref(),
        }
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.ratio().map_or(Verdict::NoDifference, Ratio::verdict)
    }

    /// The one sentence.
    pub fn sentence(&self) -> Option<String> {
        let ratio = self.ratio()?;
        let what = match self.workloads.len() {
            1 => self.by.name().to_owned(),
            n => format!("{} in the geometric mean of {n} workloads", self.by.name()),
        };
        let label = self.programs.get(1).map_or("B", |program| &program.label);
        Some(ratio.sentence(label, &what))
    }

    /// Layout luck of a workload beside its gain, in words.
    pub fn luck_words(&self, found: &Found<'_>) -> Option<String> {
        let (luck, ratio) = (found.luck.as_ref()?, found.ratio(self.by)?);
        let (low, high) = luck.range();
        let beside = if luck.may_be(ratio.estimate) {
            "luck alone may do as much as the change that was measured"
        } else {
            "the change that was measured is more than twice that"
        };
        Some(format!(
            "{} layouts of {} that differ in nothing that matters scatter by {:.2} % (standard deviation; {} to {}): {beside}",
            luck.of.len(),
            self.programs.first().map_or("A", |program| &program.label),
            luck.deviation * 100.0,
            percent(low),
            percent(high),
        ))
    }
}

/// The layouts, without the programs that are compared.
fn luck(series: &Series, programs: usize, by: Measure) -> Option<Luck> {
    if programs <= COMPARED {
        return None;
    }
    let rounds = series.rounds.iter().map(|round| {
        let layouts = round.iter().skip(COMPARED);
        layouts.map(|run| by.of(run).unwrap_or(0.0)).collect()
    });
    Luck::of(&rounds.collect::<Vec<Vec<f64>>>())
}
