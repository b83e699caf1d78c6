//! What `fsck` asks of the graph: is the file sound, and does every record refer to something that is
//! there. Reads only; each finding names the record.

use esf_core::environment::Environment;
use esf_core::id::{AttemptId, EntryId, ExecId, GroupId, LeaseId, NodeId, TaskId};
use esf_core::policy::PolicyDocument;
use esf_core::record::LogicalState;
use esf_core::{EnvironmentDigest, PolicyDigest, StateId};
use rusqlite::Connection;

use crate::error::Result;
use crate::row::{Bytes, every, first};
use crate::{Graph, rollout, search, statements};

impl Graph {
    /// Everything that is wrong with the graph, in words; empty when it is sound.
    ///
    /// # Errors
    /// Failures of the database other than what is being looked for.
    pub fn check(&self) -> Result<Vec<String>> {
        self.read(|db| {
            let mut findings = sqlite(db)?;
            references(db, &mut findings)?;
            digests(db, &mut findings)?;
            search::check::check_all(db, &mut findings)?;
            rollout::check::check_all(db, &mut findings)?;
            let (count, last) = first(db, statements::CHECK_EVENTS, [], |c| Ok((c.count()?, c.count()?)))?
                .unwrap_or_default();
            if count != last {
                findings.push(format!("the event log has {count} events and ends at {last}"));
            }
            Ok(findings)
        })
    }
}

fn sqlite(db: &Connection) -> Result<Vec<String>> {
    let mut findings: Vec<String> = every(db, "PRAGMA integrity_check", [], |c| c.take())?;
    findings.retain(|finding| finding != "ok");
    findings.extend(every(db, "PRAGMA foreign_key_check", [], |c| {
        let (table, row, parent): (String, Option<i64>, String) = (c.take()?, c.take()?, c.take()?);
        Ok(format!("{table}: row {} refers to nothing in {parent}", row.unwrap_or_default()))
    })?);
    Ok(findings)
}

fn references(db: &Connection, findings: &mut Vec<String>) -> Result<()> {
    let mut look = |sql: &str, read: fn(&[u8]) -> String, what: &str| -> Result<()> {
        let bad: Vec<Vec<u8>> = every(db, sql, [], |c| c.take())?;
        findings.extend(bad.iter().map(|id| format!("{}: {what}", read(id))));
        Ok(())
    };
    look(statements::CHECK_CANONICAL, text::<GroupId>, "its canonical node is not a sealed node of its own")?;
    look(statements::CHECK_ROOTS, text::<NodeId>, "its root is not registered")?;
    look(statements::CHECK_BASES, text::<NodeId>, "the root it begins on is not registered")?;
    look(statements::CHECK_PARENTS, text::<NodeId>, "its parents do not fit it")?;
    look(statements::CHECK_PRUNED, text::<NodeId>, "it is kept, but a parent of it was pruned")?;
    look(statements::CHECK_PRODUCERS, text::<NodeId>, "the attempt that produced it does not fit it")?;
    look(statements::CHECK_LIVE, text::<AttemptId>, "it is live without a lease")?;
    look(statements::CHECK_LEASES, text::<LeaseId>, "it is held for an attempt that is not live")?;
    look(statements::CHECK_EXECS, text::<ExecId>, "it runs in an attempt that is not live")?;
    look(statements::CHECK_TAGS, text::<NodeId>, "its number of names is wrong")?;
    look(statements::CHECK_TASKS, text::<TaskId>, "its status does not fit its nodes and its entries")?;
    look(statements::CHECK_ENTRIES, text::<EntryId>, "it does not fit its task and its node")
}

fn text<T: Bytes + ToString>(bytes: &[u8]) -> String {
    T::read(bytes).map_or_else(|| format!("{} bytes instead of an id", bytes.len()), |id| id.to_string())
}

fn digests(db: &Connection, findings: &mut Vec<String>) -> Result<()> {
    let states = every(db, statements::ALL_STATES, [], |c| Ok((c.id::<StateId>()?, c.take::<String>()?)))?;
    for (id, json) in states {
        let state = serde_json::from_str(&json).ok().and_then(|value| LogicalState::new(&value).ok());
        if !state.is_some_and(|state| state.id() == id && state.text() == json) {
            findings.push(format!("the logical state {id} has other content"));
        }
    }
    let environments = every(db, statements::ALL_ENVIRONMENTS, [], |c| {
        Ok((c.id::<EnvironmentDigest>()?, c.take::<String>()?))
    })?;
    for (id, json) in environments {
        if !serde_json::from_str::<Environment>(&json).is_ok_and(|environment| environment.digest() == id) {
            findings.push(format!("the environment {id} has other content"));
        }
    }
    let policies =
        every(db, statements::ALL_POLICIES, [], |c| Ok((c.id::<PolicyDigest>()?, c.take::<String>()?)))?;
    for (id, toml) in policies {
        if !PolicyDocument::parse(&toml).is_ok_and(|policy| policy.digest() == id) {
            findings.push(format!("the policy {id} has other content"));
        }
    }
    Ok(())
}
