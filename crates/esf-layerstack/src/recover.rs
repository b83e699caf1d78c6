//! Recovery of what dead processes left in `staging/` and in `local.db`.
//! Invariant: what is prepared is finished, what is not is undone, and what a living process holds
//! locked is left alone; seals stop before the graph's word, which only the caller can get.

use std::os::fd::OwnedFd;

use rusqlite::{OptionalExtension, params};
use rustix::fs::FlockOperation;

use crate::error::Context;
use crate::local::{CarrierId, TxnId, pin_of};
use crate::stack::LayerStack;
use crate::staging::{For, abandon, clean_up, commit_carrier, move_to_carriers};
use crate::{Error, handle};

/// A row of a transaction that makes a carrier.
struct Row {
    carrier: CarrierId,
    prepared: Option<For>,
}

/// Finishes or undoes the imports, squashes, merges, conversions and collections of dead processes.
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
    let named = names.iter().filter_map(|name| TxnId::parse(std::str::from_utf8(name.as_bytes()).ok()?));
    for txn in rows.into_iter().chain(named) {
        // Looked up only now: who holds the directory, or finds it gone, sees the last word.
        match claim(stack, &txn.to_string())? {
            Claim::Held => {}
            Claim::Dead(directory) => settle(stack, txn, find(stack, txn)?, Some(&directory))?,
            Claim::Absent => settle(stack, txn, find(stack, txn)?, None)?,
        }
    }
    Ok(())
}

fn rows(stack: &LayerStack) -> Result<Vec<TxnId>, Error> {
    stack.inner.local.read(|db| {
        let mut statement = db.prepare_cached("SELECT txn FROM transactions WHERE kind <> 'seal'")?;
        let rows = statement.query_map([], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    })
}

fn find(stack: &LayerStack, txn: TxnId) -> Result<Option<Row>, Error> {
    stack.inner.local.read(|db| {
        let mut statement = db.prepare_cached(
            "SELECT carrier, state, root_id, attrs_id, layers FROM transactions WHERE txn = ?1",
        )?;
        let row = statement.query_row(params![txn], |row| {
            let prepared = match row.get::<_, String>(1)?.as_str() {
                "intent" => None,
                _ => {
                    let layers = parse_layers(&row.get::<_, String>(4)?);
                    let pin = row.get::<_, Option<[u8; 32]>>(2)?.zip(row.get::<_, Option<[u8; 32]>>(3)?);
                    match (pin, layers.first()) {
                        (Some((root, attrs)), _) => Some(For::Root(pin_of(root, attrs), layers)),
                        (None, Some(carrier)) => Some(For::Carrier(*carrier)),
                        (None, None) => None,
                    }
                }
            };
            Ok(Row { carrier: row.get(0)?, prepared })
        });
        Ok(row.optional()?)
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

fn settle(
    stack: &LayerStack,
    txn: TxnId,
    row: Option<Row>,
    directory: Option<&OwnedFd>,
) -> Result<(), Error> {
    match (row, directory) {
        (Some(Row { carrier, prepared: Some(made_for) }), Some(directory)) => {
            tracing::info!(%txn, "rolling a prepared carrier forward");
            move_to_carriers(stack, directory, carrier)?;
            commit_carrier(stack, txn, carrier, &made_for)?;
            clean_up(stack, txn)
        }
        // A power cut kept the removal of the directory and not the commit before it.
        (Some(Row { carrier, prepared: Some(made_for) }), None) => {
            match handle::stat_entry(&stack.inner.carriers, carrier.to_string().as_bytes()) {
                Ok(_) => commit_carrier(stack, txn, carrier, &made_for),
                Err(_) => abandon(stack, txn, false),
            }
        }
        (Some(Row { prepared: None, .. }), Some(_) | None) | (None, Some(_)) => {
            tracing::info!(%txn, "undoing an unfinished carrier");
            abandon(stack, txn, false)
        }
        (None, None) => Ok(()),
    }
}
