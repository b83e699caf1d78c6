INSERT INTO groups (group_id, name, canonical_node_id, generation, policy_digest, source,
                    default_environment, created_at, created_by, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
