//! What `fsck` asks of a run: do its counts equal a recount, has each revision one end, are the log and the steps dense,
//! and do the entries count what the consumers say. Reads only; each finding names the record.

use std::collections::HashMap;

use esf_core::id::{PromptId, SiblingId};
use rusqlite::Connection;

use super::rows::{self, RunRow};
use crate::error::Result;
use crate::row::{Columns, each, every, first};
use crate::statements;

/// Checks every run.
pub(crate) fn check_all(db: &Connection, findings: &mut Vec<String>) -> Result<()> {
    for run in every(db, statements::ALL_RUNS, [], rows::run)? {
        counts(db, &run, findings)?;
        records(db, &run, findings)?;
        entries(db, &run, findings)?;
    }
    Ok(())
}

fn counts(db: &Connection, row: &RunRow, findings: &mut Vec<String>) -> Result<()> {
    let c = &row.run.counts;
    let kept = [
        ("prompts", c.prompts),
        ("complete", c.complete),
        ("siblings", c.siblings),
        ("waiting", c.waiting),
        ("running", c.running),
        ("results", c.results),
        ("errors", c.errors),
        ("cancelled_siblings", c.cancelled_siblings),
        ("refills", c.refills),
        ("late", c.late),
        ("the length of its log", c.sequence),
        ("accepted", c.accepted),
        ("trained", c.trained),
        ("batches", row.batches),
        ("sequence", c.sequence),
        ("the last prompt's index", c.prompts),
    ];
    let read = |columns: &mut Columns<'_>| kept.iter().map(|_| columns.count()).collect::<Result<Vec<_>>>();
    let counted = first(db, statements::RECOUNT_RUN, [row.number], read)?.unwrap_or_default();
    for ((name, kept), counted) in kept.iter().zip(counted) {
        if *kept != counted {
            findings.push(format!("{}: {name} is {kept} instead of {counted}", row.run.run_id));
        }
    }
    Ok(())
}

fn records(db: &Connection, row: &RunRow, findings: &mut Vec<String>) -> Result<()> {
    for id in every(db, statements::CHECK_SIBLINGS, [row.number], |c| c.id::<SiblingId>())? {
        findings.push(format!("{id}: its ends or trials do not fit its revision and status"));
    }
    for id in every(db, statements::CHECK_PROMPTS, [row.number], |c| c.id::<PromptId>())? {
        findings.push(format!("{id}: its siblings or its group event do not fit its status"));
    }
    for id in every(db, statements::CHECK_TRIALS, [row.number], |c| c.id::<SiblingId>())? {
        findings.push(format!("{id}: the steps of a trial are not dense or do not follow each other"));
    }
    for name in every(db, statements::CHECK_CONSUMERS, [row.number], |c| c.take::<String>())? {
        findings.push(format!("{}: the cursor of consumer {name:?} is beyond an open entry", row.run.run_id));
    }
    Ok(())
}

/// Compares what entries count of their consumers with what the consumers say.
fn entries(db: &Connection, row: &RunRow, findings: &mut Vec<String>) -> Result<()> {
    let mut members: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut kept: Vec<(u64, [u64; 2])> = Vec::new();
    let mut counted: HashMap<u64, [u64; 2]> = HashMap::new();
    each(db, statements::ALL_ENTRIES, [row.number], |columns| {
        let sequence = columns.count()?;
        if let Some(found) = columns.json::<Option<Vec<u64>>>()? {
            members.insert(sequence, found);
        }
        kept.push((sequence, [columns.count()?, columns.count()?]));
        let current: bool = columns.take()?;
        counted.entry(sequence).or_default()[0] += u64::from(!current);
        Ok(())
    })?;
    each(db, statements::USED_ENTRIES, [row.number], |columns| {
        let (sequence, trained): (u64, bool) = (columns.count()?, columns.take()?);
        let group = members.get(&sequence).map_or(&[][..], Vec::as_slice);
        for entry in group.iter().chain([&sequence]) {
            counted.entry(*entry).or_default()[usize::from(trained)] += 1;
        }
        Ok(())
    })?;
    for (sequence, kept) in kept {
        let counted = counted.get(&sequence).copied().unwrap_or_default();
        if kept != counted {
            let run = row.run.run_id;
            findings.push(format!(
                "{run}: entry {sequence} was dropped and trained on {kept:?} times instead of {counted:?}"
            ));
        }
    }
    Ok(())
}
