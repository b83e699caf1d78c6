INSERT INTO runs (run_id, group_id, node_id, name, policy_name, policy_version, policy_weights, policy_adapter, sampler,
    generation_source, environment_digest, evaluators, group_size, rewards, max_staleness, batch, max_ready, refill, max_refills,
    created_at, created_by, trace_id, status, prompts, complete, siblings, waiting, running, results, errors, cancelled_siblings,
    refills, late, sequence, accepted, trained, batches, trainer_step)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, 'open', 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0)
