//! What a trainer asks for: batches under a lease, acknowledgements, and going back. At-least-once is the graph's; a
//! consumer that dies before its acknowledgement is delivered the same entries again when the lease is over.

use esf_core::Problem;
use esf_core::ops::rollout::{Ack, Consume, HoldBatch, Reopen};
use esf_core::rollout::Unit;
use serde_json::json;

use super::{refused, run, show};
use crate::args::{self, UnitArg};
use crate::context::Context;
use crate::output::Reply;

pub(super) fn consume(context: &Context, arguments: &args::RolloutConsume) -> Result<Reply, Problem> {
    let store = context.open()?;
    let command = Consume {
        run_id: run(&store, &arguments.run)?.run_id,
        consumer: arguments.consumer.clone(),
        unit: arguments.unit.map(|unit| match unit {
            UnitArg::Sibling => Unit::Sibling,
            UnitArg::Group => Unit::Group,
        }),
        usable_only: arguments.usable_only.then_some(true),
        max: arguments.max,
        lease_ms: arguments.lease.0,
    };
    let batch = store.graph().consume(&context.meta("")?, command).map_err(refused)?;
    if batch.drained {
        eprintln!("esf: nothing is left for {}, and the run takes no more work", batch.consumer);
    }
    Ok(show::batch(&batch))
}

pub(super) fn ack(context: &Context, arguments: &args::RolloutAck) -> Result<Reply, Problem> {
    let store = context.open()?;
    let command = Ack {
        run_id: run(&store, &arguments.run)?.run_id,
        consumer: arguments.consumer.clone(),
        batch: arguments.batch,
        sequences: arguments.sequences.clone(),
        filtered: arguments.filtered.clone(),
        trainer_step: arguments.trainer_step,
    };
    let acked = store.graph().ack(&context.meta("")?, command).map_err(refused)?;
    Ok(show::fields(json!(acked), "acked"))
}

pub(super) fn hold(context: &Context, arguments: &args::RolloutHold) -> Result<Reply, Problem> {
    let store = context.open()?;
    let command = HoldBatch {
        run_id: run(&store, &arguments.run)?.run_id,
        consumer: arguments.consumer.clone(),
        batch: arguments.batch,
        lease_ms: if arguments.release { 0 } else { arguments.lease.0 },
    };
    let entries = store.graph().hold_batch(&context.meta("")?, command).map_err(refused)?;
    Ok(show::fields(json!({ "batch": arguments.batch, "entries": entries }), "held"))
}

pub(super) fn reopen(context: &Context, arguments: &args::RolloutReopen) -> Result<Reply, Problem> {
    let store = context.open()?;
    let command = Reopen {
        run_id: run(&store, &arguments.run)?.run_id,
        consumer: arguments.consumer.clone(),
        after_step: arguments.after,
    };
    let reopened = store.graph().reopen(&context.meta("")?, command).map_err(refused)?;
    Ok(show::fields(json!(reopened), "reopened"))
}
