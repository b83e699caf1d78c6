//! Recovery of what dead processes left in `staging/` and in `local.db`.
//! Invariant: what is prepared is finished, what is not is undone, and what a living process holds
//! locked is left alone; seals stop before the graph's word, which only the caller can get.

use std::os::fd::OwnedFd;

use esf_core::manifest::RootPin;
use rustix::fs::FlockOperation;

use crate::error::Context;
use crate::local::{CarrierId, TxnId, pin_of};
use crate::stack::LayerStack;
use crate::staging::{abandon, clean_up, commit_carrier, move_to_carriers};
use crate::{Error, handle};

/// A row of a transaction that makes a carrier.
struct Row {
    txn: TxnId,
    carrier: CarrierId,
    prepared: Option<(RootPin, Vec<CarrierId>)>,
}

/// Finishes or undoes the imports, squashes, merges and collections of dead processes.
pub(crate) fn transactions(stack: &LayerStack) -> Result<(), Error> {
    stack.sweep()?;
    let names = handle::list(&stack.inner.staging).at("list", b"staging")?;
    let rows = rows(stack)?;
    if stack.inner.trash.is_filled() {
        stack.inner.trash.wake();
    }
    if names.is_empty() && rows.is_empty() {
        return Ok(());
    }
    for row in &rows {
        let name = row.txn.to_string();
        match claim(stack, &name)? {
            Claim::Held => {}
            Claim::Dead(directory) => settle(stack, row, Some(&directory))?,
            Claim::Absent => settle(stack, row, None)?,
        }
    }
    for name in names {
        let text = String::from_utf8_lossy(name.as_bytes()).into_owned();
        let Some(txn) = TxnId::parse(&text) else { continue };
        if rows.iter().any(|row| row.txn == txn) {
            continue;
        }
        if let Claim::Dead(_directory) = claim(stack, &text)? {
            // Its row may have been written since the rows were read; a living maker holds the lock.
            abandon(stack, txn, false)?;
        }
    }
    Ok(())
}

fn rows(stack: &LayerStack) -> Result<Vec<Row>, Error> {
    stack.inner.local.read(|db| {
        let mut statement = db.prepare(
            "SELECT txn, carrier, state, root_id, attrs_id, layers FROM transactions WHERE kind <> 'seal'",
        )?;
        let rows = statement.query_map([], |row| {
            let prepared = match row.get::<_, String>(2)?.as_str() {
                "intent" => None,
                _ => Some((pin_of(row.get(3)?, row.get(4)?), parse_layers(&row.get::<_, String>(5)?))),
            };
            Ok(Row { txn: row.get(0)?, carrier: row.get(1)?, prepared })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    })
}

/// Reads the `layers` column.
pub(crate) fn parse_layers(text: &str) -> Vec<CarrierId> {
    text.split(',').filter_map(CarrierId::parse).collect()
}

enum Claim {
    /// A living process has it.
    Held,
    /// Nobody has it; now we do, until the descriptor is closed.
    Dead(OwnedFd),
    /// There is no such directory.
    Absent,
}

fn claim(stack: &LayerStack, name: &str) -> Result<Claim, Error> {
    let directory = match handle::open_child(&stack.inner.staging, name.as_bytes()) {
        Ok(directory) => directory,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Claim::Absent),
        Err(error) => return Err(error).at("open", b"staging"),
    };
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Claim::Dead(directory)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(Claim::Held),
        Err(error) => Err(error).at("lock", b"staging"),
    }
}

fn settle(stack: &LayerStack, row: &Row, directory: Option<&OwnedFd>) -> Result<(), Error> {
    match (&row.prepared, directory) {
        (Some((pin, layers)), Some(directory)) => {
            tracing::info!(txn = %row.txn, "rolling a prepared carrier forward");
            move_to_carriers(stack, directory, row.carrier)?;
            commit_carrier(stack, row.txn, row.carrier, pin, layers)?;
            clean_up(stack, row.txn)
        }
        // Another process has just finished it, or a power cut kept the removal and not the commit.
        (Some((pin, layers)), None) => {
            let carrier = row.carrier.to_string();
            match handle::stat_entry(&stack.inner.carriers, carrier.as_bytes()) {
                Ok(_) => commit_carrier(stack, row.txn, row.carrier, pin, layers),
                Err(_) => abandon(stack, row.txn, false),
            }
        }
        (None, Some(_) | None) => {
            tracing::info!(txn = %row.txn, "undoing an unfinished carrier");
            abandon(stack, row.txn, false)
        }
    }
}
