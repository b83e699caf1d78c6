UPDATE nodes
SET status = $1, root_id = $2, attrs_id = $3, state_id = $4, attempt_id = $5, message = $6, result = $7,
    provenance = $8, changed = $9, merge = $10, statement_digest = $11, sealed_at = $12, pruned_at = $13
WHERE node_id = $14 AND status = $15
