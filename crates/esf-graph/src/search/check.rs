//! What `fsck` asks of a search: are its counters and statistics those that its facts make. Nothing is taken on
//! trust: visits, visits in flight, values and questions are counted anew from the rollouts.
//! Where equal states are one position, Q of a position lags behind a child that was visited by another way, so
//! there only the counters are compared, and that what is held to be proven is.

use std::collections::HashMap;

use esf_core::id::SearchId;
use esf_core::search::config::Transpositions;
use esf_core::search::{EdgeStats, PositionNumber, PositionStats, RolloutStatus, Stage, rules, visit};
use rusqlite::Connection;

use super::reads::walk;
use super::rows::{self, PositionRow, SearchRow};
use super::session;
use crate::error::Result;
use crate::row::{each, every, first};
use crate::{Graph, statements};

/// At most so many findings about one search.
const MOST: usize = 100;

impl Graph {
    /// Everything in which a search differs from what its facts make of it, in words; empty when it is sound.
    ///
    /// # Errors
    /// `NotFound`, and failures of the database.
    pub fn check_search(&self, search: SearchId) -> Result<Vec<String>> {
        self.read(|db| check(db, &session::search(db, search)?))
    }
}

/// Checks every search.
pub(crate) fn check_all(db: &Connection, findings: &mut Vec<String>) -> Result<()> {
    for search in every(db, statements::ALL_SEARCHES, [], rows::search)? {
        findings.extend(check(db, &search)?);
    }
    Ok(())
}

/// What the rollouts of a search come to.
#[derive(Default)]
struct Counted {
    selected: u64,
    accepted: u64,
    void: u64,
    cost: f64,
    best: Option<f64>,
    /// Visits and visits in flight by edge.
    edges: HashMap<u64, (u64, u32)>,
    asking: HashMap<PositionNumber, u32>,
    gaps: u64,
}

fn check(db: &Connection, search: &SearchRow) -> Result<Vec<String>> {
    let counted = count(db, search)?;
    let mut findings = Findings { search, all: Vec::new() };
    let record = &search.search;
    findings.same("selected", record.selected, counted.selected);
    findings.same("accepted", record.accepted, counted.accepted);
    findings.same("void", record.void, counted.void);
    findings.same("gaps in ordinals", 0, counted.gaps);
    if (record.cost - counted.cost).abs() > 1e-9 * counted.cost.abs().max(1.0) {
        findings.say(format!("cost is {} instead of {}", record.cost, counted.cost));
    }
    if search.best != counted.best {
        findings.say(format!("best is {:?} instead of {:?}", search.best, counted.best));
    }
    let ended = first(db, statements::CHECK_ENDED, [search.number], |columns| {
        Ok([columns.count()?, columns.count()?, columns.count()?])
    })?;
    if ended.is_some_and(|[count, distinct, next]| count != distinct || count != next) {
        findings.say("the order in which rollouts ended has gaps".to_owned());
    }
    let mut seen = Seen::default();
    let mut values = values(db, search)?;
    walk(db, search.number, |row| {
        let stats = values.of(row.stats.number, &row.stats)?;
        look(db, search, &counted, &row, &stats, &mut seen, &mut findings)
    })?;
    findings.same("positions", record.positions, seen.positions);
    findings.same("expanded", search.expanded, seen.expanded);
    findings.same("edges", record.edges, seen.edges);
    findings.same("edges that rollouts go through", seen.used, counted.edges.len() as u64);
    Ok(findings.all)
}

struct Findings<'a> {
    search: &'a SearchRow,
    all: Vec<String>,
}

impl Findings<'_> {
    fn say(&mut self, what: String) {
        if self.all.len() < MOST {
            self.all.push(format!("{}: {what}", self.search.search.search_id));
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: impl std::fmt::Display, found: T, expected: T) {
        if found != expected {
            self.say(format!("{what}: {found:?} instead of {expected:?}"));
        }
    }
}

#[derive(Default)]
struct Seen {
    positions: u64,
    expanded: u64,
    edges: u64,
    used: u64,
}

