SELECT r.number, r.run_id, r.group_id, r.node_id, r.name, r.policy_name, r.policy_version, r.policy_weights, r.policy_adapter, r.sampler,
       r.generation_source, r.environment_digest, r.evaluators, r.group_size, r.rewards, r.max_staleness, r.batch, r.max_ready,
       r.refill, r.max_refills, r.status, r.cancelled, r.prompts, r.complete, r.siblings, r.waiting, r.running, r.results, r.errors,
       r.cancelled_siblings, r.refills, r.late, r.sequence, r.accepted, r.trained, r.trainer_step, r.created_at, r.created_by,
       r.trace_id, r.batches
FROM runs r WHERE r.number = $1