fn count(db: &Connection, search: &SearchRow) -> Result<Counted> {
    let config = &search.search.config;
    let mover = session::position(db, search.search.root)?.stats.to_move;
    let mut counted = Counted::default();
    each(db, statements::CHECK_ROLLOUTS, [search.number], |columns| {
        let ordinal = columns.count()?;
        let steps: Vec<u64> = columns.json()?;
        let leaf = PositionNumber(columns.count()?);
        let (stage, status) = (columns.word(Stage::parse)?, columns.word(RolloutStatus::parse)?);
        let value = columns.values()?;
        counted.gaps += u64::from(ordinal != counted.selected);
        counted.selected += 1;
        match status {
            RolloutStatus::Void => counted.void += 1,
            RolloutStatus::Accepted => {
                counted.accepted += 1;
                counted.cost += columns.take::<f64>()?;
                steps.iter().for_each(|edge| counted.edges.entry(*edge).or_default().0 += 1);
                if !value.is_empty() {
                    let worth = rules::worth(config, mover, &value);
                    counted.best = Some(counted.best.map_or(worth, |best| best.max(worth)));
                }
            }
            RolloutStatus::Selected => {
                steps.iter().for_each(|edge| counted.edges.entry(*edge).or_default().1 += 1);
                if stage == Stage::Expand || (stage == Stage::Revisit && steps.is_empty()) {
                    *counted.asking.entry(leaf).or_default() += 1;
                }
            }
        }
        Ok(())
    })?;
    Ok(counted)
}

/// The accepted values of a search, by position.
struct Accepted<'a> {
    search: &'a SearchRow,
    /// The position and the value, of all, in the order in which they were accepted for a position.
    values: std::iter::Peekable<std::vec::IntoIter<(u64, Vec<f64>)>>,
}

fn values<'a>(db: &Connection, search: &'a SearchRow) -> Result<Accepted<'a>> {
    let values = every(db, statements::CHECK_VALUES, [search.number], |columns| {
        Ok((columns.count()?, columns.values()?))
    })?;
    Ok(Accepted { search, values: values.into_iter().peekable() })
}

impl Accepted<'_> {
    /// `stats` with the values that were accepted for the position `number` instead of those it has.
    fn of(&mut self, number: PositionNumber, stats: &PositionStats) -> Result<PositionStats> {
        let mut anew = PositionStats { values: 0, value: Vec::new(), ..stats.clone() };
        while let Some((_, value)) = self.values.next_if(|(reached, _)| *reached <= number.0) {
            visit::accept_value(&self.search.search.config, &mut anew, &value);
        }
        Ok(anew)
    }
}

fn look(
    db: &Connection,
    search: &SearchRow,
    counted: &Counted,
    row: &PositionRow,
    anew: &PositionStats,
    seen: &mut Seen,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let (config, stats) = (&search.search.config, &row.stats);
    let of = |what: &str| format!("{what} of position {}", stats.number.0);
    let mut edges = session::edges(db, stats.number)?;
    seen.positions += 1;
    seen.expanded += u64::from(!edges.is_empty());
    seen.edges += edges.len() as u64;
    findings.same(of("edges"), row.edge_count as usize, edges.len());
    findings.same(of("asking"), stats.asking, counted.asking.get(&stats.number).copied().unwrap_or(0));
    findings.same(of("values"), stats.values, anew.values);
    findings.same(of("value"), &stats.value, &anew.value);
    for (ordinal, edge) in (0..).zip(&mut edges) {
        let (visits, in_flight) = counted.edges.get(&edge.number.0).copied().unwrap_or_default();
        seen.used += u64::from(counted.edges.contains_key(&edge.number.0));
        let of = |what: &str| format!("{what} of edge {}", edge.number.0);
        findings.same(of("ordinal"), edge.ordinal, ordinal);
        findings.same(of("visits"), edge.visits, visits);
        findings.same(of("visits in flight"), edge.in_flight, in_flight);
        edge.visits = visits;
        child(db, row, edge, findings)?;
    }
    let mut anew = anew.clone();
    visit::recompute(config, &mut anew, &edges);
    findings.same(of("visits"), stats.visits, anew.visits);
    if config.transpositions == Transpositions::Off {
        findings.same(of("mean"), &stats.mean, &anew.mean);
        findings.same(of("proven value"), &stats.proven, &anew.proven);
    } else if stats.proven.is_some() {
        findings.same(of("proof"), true, anew.proven.is_some());
    }
    Ok(())
}

fn child(db: &Connection, row: &PositionRow, edge: &EdgeStats, findings: &mut Findings<'_>) -> Result<()> {
    let of = |what: &str| format!("{what} of the child of edge {}", edge.number.0);
    let Some(number) = edge.child else {
        findings.same(of("visits"), edge.child_visits, 0);
        return Ok(());
    };
    let child = session::position(db, number)?;
    findings.same(of("search"), child.search, row.search);
    findings.same(of("visits"), edge.child_visits, child.stats.visits);
    findings.same(of("mean"), &edge.child_mean, &child.stats.mean);
    findings.same(of("proven value"), &edge.child_proven, &child.stats.proven);
    findings.same(of("level above its parent's"), child.level > row.level, true);
    findings.same(of("depth"), child.stats.depth <= row.stats.depth + 1, true);
    Ok(())
}
